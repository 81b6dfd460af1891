"""All that is refused of a config comes at once, of single keys and of several."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.fields import ConfigError, walk
from rljax.config.judges import JudgeConfig
from rljax.config.load import as_plain, load_config
from rljax.config.refusals import REFUSED, Refusals, RefusedConfig, Unreadable, hold, without
from rljax.config.schema import AlgorithmConfig, Config, GeneratingConfig, KlConfig, LearnerConfig, SidecarConfig
from tests.config.importer_files import RLVR, ROLL, TRINITY, nested
from tests.config.making import make

QUICKSTART = "configs/quickstart.py"


def lines(path: str, **overrides: str) -> list[str]:
    """Lines of the table, or the one line, that a config is refused with."""
    with pytest.raises(ConfigError) as refused:
        load_config(path, {key.replace("__", "."): value for key, value in overrides.items()})
    said = str(refused.value).splitlines()
    return [line.strip() for line in (said[1:] if isinstance(refused.value, RefusedConfig) else said)]


def begun(said: list[str]) -> list[str]:
    return [line.partition("=")[0].partition(":")[0] for line in said]


def all_of(error: ConfigError) -> list[str]:
    return [str(one) for one in (error, *error.others)]


def test_the_command_line_is_answered_with_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A text that is no number, a key that there is not, a bound, a name, devices, and three rules of several keys."""
    wrong = (
        "max_steps=many",
        "group_sise=3",
        "seed=-1",
        "sidecar.devices=gpu:x",
        "algorithm.pg_variant=pop",
        "rollout_batch_size=12",
        "learner.sequence_parallel=true",
        "algorithm.kl.coef=0.1",
    )
    assert main([f"--config={QUICKSTART}", *(f"--config.{key}" for key in wrong)]) == 2
    title, *said = capsys.readouterr().err.splitlines()
    assert title == f"rljax: {QUICKSTART}: keys that are refused:"
    assert begun([line.strip() for line in said]) == [
        "max_steps",
        "group_sise",
        "seed",
        "sidecar.devices",
        "algorithm.pg_variant",
        "rollout_batch_size",
        "algorithm.minibatch_size",  # 128 does not divide 12
        "learner.sequence_parallel",
        "algorithm.kl.coef",
    ]


def test_one_refusal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--config={QUICKSTART}", "--config.seed=-1"]) == 2
    assert capsys.readouterr().err == "rljax: seed=-1: must be at least 0\n"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        # of the group that is refused nobody knows what it divides
        ({"group_size": "0", "rollout_batch_size": "13", "algorithm__minibatch_size": "none"}, ["group_size"]),
        ({"group_size": "x", "rollout_batch_size": "13", "algorithm__minibatch_size": "13"}, ["group_size"]),
        # of a loss that there is not, whether it trains stale data, and what its keys are
        ({"algorithm__pg_variant": "pop", "algorithm__loss__low": "1"}, ["algorithm.pg_variant"]),
        # of a device that is no device, whom it overlaps
        ({"learner__devices": "gpux", "sidecar__devices": "gpu:0"}, ["learner.devices"]),
        # but what the rule does not read that is refused is said
        ({"learner__devices": "gpux", "sidecar__dtype": "fp16"}, ["learner.devices", "sidecar.dtype"]),
        ({"algorithm__ppo_epochs": "0", "algorithm__kl__coef": "1"}, ["algorithm.ppo_epochs", "algorithm.kl.coef"]),
        # a key of the loss that is refused, and another of it that is too
        (
            {"algorithm__loss__clip_low": "x", "algorithm__loss__clip_high": "-1"},
            ["algorithm.loss.clip_low", "algorithm.loss.clip_high"],
        ),
        # a whole group
        (
            {"model": "3", "model__max_response_tokens": "0", "sidecar__num_engines": "0"},
            ["model", "sidecar.num_engines"],
        ),
    ],
)
def test_a_rule_that_reads_what_is_refused_says_nothing(wrong: dict[str, str], said: list[str]) -> None:
    assert begun(lines(QUICKSTART, **wrong)) == said


def test_a_file_is_refused_for_all_its_types_and_names_at_once(tmp_path: Path) -> None:
    values = as_plain(Config(mode="audit")) | {"max_steps": "many", "no_such": 1, "group_size": 3.5}
    values["model"] |= {"dtype": 7, "pth": "tiny"}
    values["sidecar"] |= {"engine": "nosuch"}
    values["algorithm"] |= {"loss": {"clip_lo": 1, "clip_high": "x"}, "filters": ["mean_band"], "ppo_epochs": 0}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    assert sorted(begun(lines(str(file)))) == [
        "algorithm.filter.mean_band",
        "algorithm.loss.clip_high",
        "algorithm.loss.clip_lo",
        "algorithm.ppo_epochs",
        "group_size",
        "max_steps",
        "model.dtype",
        "model.pth",
        "no_such",
        "sidecar.engine",
    ]


