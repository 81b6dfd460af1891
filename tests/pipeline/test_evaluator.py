"""What is left of an evaluation that cannot begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljax.pipeline import evaluate
from rljax.pipeline.evaluate import Evaluator
from rljax.pipeline.run_dir import RunDir
from tests.config.making import make


class Part:
    """Something with an opening, which may fail, and an end."""

    def __init__(self, name: str, said: list[str], fails: str) -> None:
        self._name, self._said, self._fails = name, said, fails

    async def open(self) -> None:
        self._said.append(f"{self._name} opened")
        if self._fails == self._name:
            raise OSError(f"{self._name} failed")

    start = open

    async def close(self) -> None:
        self._said.append(f"{self._name} closed")


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Evaluator]:
    nothing: Any = None

    def evaluator(said: list[str], fails: str = "", scores: bool = True) -> Evaluator:
        monkeypatch.setattr(evaluate, "Workflows", lambda *_: Part("workflows", said, fails))
        monkeypatch.setattr(evaluate, "make_pool", lambda *_: Part("engines", said, fails))
        return Evaluator(make(), RunDir(tmp_path), nothing, nothing, scores=scores)

    return evaluator


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("workflows", ["workflows opened", "workflows closed"]),
        (
            "engines",
            ["workflows opened", "engines opened", "engines closed", "workflows closed"],
        ),
        ("", ["workflows opened", "engines opened", "asked", "engines closed", "workflows closed"]),
    ],
)
def test_what_was_opened_is_closed_where_the_rest_fails(
    fails: str, said: list[str], evaluator: Callable[..., Evaluator]
) -> None:
    heard: list[str] = []

    async def main() -> None:
        async with evaluator(heard, fails):
            heard.append("asked")

    if fails:
        with pytest.raises(OSError, match=f"^{fails} failed$"):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert heard == said


def test_one_that_only_generates_opens_neither_judges_nor_environments(evaluator: Callable[..., Evaluator]) -> None:
    heard: list[str] = []

    async def main() -> None:
        async with evaluator(heard, scores=False):
            pass

    asyncio.run(main())
    assert heard == ["engines opened", "engines closed", "workflows closed"]


def test_two_at_a_time_have_directories_of_their_own(evaluator: Callable[..., Evaluator], tmp_path: Path) -> None:
    def found() -> list[Path]:
        return list(tmp_path.glob("evaluation*"))

    async def main() -> None:
        async with evaluator([]):
            before = found()
            async with evaluator([]):
                assert len(found()) == 2
            assert found() == before

    asyncio.run(main())
    assert not found()
