"""Schema of the policy: which model it is, what it computes in, and how its chats are rendered."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rljax.config.fields import ConfigError, key, user_path

TINY_EXPERTS, TINY_EXPERTS_PER_TOKEN = 8, 2
_BUILT_IN = ("tiny", "smollm2-135m")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class ModelNotFound(ConfigError, FileNotFoundError):
    """Raised for a model that is not on this machine and cannot be fetched."""


def check_model_path(named: str) -> None:
    """Refuses a `model.path` that nothing can be found by; whether the hub has a model is not asked.

    Raises:
        ModelNotFound: it can only be a directory, and there is none.
    """
    if not (named in _BUILT_IN or _HUB_ID.fullmatch(named) or user_path(named).is_dir()):
        raise ModelNotFound(
            f"model.path={named}: there is no such directory; give a directory, a hub id (owner/name), "
            f"{' or '.join(reversed(_BUILT_IN))}"
        )


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """The architecture of `model.path=tiny`."""

    family: str = key("qwen3", "whose layers", choices=("llama", "qwen2", "qwen3", "qwen3_moe", "mixtral"))
    hidden_size: int = key(64, "width", low=8, high=16_384)
    intermediate_size: int = key(256, "width of the MLP", low=8, high=65_536)
    num_layers: int = key(2, "layers", low=1, high=256)
    num_heads: int = key(4, "query heads; a multiple of num_kv_heads", low=1, high=256)
    num_kv_heads: int = key(2, "key and value heads", low=1, high=256)
    head_dim: int = key(32, "width of a head; even", low=2, high=1024)
    num_experts: int | None = key(None, "qwen3_moe, mixtral: experts of a layer; None: 8", low=1, high=4096)
    num_experts_per_tok: int | None = key(None, "qwen3_moe, mixtral: experts of a token; None: 2", low=1, high=256)
    moe_intermediate_size: int | None = key(
        None, "qwen3_moe: width of an expert's MLP; None: intermediate_size", low=8, high=65_536
    )
    tie_embeddings: bool = key(True, "the output head is the embedding")
    characters: str | None = key(None, "characters that the tokenizer knows; None: printable ASCII")


ALL_LINEAR = "all-linear"
"""PEFT's name of all matrices but embedding and output head."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """The adapter that is trained in the place of the weights, which are frozen then; see `docs/lora.md`."""

    rank: int | None = key(None, "rank of each adapter; None: there is none, and the weights are trained", low=1)
    alpha: float = key(32.0, "an adapter's change counts alpha / rank times", low=0, low_open=True)
    targets: tuple[str, ...] = key(
        (ALL_LINEAR,),
        "matrices that have one, by the last word of their Hugging Face names (q_proj); all-linear: all in the layers",
    )
    dropout: float = key(0.0, "share of an adapter's inputs that an update leaves out", low=0, high=1, high_open=True)
    rslora: bool = key(False, "alpha / sqrt(rank) in the place of alpha / rank")

    @property
    def scale(self) -> float:
        """Factor of an adapter's change (Hu et al. 2021; Kalajdzievski 2023, https://arxiv.org/abs/2312.03732)."""
        rank = self.rank or 1
        return self.alpha / (rank**0.5 if self.rslora else rank)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The policy."""

    path: str = key("tiny", "directory, of a model or of PEFT's | hub id | smollm2-135m | tiny")
    dtype: str = key("fp32", "compute dtype; masters are always fp32", choices=("fp32", "bf16"))
    remat: str = key("none", "what the backward pass recomputes", choices=("none", "dots", "full"))
    max_prompt_tokens: int = key(64, "longer prompts are bad rows", low=1)
    max_response_tokens: int = key(64, "budget of tokens after the prompt; of many turns, of each", low=1)
    sequence_length: int | None = key(
        None, "tokens of a whole trajectory; None: max_prompt_tokens + max_response_tokens", low=2
    )
    chat_template: str | None = key(None, "Jinja file of the chat template, or its text; None: that of model.path")
    enable_thinking: bool | None = key(
        None,
        "what the chat template reads under this name (Qwen3's: false writes empty thoughts); None: nothing",
    )
    logprob_chunk: int = key(1024, "tokens of a device whose logits exist at once", low=1)
    lora: LoraConfig = field(default_factory=LoraConfig)
    tiny: TinyConfig = field(default_factory=TinyConfig)
