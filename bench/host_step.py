"""What it costs that a learner is two processes: SmolLM2 imitates sums, in one of two devices and in two of one.

    python -m bench.host_step [--pairs 3] [--steps 6] [--axis fsdp]

Both have the same mesh, batches and cores, and train without engines, so that nothing else computes. By turns, each a
run of its own; the first `UNCOUNTED` steps of each, which compile, do not count. Two things differ: how the devices
exchange arrays (within a process, or by gloo), and the agreement of the hosts on each step, which is `hosts/agree`.
With ``--axis data`` only gradients are exchanged, with ``fsdp`` the weights of each layer too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ml_collections import ConfigDict

from bench.paired import print_machine, print_table
from rljax.config.load import load_config, to_config_dict
from rljax.config.schema import AlgorithmConfig, ObserveConfig, RowsConfig, TasksConfig

UNCOUNTED = 2


def get_config() -> ConfigDict:
    """Returns `configs/smollm2_arithmetic.py` with demonstrations alone and no validation: nothing is sampled."""
    config = load_config("smollm2_arithmetic")
    demonstrations = RowsConfig(source="add_numbers", args={"digits": 2})
    return to_config_dict(
        dataclasses.replace(
            config,
            sync_method="checkpoint",
            algorithm=AlgorithmConfig(pg_variant="sft", expert_data_ratio=1.0),
            tasks=TasksConfig(train=config.tasks.train, expert=demonstrations),
            observe=ObserveConfig(progress="off", tensorboard=False, report=False),
            rollout_batch_size=32,
            eval_steps=None,
        )
    )


def keys_of(run_dir: Path, hosts: int, steps: int, axis: str) -> dict[str, object]:
    """Returns the keys of a run by so many hosts."""
    return {
        "run_dir": run_dir,
        "mode": "train",
        f"learner.mesh.{axis}": 2,
        "learner.hosts.number": hosts,
        "max_steps": steps,
        "save_steps": steps,
    }


def rows_of(run_dir: Path, hosts: int, steps: int, axis: str) -> list[dict[str, float]]:
    """Trains; returns the metrics of the steps that count."""
    given = [f"--config.{key}={value}" for key, value in keys_of(run_dir, hosts, steps, axis).items()]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(2 // hosts)}
    command = [sys.executable, "-m", "rljax", f"--config={__file__}", *given]
    with (run_dir.parent / f"{run_dir.name}.log").open("w") as log:
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["step"] > UNCOUNTED]


def main() -> None:
    """Prints the seconds of a step of both, the ratio of each pair, and the share that agreeing takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--axis", choices=("fsdp", "data"), default="fsdp")
    asked = parser.parse_args()
    print_machine()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(asked.pairs):
            rows = {n: rows_of(Path(folder) / f"{pair}-{n}", n, asked.steps, asked.axis) for n in (1, 2)}
            one, two = (statistics.median(row["time/train"] for row in rows[hosts]) for hosts in (1, 2))
            agreeing = [row["hosts/agree"] for row in rows[2]]
            share = max(row["hosts/agree"] / row["time/train"] for row in rows[2])
            table.append([pair, one, two, two / one, statistics.median(agreeing), f"{share:.2%}"])
            print(table[-1], flush=True)
    columns = ("pair", "one process, s a step", "two, s a step", "ratio", "hosts/agree, s", "largest share of a step")
    print_table("Two processes against one", columns, table)


if __name__ == "__main__":
    main()
