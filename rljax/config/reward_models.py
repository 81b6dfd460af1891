"""The section ``reward_models`` of the config: models whose head gives each response a number."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.config.fields import key

ASKS_REWARD_MODELS = "reward_model"
"""Name of the reward that asks a reward model."""


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig:
    """A model with a head that scores, whose weights stay as they are. Its name is its key in `reward_models`."""

    path: str = key("", "directory | hub id: *ForSequenceClassification with one label, and its tokenizer")
    dtype: str = key("fp32", "of weights and computation", choices=("fp32", "bf16"))
    max_tokens: int | None = key(
        None,
        "prompt and response in its own chat template; a longer row is not scored: its trajectory fails. None: of the "
        "longest trajectory, and 256 more for the template",
        low=1,
    )
    rows_per_batch: int = key(8, "rows scored at once, padded to one of four lengths", low=1)
    devices: str = key(
        "auto",
        "gpu:4-7: these, the model cut over them; auto: one that learner, engines and judges leave, else the "
        "learner's; launcher=ray: the learner's, else a CPU",
    )
