"""Pure functions that make up the objective; `rljax.algorithms.registry` finds each by the name that a config gives."""
