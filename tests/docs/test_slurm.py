"""The script of a SLURM job, run by bash with stand-ins for SLURM's own commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import blocks

(SCRIPT,) = [block.text for block in blocks("docs/hosts.md") if "#SBATCH" in block.text]


def ended(folder: Path, code: int, restarts: str | None) -> tuple[int, list[str]]:
    """The code of the job whose ``srun`` ends with this one, and what SLURM was asked for."""
    asked = folder / "asked"
    for name, its_code in (("srun", code), ("scontrol", 0)):
        (stand_in := folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {asked}\nexit {its_code}\n')
        stand_in.chmod(0o755)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "70000", "SLURM_CPUS_PER_TASK": "32"}
    if restarts is not None:
        variables["SLURM_RESTART_COUNT"] = restarts
    done = subprocess.run(["bash", "-c", SCRIPT], env=variables, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, asked.read_text().splitlines()


@pytest.mark.parametrize("code", [75, 137])
@pytest.mark.parametrize("restarts", [None, "0", "19"])
def test_a_job_is_queued_again_where_a_host_was_lost(tmp_path: Path, code: int, restarts: str | None) -> None:
    """SLURM says how often that was before, and nothing before the first time."""
    left, (srun, *others) = ended(tmp_path, code, restarts)
    assert (left, others) == (code, ["scontrol requeue 70000"])
    assert srun.startswith("srun --kill-on-bad-exit=0 rljax --config=gsm8k ")


@pytest.mark.parametrize(
    ("code", "restarts"), [(0, None), (1, None), (2, None), (143, None), (0, "3"), (75, "20"), (137, "20")]
)
def test_a_job_is_not_queued_again(tmp_path: Path, code: int, restarts: str | None) -> None:
    """Where all is well, something is wrong with the run, it was asked to stop, or it was tried often enough."""
    left, (_, *others) = ended(tmp_path, code, restarts)
    assert (left, others) == (code, [])
