"""A teacher that is served: what its endpoint says is what its weights say at the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax.learner.served as served_teachers
from rljax.config.fields import ConfigError
from rljax.config.schema import Config, DistillConfig, TeacherConfig
from rljax.learner.learner import Learner
from rljax.learner.served import Endpoint, Recorded, TeacherAway, TeacherError
from rljax.learner.teachers import AskedTeacher, StoredTeacher, TokenValues
from rljax.ledger.leases import LeasedBatch
from rljax.models.hf_names import to_hf
from rljax.observe.parts import SCORE, recorded
from rljax.pipeline.assemble.learner import StepRunner
from rljax.pipeline.assemble.teachers import check_served, open_teachers
from rljax.trajectory import Group, TaskId, Trajectory
from tests.endpoint import Answering, answering
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, trajectories_of
from tests.pipeline.serve.lab import Served, serving

pytestmark = pytest.mark.slow

KEY = "TAUGHT_KEY"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("serve") / "run") as made:
        yield made


@pytest.fixture
def settings(served: Served, monkeypatch: pytest.MonkeyPatch) -> TeacherConfig:
    monkeypatch.setenv(KEY, served.key)
    return TeacherConfig(url=served.service.url, model="tiny", key_variable=KEY, weights={"sums": 2.0})


def groups_of(*tasksets: str, temperature: float = 1.0) -> list[Group]:
    made = []
    for index, (name, group) in enumerate(zip(tasksets, make_groups(3), strict=True)):
        members = tuple(dataclasses.replace(t, temperature=temperature) for t in group.trajectories)
        made.append(Group(TaskId(name, 0, index), members))
    return made


def taught(settings: TeacherConfig) -> Config:
    distill = DistillConfig(teachers={"big": settings})
    return make_config(algorithm={"adv_estimator": "none", "pg_variant": "vanilla", "distill": distill})


def test_openais_client_reads_the_log_probabilities_of_a_prompt(served: Served) -> None:
    prompts = ["What is 12 + 30?", "42"]
    reply = served.client().completions.create(model="tiny", prompt=prompts, max_tokens=0, echo=True, logprobs=0)
    assert [choice.text for choice in reply.choices] == prompts
    assert reply.usage.completion_tokens == 0
    for prompt, choice in zip(prompts, reply.choices, strict=True):
        ids = served.run.model.tokenizer(prompt)["input_ids"]
        first, *others = choice.logprobs.token_logprobs
        assert first is None
        np.testing.assert_allclose(others, served.run.scores(ids[:1], ids[1:]), atol=1e-4)
        assert "".join(choice.logprobs.tokens) == prompt


def test_a_step_is_that_of_the_same_teacher_at_the_learner(served: Served, settings: TeacherConfig) -> None:
    """Its tasksets, and rows, are told apart; nothing is asked of one in which it has no weight."""
    its, config = served.run.learners[0], taught(settings)
    stored = StoredTeacher(its.architecture, to_hf(jax.tree.map(np.asarray, its.params), its.architecture))
    asked = AskedTeacher(settings, Endpoint("big", settings, 60.0).logprobs)
    groups = groups_of("sums", "words", "sums", "words")
    told = []
    for teacher in (asked, stored):
        learner = Learner(config, ARCHITECTURE, make_params(), teachers={"big": teacher})
        told.append([learner.train(groups), learner.train(groups)])
    assert "distill/big/sums/reverse_kl" in told[0][0]
    for mine, expected in zip(*told, strict=True):
        assert mine.keys() == expected.keys()
        for name, value in expected.items():
            assert mine[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_the_time_that_it_takes_is_a_part_of_the_step_and_a_metric(served: Served, settings: TeacherConfig) -> None:
    asked = AskedTeacher(settings, Endpoint("big", settings, 60.0).logprobs)
    learner = Learner(taught(settings), ARCHITECTURE, make_params(), teachers={"big": asked})
    groups, spans = groups_of("sums", "words", "sums", "words"), list[tuple[str, float, float]]()
    with recorded(lambda *span: spans.append(span)):
        metrics = StepRunner(learner, None).train(LeasedBatch(0, tuple(range(len(groups))), tuple(groups)))
    mine = [(begin, end) for name, begin, end in spans if name == "ask the teacher big"]
    assert mine, "which a trace has"
    assert metrics["distill/big/seconds"] == pytest.approx(sum(end - begin for begin, end in mine))
    ((begin, end),) = ((begin, end) for name, begin, end in spans if name == SCORE)
    assert all(begin <= one[0] <= one[1] <= end for one in mine)
    rewarded = LeasedBatch(1, tuple(range(len(groups))), tuple(groups_of("words", "words", "words", "words")))
    assert "distill/big/seconds" not in StepRunner(learner, None).train(rewarded), "it was asked nothing"


def test_a_token_of_another_temperature_is_no_question(settings: TeacherConfig) -> None:
    asked = AskedTeacher(settings, Endpoint("big", settings, 60.0).logprobs)
    learner = Learner(taught(settings), ARCHITECTURE, make_params(), teachers={"big": asked})
    with pytest.raises(TeacherError, match=r"sampled at temperature 0.7, .*write sidecar.generating_args.temperature"):
        learner.train(groups_of("sums", "words", "words", "words", temperature=0.7))


def test_a_run_asks_about_its_vocabulary_before_it_starts(served: Served, settings: TeacherConfig) -> None:
    config = dataclasses.replace(served.run.config, algorithm=taught(settings).algorithm)
    model = served.run.model
    assert isinstance(open_teachers(config, model)["big"], AskedTeacher)

    class Shifted:
        """A tokenizer that calls each token by the name of another."""

        all_special_ids = model.tokenizer.all_special_ids
        get_vocab = model.tokenizer.get_vocab

        @staticmethod
        def decode(ids: list[int]) -> str:
            return str(model.tokenizer.decode([ids[0] - 1]))

    with pytest.raises(
        ConfigError, match=r"^algorithm.distill.teachers.big: tiny at http.*: token \d+ of the policy, "
    ):
        open_teachers(config, dataclasses.replace(model, tokenizer=Shifted()))
    replay = dataclasses.replace(config, mode="replay")
    assert "big" in open_teachers(replay, dataclasses.replace(model, tokenizer=Shifted()))
    wider = dataclasses.replace(model.architecture, vocab_size=model.architecture.vocab_size + 8)
    with pytest.raises(ConfigError, match=r"status 400: .*the model has token ids from 0 to"):
        open_teachers(config, dataclasses.replace(model, architecture=wider))


def test_a_wrong_key_and_one_that_is_not_there_are_refused_at_once(
    served: Served, settings: TeacherConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(served.run.config, algorithm=taught(settings).algorithm)
    monkeypatch.setenv(KEY, "another")
    with pytest.raises(ConfigError, match=r"status 401: .*wrong API key"):
        open_teachers(config, served.run.model)
    monkeypatch.delenv(KEY)
    with pytest.raises(ConfigError, match=f"the environment variable {KEY}"):
        open_teachers(config, served.run.model)
    assert "big" in open_teachers(dataclasses.replace(config, mode="replay"), served.run.model), "it asks nothing"


@pytest.fixture
def answers() -> Iterator[Answering]:
    with answering() as state:
        yield state


def asking(server: Answering, seconds: float) -> Endpoint:
    url = server.url.replace("//", "//user:secret@")
    return Endpoint("big", TeacherConfig(url=url, model="m"), seconds)


def scored(*logprobs: float | None) -> dict[str, Any]:
    return {"choices": [{"logprobs": {"token_logprobs": list(logprobs), "tokens": ["a"] * len(logprobs)}}]}


def test_one_that_is_busy_is_asked_again(answers: Answering) -> None:
    answers.answers = [(503, "busy"), (429, "busy"), (200, scored(None, -1.5, -2.5))]
    (found,) = asking(answers, 60.0).scores([np.array([5, 6, 7])])
    assert found.tolist() == [-1.5, -2.5]
    answers.answers = [(200, scored(None, -1.5, -2.5, -9.0))]  # which samples one behind them
    (found,) = asking(answers, 60.0).scores([np.array([5, 6, 7])])
    assert found.tolist() == [-1.5, -2.5]
    assert asking(answers, 60.0).scores([]) == []


def test_nothing_is_asked_about_tokens_of_no_weight(answers: Answering) -> None:
    some = trajectories_of(make_groups(1, groups=1))
    found = asking(answers, 60.0).logprobs(some, [np.zeros(len(t.token_ids), np.float32) for t in some], 0)
    assert (answers.asked, [one.any() for one in found]) == ([], [False] * len(some))


def test_one_that_takes_longer_than_a_try_is_given_twice_as_long(
    answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_teachers, "_FIRST_TRY", 0.05)
    answers.answers = ["hang", "hang", (200, scored(None, -1.5, -2.5))]
    endpoint = asking(answers, 60.0)
    (found,) = endpoint.scores([np.array([5, 6, 7])])
    assert (found.tolist(), len(answers.asked)) == ([-1.5, -2.5], 3)
    assert endpoint._longest_try == pytest.approx(4 * 0.05), "the next one has that from its first try"


def test_a_short_trial_is_about_tokens_from_all_over_the_vocabulary(
    served: Served, settings: TeacherConfig, answers: Answering
) -> None:
    config = dataclasses.replace(served.run.config, algorithm=taught(settings).algorithm)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, sequence_length=17))
    answers.answers = [(200, scored(*[-1.0] * 17))]
    with pytest.raises(ConfigError, match="is 'a' there"):
        check_served(asking(answers, 60.0), config, served.run.model)
    *tried, last = answers.asked[0]["prompt"]
    known = served.run.model.architecture.vocab_size
    assert len(tried) == config.longest - 1
    assert (last, tried[0] < known / 8, tried[-1] > 7 * known / 8) == (known - 1, True, True)


def test_one_that_stays_away_or_says_nothing_ends_the_run_by_name(answers: Answering) -> None:
    answers.answers = [(503, "busy")]
    with pytest.raises(TeacherAway, match=r"big: m at http.*status 503: .*, for 0.2 s \(wait_timeout\)") as caught:
        asking(answers, 0.2).scores([np.array([5, 6, 7])])
    assert "secret" not in str(caught.value)
    for said in (
        scored(None, -1.5),
        scored(None, -1.5, float("-inf")),
        scored(None, -1.5, None),
        {"choices": []},
        scored(None, -1.5, float("nan")),
    ):
        answers.answers = [(200, said)]
        with pytest.raises(TeacherError, match="no log-probability for each of 3 tokens"):
            asking(answers, 60.0).scores([np.array([5, 6, 7])])


def test_what_was_answered_is_asked_once_a_step_and_kept_while_it_may_be_trained_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def ask(trajectories: Sequence[Trajectory], weights: TokenValues, step: int) -> TokenValues:
        asked.append(step)
        return [np.full(len(t.token_ids), -1.0 - len(asked), np.float32) for t in trajectories]

    oldest, some, others = 0, *(trajectories_of(make_groups(seed, groups=1)) for seed in (1, 2))
    kept_answers = Recorded(ask, tmp_path / "big", lambda: oldest)
    ones = [np.ones(len(t.token_ids), np.float32) for t in some]
    first = kept_answers(some, ones, 3)
    assert [one.tolist() for one in kept_answers(some, ones, 3)] == [[-2.0] * len(t.token_ids) for t in some]
    assert [len(one) for one in first] == [len(t.token_ids) for t in some]
    kept_answers(some, ones, 4)
    kept_answers(some, [2 * one for one in ones], 4)
    kept_answers(others, [np.ones(len(t.token_ids), np.float32) for t in others], 4)
    assert asked == [3, 4, 4, 4]
    for kept in (tmp_path / "big").iterdir():
        kept.write_bytes(kept.read_bytes()[:-1])  # as no kill leaves it, and a disk may
    oldest = 4
    kept_answers(some, ones, 4)
    assert asked == [3, 4, 4, 4, 4]
    assert sorted(path.name[:11] for path in (tmp_path / "big").iterdir()) == ["step-000004"] * 3
