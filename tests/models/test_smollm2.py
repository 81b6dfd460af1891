"""SmolLM2-135M-Instruct out of its GGUF file, against transformers and against what is published about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from rljax.models.files import load_directory
from rljax.models.smollm2 import DownloadError, smollm2_directory
from rljax.models.tokenizer import load_tokenizer
from tests.models.hf_models import assert_same_logits, load_with_transformers, our_logits, reference_logits

pytestmark = [pytest.mark.slow, pytest.mark.optimised]

TEXT = "The Eiffel Tower is a wrought-iron lattice tower in Paris, France. It was completed in 1889."


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        return smollm2_directory()
    except DownloadError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(directory: Path) -> PreTrainedModel:
    loaded = load_with_transformers(directory)
    assert loaded.dtype == torch.float32
    return loaded


def test_logits_are_those_of_transformers(directory: Path, model: PreTrainedModel) -> None:
    architecture, params = load_directory(directory)
    tokenizer = load_tokenizer(directory)
    messages = [{"role": "user", "content": "What is 12 + 34? Answer with the number only."}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    text = tokenizer.encode(TEXT)
    time = min(len(chat), len(text))
    token_ids = np.array([chat[:time], text[:time]], np.int32)
    expected = reference_logits(model, token_ids)
    assert_same_logits(our_logits(params, architecture, token_ids), expected, 1e-3)
    assert time > 20


def test_the_converted_weights_can_count(directory: Path, model: PreTrainedModel) -> None:
    """Wrongly permuted queries and keys would give the same logits twice, but then the model cannot count (2.9)."""
    ids = torch.tensor([AutoTokenizer.from_pretrained(str(directory)).encode(" ".join(map(str, range(1, 60))))])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss
    assert loss.item() < 0.5  # nats a token


def test_the_shape_is_the_published_one(directory: Path) -> None:
    architecture = load_directory(directory)[0]
    assert (architecture.num_layers, architecture.hidden_size, architecture.intermediate_size) == (30, 576, 1536)
    assert (architecture.num_heads, architecture.num_kv_heads, architecture.vocab_size) == (9, 3, 49_152)
    assert (architecture.rope_theta, architecture.rms_eps, architecture.tie_embeddings) == (100_000.0, 1e-5, True)


def test_digits_are_tokens_one_by_one(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x=1234567890")) == ["x", "=", *"1234567890"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("in 1889")) == ["in", "Ġ", *"1889"]


@pytest.mark.parametrize(
    "text",
    [TEXT, "  spaces  and\ttabs\n\nlines ", "naïve café — 東京 🙂", "it 's , a test .", "def f(x):\n    return x"],
)
def test_the_round_trip_is_exact(text: str, directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_the_published_ones(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    published = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(published) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]


def test_the_chat_template_renders(directory: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    text = load_tokenizer(directory).apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected
