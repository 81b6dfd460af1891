"""Measures what a real device makes of rljax, in a few minutes: kernels, learner, engine, quickstart, compile cache.

    python -m bench.accelerator [--minutes 8] [--only PART ...] [--out DIRECTORY] [--quick]

On one GPU or TPU chip, from a checkout, with no network:

- kernels: attention, log-probabilities and the embedding's gradient against numpy in float64, values and gradients, in
  float32 and bfloat16; the time of attention over rows of 2k, 8k and 32k.
- learner: the real learner's step with random weights of SmolLM2-135M, Qwen2.5-0.5B and 1.5B in packed rows of 2k, 8k
  and 32k: tokens a second, MFU, peak memory, against transformers with its best attention, compiled.
- engine: the embedded engine's tokens a second at 1, 32 and 256 sequences, against transformers' `generate`.
- quickstart: to 0.9 held out, with one device; then its first step again with a warm compile cache.
- first-step: a learner's time to the end of its first step, with a cold and a warm compile cache.
- agreement: loss and gradient of both learners on one batch.

Each part is a process of its own with a limit of its own. A part that fails, hangs or is killed costs its own rows; the
least important are left out where the time does not suffice: give more of it, or name parts. Out of memory is a row,
and the next way to fit is tried. On a CPU shapes are smaller and MFU is left out.

Leaves ``result.json`` and ``table.md`` in ``bench/runs/accelerator/<device kind>/``, anew after each part. Exit code 1
where a part failed or timed out, a kernel is wrong, or nothing was measured.

It imports rljax from the checkout, which need not be installed. Beside jax and numpy, with what they need themselves:
kernels need flax, jaxtyping and optax; learner, first-step and the engine safetensors, tensorstore and xxhash too;
torch's sides torch and transformers; the quickstart all that pyproject.toml lists. A part whose
packages are missing is left out, and its line says which is missing first. To a machine without a network wheels of
these alone are brought, for its Python; not what they need in their turn, where it has that: another jax than its own
would find no plug-in there, and all would run on the CPU. What it has must be as new as pyproject.toml says: bring
orbax-checkpoint too where it is older:

    pip download --no-deps --only-binary=:all: --python-version 3.12 -d wheels ml-collections sqlalchemy ...
    pip install --no-index --no-deps --target site wheels/*.whl && export PYTHONPATH=$PWD/site
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.accelerator.peaks import peak_of
from bench.accelerator.plan import PARTS, SCALES, Part, Scale, make_parts, usual_seconds
from bench.accelerator.process import ROOT, Outcome, run_part
from bench.accelerator.report import markdown
from bench.accelerator.shapes import Shape, ways
from bench.machine import commit, processor

RESERVE = 5.0
"""Seconds of the budget that are kept for the report."""
DEVICE_SECONDS = 120.0
SMI_SECONDS = 30.0
CUDA = "jax[cuda12], the extra cuda12"
PACKAGES = ("jax", "jaxlib", "flax", "torch", "transformers", "triton", "flash-attn")


def run_parts(parts: list[Part], scale: Scale, end: float, caches: Path) -> Iterator[Outcome]:
    """Runs the parts in their order until the clock says ``end``; yields what became of each.

    A part is left out where less time is left than its worker's longest run so far took, or usually takes.
    """
    queue, longest = deque(parts), dict[str, float]()
    while queue:
        part = queue.popleft()
        left = end - time.monotonic()
        wanted = longest.get(part.worker, usual_seconds(scale, part))
        if left < wanted:
            why = f"{max(left, 0):.0f} s were left, and it takes some {wanted:.0f}"
            yield Outcome(part, "skipped", 0.0, [], why)
            continue
        print(f"{part.name} ...", flush=True)
        outcome = attempted(part, min(part.limit, left), caches)
        print(f"  {outcome.status} in {outcome.seconds:.1f} s {outcome.why}", flush=True)
        for row in outcome.rows:
            print(f"  {json.dumps(row)[:400]}", flush=True)
        yield outcome
        if outcome.status == "done":
            longest[part.worker] = max(longest.get(part.worker, 0.0), outcome.seconds)
        queue.extendleft(further_attempts(outcome))


def attempted(part: Part, seconds: float, caches: Path) -> Outcome:
    """Runs a part as `run_part` does; what goes wrong around it costs this part alone."""
    begin = time.monotonic()
    try:
        return run_part(part, seconds, caches)
    except Exception as error:
        return Outcome(part, "failed", time.monotonic() - begin, [], f"{type(error).__name__}: {error}")


def further_attempts(outcome: Outcome) -> list[Part]:
    """Returns the part again with the next way to make its step fit, where one did not."""
    after = [row["next"] for row in outcome.rows if "next" in row]
    if not after or after[0] >= len(ways(Shape(**outcome.part.arguments["shape"]))):
        return []
    return [replace(outcome.part, arguments=outcome.part.arguments | {"attempt": after[0]})]


def device_facts(caches: Path) -> dict[str, Any]:
    """Returns what JAX computes on, and what the rest of the machine is.

    Raises:
        SystemExit: JAX does not say it.
    """
    found = run_part(Part("device", "device", "", {}, DEVICE_SECONDS), DEVICE_SECONDS, caches)
    if not found.rows:
        sys.exit(f"bench.accelerator: JAX finds no device: {found.why}")
    facts, notes = found.rows[0], []
    gpu = nvidia_smi()
    if gpu and facts["platform"] == "cpu":
        notes.append(f"JAX does not see the GPU ({gpu}): install {CUDA}; this is a run on the CPU")
    peak = peak_of(facts["kind"])
    name = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return facts | {
        "machine": f"{name}, {gpu}" if gpu else name,
        "packages": " ".join(f"{name} {version}" for name in PACKAGES if (version := version_of(name))),
        "commit": commit(),
        "command": shlex.join(["python", "-m", "bench.accelerator", *sys.argv[1:]]),
        "peak": peak and {"flops": peak[0], "source": peak[1]},
        "notes": notes,
    }


def nvidia_smi() -> str:
    """Returns name, driver, memory and power limit of the first NVIDIA GPU; empty where there is none, and why where
    it does not say.
    """
    if shutil.which("nvidia-smi") is None:
        return ""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,power.limit",
        "--format=csv,noheader",
        "-i",
        "0",
    ]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi does not answer: {error}"
    return done.stdout.strip()


def version_of(package: str) -> str:
    """Returns the version of an installed package; empty where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def write(out: Path, facts: dict[str, Any], scale: Scale, outcomes: list[Outcome]) -> str:
    """Writes ``result.json`` and ``table.md`` of what there is so far; returns the latter."""
    out.mkdir(parents=True, exist_ok=True)
    result = facts | {"scale": asdict(scale), "parts": [asdict(outcome) for outcome in outcomes]}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    try:
        report = markdown(facts, outcomes)
    except Exception as error:  # rows of a part that a later part must not suffer for
        report = f"the table cannot be made, see result.json: {type(error).__name__}: {error}\n"
    (out / "table.md").write_text(report)
    return report


