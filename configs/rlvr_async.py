"""RLVR with three domains at once, as ROLL has it: math by a rule, code in a sandbox, and sentences that a judge rates.

    python -m rljax.main --config=configs/rlvr_async.py                         # the rows of configs/rlvr_async/
    python -m rljax.main --config=configs/rlvr_async.py:TRAIN.jsonl,TEST.jsonl  # with tag, prompt, answer and tests

A row's ``tag`` says its domain: math, code or open. Of each six tasks three are math, two code and one open. The judge
is a model whose weights stay as they are, on an engine of its own. `bench/RESULTS.md` says what five steps of it take.
"""

import dataclasses

from ml_collections import ConfigDict

from rljax.config.bundled import FOLDER
from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    GeneratingConfig,
    JudgeConfig,
    LearnerConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)

ROWS = FOLDER / "rlvr_async"
CODE = "{prompt} Answer with one block of code that begins with ```python and ends with ```."
QUESTION = """{question}

Response: {response}

Does the response do what was asked? Answer with one word, YES or NO."""


def get_config(arg: str | None = None) -> ConfigDict:
    """``arg``: TRAIN.jsonl,TEST.jsonl with rows of one's own."""
    source, _, test = (arg or f"{ROWS}/train.jsonl,{ROWS}/held_out.jsonl").partition(",")
    math = TasksetConfig(
        source=source,
        prompt_key="prompt",
        tags=("math",),
        rewards=("numeric",),
        weight=3.0,
        template="{prompt} Answer with the number only.",
    )
    code = dataclasses.replace(
        math,
        tags=("code",),
        rewards=("code",),
        reward_args={"code": {"partial": True, "timeout": 4.0}},
        weight=2.0,
        template=CODE,
    )
    judged = dataclasses.replace(
        math,
        tags=("open",),
        rewards=("llm_judge",),
        reward_args={"llm_judge": {"judge": "small", "pattern": r"(?i)\b(yes|no)\b", "high": 1.0, "seconds": 120.0}},
        weight=1.0,
        template="{prompt}",
    )
    train = {"math": math, "code": code, "open": judged}
    held_out = {name: dataclasses.replace(asked, source=test) for name, asked in train.items()} if test else {}
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=48,
        group_size=8,
        max_steps=40,
        save_steps=10,
        eval_steps=10,
        val_batch_size=8,
        model=ModelConfig(path="smollm2-135m", max_prompt_tokens=96, max_response_tokens=64),
        learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=1e-5, warmup_steps=2), rows_per_microbatch=4),
        algorithm=AlgorithmConfig(adv_estimator="grpo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=48),
        rollout=RolloutConfig(reward_timeout=300.0),
        judges={
            "small": JudgeConfig(
                path="smollm2-135m",
                max_prompt_tokens=384,
                max_response_tokens=8,
                max_concurrency=16,
                template=QUESTION,
                generating_args=GeneratingConfig(temperature=0.7),
            )
        },
        tasks=TasksConfig(train=train, validation=held_out),
    )
    return to_config_dict(config)
