"""A small model learns from the quickstart's model on what it samples itself, without any reward.

    python -m rljax.main --config=configs/quickstart.py                        # the teacher: three minutes
    python -m rljax.main --config=configs/quickstart.py --config.mode=export   # to runs/quickstart/export/step_160
    python -m rljax.main --config=configs/distill.py                           # the student
    python -m rljax.main --config=configs/distill.py:DIRECTORY                 # of another teacher

The student has another architecture and fewer parameters, and begins from scratch. Expected: the teacher's held-out
score within 100 steps, a minute or two on two cores, with `--config.async_generation_ratio` 0 or 4; `bench/RESULTS.md`
has the figures. The rewards of `tasks.validation` measure, and train nothing.
"""

from ml_collections import ConfigDict

from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    DistillConfig,
    GeneratingConfig,
    LearnerConfig,
    ModelConfig,
    OptimizerConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TeacherConfig,
    TinyConfig,
)

QUICKSTART = "runs/quickstart/export/step_160"


def get_config(arg: str | None = None) -> ConfigDict:
    """``arg``: the teacher's directory; without it, what the quickstart's export writes."""
    questions = TasksetConfig(source="reverse_digits", rewards=(), args={"digits": 3})
    held_out = TasksetConfig(source="reverse_digits", rewards=("digits",), args={"digits": 3})
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=512,
        group_size=8,
        max_steps=100,
        save_steps=50,
        eval_steps=10,
        model=ModelConfig(
            path="tiny",
            max_prompt_tokens=6,
            max_response_tokens=3,
            tiny=TinyConfig(
                family="llama", hidden_size=64, intermediate_size=192, num_layers=2, characters="0123456789"
            ),
        ),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(
                learning_rate=3e-3, schedule="cosine", min_lr_ratio=0.1, warmup_steps=10, beta2=0.99
            ),
            max_tokens_per_row=65,
            rows_per_microbatch=16,
        ),
        algorithm=AlgorithmConfig(
            adv_estimator="none",
            pg_variant="ppo",
            loss={"clip_low": 0.8, "clip_high": 3.0},
            minibatch_size=128,
            distill=DistillConfig(teachers={"quickstart": TeacherConfig(path=arg or QUICKSTART)}),
        ),
        # The teacher is all but certain of each digit. At temperature 3 both are less so: a wrong digit costs 4 nats
        # and not 12, and the student tries others until it knows which is right (Hinton et al. 2015).
        sidecar=SidecarConfig(max_concurrency=512, generating_args=GeneratingConfig(temperature=3.0)),
        tasks=TasksConfig(train={"reverse_digits": questions}, validation={"reverse_digits": held_out}),
    )
    return to_config_dict(config)
