"""What is refused of teachers, and of steps that learn from no reward."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rljax.config.generating import GeneratingConfig
from rljax.config.load import load_config
from rljax.config.schema import AlgorithmConfig, DistillConfig, SidecarConfig, TasksConfig, TeacherConfig
from rljax.config.validate import ConfigError
from tests.config.making import TASKSET, make

TASKS = TasksConfig(train={"sums": TASKSET, "words": TASKSET})
UNREWARDED = TasksConfig(train={"sums": dataclasses.replace(TASKSET, rewards=())})
URL = "http://127.0.0.1:8000/v1"
SERVED = {"url": URL, "model": "m"}
ALONE = {"adv_estimator": "none"}
AT = "algorithm.distill.teachers"


def distilled(
    teacher: dict[str, Any] | None = None,
    *,
    tasks: TasksConfig = TASKS,
    name: str = "big",
    temperature: float = 1.0,
    **keys: Any,
) -> Any:
    teachers = {} if teacher is None else {name: TeacherConfig(**teacher)}
    return make(
        tasks=tasks,
        sidecar=SidecarConfig(generating_args=GeneratingConfig(temperature=temperature)),
        algorithm=AlgorithmConfig(**{**ALONE, "distill": DistillConfig(teachers=teachers), **keys}),
    )


def test_a_teacher_is_stored_or_served() -> None:
    teachers = {"big": TeacherConfig(path="x/y"), "far": TeacherConfig(**SERVED)}
    distill = make(tasks=TASKS, algorithm=AlgorithmConfig(**ALONE, distill=DistillConfig(teachers=teachers))).algorithm
    assert [*distill.distill.stored, *distill.distill.served] == ["big", "far"]
    distilled({"path": "x/y"}, temperature=1.5)


def test_a_teacher_alone_needs_neither_rewards_nor_groups() -> None:
    config = make(
        tasks=UNREWARDED,
        group_size=1,
        algorithm=AlgorithmConfig(**ALONE, distill=DistillConfig(teachers={"big": TeacherConfig(path="x/y")})),
    )
    assert config.tasks.train["sums"].rewards == ()


def test_beside_a_reward_any_estimator_will_do() -> None:
    distilled({"path": "x/y"}, adv_estimator="grpo")
    distilled({"path": "x/y"}, adv_estimator="gae")


@pytest.mark.parametrize(
    ("teacher", "keys", "message"),
    [
        ({}, {}, f"{AT}.big.path: missing; write a directory, a hub id or smollm2-135m"),
        ({"path": "tiny"}, {}, f"{AT}.big.path='tiny': has learnt nothing that it could teach; write a model's dir"),
        ({"path": "a\0b"}, {}, f"{AT}.big.path='a\\x00b': cannot be a path"),
        ({"url": URL}, {}, f"{AT}.big.model: missing; write the name of the teacher at 'http://127.0.0.1:8000/v1'"),
        (SERVED | {"path": "x/y"}, {}, f"{AT}.big.path='x/y': the teacher is asked at {AT}.big.url; leave one of them"),
        (
            SERVED | {"url": "http://a:b@c/v1"},
            {},
            f"{AT}.big.url='http://a:***@c/v1': has a user or password; write it",
        ),
        (SERVED | {"url": "127.0.0.1:8000/v1"}, {}, f"{AT}.big.url='127.0.0.1:8000/v1': no address of an endpoint; w"),
        (SERVED | {"url": "a:secret@c:80/v1"}, {}, f"{AT}.big.url='c:80/v1': no address of an endpoint; write one"),
        (SERVED | {"url": "http:///v1"}, {}, f"{AT}.big.url='http:///v1': no address of an endpoint; write one such"),
        ({"path": "x/y", "model": "m"}, {}, f"{AT}.big.model: nothing reads it without {AT}.big.url; leave it out"),
        ({"path": "x/y", "key_variable": "K"}, {}, f"{AT}.big.key_variable: nothing reads it without {AT}.big.url; le"),
        (
            SERVED,
            {"temperature": 1.5},
            f"sidecar.generating_args.temperature=1.5: {AT}.big.url says log-probabilities at temperature 1 alone; w",
        ),
        ({"path": "x/y"}, {"name": "-big"}, f"{AT}.'-big': a teacher's name is letters"),
        ({"path": "x/y", "coef": 0.0}, {}, f"{AT}.big.coef=0.0: must be above 0"),
        ({"path": "x/y", "weights": {"sum": 1.0}}, {}, f"{AT}.big.weights.sum: nothing of that name is trained; did y"),
        ({"path": "x/y", "weights": {"q": 1.0}}, {}, f"{AT}.big.weights.q: nothing of that name is trained; there are"),
        ({"path": "x/y", "weights": {"sums": -1.0}}, {}, f"{AT}.big.weights.sums=-1.0: must be a number, 0 or more"),
        ({"path": "x/y", "weights": {"sums": float("nan")}}, {}, f"{AT}.big.weights.sums=nan: must be a number, 0 or"),
        ({"path": "x/y", "weights": {"sums": 0.0}}, {}, f"{AT}.big.weights: all of them are 0, and nobody listens to"),
        (
            {"path": "x/y"},
            {"adv_estimator": "opmd_mean", "pg_variant": "opmd_pairwise"},
            f"{AT}: pg_variant='opmd_pairwise' has its minimum for rewards of whole trajectories, and teachers give",
        ),
        (None, {}, "algorithm.adv_estimator='none': nothing is learnt from rewards, and there is no teacher; write"),
        ({"path": "x/y"}, {"norm_mean": "batch"}, "algorithm.norm_mean='batch': nothing reads it; write an adv_estim"),
        ({"path": "x/y"}, {"reward_clip": 1.0}, "algorithm.reward_clip=1.0: nothing reads it; write an adv_estimator"),
        (
            {"path": "x/y"},
            {"tasks": UNREWARDED, "adv_estimator": "reinforce"},
            "tasks.train.sums.rewards: at least one reward is needed, or algorithm.adv_estimator=none and a teacher,",
        ),
    ],
)
def test_each_refusal_says_what_to_write(teacher: dict[str, Any] | None, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        distilled(teacher, **keys)
    assert str(caught.value).startswith(message)


def test_demonstrations_alone_have_no_sampled_token_to_distil() -> None:
    rows = dataclasses.replace(TASKS, expert=dataclasses.replace(TASKS.expert, source="rows.jsonl"))
    with pytest.raises(ConfigError, match=rf"^{AT}: algorithm.pg_variant='sft' trains demonstrations and nothing that"):
        distilled({"path": "x/y"}, tasks=rows, pg_variant="sft", expert_data_ratio=0.5)
    distilled({"path": "x/y"}, tasks=rows, pg_variant="mix", expert_data_ratio=0.5)


def test_a_validation_without_a_reward_measures_nothing() -> None:
    tasks = dataclasses.replace(UNREWARDED, validation=dict(UNREWARDED.train))
    with pytest.raises(ConfigError, match=r"^tasks.validation.sums.rewards: at least one reward is needed$"):
        distilled({"path": "x/y"}, tasks=tasks)


def test_weights_are_numbers_on_the_command_line_too() -> None:
    key = f"{AT}.quickstart.weights.reverse_digits"
    teacher = load_config("configs/distill.py", {key: "0.5"}).algorithm.distill.teachers["quickstart"]
    assert teacher.weight_in("reverse_digits") == 0.5
    assert teacher.weight_in("another") == 0.0
    with pytest.raises(ConfigError, match=rf"^{key}=a: expected a number"):
        load_config("configs/distill.py", {key: "a"})


def test_a_command_line_adds_a_teacher_to_any_config() -> None:
    keys = {f"{AT}.big.path": "x/y", "algorithm.adv_estimator": "none", "tasks.train.reverse_digits.rewards": "()"}
    config = load_config("configs/quickstart.py", keys)
    assert config.algorithm.distill.teachers == {"big": TeacherConfig(path="x/y")}
    assert config.tasks.train["reverse_digits"].rewards == ()
    with pytest.raises(ConfigError, match=rf"{AT}.big.pth: unknown key; did you mean {AT}.big.path\?"):
        load_config("configs/quickstart.py", {f"{AT}.big.pth": "x/y"})
