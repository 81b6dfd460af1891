from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer
from rljax.tasks.rewards.text import digits, exact
from rljax.tasks.task import BadRow, Task
from rljax.tasks.templates import chat_messages, render_messages, render_prompt, response_text, tokenized
from rljax.trajectory import TaskId

WORDS = ["<s>", "[", "]", "\n", "S", "U", "A", *"0123456789 abcdefghijklmnopqrstuvwxyz.,?"]
TURNS = "{% for m in messages %}[{{ 'S' if m.role == 'system' else 'U' }}{{ m.content }}]{% endfor %}"
REPLY = "{% if add_generation_prompt %}[A{% endif %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


def tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """One token a character."""
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    model.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=model, chat_template=chat_template)


def text(token_ids: np.ndarray) -> str:
    return "".join(WORDS[i] for i in token_ids)


def task(*messages: dict[str, str]) -> Task:
    return Task(TaskId("mine", 0, 7), messages, "")


def test_the_chat_template_writes_the_turns_and_opens_the_reply() -> None:
    token_ids = render_messages(tokenizer(TURNS + REPLY), chat_messages("{prompt}?", "be nice", "hi"))
    assert text(token_ids) == "[Sbe nice][Uhi?][A"
    assert token_ids.dtype == np.int32


def test_examples_are_turns_in_the_template_of_the_task() -> None:
    messages = chat_messages("{prompt}?", "be nice", "hi", ("a", "1", "b", "2"))
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert [message["content"] for message in messages] == ["be nice", "a?", "1", "b?", "2", "hi?"]


def test_a_system_message_that_is_refused_goes_before_the_question() -> None:
    token_ids = render_messages(tokenizer(NO_SYSTEM + TURNS + REPLY), chat_messages("{prompt}", "be nice", "hi"))
    assert text(token_ids) == "[Ube nice\n\nhi][A"


def test_other_refusals_are_not_hidden() -> None:
    jinja2 = pytest.importorskip("jinja2")
    refusing = tokenizer("{{ raise_exception('no') }}")
    for messages in (chat_messages("{prompt}", None, "hi"), chat_messages("{prompt}", "be nice", "hi")):
        with pytest.raises(jinja2.TemplateError):
            render_messages(refusing, messages)


def test_without_a_template_the_contents_follow_one_another() -> None:
    assert text(render_messages(tokenizer(None), chat_messages("{prompt}", "be nice", "hi"))) == "be nice\nhi"


def test_a_prompt_may_have_as_many_tokens_as_allowed_and_no_more() -> None:
    long = task({"role": "user", "content": "12345"})
    assert len(render_prompt(tokenizer(None), long, 5)) == 5
    said = r"mine/0/7: a prompt of 5 tokens; model\.max_prompt_tokens is 4; raise it, .*; it asks '12345'"
    with pytest.raises(BadRow, match=said):
        render_prompt(tokenizer(None), long, 4)


def test_the_prompt_of_a_group_is_rendered_once_and_each_member_has_it_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered: list[str] = []
    model, own = tokenizer(TURNS + REPLY), PreTrainedTokenizerFast.apply_chat_template

    def apply(self: PreTrainedTokenizerFast, chat: list[dict[str, str]], **keys: object) -> object:
        rendered.append(chat[-1]["content"])
        return own(self, chat, **keys)

    monkeypatch.setattr(PreTrainedTokenizerFast, "apply_chat_template", apply)
    first, second = (render_prompt(model, task({"role": "user", "content": "12"}), 9) for _ in range(2))
    first[:] = 0
    assert text(second) == "[U12][A"
    render_prompt(model, task({"role": "user", "content": "34"}), 9)
    assert rendered == ["12", "34"]
    model.chat_template = TURNS + "{{ strftime_now('') }}"  # of another day
    for _ in range(2):
        render_prompt(model, task({"role": "user", "content": "5"}), 9)
    assert rendered == ["12", "34", "5", "5"]
    model.chat_template = TURNS
    assert text(render_prompt(model, task({"role": "user", "content": "12"}), 9)) == "[U12]"


def test_a_text_that_the_tokenizer_cannot_spell_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny_tokenizer(tmp_path / "digits", "0123456789")
    tokenizer = load_tokenizer(tmp_path / "digits")
    assert tokenized(tokenizer, "12").tolist() == tokenizer("12")["input_ids"]
    assert not caplog.records
    for text in ("1+2=?", "3+4"):
        assert tokenizer.unk_token_id in tokenized(tokenizer, text)
    (record,) = caplog.records
    assert "no tokens for '+=?'" in record.getMessage()
    assert "'1+2=?'" in record.getMessage()


def test_an_empty_prompt_is_a_bad_row() -> None:
    with pytest.raises(BadRow, match="a prompt of 0 tokens"):
        render_prompt(tokenizer(None), task({"role": "user", "content": ""}), 4)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["4", "2", "<|end|>"], "42"),
        (["4", "2"], "42"),
        (["4", "<|user|>", "2"], "4<|user|>2"),
        (["<|pad|>", "4", "2", "<|end|>"], "<|pad|>42"),
        (["4", "<|end|>", "2"], "4<|end|>2"),
        (["<|end|>"], ""),
        ([], ""),
    ],
)
def test_a_response_is_all_that_was_sampled_but_the_stop_token(
    tmp_path: Path, tokens: list[str], expected: str
) -> None:
    save_tiny_tokenizer(tmp_path, "0123456789")
    tiny = load_tokenizer(tmp_path)
    token_ids = np.array(tiny.convert_tokens_to_ids(tokens), np.int32)
    assert response_text(tiny, token_ids, [tiny.eos_token_id]) == expected


def test_an_id_that_the_tokenizer_does_not_have_is_seen(tmp_path: Path) -> None:
    """A model may have more embedding rows than its tokenizer has ids, and sample one of them."""
    save_tiny_tokenizer(tmp_path, "0123456789")
    tiny = load_tokenizer(tmp_path)
    four, two = tokenized(tiny, "42")
    beyond = len(tiny) + 3
    response = np.array([four, beyond, beyond, two, tiny.eos_token_id], np.int32)
    said = response_text(tiny, response, [tiny.eos_token_id])
    assert said == "4<|no_token|><|no_token|>2"
    question = Task(TaskId("mine", 0, 0), (), "42")
    assert [exact(question, said), digits(question, said)] == [0.0, 0.25]
