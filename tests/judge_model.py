"""A real model that rates by a rule known beforehand: its next token is a function of the last one alone."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rljax.config.schema import ModelConfig, TinyConfig
from rljax.models.files import save_directory
from rljax.models.hf_names import tensor_shapes
from rljax.models.tiny import tiny_architecture
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer

DIGITS = {str(d): str(9 - d) for d in range(10)} | {"x": "x"}
"""After the digit d it says 9 - d, and x after x."""
YES = {".": "Y", "Y": "E", "E": "S", "S": ""}
"""It answers a question that ends in a full stop with YES, and ends."""


def make_judge(directory: Path, follows: Mapping[str, str] = DIGITS, sharpness: float = 50.0) -> Path:
    """Makes the model: no layer adds anything, and the head has a row for each token.

    ``follows`` says which character comes after which, empty for the end; ``sharpness`` is its logit, where all others
    have 0. There is no chat template: the last token is the last character of the question.
    """
    tiny = TinyConfig(
        family="llama", hidden_size=16, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2,
        tie_embeddings=False, characters="".join(follows),
    )  # fmt: skip
    architecture = tiny_architecture(ModelConfig(max_prompt_tokens=4096, tiny=tiny))
    width = -(-architecture.vocab_size // 8) * 8
    architecture = dataclasses.replace(architecture, hidden_size=width)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(architecture).items()}
    np.fill_diagonal(tensors["model.embed_tokens.weight"], 1.0)
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name][:] = 1.0
    with tempfile.TemporaryDirectory() as draft:
        save_tiny_tokenizer(Path(draft), tiny.characters)
        tokenizer = load_tokenizer(draft)
        tokenizer.chat_template = None
        tokenizer.save_pretrained(draft)
        (Path(draft) / "chat_template.jinja").unlink(missing_ok=True)
        for pair in follows.items():
            last, following = (tokenizer.convert_tokens_to_ids(one or tokenizer.eos_token) for one in pair)
            # the norm makes the square root of the width of a 1 among zeros
            tensors["lm_head.weight"][following, last] = sharpness / np.sqrt(width)
        save_directory(directory, architecture, tensors, Path(draft), "fp32")
    return directory
