"""Columns that files do not have are refused by the keys that name them, all at once, and by a dry run too."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rljax.command_line import main


@pytest.fixture
def misspelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments whose prompts and answers have no such columns, and the folder of their files."""
    monkeypatch.chdir(tmp_path)
    row = {"question": "1 + 1", "answer": "2", "extra": {"level": 1}}
    Path("rows.jsonl").write_text(f"\n{json.dumps(row)}\n")
    Path("rows.csv").write_text("question,solution\n1 + 1,2\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), "rows.parquet")
    own = """
        from ml_collections import ConfigDict
        def get_config():
            print("is executed")
            train = {"source": "rows.jsonl", "prompt_key": "quesiton", "answer_key": "extra.levle"}
            held_out = {"source": "rows.parquet", "prompt_key": "quesiton", "answer_key": "anser"}
            sft = {"source": "rows.csv", "answer_key": "solutoin"}
            return ConfigDict({"tasks": {"train": {"a": train}, "validation": {"b": held_out}, "expert": sft},
                "algorithm": {"expert_data_ratio": 0.5, "pg_variant": "mix"}, "group_size": 2, "rollout_batch_size": 8})
    """
    Path("own.py").write_text(textwrap.dedent(own))
    return ["--config=own.py"]


MISSPELT = [
    "tasks.train.a.prompt_key='quesiton': no such column; nearest: question, of rows.jsonl",
    "tasks.train.a.answer_key='extra.levle': no such column; nearest: extra.level, of rows.jsonl",
    "tasks.validation.b.prompt_key='quesiton': no such column; nearest: question, of rows.parquet",
    "tasks.validation.b.answer_key='anser': no such column; nearest: answer, of rows.parquet",
    "tasks.expert.answer_key='solutoin': no such column; nearest: solution, of rows.csv",
]


def test_misspelt_columns_are_told_at_once_by_their_keys(
    misspelt: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*more: str) -> list[str]:
        assert main([*misspelt, *more]) == 2
        return [line.strip() for line in capsys.readouterr().err.splitlines()[1:]]

    assert said("--dry-run") == said() == MISSPELT
    assert not Path("runs").exists()
    estimator = "algorithm.adv_estimator='gpro': there is no such one"
    for more in (["--dry-run"], []):
        first, *rest = said("--config.algorithm.adv_estimator=gpro", *more)
        assert first.startswith(estimator)
        assert rest == MISSPELT
    reward, *rest = said("--config.tasks.train.a.rewards=nosuch,exact")
    assert reward.startswith("tasks.train.a.rewards='nosuch': no such reward")
    assert rest == MISSPELT


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--config.group_size=0"], ["--config.seed=0,1"]])
def test_a_misspelt_column_is_one_line_of_all_files_that_do_not_have_it(
    more: list[str], misspelt: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "bcd":
        Path(f"{name}.jsonl").write_text(Path("rows.jsonl").read_text())
    Path("other.jsonl").write_text('{"answer": "2"}\n')
    assert main([*misspelt, "--config.tasks.train.a.source=rows.jsonl,b.jsonl,other.jsonl,c.jsonl,d.jsonl", *more]) == 2
    told = capsys.readouterr().err
    assert told.count("tasks.train.a.prompt_key") == 1
    files = "rows.jsonl, b.jsonl, c.jsonl and 1 more; there are: answer, of other.jsonl\n"
    assert f"tasks.train.a.prompt_key='quesiton': no such column; nearest: question, of {files}" in told


def test_a_header_has_no_tag_and_nobody_no_folder(misspelt: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    taskset = "--config.tasks.train.a"
    tagged = [f"{taskset}.source=rows.csv", f"{taskset}.tags=x", f"{taskset}.tag_key=solution"]
    assert main([*misspelt, *tagged, "--dry-run"]) == 2
    assert (
        "tasks.train.a.prompt_key='quesiton': no such column; nearest: question, of rows.csv" in capsys.readouterr().err
    )
    assert main([*misspelt, f"{taskset}.source=~nosuch/t.csv", "--dry-run"]) == 2
    assert "tasks.train.a.source='~nosuch/t.csv': cannot be read (No such file" in capsys.readouterr().out


def test_a_column_that_another_row_may_have_is_not_refused(
    misspelt: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad row is passed over, and one of another tag needs no answer; what no reward reads need not be there."""
    whole = [f"--config.tasks.{key}" for key in ("validation.b.prompt_key=question", "validation.b.answer_key=answer")]
    whole += ["--config.tasks.expert.answer_key=solution", "--dry-run"]
    skip = "--config.tasks.on_bad_row=skip"
    assert main([*misspelt, *whole, skip]) == 0
    capsys.readouterr()
    of_csv = [argument for argument in whole if "expert" not in argument]
    assert main([*misspelt, *of_csv, skip]) == 2  # a header is that of all rows
    assert capsys.readouterr().err == f"rljax: {MISSPELT[-1]}\n"
    answers = ["--config.tasks.train.a.source=rows.csv", "--config.tasks.train.a.prompt_key=question", skip]
    assert main([*misspelt, *whole[:-1], *answers]) == 2  # and a run says no more than a dry one
    assert capsys.readouterr().err.startswith("rljax: tasks.train.a.answer_key='extra.levle': no such column; ")
    train = "--config.tasks.train.a"
    tagged = [f"{train}.tags=2", f"{train}.tag_key=extra.level"]
    assert main([*misspelt, *whole, *tagged]) == 0
    assert main([*misspelt, *whole, f"{train}.prompt_key=question", f"{train}.rewards=format"]) == 0
    capsys.readouterr()
    assert main([*misspelt, *whole, *tagged[:1]]) == 2
    assert "tasks.train.a.tag_key='tag': no such column" in capsys.readouterr().err


def test_options_that_a_source_does_not_read_are_told_with_the_columns(
    misspelt: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = [f"--config.tasks.{key}" for key in ("train.a.split=x", "train.a.subset=y", "expert.args.digits=2")]
    for dry in (["--dry-run"], []):
        assert main([*misspelt, *more, *dry]) == 2
        keys = [line.split("=")[0].split(": ")[0].strip() for line in capsys.readouterr().err.splitlines()[1:]]
        columns = [line.split("=")[0] for line in MISSPELT]
        options = ["tasks.train.a.subset", "tasks.train.a.split"]
        assert keys == [*options, *columns[:4], "tasks.expert.args", *columns[4:]]


ABSENT = "cannot be read (No such file or directory; looked in "
NO_ANSWER = "tasks.train.a.answer_key='answer': no such column; there are: question, of no_answer.jsonl"


@pytest.fixture
def whole(misspelt: list[str]) -> list[str]:
    """The same arguments with columns that are there; not so in `no_answer.jsonl`, which nothing names yet."""
    Path("no_answer.jsonl").write_text('{"question": "1 + 1"}\n')
    keys = "train.a.prompt_key=question", "train.a.answer_key=answer", "validation.b.prompt_key=question"
    more = "validation.b.answer_key=answer", "expert.answer_key=solution"
    return [*misspelt, *(f"--config.tasks.{key}" for key in (*keys, *more))]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gone.jsonl,no_answer.jsonl", [ABSENT, NO_ANSWER]),
        ("gone,no_answer.jsonl", ["'gone': not a file (.jsonl", NO_ANSWER]),
        ("gone.csv,rows.jsonl,second.jsonl", [ABSENT, "second.jsonl:2: no column 'answer'"]),
        ("gone.parquet,saved", [ABSENT, "tasks.train.a.source='saved': a directory that datasets' save_to_disk did"]),
    ],
)
def test_of_several_files_an_absent_one_hides_nothing_of_the_others(
    source: str, said: list[str], whole: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("second.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n{"question": "2 + 2"}\n')
    Path("saved").mkdir()
    assert main([*whole, f"--config.tasks.train.a.source={source}"]) == 2
    lines = capsys.readouterr().err.splitlines()[1:]
    assert all(part in line for line, part in zip(lines, said, strict=True)), lines


@pytest.mark.parametrize(
    ("reward", "hides"), [("numeri", False), ("mine:reward", False), ("formt", True), ("format:(", True)]
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_reward_that_there_is_not_hides_no_answer_that_is_not_there(
    reward: str, hides: bool, dry: list[str], whole: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is likest to a reward which reads none is no reason to ask for it."""
    given = f"--config.tasks.train.a.rewards={reward}", "--config.tasks.train.a.source=no_answer.jsonl"
    assert main([*whole, *given, *dry]) == 2
    first, *more = [line.strip() for line in capsys.readouterr().err.splitlines()[0 if hides else 1 :]]
    assert first.removeprefix("rljax: ").startswith(f"tasks.train.a.rewards='{reward}': ")
    assert more == ([] if hides else [NO_ANSWER])


def test_a_reward_that_there_is_not_hides_no_bad_row(whole: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n{"question": "2 +\n')
    assert main([*whole, "--config.tasks.train.a.rewards=numeri"]) == 2
    _, reward, row = capsys.readouterr().err.splitlines()
    assert reward.startswith("  tasks.train.a.rewards='numeri': no such reward; nearest: numeric")
    assert row.startswith("  rows.jsonl:2: not JSON (")


def test_a_tag_that_a_refused_taskset_takes_is_not_called_left(
    whole: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As each taskset is opened by itself, so that its rewards are tried."""
    rows = [{"question": "1 + 1", "answer": "2", "tests": [], "tag": tag} for tag in ("math", "KodCode")]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tagged = {"a": ("math", "numeric"), "code": ("KodCode", "code")}
    given = ["--config.tasks.train.code.source=rows.jsonl"]
    given += [f"--config.tasks.train.{name}.tags={tag}" for name, (tag, _) in tagged.items()]
    given += [f"--config.tasks.train.{name}.rewards={reward}" for name, (_, reward) in tagged.items()]
    assert main([*whole, *given]) == 2
    assert capsys.readouterr().err.endswith("tasks.train.code.rewards=code: there are no tests\n")
    assert "no taskset takes" not in caplog.text
