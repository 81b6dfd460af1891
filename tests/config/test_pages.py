"""docs/from_roll.md and docs/from_trinity.md say what the importers do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rljax.config.fields import ConfigError
from rljax.config.importers.page import pages
from rljax.config.importers.translation import ON_CPU
from rljax.config.load import load_config
from rljax.config.schema import Config
from tests.config.importer_files import SEEDS, small

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"<!-- What follows is printed by python -m rljax\.config\.importers\.page (\S+) (.*) -->\n\n")


@pytest.mark.parametrize("name", ["from_roll.md", "from_trinity.md"])
def test_a_page_is_what_its_command_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    text = (ROOT / "docs" / name).read_text()
    command = COMMAND.search(text)
    assert command is not None
    printed = "\n".join(pages(command[1], [str(ROOT / file) for file in command[2].split()])) + "\n"
    assert text[command.end() :] == printed


def resolved(overrides: list[str]) -> Config:
    file, _ = small()
    return load_config(str(SEEDS / file), dict(override.split("=") for override in overrides))


def test_a_file_that_is_run_small_computes_on_the_cpu_alone() -> None:
    """tests/e2e/test_seed_page.py runs it."""
    _, overrides = small()
    config = resolved(overrides)
    assert (config.learner.devices, config.learner.mesh.size, config.learner.rows_per_microbatch) == ("cpu", 1, 1)
    sidecar = config.sidecar
    assert (sidecar.devices, sidecar.engine, sidecar.num_engines, config.launcher) == ("cpu", "embedded", 1, "local")
    assert sidecar.generating_args.max_new_tokens == 128  # which the file says, and nothing of devices does
    assert resolved([*overrides, "sidecar.num_engines=2"]).sidecar.num_engines == 2
    with pytest.raises(ConfigError, match=r"^algorithm\.minibatch_size=1024"):
        resolved([override for override in overrides if not override.startswith("algorithm.minibatch_size")])


@pytest.mark.parametrize("name", sorted(path.name for path in SEEDS.glob("*.yaml")))
def test_the_cpu_says_all_of_devices_of_every_file(name: str) -> None:
    """sglang and a learner of two hosts among them."""
    config = load_config(str(SEEDS / name), {"learner.devices": "cpu"})
    for key, value in ON_CPU.items():
        here = config
        for part in key.split("."):
            here = getattr(here, part)
        assert here == value, key
