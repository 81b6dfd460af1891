"""A YAML file of ROLL's, agentic or RLVR, as it is; several with commas between them are layers, the last on top.

    python -m rljax.main --config=roll:agent_val_frozen_lake_async.yaml --config.max_steps=50

The same as --config=FILE.yaml, for a file that is not told by its keys. docs/from_roll.md has each key and ours.
"""

from rljax.config.fields import ConfigError
from rljax.config.importers.translate import ROLL, translate
from rljax.config.importers.translation import Translation


def get_config(arg: str = "") -> Translation:
    if not arg:
        raise ConfigError("names no file; write --config=roll:FILE.yaml")
    return translate(arg, ROLL)
