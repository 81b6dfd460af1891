"""Teachers at the learner: what a step trains and reports, against transformers, on stale data, resumed."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljax.config.schema import DistillConfig, TeacherConfig
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.programs import Compilation, CompileMeter
from rljax.learner.teachers import StoredTeacher
from rljax.models.common.architecture import Architecture
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.params import Params
from rljax.models.files import save_directory, stored_tensors
from rljax.models.hf_names import to_hf
from rljax.models.transformer import hidden_states
from rljax.trajectory import Group, TaskId, Trajectory
from tests.learner.made_up import (
    ARCHITECTURE,
    make_config,
    make_groups,
    make_params,
    make_trajectory,
    relative_error,
    trajectories_of,
)

pytestmark = pytest.mark.slow

OTHER = Architecture(
    family="llama",
    vocab_size=40,
    hidden_size=48,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=12,
    tie_embeddings=True,
)
"""A teacher's: another family and shape, and more tokens than the policy has."""
ARCHITECTURES = {"same": ARCHITECTURE, "other": OTHER}
SETTINGS = {"same": TeacherConfig(path="a", coef=0.5), "other": TeacherConfig(path="b", weights={"sums": 2.0})}


@functools.cache
def weights(name: str) -> Params:
    return make_params({"same": 7, "other": 8}[name], ARCHITECTURES[name])


def stored(name: str) -> StoredTeacher:
    return StoredTeacher(ARCHITECTURES[name], to_hf(weights(name), ARCHITECTURES[name]))


def make_learner(*names: str, params: Any = None, **changes: Any) -> Learner:
    distill = DistillConfig(teachers={name: SETTINGS[name] for name in names})
    algorithm = {"adv_estimator": "none", "pg_variant": "vanilla", "distill": distill, **changes.pop("algorithm", {})}
    config = make_config(**changes, algorithm=algorithm)
    params = make_params() if params is None else params
    return Learner(config, ARCHITECTURE, params, teachers={name: stored(name) for name in names})


def two_tasksets() -> list[Group]:
    groups = make_groups(3)
    names = ("sums", "words", "sums", "words")
    return [Group(TaskId(name, 0, i), g.trajectories) for i, (name, g) in enumerate(zip(names, groups, strict=True))]


def in_transformers(directory: Path, architecture: Architecture, params: Any) -> Any:
    save_directory(directory, architecture, to_hf(params, architecture), None, "fp32")
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)


def scored(model: Any, t: Trajectory) -> np.ndarray:
    """Log-probabilities of a trajectory's sampled tokens at its temperature, float64."""
    ids = torch.tensor(t.token_ids.astype(np.int64))
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1] / t.temperature
    found = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
    return found.numpy()[t.loss_mask[1:]]


def test_a_step_trains_and_reports_what_transformers_says_of_policy_and_teachers(tmp_path: Path) -> None:
    """The loss is the mean over tokens of −A·logπ with A = Σ w·(logπ_k − logπ)."""
    groups = two_tasksets()
    policy = in_transformers(tmp_path / "policy", ARCHITECTURE, make_params())
    teachers = {name: in_transformers(tmp_path / name, ARCHITECTURES[name], weights(name)) for name in ARCHITECTURES}
    of_policy = [scored(policy, t) for t in trajectories_of(groups)]
    by_teacher = {name: [scored(model, t) for t in trajectories_of(groups)] for name, model in teachers.items()}
    tasksets = [g.task.taskset for g in groups for _ in g.trajectories]
    losses = []
    for row, (taskset, mine) in enumerate(zip(tasksets, of_policy, strict=True)):
        advantage = 0.5 * (by_teacher["same"][row] - mine)
        if taskset == "sums":
            advantage = advantage + 2.0 * (by_teacher["other"][row] - mine)
        losses.append(-advantage * mine)
    behaviour = [t.logprobs[t.loss_mask].astype(np.float64) for t in trajectories_of(groups)]

    def divergence(name: str, *wanted: str) -> float:
        rows = [i for i, taskset in enumerate(tasksets) if taskset in wanted]
        return float(np.mean(np.concatenate([behaviour[i] - by_teacher[name][i] for i in rows])))

    metrics = make_learner("same", "other").train(groups)
    assert metrics["loss"] == pytest.approx(float(np.mean(np.concatenate(losses))), rel=2e-5)
    told = {name: value for name, value in metrics.items() if name.startswith("distill/")}
    assert told == {
        "distill/same/reverse_kl": pytest.approx(divergence("same", "sums", "words"), rel=1e-5),
        "distill/same/sums/reverse_kl": pytest.approx(divergence("same", "sums"), rel=1e-5),
        "distill/same/words/reverse_kl": pytest.approx(divergence("same", "words"), rel=1e-5),
        "distill/other/reverse_kl": pytest.approx(divergence("other", "sums"), rel=1e-5),
        "distill/other/sums/reverse_kl": pytest.approx(divergence("other", "sums"), rel=1e-5),
    }


PROMPTS = np.random.default_rng(11).integers(0, ARCHITECTURE.vocab_size, (4, 5)).astype(np.int32)


@jax.jit
def next_token(params: Any) -> jax.Array:
    """Log-probabilities of every token after each prompt."""
    ones = jnp.ones_like(PROMPTS)
    positions = jnp.broadcast_to(jnp.arange(PROMPTS.shape[1]), PROMPTS.shape)
    last = hidden_states(params, ARCHITECTURE, PROMPTS, positions, ones)[:, -1:]
    every = jnp.broadcast_to(jnp.arange(ARCHITECTURE.vocab_size), (len(PROMPTS), ARCHITECTURE.vocab_size))
    repeated = jnp.broadcast_to(last, (*every.shape, last.shape[-1]))
    return token_logprobs(params, ARCHITECTURE, repeated, every, jnp.ones_like(every, jnp.float32), chunk=1024)[0]


