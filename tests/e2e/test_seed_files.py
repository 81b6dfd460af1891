"""Six YAML documents of ROLL and Trinity-RFT train two steps, with overrides of model, sizes and devices alone; the
seventh is in `test_seed_page.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import ROOT, Started, audit_of, run

SEEDS = ROOT / "tests" / "data" / "seeds"
MODEL = (
    "model.path=tiny",
    "model.tiny.hidden_size=32",
    "model.tiny.intermediate_size=64",
    "model.tiny.num_layers=1",
    "model.tiny.num_heads=2",
    "model.tiny.num_kv_heads=1",
    "model.dtype=fp32",
    "model.remat=none",
)
DEVICES = (
    "learner.devices=cpu",
    "learner.mesh.fsdp=1",
    "learner.mesh.tensor=1",
    "learner.sequence_parallel=false",
    "sidecar.devices=cpu",
    "sidecar.engine=embedded",
    "sidecar.dtype=auto",
    "sidecar.num_engines=1",
    "launcher=local",
)
SIZES = (
    "max_steps=2",
    "rollout_batch_size=8",
    "group_size=4",
    "learner.rows_per_microbatch=1",
    "sidecar.max_concurrency=16",
    "observe.progress=off",
    "observe.tensorboard=false",
    "observe.report=false",
)
MANAGERS = ("num_env_groups=2", "num_groups_partition=2")
AGENTIC = (
    "algorithm.minibatch_size=8",
    "model.sequence_length=1536",
    "model.max_prompt_tokens=1500",
    "model.max_response_tokens=16",
    "sidecar.generating_args.max_new_tokens=16",
    "sidecar.val_generating_args.max_new_tokens=16",
    *(f"rollout.train_env_manager.{size}" for size in MANAGERS),
)
GAMES = ("SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "FrozenLake")
SHOPS = ("WebShopEnv", "WebShopEnvHeldOut")


def played(*tags: str) -> tuple[str, ...]:
    """One episode each of the validation, of two short turns."""
    seeds = f"num_env_groups={len(tags)}", f"num_groups_partition={','.join('1' for _ in tags)}"
    turns = [f"custom_envs.{tag}.{key}" for tag in tags for key in ("max_actions=2", "max_tokens_per_turn=16")]
    return *(f"rollout.val_env_manager.{size}" for size in seeds), *turns


def trained(run_dir: Path) -> None:
    audit = audit_of(run_dir)
    assert (audit["balanced"], audit["steps"], audit["trained"], audit["trained_twice"]) == (True, 2, 4, 0)


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("env_managers.yaml", GAMES),
        ("agentic_val_webshop_async.yaml", SHOPS),
    ],
)
def test_an_agentic_document_trains(name: str, tags: tuple[str, ...], tmp_path: Path, cache: Path) -> None:
    if tags == SHOPS:
        pytest.importorskip("bm25s")
        val = ("rollout.val_env_manager.num_env_groups=1", "rollout.val_env_manager.num_groups_partition=1")
        sizes = tuple(size for size in played(*tags) if not size.startswith("rollout.")) + val
    else:
        sizes = played(*tags)
    done = run(tmp_path / "run", cache, *MODEL, *DEVICES, *SIZES, *AGENTIC, *sizes, config=SEEDS / name)
    assert done.returncode == 0, done.stderr
    trained(tmp_path / "run")


def rows(file: Path, question: str, answer: str) -> str:
    lines = [json.dumps({question: f"{i} + {i}?", answer: f"so\n#### {2 * i}"}) for i in range(64)]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_the_rlvr_document_trains(tmp_path: Path, cache: Path) -> None:
    sizes = ("model.max_prompt_tokens=64", "model.max_response_tokens=8", "algorithm.minibatch_size=8")
    budgets = [f"sidecar.{group}.max_new_tokens=8" for group in ("generating_args", "val_generating_args")]
    data = f"tasks.train.math_rule.source={rows(tmp_path / 'math.jsonl', 'prompt', 'ground_truth')}"
    overrides = (*MODEL, *DEVICES, *SIZES, *sizes, *budgets, data)
    done = run(tmp_path / "run", cache, *overrides, config=SEEDS / "rlvr_config_async.yaml")
    assert done.returncode == 0, done.stderr
    trained(tmp_path / "run")


TRINITY = (
    *MODEL,
    *DEVICES,
    *SIZES,
    "model.max_prompt_tokens=704",  # a tiny model reads characters
    "model.max_response_tokens=8",
    "sidecar.max_model_len=none",
    "learner.max_tokens_per_row=none",
    "sync_interval=2",
)


def test_the_pair_trains_in_one_process(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_TASKSET_PATH", rows(tmp_path / "gsm8k.jsonl", "question", "answer"))
    pair = Path(f"{SEEDS / 'explorer.yaml'},{SEEDS / 'trainer.yaml'}")
    # an engine that has room for one batch and says a token at a time is not done when the first is trained
    slow = ("model.max_response_tokens=128", "sidecar.max_concurrency=8", "sidecar.decode_steps=1")
    keys = [key for key in TRINITY if not key.startswith(tuple(one.partition("=")[0] for one in slow))]
    done = run(tmp_path / "run", cache, *keys, *slow, config=pair)
    assert done.returncode == 0, done.stderr
    trained(tmp_path / "run")
    assert audit_of(tmp_path / "run")["max_staleness"] == 1  # the interval is filled
    steps, trajectories = spans(tmp_path / "run", "train step 0"), spans(tmp_path / "run", "gsm8k/", "attempts")
    ((start, end),) = steps
    beside = [(began, ended) for began, ended in trajectories if began < end and ended > start]
    assert len(trajectories) == 16
    assert 0 < len(beside) <= 8, "the second batch is generated while the first is trained"


def spans(run_dir: Path, name: str, track: str = "") -> list[tuple[float, float]]:
    """Start and end of the spans of that name, or beginning, in microseconds, as often as a span counts."""
    events = json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    named = [event for event in events if event["ph"] == "X" and event["name"].startswith(name)]
    found = [event for event in named if tracks[event["tid"]].startswith(track)]
    return [(e["ts"], e["ts"] + e["dur"]) for e in found for _ in range(e["args"].get("count", 1))]


def test_the_pair_trains_in_two_shells_and_a_third_joins(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_TASKSET_PATH", rows(tmp_path / "gsm8k.jsonl", "question", "answer"))
    names = ("explorer.yaml", "explorer_new.yaml", "trainer.yaml")  # the explorer first: any order does
    shells = [Started(tmp_path / "run", cache, *TRINITY, config=SEEDS / name) for name in names]
    codes = {name: shell.end() for name, shell in zip(names, shells, strict=True)}
    assert set(codes.values()) == {0}, [shell.printed for shell in shells]
    trained(tmp_path / "run")
