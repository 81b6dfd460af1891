"""The tables of docs/from_trl.md and docs/from_verl.md are those that messages are made of, and our keys exist."""

from __future__ import annotations

import pytest

from rljax.config.fields import ConfigError
from rljax.config.habits import HABITS, table
from rljax.config.load import key_help, load_config
from tests.docs.pages import PAGES, ROOT
from tests.docs.test_blocks import exists

QUICKSTART = str(ROOT / "configs" / "quickstart.py")


def answered(theirs: str, value: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(QUICKSTART, {theirs: value})
    return str(refused.value)


@pytest.mark.parametrize("whose", HABITS)
def test_a_page_has_the_table_of_the_messages(whose: str) -> None:
    said = f"<!-- This table is printed by python -m rljax.config.habits {whose} -->\n\n"
    printed = "\n".join(table(whose)) + "\n"
    assert PAGES[f"docs/from_{whose.lower()}.md"].partition(said)[2].startswith(printed)


@pytest.mark.parametrize("whose", HABITS)
def test_each_of_our_keys_exists_and_takes_the_value_that_is_named(whose: str) -> None:
    for row in HABITS[whose]:
        assert row.here or row.remark, row.theirs
        for key, _, value in (name.removesuffix(".*").partition("=") for name in row.here):
            assert exists(key), key
            if value and key != "sidecar.colocate":  # which wants vLLM beside it
                load_config(QUICKSTART, {"mode": "audit", key: value})


@pytest.mark.parametrize("whose", HABITS)
def test_each_of_their_keys_is_answered(whose: str) -> None:
    """Also those that another program has at the same place, and does not mean otherwise."""
    ours = {path for path, _, _ in key_help()}
    for row in HABITS[whose]:
        for answer in row.answers():
            theirs = answer.path.replace("*", "temperature")
            if theirs in ours or theirs == "model":
                continue
            said = answered(theirs, answer.value or "True")
            assert " has it; " in said or " did you mean " in said, said
            named = [key.partition("=")[0].removesuffix(".*") for key in answer.here]
            assert any(key in said for key in named) or not named, (said, named)


@pytest.mark.parametrize("whose", HABITS)
def test_a_switch_that_is_off_is_not_answered_with_what_turns_it_on(whose: str) -> None:
    off = {"vllm_mode": "server", "trainer.nnodes": "1"}
    for row in HABITS[whose]:
        for answer in row.answers():
            if answer.value or not any("=" in key for key in answer.here):
                continue
            on = [key for key in answer.here if "=" in key]
            assert all(key in answered(answer.path, "True") for key in on), answer
            for value in [off[answer.path]] if answer.path in off else ["False", "false", "0"]:
                said = answered(answer.path, value)
                assert " has it; " in said
                assert not any(key in said for key in on), said