def sampled(logprobs: np.ndarray, version: int, rng: np.random.Generator) -> list[Group]:
    """Four answers of one token to each prompt, drawn by these log-probabilities."""
    groups = []
    for number, (prompt, of_prompt) in enumerate(zip(PROMPTS, logprobs, strict=True)):
        probabilities = np.exp(of_prompt.astype(np.float64))
        drawn = rng.choice(len(of_prompt), size=4, p=probabilities / probabilities.sum())
        members = []
        for token in drawn:
            one = make_trajectory(rng, len(prompt), 1)
            ids = np.append(prompt, token).astype(np.int32)
            recorded = np.where(one.loss_mask, of_prompt[token], 0).astype(np.float32)
            versions = np.where(one.loss_mask, version, -1).astype(np.int32)
            members.append(dataclasses.replace(one, token_ids=ids, logprobs=recorded, versions=versions))
        groups.append(Group(TaskId("sums", 0, number), tuple(members)))
    return groups


@pytest.mark.parametrize("lag", [0, 4])
def test_the_policy_becomes_its_teacher_on_what_it_sampled_so_many_steps_ago(lag: int) -> None:
    """The whole KL after each prompt, over the vocabulary: no estimate of it."""
    keys = {"pg_variant": "ppo", "loss": {"clip_low": 0.8, "clip_high": 3.0}}
    learner = make_learner("same", async_generation_ratio=float(lag), algorithm=keys)
    teacher, rng = np.asarray(next_token(weights("same"))), np.random.default_rng(0)
    policies, divergences = [], []
    for step in range(80):
        policies.append(np.asarray(next_token(learner.state.params)))
        divergences.append(float(np.mean(np.sum(np.exp(policies[-1]) * (policies[-1] - teacher), axis=1))))
        version = max(step - lag, 0)
        metrics = learner.train(sampled(policies[version], version, rng))
    assert divergences[0] > 0.1
    assert np.mean(divergences[-10:]) < divergences[0] / 10
    assert metrics["distill/same/reverse_kl"] < divergences[0] / 2


def test_beside_the_reward_its_advantage_is_added() -> None:
    """Of the loss, which is linear in the advantage where the ratio is not cut."""
    groups = make_groups(4)
    alone, rewarded, both = (
        make_learner(*names, algorithm={"adv_estimator": estimator}).train(groups)["loss"]
        for names, estimator in ((("same",), "none"), ((), "grpo"), (("same",), "grpo"))
    )
    assert both == pytest.approx(alone + rewarded, rel=1e-5)


def test_what_stands_before_the_updates_is_the_same_and_the_next_epoch_reads_the_policy_anew() -> None:
    """The teacher is asked once a batch; the second epoch's loss is of the policy that the first one made."""
    groups = make_groups(5)
    once, twice = (make_learner("same", algorithm={"ppo_epochs": epochs}) for epochs in (1, 2))
    first = once.train(groups)["loss"]
    second = once.train(groups)["loss"]
    assert twice.train(groups)["loss"] == pytest.approx((first + second) / 2, rel=1e-6)


def test_the_same_groups_from_the_same_checkpoint_give_the_same_bits(tmp_path: Path) -> None:
    """No teacher is in the checkpoint, and the step that is trained again finds its own."""
    learner, checkpoints = make_learner("same", "other"), Checkpoints(tmp_path, 2)
    learner.train(make_groups(1))
    checkpoints.save(1, learner.state, {"lineage": 1})
    checkpoints.wait()
    assert learner.state.aux_state == {}
    told = learner.train(two_tasksets())
    again = make_learner("same", "other", params=make_params(9))
    again.restore(checkpoints, 1)
    assert again.train(two_tasksets()) == told
    for one, other in zip(jax.tree.leaves(learner.state.params), jax.tree.leaves(again.state.params), strict=True):
        assert np.array_equal(one, other)


def test_teachers_that_were_not_handed_over_are_not_passed_over() -> None:
    config = make_learner("same").config
    with pytest.raises(ValueError, match=r"algorithm.distill.teachers.same: its weights were not handed to the lear"):
        Learner(config, ARCHITECTURE, make_params())


def test_a_minibatch_in_which_nothing_is_trained_asks_no_teacher() -> None:
    rng = np.random.default_rng(0)
    empty = [Group(TaskId("sums", 0, i), tuple(make_trajectory(rng, 4, 0) for _ in range(4))) for i in range(4)]
    assert not [name for name in make_learner("same").train(empty) if name.startswith("distill/")]


def test_a_step_compiles_nothing_that_was_not_listed_and_compiled_before() -> None:
    learner = make_learner("same", "other")
    programs = learner.programs(8)
    assert {"teacher same", "teacher other"} <= {program.kind for program in programs}
    ahead = Compilation(programs)
    assert ahead.wait(300)
    ahead.close()
    with CompileMeter() as meter:
        learner.train(two_tasksets())
        assert meter.take()[0] == 0


def test_a_teacher_is_read_as_its_files_say(tmp_path: Path) -> None:
    save_directory(tmp_path / "teacher", OTHER, to_hf(weights("other"), OTHER), None, "fp32")
    read = StoredTeacher(OTHER, stored_tensors(tmp_path / "teacher"))
    config = make_learner("other").config
    learner = Learner(config, ARCHITECTURE, make_params(), teachers={"other": read})
    placed = learner._preparation.teachers["other"].params
    assert relative_error(placed, weights("other")) == 0
