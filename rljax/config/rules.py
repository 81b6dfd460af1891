"""Registers the rules that check every config: from a file, by hand, or by ``dataclasses.replace`` (promise P9).

The package imports this module before any other, so that no config is made without them.
"""

from __future__ import annotations

from rljax.config.schema import hold_to
from rljax.config.validate import check_config, check_functions, check_keys, check_own_keys
from rljax.config.validate_distill import check_distill
from rljax.config.validate_environments import check_tags
from rljax.config.validate_judges import check_judges
from rljax.config.validate_objective import check_objective
from rljax.config.validate_placement import check_placement
from rljax.config.validate_plan import check_plan
from rljax.config.validate_reward_models import check_reward_models
from rljax.config.validate_serve import check_serve
from rljax.config.validate_sizes import check_sizes

_SCORERS = (check_judges, check_reward_models)
_MODES = (check_serve, check_plan)

hold_to(
    (check_keys, check_functions, check_own_keys),
    (check_config, check_sizes, check_placement, check_tags, *_SCORERS, check_objective, check_distill, *_MODES),
)
