"""A chat template of one's own, and what it is told about thinking, against transformers' own rendering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.config.fields import ConfigError
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer, with_chat_template
from rljax.tasks.dialogue import ChatTurns
from rljax.tasks.templates import render_messages

THINKS = """\
  {%- for message in messages %}
    <|{{ message.role }}|>{{ message.content }}<|end|>
{%- endfor %}
{% if add_generation_prompt %}
<|assistant|>
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{% endif %}
"""
"""Thinks as Qwen3's does; with the white space that Jinja's options for blocks are about."""
CHAT = [{"role": "system", "content": "count"}, {"role": "user", "content": "1, 2"}]


@pytest.fixture
def plain(tmp_path: Path) -> Any:
    save_tiny_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def by_transformers(tokenizer: Any, **how: Any) -> list[int]:
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=True, return_dict=False, **how)
    return list(ids)


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("begins", ["", "\n", "  \n"])
def test_prompts_are_what_transformers_renders(thinking: bool | None, begins: str, plain: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(begins + THINKS)
    how = {} if thinking is None else {"enable_thinking": thinking}
    expected = by_transformers(plain, chat_template=begins + THINKS, **how)
    for given in (str(file), begins + THINKS):
        mine = with_chat_template(plain, given, thinking)
        assert render_messages(mine, CHAT).tolist() == expected
        assert ChatTurns(mine, [plain.eos_token_id]).opening(CHAT).tolist() == expected
    told = by_transformers(plain, chat_template=begins + THINKS, enable_thinking=False)
    assert (expected == told) == (thinking is False), "it is the template that thinks, or not"


@pytest.mark.parametrize("tag", ["{%% %s %%}", "{%%- %s -%%}", "{%% %s -%%}", "{%%+ %s%%}", "{%%-%s%%}"])
def test_blocks_that_mark_what_an_assistant_said_are_read(tag: str, plain: Any) -> None:
    inner = "{% for message in messages %}<|user|> " + tag % "generation" + " {{ message.content }} "
    template = inner + tag % "endgeneration" + " <|end|>{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
    mine = with_chat_template(plain, template, None)
    assert render_messages(mine, CHAT).tolist() == by_transformers(plain, chat_template=template)


def test_between_two_turns_stands_what_the_template_writes(plain: Any) -> None:
    between = ChatTurns(with_chat_template(plain, THINKS, False), [plain.eos_token_id]).between(
        np.zeros(0, np.int32), "more"
    )
    text = "".join(plain.convert_ids_to_tokens(between.tolist()))
    assert text.endswith("<|assistant|><think>\n\n</think>\n\n") or "</think>" in text


def test_the_tokenizer_that_others_have_stays_as_it_is(plain: Any) -> None:
    before = plain.chat_template
    assert with_chat_template(plain, None, None) is plain
    assert with_chat_template(plain, THINKS, None).chat_template == THINKS
    assert plain.chat_template == before


@pytest.mark.parametrize(
    ("template", "thinking", "line"),
    [
        (None, False, "model.enable_thinking=False: the chat template does not read it"),
        ("nowhere.jinja", None, "model.chat_template='nowhere.jinja': cannot be read"),
        ("{% for message in messages %}{{ message }", None, "line 1: no Jinja"),
        ("{% generation %}{{ messages }}", None, "line 1: no Jinja"),
    ],
)
def test_a_template_that_cannot_work_is_refused(
    template: str | None, thinking: bool | None, line: str, plain: Any
) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        with_chat_template(plain, template, thinking)
    assert "\n" not in str(refused.value)
