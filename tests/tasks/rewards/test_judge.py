"""A judge behind HTTP: what it is asked, and what becomes of one that is down, busy, hangs or lies."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rljax.config.fields import ConfigError
from rljax.config.tasksets import TasksetConfig
from rljax.tasks.rewards import JudgeUnavailable, Reward, RewardRunner, RewardTimeout
from rljax.tasks.rewards.judge import _client, filled, parsed_rating
from rljax.tasks.rewards.registry import reward_terms
from rljax.tasks.rewards.runner import TASKS_TRIED
from rljax.tasks.task import Task
from rljax.tasks.tasksets import load_tasksets
from rljax.trajectory import TaskId
from tests.endpoint import Answering, answering


@pytest.fixture
def judge() -> Iterator[Answering]:
    with answering() as state:
        yield state


def score(response: str = "Paris", limit: float = 20.0, count: int = 1, **args: Any) -> list[Reward]:
    args = {"model": "judge", "first_wait": 0.01, **args}
    terms = reward_terms(("llm_judge",), None, "tasks.train.mine.rewards", {"llm_judge": args})
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "The capital of France?"})
    task = Task(TaskId("mine", 0, 0), messages, "Paris!", rewards=terms)

    async def main() -> list[Reward]:
        with RewardRunner(["llm_judge"], timeout=limit, workers=1) as runner:
            return await asyncio.gather(*(runner.score(task, response) for _ in range(count)))

    return asyncio.run(main())


def test_what_the_judge_is_asked_and_how_its_rating_is_read(judge: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", "secret-7")
    judge.answers = ["It is right, though [[3]] was near. [[ 7.5 ]]"]
    (found,) = score("{answer}", url=judge.url + "/", key_variable="MY_JUDGE_KEY", max_tokens=9)
    assert found == Reward(0.75, {"llm_judge": 0.75, "llm_judge/rating": 7.5})
    assert judge.paths == ["/v1/chat/completions"]
    assert judge.keys == ["Bearer secret-7"]
    asked = judge.asked[0]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("judge", 0.0, 9)
    (message,) = asked["messages"]
    for text in ("The capital of France?", "Paris!", "[Response]\n{answer}\n"):
        assert text in message["content"]


def test_a_rating_of_ones_own(judge: Answering) -> None:
    judge.answers = ["verdict=2"]
    (found,) = score(url=judge.url, template="{response}", pattern=r"verdict=(\d)", low=1.0, high=5.0)
    assert found.score == 0.25
    assert judge.asked[0]["messages"][0]["content"] == "Paris"
    assert judge.keys == [None]


def test_one_that_is_busy_or_fails_is_asked_again(judge: Answering) -> None:
    judge.answers = [(503, "down"), (429, "busy"), (200, {"odd": 1}), "no rating", "[[10]]"]
    assert score(url=judge.url)[0].score == 1.0
    assert len(judge.asked) == 5


@pytest.mark.parametrize(
    ("answer", "reason", "tries"),
    [
        ((503, {"error": "down"}), r'status 503: {"error": "down"} \(3 tries\)', 3),
        ("I like it", r"no rating from 0 to 10 in 'I like it' \(3 tries\)", 3),
        ("[[11]]", r"no rating from 0 to 10 in '\[\[11\]\]' \(3 tries\)", 3),
        ((401, {"error": "wrong key"}), 'status 401: {"error": "wrong key"}', 1),
        ((404, "x"), "status 404", 1),
    ],
)
def test_one_that_stays_so_fails_the_trajectory_by_name(answer: Any, reason: str, tries: int, judge: Answering) -> None:
    judge.answers = [answer]
    with pytest.raises(JudgeUnavailable, match=rf"reward 'llm_judge': judge judge at {judge.url}: {reason}"):
        score(url=judge.url, retries=2)
    assert len(judge.asked) == tries


def test_requests_take_turns_at_the_pools_of_connections() -> None:
    """One pool's time for a request grows with its connections: 256 at once took 12 s where 32 took 4 (bench.judge)."""

    async def main() -> list[int]:
        return [id(_client()) for _ in range(32)]

    first = asyncio.run(main())
    assert len(set(first)) == 16
    assert first[:16] == first[16:]


def test_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JudgeUnavailable, match=r"ConnectError: .* \(2 tries\)"):
        score(url="http://127.0.0.1:9/v1", retries=1)
    with pytest.raises(JudgeUnavailable, match="write http:// or https:// before it"):
        score(url="127.0.0.1:9/v1")
    monkeypatch.setenv("MY_JUDGE_KEY", "sk-a\nb")
    with pytest.raises(JudgeUnavailable, match=r"MY_JUDGE_KEY .* has other than") as caught:
        score(url="http://127.0.0.1:9/v1", key_variable="MY_JUDGE_KEY")
    assert "sk-a" not in str(caught.value)
    monkeypatch.delenv("MY_JUDGE_KEY", raising=False)
    with pytest.raises(JudgeUnavailable, match="the environment variable MY_JUDGE_KEY"):
        score(url="http://127.0.0.1:9/v1", key_variable="MY_JUDGE_KEY")


def test_one_that_hangs(judge: Answering) -> None:
    judge.answers = ["hang"]
    with pytest.raises(JudgeUnavailable, match=r"no answer within 0\.2 s \(2 tries\)"):
        score(url=judge.url, seconds=0.2, retries=1)
    with pytest.raises(RewardTimeout, match=r"not done after 0\.5 s"):
        score(url=judge.url, limit=0.5)


def test_one_that_drips_has_no_more_time_than_one_that_hangs(judge: Answering) -> None:
    judge.answers = ["drip", "[[5]]"]
    assert score(url=judge.url, seconds=0.5, retries=1, limit=10.0)[0].score == 0.5
    assert len(judge.asked) == 2


def test_many_are_asked_side_by_side(judge: Answering) -> None:
    judge.answers = ["[[5]]"]
    assert [one.score for one in score(url=judge.url, count=100)] == [0.5] * 100


def test_ratings_and_places() -> None:
    assert parsed_rating("a [[1]] b [[-2.5]]", r"\[\[(-?[\d.]+)\]\]") == -2.5
    assert parsed_rating("[[x]]", r"\[\[(\w)\]\]") is None
    assert parsed_rating("5", r"\d") is None
    task = Task(TaskId("mine", 0, 0), (), "{response}")
    assert filled("{answer} {response} {other}", task, "{answer}") == "{response} {answer} {other}"


def test_one_that_gives_no_rating_is_asked_once_a_task_before_a_run(judge: Answering) -> None:
    judge.answers = ["I would rather not."]
    args = {"model": "judge", "url": judge.url, "first_wait": 0.01, "retries": 4}
    rows = TasksetConfig(source="reverse_digits", rewards=("llm_judge",), reward_args={"llm_judge": args})

    async def tried() -> None:
        with RewardRunner(["llm_judge"], timeout=20.0, workers=1) as runner:
            tasksets = load_tasksets({"mine": rows}, 0, "fail", role="train")
            await runner.try_out((f"tasks.train.{name}", one) for name, one in tasksets.items())

    with pytest.raises(ConfigError, match=r"'llm_judge': fails when .*: no rating from 0 to 10 in .* \(1 tries\)"):
        asyncio.run(tried())
    assert len(judge.asked) == TASKS_TRIED