def test_one_rule_refuses_all_that_it_finds() -> None:
    with pytest.raises(ConfigError) as refused:
        make(
            sidecar=SidecarConfig(dtype="fp16", tensor_parallel_size=2, devices="tpu:0"),
            launcher="ray",
            learner=LearnerConfig(devices="cpu:0-1"),
        )
    assert [line.partition("=")[0] for line in all_of(refused.value)] == [
        "learner.devices",
        "sidecar.dtype",
        "sidecar.tensor_parallel_size",
        "sidecar.devices",
    ]
    judge = JudgeConfig(template="none", generating_args=GeneratingConfig(max_new_tokens=9), max_response_tokens=8)
    with pytest.raises(ConfigError) as refused:
        make(judges={"j": judge, "k": dataclasses.replace(judge, path="tiny", template=None)})
    assert [line.partition(":")[0].partition("=")[0] for line in all_of(refused.value)] == [
        "judges.j.path",
        "judges.j.template",
        "judges.j.generating_args.max_new_tokens",
        "judges.k.generating_args.max_new_tokens",
    ]
    with pytest.raises(ConfigError) as refused:
        make(algorithm=AlgorithmConfig(overlong_buffer=4, overlong_penalty=2.0, kl=KlConfig(coef=0.5)))
    assert [line.partition("=")[0] for line in all_of(refused.value)] == [
        "algorithm.overlong_buffer",
        "algorithm.overlong_penalty",
        "algorithm.kl.coef",
    ]


def test_a_traceback_shows_what_else_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        make(seed=-1, max_steps=0)
    assert (str(refused.value), refused.value.__notes__) == (
        "seed=-1: must be at least 0",
        ["max_steps=0: must be at least 1"],
    )


@dataclasses.dataclass(frozen=True)
class Inner:
    a: int = 1
    b: int = 2


@dataclasses.dataclass(frozen=True)
class Outer:
    x: int = 1
    inner: Inner = dataclasses.field(default_factory=Inner)
    named: Mapping[str, Inner] = dataclasses.field(default_factory=lambda: {"n": Inner(), "m": Inner()})

    @property
    def both(self) -> int:
        return self.inner.a + self.inner.b


def single(outer: Outer) -> Iterator[tuple[str, ConfigError | None]]:
    for path, value, _ in walk(outer):
        if value is REFUSED:
            yield path, None
        elif value < 0:
            yield path, ConfigError(f"{path}={value}")


def test_a_mistake_of_a_rule_is_raised_whatever_else_is_refused() -> None:
    def refuses(outer: Outer) -> Refusals:
        yield ConfigError("x: refused")

    def mistaken(outer: Outer) -> Refusals:
        yield ConfigError(f"inner.a: {1 // 0}")

    for rules in ([mistaken], [refuses, mistaken], [mistaken, refuses]):
        for subject in (Outer(), Outer(x=-1)):
            with pytest.raises(ZeroDivisionError):
                hold(subject, [single], rules)


def test_a_rule_keeps_what_it_said_before_it_read_what_is_refused() -> None:
    def rule(outer: Outer) -> Refusals:
        yield ConfigError(f"inner.b={outer.inner.b}")
        yield ConfigError(f"both={outer.both}")

    def other(outer: Outer) -> Refusals:
        yield ConfigError(f"x={outer.x}")
        yield ConfigError(f"x={outer.x}")

    with pytest.raises(ConfigError) as refused:
        hold(Outer(inner=Inner(a=-1)), [single], [rule, other])
    assert all_of(refused.value) == ["inner.a=-1", "inner.b=2", "x=1"]


def test_what_is_taken_away_cannot_be_read_in_any_way() -> None:
    left = without(Outer(), {"inner.a", "named.n.b"})
    assert (left.x, left.inner.b, left.named["n"].a, left.named["m"]) == (1, 2, 1, Inner())
    assert isinstance(left, Outer)
    assert isinstance(left.inner, Inner)
    for read in (
        lambda: left.inner.a,
        lambda: left.both,
        lambda: left.named["n"].b,
        lambda: left.inner == Inner(),
        lambda: Inner() != left.inner,
        lambda: list(walk(left)),
        lambda: dataclasses.replace(left.inner, b=3),
    ):
        with pytest.raises(Unreadable):
            read()
    with pytest.raises(Unreadable):
        _ = without(Outer(named={"n": REFUSED}), {"x"}).named  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "overrides",
    [
        {"model": 3, "model.dtype": "fp32"},
        {"judges": (), "judges.j.path": "x"},
        {"algorithm.pg_variant": 0},
        {"algorithm.pg_variant": 0, "algorithm.loss.clip_low": 0.1},
        {"algorithm.filters": 5, "algorithm.filter.mean_band.low": 0.1},
    ],
)
def test_values_of_another_kind_from_python_are_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(overrides))):
        load_config(QUICKSTART, overrides)


