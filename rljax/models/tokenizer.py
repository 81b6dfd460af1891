"""Tokenizers: that of a model directory, and the small one of the `tiny` model."""

from __future__ import annotations

import copy
import functools
import json
import logging
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from jinja2 import Environment, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from tokenizers import AddedToken, Tokenizer, decoders, models

from rljax.config.fields import ConfigError, shown
from sidecar.errors import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PAD, _UNKNOWN, _END = "<|pad|>", "<|unknown|>", "<|end|>"
_SPECIALS = (_PAD, _UNKNOWN, _END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
_CHARACTERS = "\t\n" + "".join(map(chr, range(32, 127)))
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def import_transformers() -> ModuleType:
    """Returns the package transformers, imported without its advice to install PyTorch, which tokenizers do not need,
    and in a notebook ipywidgets, which nothing of ours shows.
    """
    logging.getLogger("transformers").addFilter(_is_news)
    warnings.filterwarnings("ignore", message="IProgress not found")
    import transformers

    return transformers


def _is_news(record: logging.LogRecord) -> bool:
    return "Models won't be available" not in str(record.msg)


@functools.lru_cache(maxsize=8)
def load_tokenizer(directory: Path | str) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a model directory; the same object for the same directory.

    Raises:
        ValueError: when the directory has no `tokenizer.json`, or none that can be read.
    """
    if not (Path(directory) / "tokenizer.json").exists():
        raise ValueError(f"{directory} has no tokenizer.json; save the model with a fast tokenizer")
    transformers = import_transformers()
    try:
        loaded: PreTrainedTokenizerFast = transformers.PreTrainedTokenizerFast.from_pretrained(str(directory))
    except Exception as error:  # whatever its readers of JSON and of tokenizers meet
        raise ValueError(f"{directory}: its tokenizer cannot be read ({first_line(error)}); save it again") from error
    return loaded


def with_chat_template(
    tokenizer: PreTrainedTokenizerFast, template: str | None, enable_thinking: bool | None
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer that renders chats by a template of one's own; the one that is given stays as it is.

    Args:
        tokenizer: whose template is used where ``template`` is None.
        template: a file of Jinja, or its text, which has braces.
        enable_thinking: what the template reads under this name; None: nothing.

    Raises:
        ConfigError: there is no such file, it is no Jinja, or it does not read ``enable_thinking``.
    """
    if template is None and enable_thinking is None:
        return tokenizer
    mine = copy.copy(tokenizer)
    mine.chat_template = chosen_template(tokenizer.chat_template, template, enable_thinking)
    return mine


def chosen_template(own: str | dict[str, str] | None, template: str | None, enable_thinking: bool | None) -> str | None:
    """Returns the text of the chat template that is rendered by, where the model has its ``own``.

    Raises:
        ConfigError: as `with_chat_template`.
    """
    text = own if template is None else template_text(template)
    if isinstance(text, dict):
        text = text.get("default")
    if enable_thinking is None:
        return text
    if "enable_thinking" not in (text or ""):
        raise ConfigError(
            f"model.enable_thinking={enable_thinking}: the chat template does not read it; leave it out, or write "
            "a model.chat_template that does"
        )
    # a line of its own: the template begins a line as it did
    return f"{{% set enable_thinking = {str(enable_thinking).lower()} %}}\n{text}"


class _Generation(Extension):
    """Reads the blocks in which transformers finds what an assistant said."""

    tags = {"generation"}  # noqa: RUF012 — as jinja2 declares it

    def parse(self, parser: Parser) -> list[Node]:
        """Implements `Extension.parse`: what is in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_text(template: str) -> str:
    """Returns the text of a chat template: that of the file, or ``template`` itself, which has braces.

    Raises:
        ConfigError: there is no such file, or it is no Jinja.
    """
    what = f"model.chat_template={shown(template)}"
    try:
        text = template if "{%" in template or "{{" in template else Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: cannot be read ({error}); write a file of Jinja, or its text") from error
    try:
        Environment(extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False).parse(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{what}: line {error.lineno}: no Jinja ({error.message})") from error
    return text


def save_tokenizer(
    backend: Tokenizer, directory: Path, *, chat_template: str, bos: str | None, eos: str, pad: str, unknown: str
) -> None:
    """Writes the tokenizer files of a model directory, and a `config.json` with nothing but the special token ids."""
    tokenizer = import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=chat_template,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token=unknown,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(str(directory))
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    (directory / "config.json").write_text(json.dumps(ids), encoding="utf-8")


def tiny_vocabulary(characters: str | None = None) -> dict[str, int]:
    """Returns the tokens of the `tiny` model and their ids: special tokens, then ``characters``.

    None stands for tab, newline and printable ASCII. Anything else becomes the unknown token.
    """
    known = _CHARACTERS if characters is None else "".join(dict.fromkeys(characters))
    return {token: index for index, token in enumerate((*_SPECIALS, *known))}


def save_tiny_tokenizer(directory: Path, characters: str | None = None) -> None:
    """Writes the tokenizer of the `tiny` model: one token a character, turns marked by one token each."""
    vocabulary = tiny_vocabulary(characters)
    # Byte-pair encoding without a single merge: every character stays alone, digits too.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=_UNKNOWN))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIALS])
    save_tokenizer(backend, directory, chat_template=TINY_CHAT_TEMPLATE, bos=None, eos=_END, pad=_PAD, unknown=_UNKNOWN)