def is_bad(outcome: Outcome) -> bool:
    """Returns whether a part failed, or found an error beyond its bound."""
    wrong = any(not row["error"] < row["bound"] for row in outcome.rows if "error" in row)
    return wrong or outcome.status in ("failed", "timed out")


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m bench.accelerator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="of the whole run")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, help="directory of result.json and table.md")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: whether everything runs at all")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the running part ends too
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-accelerator-") as name:
        facts = device_facts(Path(name))
        print(f"{facts['kind']}; {facts['machine']}; {facts['packages']}; {facts['commit']}", flush=True)
        scale = SCALES["quick" if options.quick else "cpu" if facts["platform"] == "cpu" else "accelerator"]
        parts = make_parts(scale, facts["platform"], options.only)
        folder = re.sub(r"[^a-z0-9]+", "-", facts["kind"].lower()).strip("-") + ("-quick" if options.quick else "")
        out = options.out or ROOT / "bench" / "runs" / "accelerator" / folder
        outcomes: list[Outcome] = []
        report = ""
        for outcome in run_parts(parts, scale, begin + 60 * options.minutes - RESERVE, Path(name)):
            outcomes.append(outcome)
            facts["seconds"] = round(time.monotonic() - begin, 1)
            report = write(out, facts, scale, outcomes)  # now: who lends a device may take it back at any time
    print(f"\n{report}\nin {out}")
    return int(any(map(is_bad, outcomes)) or not any(outcome.status == "done" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
