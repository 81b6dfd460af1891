import ast
import inspect
import re
from pathlib import Path

import pytest

from rljax.config.validate import ConfigError
from rljax.tasks import rewards
from rljax.tasks.rewards import register_reward
from rljax.tasks.rewards.registry import built_in, resolve_reward, reward_terms
from rljax.tasks.rewards.scorer import Place
from rljax.tasks.task import Task

REWARDS = Path(rewards.__file__).parent
KEY = "tasks.train.mine.rewards"

SOURCE = """
LIMIT = 3
def length(task, response): return len(response)
def three(task, response, trajectory): return 0
class Judge:
    def __call__(self, task, response): return 1.0
judge = Judge()
def short(task, response, *, most: int, factor: float = 1.0, words: tuple[str, ...] = ()): return 1.0
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "rewards_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "lengths.py").write_text(SOURCE)
    (package / "broken.py").write_text("import no_such_package_at_all")
    (package / "raising.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_where_each_reward_runs() -> None:
    @register_reward("noted")
    def noted(task: Task, response: str) -> float:
        return 0.0

    places = {
        "exact": Place.INLINE,
        "digits": Place.INLINE,
        "format": Place.INLINE,
        "numeric": Place.PROCESS,
        "reasoning_gym": Place.PROCESS,
        "format:<b>.*</b>": Place.PROCESS,
        "rewards_of_mine.lengths:length": Place.PROCESS,
        "noted": Place.THREAD,
    }
    assert {name: resolve_reward(name, KEY).place for name in places} == places


def test_an_object_that_can_be_called_is_a_reward() -> None:
    assert resolve_reward("rewards_of_mine.lengths:judge", KEY).part == "judge"


def test_rewards_of_one_short_name_are_logged_apart() -> None:
    names = ("format", "format:<b>", "rewards_of_mine.lengths:length")
    assert [term.part for term in reward_terms(names, None, KEY)] == ["format", "format.<b>", "length"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exakt", f"{KEY}='exakt': no such reward; nearest: exact, or write module:function"),
        ("format:(", "not a regular expression"),
        ("rewards_of_mine.lenghts:length", "no module 'rewards_of_mine.lenghts'; nearest: rewards_of_mine.lengths"),
        ("reward_of_mine:length", "no module 'reward_of_mine'; nearest: rewards_of_mine"),
        ("_cursed:length", "no module '_cursed' in the folder of this command, nor on PYTHONPATH; name one that is"),
        ("rewards_of_mine.lengths:lenght", "no function 'lenght' there; nearest: length"),
        ("rewards_of_mine.lengths:LIMIT", "no function 'LIMIT' there"),
        ("rewards_of_mine.lengths:three", "must take (task, response): missing a required argument: 'trajectory'"),
        ("rewards_of_mine.broken:length", "importing it fails: No module named 'no_such_package_at_all'"),
        ("rewards_of_mine.raising:length", "importing it fails: ZeroDivisionError"),
        (":length", "importing it fails: ValueError: Empty module name"),
        ("rewards_of_mine.lengths:", "no function '' there"),
        ("__main__:length", "decorate it with register_reward"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        resolve_reward(name, KEY)
    assert str(caught.value).startswith(KEY)
    assert "\n" not in str(caught.value)


def test_a_reward_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="stands there twice"):
        reward_terms(("exact", "exact"), None, KEY)


@pytest.mark.parametrize("name", ["exact", "module:function", "two words", ""])
def test_names_that_cannot_be_registered(name: str) -> None:
    with pytest.raises(ConfigError, match="choose another"):
        register_reward(name)(lambda task, response: 0.0)


def test_a_registered_function_must_take_both_arguments() -> None:
    with pytest.raises(ConfigError, match=r"must take \(task, response\)"):
        register_reward("short")(lambda response: 0.0)  # type: ignore[arg-type, misc]


def test_keyword_only_parameters_come_from_the_config() -> None:
    names = ("exact", "rewards_of_mine.lengths:short")
    exact, short = reward_terms(names, None, KEY, {"short": {"most": 3, "factor": 2}})
    assert (exact.args, short.args) == ({}, {"most": 3, "factor": 2.0, "words": ()})
    assert isinstance(short.args["factor"], float)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {},
            "tasks.train.mine.reward_args.short.most: rewards_of_mine.lengths:short needs it; write tasks.train.mine.r",
        ),
        ({"short": {"least": 3}}, "tasks.train.mine.reward_args.short.most: "),
        (
            {"short": {"most": 3, "least": 3}},
            "reward_args.short.least: rewards_of_mine.lengths:short has no such key; it has: fa",
        ),
        ({"short": {"most": "3"}}, "tasks.train.mine.reward_args.short.most='3': expected an integer, not str"),
        (
            {"short": {"most": 3}, "shrot": {}},
            "reward_args.shrot: nothing reads it; add shrot to tasks.train.mine.rewar",
        ),
        (
            {"short": {"most": 3}, "exact": {"case": 1}},
            "reward_args.exact.case: exact has no such key; it has none",
        ),
    ],
)
def test_arguments_that_a_reward_does_not_have_are_refused(args: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reward_terms(("exact", "rewards_of_mine.lengths:short"), None, KEY, args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_reward_is_stands_beside_its_function_and_nowhere_else() -> None:
    """A new one touches its file, its tests and its row of the docs: no code compares names of rewards."""
    for name, scorer in built_in().items():
        module = inspect.getmodule(scorer.function)
        assert module is not None
        assert Path(module.__file__ or "").parent == REWARDS, name
    compared = [
        f"{path}: {ast.unparse(node)}"
        for room in ("tasks", "rollout", "pipeline")
        for path in (REWARDS.parents[1] / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and "name" in ast.unparse(node)
        and any(isinstance(one, ast.Constant) and one.value in built_in() for one in ast.walk(node))
    ]
    assert compared == []
