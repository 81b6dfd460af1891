"""`rljax --help WORD` finds keys."""

from __future__ import annotations

import pytest

from rljax.command_line import main
from rljax.config.keys import all_keys
from rljax.config.search import matching


def test_a_word_is_looked_for_in_names_meanings_types_and_choices() -> None:
    paths = [key.path for key in matching(["Staleness"])]
    assert paths[0] == "max_staleness"  # first by its name
    assert {"async_generation_ratio", "sync_interval"} < set(paths)  # by what they do
    overlong = [key.path for key in matching(["overlong", "penalty"])]
    assert overlong[:2] == ["algorithm.overlong_penalty", "algorithm.overlong"]
    assert "sync_method" in [key.path for key in matching(["nccl"])]
    assert "algorithm.pg_variant" in [key.path for key in matching(["opmd_kimi"])]  # the name of a function
    assert all("integer" in key.takes or "integer" in key.meaning for key in matching(["an integer"]))
    assert matching(["staleness", "zzzz"]) == []


def test_every_key_says_what_it_takes() -> None:
    takes = {key.path: key.takes for key in all_keys()}
    assert takes["max_staleness"] == "an integer or none"
    assert takes["tasks.train.NAME.args"] == "keys and values"
    assert takes["tasks.train.NAME.rewards"] == "a tuple: a,b,c"


def test_what_is_found_is_printed_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "overlong", "penalty"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  --config.algorithm.overlong_penalty=1.0"
    assert lines[1].endswith(" (a number)")
    assert lines[2] == "  --config.algorithm.overlong=keep"
    assert "(text: keep, " in lines[3]
    assert main(["--help=overlong", "penalty"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert main(["--help", "--config=quickstart"]) == 0  # no word
    assert "--config.serve.drain_timeout=" in capsys.readouterr().out
    assert main(["--help", "loss"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 61
    assert lines[-1].startswith("  and ")


@pytest.mark.parametrize(
    ("word", "first", "last"),
    [
        (
            "beta",
            "  --config.learner.optimizer.beta1=0.9",
            "beta: TRL has it; write algorithm.kl.coef (with algorithm.kl.where=loss)",
        ),
        (
            "epsilon",
            "  --config.learner.optimizer.eps=1e-08",
            "epsilon: TRL has it; write algorithm.loss.clip_low, algorithm.loss.clip_high (set both: each has its own "
            "default)",
        ),
        ("temperature", "  --config.", ""),  # ours
        ("critic", "  --config.algorithm.critic.", ""),  # a group of ours
        ("tag", "  --config.tasks.train.NAME.tag_key=tag", ""),
        ("template", "  --config.tasks.train.NAME.template={prompt}", ""),  # ROLL has one too, which it can do without
        ("clip_low", "  --config.algorithm.loss.clip_low=", ""),
        ("stale", "  --config.max_staleness=", ""),  # nobody's
    ],
)
def test_what_others_mean_by_a_word_stands_below_the_keys_that_have_it(
    word: str, first: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", word]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(first) for line in lines)
    assert lines[-1] == last if last else lines[-1].startswith("  ")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("stalenes_max", "rljax: stalenes_max: no key has it; closest: max_staleness"),
        ("num_generations", "rljax: num_generations: no key of ours; TRL has it; write group_size"),
        ("qqqqqq", "rljax: qqqqqq: no key has it; rljax --help lists all"),
    ],
)
def test_a_word_that_no_key_has_is_answered_with_the_closest(
    word: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", word]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(line)
