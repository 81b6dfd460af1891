"""Config of `bench.async_speedup`."""

from ml_collections import ConfigDict

from rljax.config.load import to_config_dict
from rljax.config.schema import (
    Config,
    LearnerConfig,
    ModelConfig,
    ObserveConfig,
    OptimizerConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TinyConfig,
)


def get_config() -> ConfigDict:
    """Returns a config whose generation and training of a batch take about as long, on one core each
    of the machine of RESULTS.md.
    """
    config = Config(
        rollout_batch_size=64,
        group_size=8,
        max_steps=24,
        save_steps=10**6,
        eval_steps=None,
        model=ModelConfig(
            path="tiny",
            max_prompt_tokens=16,
            max_response_tokens=64,
            tiny=TinyConfig(hidden_size=192, intermediate_size=512, num_layers=4, num_heads=6, num_kv_heads=2),
        ),
        learner=LearnerConfig(
            devices="cpu",
            optimizer=OptimizerConfig(learning_rate=1e-6),
            max_tokens_per_row=160,
            rows_per_microbatch=8,
        ),
        sidecar=SidecarConfig(engine="vllm", devices="cpu:1", max_concurrency=64, cpu_threads=1),
        tasks=TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("digits",))}),
        observe=ObserveConfig(progress="off", tensorboard=False, report=False),
    )
    return to_config_dict(config)
