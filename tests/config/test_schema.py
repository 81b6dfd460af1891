"""The schema itself (promise P9): bounds, and combinations that cannot work, each refused in one line that helps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rljax.config.environments import EnvironmentConfig
from rljax.config.schema import (
    AlgorithmConfig,
    CorrectionConfig,
    CriticConfig,
    ExplorerConfig,
    GeneratingConfig,
    KlConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RayConfig,
    RolloutConfig,
    RowsConfig,
    SidecarConfig,
    TasksConfig,
    TinyConfig,
)
from rljax.config.validate import ConfigError
from tests.config.making import TASKSET, make

LONG = "a" * 5000


def taskset(**changes: Any) -> dict[str, Any]:
    return {"tasks": TasksConfig(train={"digits": dataclasses.replace(TASKSET, **changes)})}


BOUNDS: list[tuple[Mapping[str, Any], str]] = [
    ({"async_generation_ratio": -0.5}, "async_generation_ratio=-0.5: must be at least 0"),
    ({"async_generation_ratio": float("inf")}, "async_generation_ratio=inf: must be finite"),
    ({"async_generation_ratio": float("nan")}, "async_generation_ratio=nan: must be finite"),
    ({"sync_interval": 0}, "sync_interval=0: must be at least 1"),
    ({"seed": 2**31}, "seed=2147483648: must be at most 2147483647"),
    ({"mode": "trian"}, "mode='trian': not one of both, train, explore"),
    ({"mode": "bench"}, "mode='bench': Trinity-RFT's name; write mode=evaluate and checkpoint=all"),
    ({"mode": "colocate"}, "mode='colocate': Trinity-RFT's name; write mode=both and sidecar.colocate=true"),
    ({"launcher": "slurm"}, "launcher='slurm': not one of local, ray"),
    ({"model": ModelConfig(path="")}, "model.path: empty; write a directory, a hub id, smollm2-135m or tiny"),
    (
        {"mode": "evaluate", "checkpoint": "latst"},
        "checkpoint='latst': not one of latest, all, initial, a number of batches seen; did you mean latest?",
    ),
    ({"mode": "export", "checkpoint": "-1"}, "checkpoint='-1': not one of latest, all, initial, a number of batches"),
    ({"wait_timeout": 0.0}, "wait_timeout=0.0: must be above 0"),
    (
        {"learner": LearnerConfig(optimizer=OptimizerConfig(beta1=1.5))},
        "learner.optimizer.beta1=1.5: must be below 1",
    ),
    *(
        ({"learner": LearnerConfig(optimizer=OptimizerConfig(**{name: value}))}, f"learner.optimizer.{name}={line}")
        for name, value, line in (
            ("beta1", 1.0, "1.0: must be below 1"),
            ("beta2", 1.0, "1.0: must be below 1"),
            ("beta2", 1 - 1e-9, "0.999999999: must be below 1, which float32 rounds it to"),
            ("eps", 0.0, "0.0: must be above 0"),
            ("learning_rate", 1e308, "1e+308: float32 holds at most 3.4e+38; write a smaller number"),
            ("learning_rate", 1e-40, "1e-40: float32 makes 0 of it; write 0, or at least 1.2e-38"),
        )
    ),
    (
        {"algorithm": AlgorithmConfig(adv_estimator="gae", critic=CriticConfig(optimizer=OptimizerConfig(beta1=1.0)))},
        "algorithm.critic.optimizer.beta1=1.0: must be below 1",
    ),
    ({"async_generation_ratio": 1e30}, "async_generation_ratio=1e+30: must be at most 1000000"),
    ({"async_generation_ratio": 1e308}, "async_generation_ratio=1e+308: must be at most 1000000"),
    ({"async_generation_ratio": 10**400}, "must be at most 1000000"),
    ({"max_steps": 2**31}, "max_steps=2147483648: must be at most 1000000000"),
    ({"wait_timeout": 1e12}, "wait_timeout=1000000000000.0: must be at most 1000000000"),
    (
        {"model": ModelConfig(tiny=TinyConfig(hidden_size=10**25))},
        "model.tiny.hidden_size=1000000000000000000000",
    ),
    (taskset(reward_weights=(float("nan"),)), "tasks.train.digits.reward_weights[0]=nan: must be finite"),
    (
        taskset(rewards=("exact", "digits"), reward_weights=(1.0, float("inf"))),
        "tasks.train.digits.reward_weights[1]=inf: must be finite",
    ),
    (
        {"learner": LearnerConfig(sequence_parallel=True)},
        "learner.sequence_parallel=true: it cuts rows over learner.mesh.tensor, which is 1; raise that",
    ),
    *(
        (
            changes,
            f"{path}.nu_dtype='bf16': beta2=0.999 lets it fall by 0.001 of itself in an update, which bf16 rounds away",
        )
        for path, changes in {
            "learner.optimizer": {"learner": LearnerConfig(optimizer=OptimizerConfig(nu_dtype="bf16"))},
            "algorithm.critic.optimizer": {
                "algorithm": AlgorithmConfig(critic=CriticConfig(optimizer=OptimizerConfig(nu_dtype="bf16")))
            },
        }.items()
    ),
    (
        {"learner": LearnerConfig(optimizer=OptimizerConfig(mu_dtype="bf16", beta1=0.998))},
        "learner.optimizer.mu_dtype='bf16': beta1=0.998 lets it fall by 0.002 of itself in an update",
    ),
    ({"learner": LearnerConfig(mesh=MeshConfig(expert=0))}, "learner.mesh.expert=0: must be at least 1"),
    (
        {"learner": LearnerConfig(mesh=MeshConfig(fsdp=2, expert=3), rows_per_microbatch=4)},
        "learner.rows_per_microbatch=4: must be a multiple of mesh.data × mesh.fsdp × mesh.expert = 6",
    ),
    ({"model": ModelConfig(dtype="fp8")}, "model.dtype='fp8': not one of fp32, bf16"),
    ({"rollout": RolloutConfig(max_retries=-1)}, "rollout.max_retries=-1: must be at least 0"),
    (
        {"sidecar": SidecarConfig(generating_args=GeneratingConfig(top_p=0.0))},
        "sidecar.generating_args.top_p=0.0: must be above 0",
    ),
    (taskset(weight=0.0), "tasks.train.digits.weight=0.0: must be above 0"),
]

COMBINATIONS: list[tuple[Mapping[str, Any], str]] = [
    *(
        ({"explorer": ExplorerConfig(name=name)}, f"explorer.name={name!r}: an explorer's name is letters, digits")
        for name in ("", "../../x", "..", ".hidden", "-x", "a/b", "a b", "a\n", "é")
    ),
    (
        {"explorer": ExplorerConfig(name="x" * 65)},
        f"explorer.name={'x' * 60!r}…: an explorer's name is letters, digits",
    ),
    *(
        ({"explorer": ExplorerConfig(name=name)}, f"explorer.name={name!r}: this is the learner's own name; write")
        for name in ("trainer", "learner")
    ),
    ({"tasks": TasksConfig(train={"": TASKSET})}, "tasks.train.'': a taskset's name is letters, digits"),
    ({"tasks": TasksConfig(train={"..": TASKSET})}, "tasks.train.'..': a taskset's name is letters, digits"),
    (
        {"explorer": ExplorerConfig(tasksets={"a\n": TASKSET})},
        "explorer.tasksets.'a\\n': a taskset's name is letters, digits",
    ),
    (
        {"custom_envs": {"../x": EnvironmentConfig(id="a")}},
        "custom_envs.'../x': a tag is letters, digits",
    ),
    (
        {"model": ModelConfig(tiny=TinyConfig(num_heads=3, num_kv_heads=2))},
        "model.tiny.num_kv_heads=2: must divide model.tiny.num_heads=3",
    ),
    (
        {"model": ModelConfig(tiny=TinyConfig(num_experts=4))},
        "model.tiny.num_experts: model.tiny.family=qwen3 does not read it; leave it out",
    ),
    (
        {"model": ModelConfig(tiny=TinyConfig(family="mixtral", moe_intermediate_size=64))},
        "model.tiny.moe_intermediate_size: model.tiny.family=mixtral does not read it; leave it out",
    ),
    (
        {"model": ModelConfig(tiny=TinyConfig(family="mixtral", num_experts=1))},
        "model.tiny.num_experts_per_tok=2: a layer has 1 experts; write at most that",
    ),
    ({"model": ModelConfig(tiny=TinyConfig(head_dim=3))}, "model.tiny.head_dim=3: rotary embeddings take pairs"),
    *(
        (
            {"sidecar": SidecarConfig(**{name: GeneratingConfig(temperature=0.005)})},
            f"sidecar.{name}.temperature=0.005: engines take none between 0 (greedy) and 0.01; write at least that",
        )
        for name in ("generating_args", "val_generating_args")
    ),
    (
        {"sidecar": SidecarConfig(generating_args=GeneratingConfig(temperature=1e-320))},
        "sidecar.generating_args.temperature=1e-320: float32 makes 0 of it",
    ),
    *(
        (changes, f"{path}={'a' * 60!r}…: the path is too long; write a shorter one")
        for path, changes in (
            ("model.path", {"model": ModelConfig(path=LONG)}),
            ("run_dir", {"run_dir": LONG}),
            ("ledger", {"ledger": f"sqlite:///{LONG}"}),
            ("tasks.train.digits.source", taskset(source=LONG)),
            (
                "tasks.expert.source",
                {
                    "tasks": TasksConfig(train={"digits": TASKSET}, expert=RowsConfig(source=LONG)),
                    "algorithm": AlgorithmConfig(pg_variant="mix", expert_data_ratio=0.5),
                },
            ),
        )
    ),
    ({"model": ModelConfig(path="a\0b")}, "model.path='a\\x00b': cannot be a path"),
    (
        {"rollout_batch_size": 30, "group_size": 8},
        "rollout_batch_size=30: not a multiple of group_size=8, and a step trains whole groups; nearest that works: 32",
    ),
    ({"rollout_batch_size": 3, "group_size": 8}, "nearest that works: 8"),
    (
        {"ray": RayConfig(address="head:6379")},
        "ray.address='head:6379': launcher=local joins no cluster; write launcher",
    ),
    (
        {"async_generation_ratio": 1.5, "sync_interval": 3, "max_staleness": 3},
        "max_staleness=3: async_generation_ratio=1.5 and sync_interval=3 need at least 4",
    ),
    (
        {"algorithm": AlgorithmConfig(minibatch_size=24)},
        "algorithm.minibatch_size=24: must divide rollout_batch_size=64",
    ),
    ({"algorithm": AlgorithmConfig(minibatch_size=128)}, "algorithm.minibatch_size=128: must divide"),
    (
        {"algorithm": AlgorithmConfig(correction=CorrectionConfig(level="token", mode="mask", low=2.0))},
        "algorithm.correction.low=2.0: above correction.high=1.2",
    ),
    (
        {"algorithm": AlgorithmConfig(pg_variant="mix", loss={"variant": "mix"})},
        "algorithm.loss.variant='mix': mixes with itself",
    ),
    ({"algorithm": AlgorithmConfig(kl=KlConfig(target=0.1))}, "algorithm.kl.target=0.1: nothing reads it; write kl.w"),
    (
        {"algorithm": AlgorithmConfig(critic=CriticConfig(warmup_steps=1))},
        "algorithm.critic.warmup_steps=1: nothing reads it; write adv_estimator=gae",
    ),
    (
        {"algorithm": AlgorithmConfig(drop_staler_than=1, kl=KlConfig(where="reward"))},
        "algorithm.drop_staler_than=1: what is left out of a response has neither value nor divergence",
    ),
    (
        {"algorithm": AlgorithmConfig(pg_variant="opmd_pairwise", adv_estimator="opmd_mean", minibatch_size=4)},
        "algorithm.minibatch_size=4: opmd_pairwise compares the members of a group",
    ),
    ({"algorithm": AlgorithmConfig(pg_variant="tis", loss={"low": 2.0})}, "algorithm.loss.low=2.0: above high=1.0"),
    ({"algorithm": AlgorithmConfig(loss={"clip_low": 1.5})}, "algorithm.loss.clip_low=1.5: must be at most 1"),
    (
        {"algorithm": AlgorithmConfig(overlong="penalty")},
        "algorithm.overlong='penalty': needs overlong_buffer, the tokens in which it grows",
    ),
    (
        {"algorithm": AlgorithmConfig(overlong_buffer=65), "model": ModelConfig(max_response_tokens=64)},
        "algorithm.overlong_buffer=65: above model.max_response_tokens=64",
    ),
    (
        {"algorithm": AlgorithmConfig(filters=("mean_band",), filter={"mean_band": {"low": 0.9, "high": 0.1}})},
        "algorithm.filter.mean_band.low=0.9: above high=0.1",
    ),
    (
        {"algorithm": AlgorithmConfig(filters=("mean_band",))},
        "algorithm.filter.mean_band: drops nothing; write low or high",
    ),
    ({"algorithm": AlgorithmConfig(norm_std="groups")}, "algorithm.norm_std='groups': not one of None, group, tag,"),
    (
        {"learner": LearnerConfig(max_tokens_per_row=127)},
        "learner.max_tokens_per_row=127: a trajectory may be 128 tokens long",
    ),
    (
        {"learner": LearnerConfig(rows_per_microbatch=6, mesh=MeshConfig(data=2, fsdp=2))},
        "learner.rows_per_microbatch=6: must be a multiple of mesh.data × mesh.fsdp = 4",
    ),
    (
        {"learner": LearnerConfig(devices="cpu:0-2", mesh=MeshConfig(fsdp=2))},
        "learner.devices='cpu:0-2': names 3 devices, learner.mesh multiplies to 2",
    ),
    ({"learner": LearnerConfig(devices="cuda:0")}, "learner.devices='cuda:0': write auto, cpu, cpu:0-3, gpu:0-3,6"),
    (
        {"learner": LearnerConfig(devices="gpu:0"), "sidecar": SidecarConfig(devices="gpu:0-1")},
        "sidecar.devices='gpu:0-1': overlaps learner.devices='gpu:0'",
    ),
    (
        {"learner": LearnerConfig(devices="gpu:0"), "sidecar": SidecarConfig(devices="gpu")},
        "sidecar.devices='gpu': overlaps learner.devices='gpu:0'",
    ),
    *(
        (
            {"learner": LearnerConfig(devices=devices)},
            f"learner.devices={devices!r}: write auto, cpu, cpu:0-3, gpu:0-3,6 or tpu:0-7",
        )
        for devices in ("gpu:0-3\n", "auto\n", "gpu:\u0663", "gpu:0-999999999999", "gpu:")
    ),
    (
        {"sidecar": SidecarConfig(generating_args=GeneratingConfig(temperature=0.0))},
        "sidecar.generating_args.temperature=0: greedy samples carry no policy gradient; write a temperature above 0",
    ),
    (
        {"sidecar": SidecarConfig(val_generating_args=GeneratingConfig(max_new_tokens=65))},
        "sidecar.val_generating_args.max_new_tokens=65: above model.max_response_tokens=64",
    ),
    ({"tasks": TasksConfig()}, "tasks.train: no taskset to train on"),
    ({"tasks": TasksConfig(train={"a/b": TASKSET})}, "tasks.train.'a/b': a taskset's name is letters, digits"),
    (taskset(source=""), "tasks.train.digits.source: missing"),
    (taskset(template="solve it"), "tasks.train.digits.template='solve it': must contain {prompt}"),
    (taskset(examples=("1 + 1",)), "tasks.train.digits.examples: 1 texts; each prompt needs its answer"),
    (taskset(rewards=()), "tasks.train.digits.rewards: at least one reward is needed"),
    (taskset(reward_weights=(1.0, 2.0)), "tasks.train.digits.reward_weights: 2 weights for 1 rewards"),
    *(
        (
            {"sync_method": "memory", "mode": mode},
            f"sync_method=memory: with mode={mode} learner and explorer are processes that do not share a Ray job, "
            "and no memory is shared; write sync_method=checkpoint or nccl",
        )
        for mode in ("train", "explore")
    ),
    (
        {"sync_method": "memory", "sidecar": SidecarConfig(engine="vllm")},
        "sync_method=memory: with launcher=local sidecar.engine=vllm runs in a process of its own",
    ),
    (
        {"sync_method": "memory", "sidecar": SidecarConfig(engine="vllm_async")},
        "sync_method=memory: the workers of sidecar.engine=vllm_async are processes of its own, and no memory is "
        "shared; write sync_method=checkpoint or nccl",
    ),
    ({"sync_deltas": 8}, "sync_deltas=8: of versions in float32 nearly every value changes at every step; write sync_"),
    (
        {"sync_deltas": 8, "sync_dtype": "bf16", "sync_method": "nccl"},
        "sync_deltas=8: with sync_method=nccl every version travels whole; write sync_method=checkpoint, or leave",
    ),
    (
        {"sync_deltas": 8, "sync_dtype": "bf16", "sync_method": "memory"},
        "sync_deltas=8: with sync_method=memory and launcher=local versions are handed over where they are, ",
    ),
]


@pytest.mark.parametrize(("changes", "line"), [*BOUNDS, *COMBINATIONS], ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_work_is_refused_in_one_line(changes: Mapping[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)) as info:
        make(**changes)
    assert "\n" not in str(info.value)


def test_what_can_work_is_not_refused() -> None:
    make()
    make(learner=LearnerConfig(devices="gpu:0"), sidecar=SidecarConfig(devices="gpu:1-3"))
    make(learner=LearnerConfig(devices="cpu:0"), sidecar=SidecarConfig(devices="cpu:0"))
    make(learner=LearnerConfig(devices="gpu:0"), sidecar=SidecarConfig(devices="tpu:0"))
    make(sidecar=SidecarConfig(val_generating_args=GeneratingConfig(temperature=0.0)))
    make(tasks=TasksConfig(validation={"held.out-1": TASKSET}), mode="evaluate")
    make(async_generation_ratio=0.0, max_staleness=0)
    make(sync_method="memory")
    make(sync_method="nccl", mode="explore", sidecar=SidecarConfig(engine="vllm_async"))


def test_names_that_can_be_paths_and_rows_are_taken() -> None:
    for name in ("explorer", "explorer_new", "7", "a.b-c", "x" * 64):
        make(explorer=ExplorerConfig(name=name), tasks=TasksConfig(train={name: TASKSET}))


def test_a_trajectory_longer_than_the_context_of_a_model_on_this_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 100}')
    longest = {"max_prompt_tokens": 64, "max_response_tokens": 37}
    with pytest.raises(ConfigError, match="= 101: more than the model's context of 100 tokens"):
        make(model=ModelConfig(path=str(tmp_path), **longest))
    with pytest.raises(ConfigError, match="= 8193: more than the model's context of 8192 tokens"):
        make(model=ModelConfig(path="smollm2-135m", max_prompt_tokens=1, max_response_tokens=8192))
    make(model=ModelConfig(path=str(tmp_path), **longest | {"max_response_tokens": 36}))
