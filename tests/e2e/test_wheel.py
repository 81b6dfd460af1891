"""What the wheel holds is enough: in an empty folder, and beside folders that are named like our packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from program import LIMIT, ROOT, environment

from tests.wheel import ALONE, build_wheel, built, copied, pip

pytestmark = pytest.mark.slow

NAMES = sorted(file.stem for file in (ROOT / "configs").glob("*.py"))
SHORT = (
    *("max_steps=1", "rollout_batch_size=128", "sidecar.max_concurrency=128"),
    *("eval_steps=none", "val_batch_size=64"),
)
REWARD = "def score(task, response):\n    return float(len(response))\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed, without what it depends on."""
    target = tmp_path_factory.mktemp("site")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    pip(["install", *ALONE, "--target", str(target), str(wheel)])
    return target


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of a user who has packages of these names, and a reward in each of two ways."""
    for name in ("envs", "sidecar"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('somebody else is meant')")
    for folder in (tmp_path / "tests", tmp_path / "configs", tmp_path):
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text(REWARD)
    return tmp_path


def rljax(site: Path, folder: Path, cache: Path, *arguments: str, module: bool = False) -> str:
    """Runs the command of the wheel, or its module; returns what it prints."""
    command = [sys.executable, "-m", "rljax.main"] if module else [str(site / "bin" / "rljax")]
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment(cache, PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_wheel_has_nothing_of_an_earlier_build(tmp_path: Path) -> None:
    source = copied(tmp_path)
    earlier = source / "build" / "lib" / "rljax" / "gone.py"  # where setuptools puts it
    earlier.parent.mkdir(parents=True)
    earlier.write_text("")
    names = zipfile.ZipFile(built(source, tmp_path / "wheels")).namelist()
    assert "rljax/run.py" in names
    assert "rljax/gone.py" not in names


def test_a_wheel_is_built_without_a_warning_of_its_packages(tmp_path: Path) -> None:
    """Of folders of data setuptools says that a later release will leave them out."""
    source, quiet = copied(tmp_path), "--quiet"
    (source / "rljax" / "__pycache__").mkdir(exist_ok=True)
    options = [option for option in ALONE if option != quiet]
    said = pip(["wheel", *options, "-v", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)])
    assert "running bdist_wheel" in said
    assert "absent from" not in said
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rljax/configs/rlvr_async/train.jsonl" in names
    assert not any("__pycache__" in name for name in names)


def test_the_configs_come_along(site: Path, tmp_path: Path, cache: Path) -> None:
    listed = rljax(site, tmp_path, cache, "configs").splitlines()
    assert [line.split()[0] for line in listed] == NAMES
    assert "gsm8k " in listed[NAMES.index("gsm8k")]
    assert "GRPO on GSM8K" in listed[NAMES.index("gsm8k")]
    text = rljax(site, tmp_path, cache, "configs", "quickstart")
    assert text == (ROOT / "configs" / "quickstart.py").read_text()
    assert rljax(site, tmp_path, cache, "--version").startswith("rljax ")


def test_each_is_found_by_its_name_with_the_data_beside_it(site: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mine.py").write_text(rljax(site, tmp_path, cache, "configs", "critique"))
    program = f"""
import rljax, sys
from pathlib import Path
from sidecar.extras import install_command
assert Path(rljax.__file__).is_relative_to({str(site)!r})
for name in {[name for name in NAMES if name not in ("roll", "trinity")]}:
    assert rljax.load_config(name).max_steps > 0
config = rljax.load_config("gsm8k:TRAIN.jsonl,TEST.jsonl")
assert (config.tasks.train["gsm8k"].source, config.run_dir) == ("TRAIN.jsonl", "runs/gsm8k")
for source in rljax.load_config("rlvr_async").tasks.train["math"].source.split(","):
    assert Path(source).is_file() and Path(source).is_relative_to({str(site)!r})
for name, module in ("critique", "rljax.configs.critique"), ("mine.py", "mine"):
    assert rljax.load_config(name).rollout.workflow == f"{{module}}:AnswerCritiqueRevise"
    assert __import__(module, fromlist=["x"]).AnswerCritiqueRevise
print(install_command("ray"))
"""
    (tmp_path / "program.py").write_text(program)
    env = environment(cache, PYTHONPATH=str(site))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.stdout, done.stderr) == ('pip install "rljax[ray]"\n', "")


@pytest.mark.parametrize(
    ("module", "rewards"), [(False, ["mine"]), (True, ["tests.mine", "configs.mine"])], ids=["command", "module"]
)
def test_folders_of_the_user_s_own_are_in_nobody_s_way(
    module: bool, rewards: list[str], site: Path, here: Path, cache: Path
) -> None:
    """Neither for this process nor for its children; and what a user has written is found in them."""
    named = ",".join(f"{reward}:score" for reward in rewards)
    keys = (*SHORT, "explorer.own_process=true", f"tasks.train.reverse_digits.rewards={named}")
    given = [f"--config.{key}" for key in keys]
    printed = rljax(site, here, cache, "--config=quickstart", *given, module=module)
    assert "audit: balanced" in printed
    assert (here / "runs" / "quickstart" / "report.html").is_file()


def test_environments_compute_beside_a_folder_of_their_name(site: Path, here: Path, cache: Path) -> None:
    keys = ("play.agent=random", "play.tag=SimpleSokoban", "mode=play")
    given = [f"--config.{key}" for key in keys]
    assert "SimpleSokoban" in rljax(site, here, cache, "--config=frozen_lake", *given, module=True)