def test_what_an_override_says_with_itself_is_named_by_it(write: Any) -> None:
    said = lines(write(ROLL), learner__devices="cpu", learner__sequence_parallel="true", seed="-1")
    assert [line.split()[0] for line in said] == ["--config.seed", "--config.learner.sequence_parallel,"]
    assert said[1].split()[1] == "--config.learner.devices=cpu"
    assert "learner.mesh.tensor, which is 1" in said[1]


def test_a_batch_of_trinity_below_its_repeats_is_refused(write: Any) -> None:
    assert lines(write(nested(TRINITY, "buffer.train_batch_size", 1)))


def test_keys_of_a_file_and_what_does_not_go_together_are_one_table(write: Any) -> None:
    text = nested(ROLL, "actor_infer.generating_args.num_beams", 4)
    text = nested(nested(text, "train_env_manager.group_size", 7), "train_env_manager.tags", ["FrozenLak"])
    said = lines(write(text), max_steps="many", sidecar__nosuch="1", sync_interval="0")
    assert [line.split("  ")[0].partition(" =")[0].split(", ")[-1] for line in said] == [
        "actor_infer.generating_args.num_beams",
        "--config.max_steps",
        "--config.sidecar.nosuch",
        "--config.sync_interval",
        "train_env_manager.group_size",
        "train_env_manager.tags",
    ]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (ROLL, "actor_train.device_mapping", "list(range(0,12))"),  # neither its devices nor a mesh of them are known
        (ROLL, "rollout_batch_size", "many"),
        (ROLL, "actor_train.device_mapping", 7),
        (ROLL, "sequence_length", "x"),
        (RLVR, "actor_train.data_args.file_name", 3),  # without it there is no taskset
        (ROLL, "pg_clip", "x"),
        (ROLL, "adv_estimator", "nosuch"),
        (TRINITY, "model.max_model_len", "x"),  # which rows of so many tokens a GPU has
        (TRINITY, "algorithm.repeat_times", "x"),
    ],
)
def test_of_a_key_of_a_file_that_is_refused_nothing_else_is_said(text: str, key: str, value: Any, write: Any) -> None:
    assert [line.split()[0] for line in lines(write(nested(text, key, value)))] == [key]


def test_a_function_with_a_refused_key_does_not_hide_what_another_refuses() -> None:
    loss = {"pg_variant": "tis", "loss.low": "x"}
    band = {"filters": "mean_band", "filter.mean_band.low": "0.9", "filter.mean_band.high": "0.1"}
    said = lines(QUICKSTART, **{f"algorithm.{key}": text for key, text in (loss | band).items()})
    assert begun(said) == ["algorithm.loss.low", "algorithm.filter.mean_band.low"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What a command line is refused with, each line up to its reason."""
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err.splitlines()
    return [line.strip().partition(": ")[0].partition("=")[0] for line in said[1:]]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_names_and_files_are_told_beside_a_mistake_of_the_schema(
    capsys: pytest.CaptureFixture[str], dry: list[str]
) -> None:
    wrong = ("rollout_batch_size=x", "tasks.train.reverse_digits.rewards=nosuch", "rollout.workflow=none_there:Mine")
    wrong += ("tasks.validation.reverse_digits.source=gone.jsonl", "model.path=/nowhere/at/all")
    assert told(capsys, f"--config={QUICKSTART}", *dry, *(f"--config.{key}" for key in wrong)) == [
        "rollout_batch_size",
        "rollout.workflow",
        "tasks.train.reverse_digits.rewards",
        "tasks.validation.reverse_digits.source",
        "model.path",
        "tasks.validation.reverse_digits.args",  # the quickstart's, which no file reads
    ]


def test_what_is_wrong_of_a_key_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither does the mesh take 64 devices, nor has this machine as many."""
    assert main([f"--config={QUICKSTART}", "--config.learner.devices=cpu:0-63"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "learner.devices='cpu:0-63': names 64 devices, learner.mesh multiplies to 1" in line
    assert "; this machine has 1 (cpu:0)" in line


def test_a_mode_that_is_mistyped_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ("--config.mode=explor", "--config.tasks.train.reverse_digits.rewards=nosuch")
    assert main([f"--config={QUICKSTART}", *wrong]) == 2
    said = capsys.readouterr().err
    assert "serve; did you mean explore?" in said
    assert "'nosuch': no such reward" in said


def test_arguments_that_are_near_one_are_taken_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--confg=quickstart", "--dryrun", "--max_steps=0", "--config.seed"]) == 2
    _, *said = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in said] == [
        "--confg: unknown argument; did you mean --config?",
        "--dryrun: unknown argument; did you mean --dry-run?",
        "--max_steps: unknown argument; did you mean --config.max_steps?",
        "--config.seed: no value; write --config.seed=VALUE",
        "max_steps=0: must be at least 1",
    ]
