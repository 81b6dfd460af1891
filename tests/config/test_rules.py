"""Every key says what it means and is read, and no config is made without the rules."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljax.config.environments import TrainEnvManagerConfig
from rljax.config.schema import AlgorithmConfig, RolloutConfig, SidecarConfig, TasksetConfig
from rljax.config.validate import ConfigError, walk
from tests.config.making import make

ROOT = Path(__file__).parents[2]


def test_every_key_says_what_it_means() -> None:
    keys = {path: metadata for path, _, metadata in walk(make())}
    assert {"seed", "learner.mesh.tensor", "tasks.train.digits.source"} <= set(keys)
    assert [path for path, metadata in keys.items() if len(metadata["help"]) < 5] == []


def test_a_config_cannot_be_changed_and_its_mappings_are_its_own() -> None:
    config = make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    assert TasksetConfig(source="x").args is not TasksetConfig(source="x").args


def test_no_key_is_dead() -> None:
    """A key that nothing reads is a defect. Any attribute of its name counts as reading it."""
    sources = [p for p in (ROOT / "rljax").rglob("*.py") if p.name not in ("config_checks.py", "config_placement.py")]
    text = "\n".join(path.read_text() for path in sources)
    keys = [(path, metadata.get("choices", ())) for path, _, metadata in walk(make())]
    # Where there is one choice only, the check is what reads it.
    names = {path.rpartition(".")[2] for path, choices in keys if len(choices) != 1}
    assert sorted(name for name in names if not re.search(rf"\.{name}\b", text)) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"group_size": 7}, "rollout_batch_size=64: not a multiple of group_size=7"),
        ({"sidecar": SidecarConfig(tensor_parallel_size=2)}, "sidecar.tensor_parallel_size=2: engine=embedded"),
        ({"algorithm": AlgorithmConfig(pg_variant="vanilla")}, "algorithm.pg_variant='vanilla': trains data up to 1"),
        ({"custom_envs": {}, "rollout": RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("a",)))}, "'a' is"),
    ],
)
def test_a_config_that_is_replaced_is_held_to_every_rule(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        dataclasses.replace(make(), **changes)


def test_no_config_is_made_without_its_rules() -> None:
    """Whoever imports the schema alone has them too."""
    program = "from rljax.config.schema import Config\ntry: Config()\nexcept ValueError as error: print(error)"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.stdout.startswith("tasks.train: no taskset to train on")


def test_the_schema_imports_nothing_heavy() -> None:
    heavy = ("jax", "torch", "numpy", "transformers", "sqlalchemy")
    program = f"import sys, rljax.config.schema; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")
