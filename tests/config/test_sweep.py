"""Which command lines are sweeps, and of which runs."""

from __future__ import annotations

import pytest

from rljax.config.fields import ConfigError
from rljax.config.sweep import is_sweep, points


@pytest.mark.parametrize(
    ("key", "value", "swept"),
    [
        ("seed", "0,1,2", True),
        ("seed", "0", False),
        ("learner.optimizer.learning_rate", "1e-4,3e-4", True),
        ("eval_steps", "5,None", True),
        ("fill_interval", "true,false", True),
        ("algorithm.loss.clip_low", "0.1,0.2", True),
        ("tasks.train.reverse_digits.weight", "1,2", True),
        ("algorithm.filters", "a,b", False),  # several names
        ("algorithm.pg_variant", "ppo,gspo", False),  # a text, which may have commas
        ("learner.devices", "gpu:0,gpu:1", False),
        ("sede", "0,1", False),  # unknown: refused as everywhere
        ("rollout.train_env_manager.tags", "A,B", False),
        ("rollout.workflow_args.depth", "1,2", False),
    ],
)
def test_a_key_that_takes_one_number_may_have_several(key: str, value: str, swept: bool) -> None:
    assert is_sweep({key: value}) == swept


def test_each_combination_is_a_run_in_a_directory_of_its_own() -> None:
    overrides = {"seed": "0, 1", "learner.optimizer.learning_rate": "1e-4,3e-4", "max_steps": "5"}
    found = points("configs/quickstart.py", overrides)
    assert [(p.config.run_dir, p.config.seed, p.config.learner.optimizer.learning_rate) for p in found] == [
        ("runs/quickstart-sweep/seed=0,learner.optimizer.learning_rate=0.0001", 0, 1e-4),
        ("runs/quickstart-sweep/seed=0,learner.optimizer.learning_rate=0.0003", 0, 3e-4),
        ("runs/quickstart-sweep/seed=1,learner.optimizer.learning_rate=0.0001", 1, 1e-4),
        ("runs/quickstart-sweep/seed=1,learner.optimizer.learning_rate=0.0003", 1, 3e-4),
    ]
    assert {p.config.max_steps for p in found} == {5}
    assert found[0].name == "seed=0,learner.optimizer.learning_rate=0.0001"
    (first, *_) = points("configs/quickstart.py", {"seed": "0,1", "run_dir": "/data/mine"})
    assert first.config.run_dir == "/data/mine-sweep/seed=0"


def test_in_postgresql_each_has_a_schema_of_its_own() -> None:
    ledger = "postgresql://somebody@host/database"
    found = points("configs/quickstart.py", {"seed": "0,1", "ledger": ledger})
    assert [p.config.ledger_schema for p in found] == ["quickstart-seed-0", "quickstart-seed-1"]
    (first, _) = points("configs/quickstart.py", {"seed": "0,1", "ledger": ledger, "ledger_schema": "mine"})
    assert first.config.ledger_schema == "mine-seed-0"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"seed": "0,x"}, "seed=x: expected an integer"),
        ({"seed": "0,"}, "seed=: expected an integer"),
        ({"seed": "0,00"}, "seed='0,00': a value is there twice; write each once"),
        ({"seed": "0,-1"}, "seed=-1: "),
        ({"seed": "0,1", "mode": "evaluate"}, "mode=evaluate: a sweep trains, with mode=both; name one value of seed"),
        ({"seed": "0,1", "ledger": "sqlite:///x.db"}, "have ledgers of their own; leave ledger out"),
        ({"seed": "0,1", "max_stpes": "4"}, "max_stpes: unknown key"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        points("configs/quickstart.py", overrides)
    assert said in str(raised.value)
