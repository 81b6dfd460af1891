"""The tokenizer of the `tiny` model, and how tokenizers are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer, tiny_vocabulary

PRINTABLE = "".join(map(chr, range(32, 127)))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(path)
    return path


@pytest.mark.parametrize(
    "text", [PRINTABLE, "  two  spaces, and a tab\t\nnew line ", "1234567890", "a , b . it 's", "", "<|ende|> < pad >"]
)
def test_the_round_trip_is_exact(text: str, directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text)  # a character, a token: digits too


def test_the_chat_template_marks_turns_with_one_token_each(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "12+3"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Add.<|end|><|user|>12+3<|end|><|assistant|>"
    ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert len(ids) == 5 + len("Add.12+3")
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Add.12+3"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|system|>Add.<|end|><|user|>12+3<|end|>"


def test_a_turn_ends_with_the_end_token(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.bos_token is None


def test_an_unknown_character_becomes_one_unknown_token(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("aµb")) == ["a", "<|unknown|>", "b"]


def test_chosen_characters_are_the_whole_vocabulary(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path, "0123456789+=+")
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == len(tiny_vocabulary("0123456789+=+")) == 7 + 12
    assert tokenizer.decode(tokenizer.encode("17+4=21")) == "17+4=21"
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("1a")) == ["1", "<|unknown|>"]


def test_a_directory_gives_the_same_object(directory: Path) -> None:
    assert load_tokenizer(directory) is load_tokenizer(directory)


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json; save the model with a fast tokenizer$") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", ['{"model": ', '{"a": 1}', ""])
def test_one_that_is_damaged_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"^/.*: its tokenizer cannot be read \(.+\); save it again$"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "printed"),
    [("import transformers", True), ("from rljax.models.tokenizer import import_transformers as f; f()", False)],
    ids=["by itself", "by us"],
)
def test_nobody_is_told_to_install_torch_for_a_tokenizer(imports: str, printed: bool) -> None:
    program = f"import sys; sys.modules['torch'] = None; {imports}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert ("PyTorch" in done.stderr) == printed
    assert printed or done.stderr == ""
