"""A workflow of one's own: SmolLM2-135M-Instruct answers a sum, criticises its answer and revises it.

    python -m rljax.main --config=configs/critique.py

Two calls of the engine make one trajectory, both replies are trained, and the revised answer is scored. What a workflow
is, and what it may use: docs/workflows.md. `module:Class` names this file as Python imports it, from the folder in
which the command is given: ``__name__`` is that.
"""

from __future__ import annotations

import dataclasses

from ml_collections import ConfigDict

from rljax.config.load import to_config_dict
from rljax.config.schema import (
    Config,
    LearnerConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.transcript import Transcript
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.dialogue import ChatTurns
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory


class AnswerCritiqueRevise:
    """Answers, is asked to criticise the answer, and revises it: one dialogue, in one row."""

    def __init__(self, tools: Tools, *, critique: str = "Check your answer.", answer_tokens: int | None = None) -> None:
        """Takes what a workflow may use, and its own arguments: what is asked after the first answer, which has at
        most ``answer_tokens`` tokens; None: as many as any reply.
        """
        self._tools = tools
        self._critique = critique
        self._answer_tokens = answer_tokens
        self._chat = ChatTurns(tools.tokenizer, tools.stop_token_ids)

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`."""
        tools, transcript = self._tools, Transcript()
        transcript.add_text(tools.prompt(task))
        answer = await tools.ask(task, attempt, pool, transcript.row, turn=0, most=self._answer_tokens)
        transcript.add_reply(answer)
        transcript.add_text(self._chat.between(answer.token_ids, self._critique))
        revised = await tools.ask(task, attempt, pool, transcript.row, turn=1)
        transcript.add_reply(revised)
        first = await tools.rewards.score(task, tools.text(answer.token_ids))
        last = await tools.rewards.score(task, tools.text(revised.token_ids))
        return tools.trajectory(
            task,
            attempt,
            transcript,
            reward=last.score,
            reward_parts=dict(last.parts),
            finish_reason=revised.finish_reason,
            metrics={"revision_gain": last.score - first.score},
        )


def get_config() -> ConfigDict:
    sums = TasksetConfig(
        source="add_numbers",
        args={"digits": 2},
        system_prompt="Answer with the number only.",
        examples=("12 + 34", "46", "51 + 22", "73"),
        rewards=("exact", "digits"),
    )
    config = Config(
        rollout_batch_size=32,
        group_size=8,
        max_steps=40,
        model=ModelConfig(path="smollm2-135m", max_prompt_tokens=72, max_response_tokens=24, sequence_length=160),
        learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=5), rows_per_microbatch=2),
        rollout=RolloutConfig(
            workflow=f"{__name__}:AnswerCritiqueRevise",
            workflow_args={
                "critique": "Is that right? Add tens and ones again, and answer with the number only.",
                "answer_tokens": 8,
            },
        ),
        tasks=TasksConfig(train={"sums": sums}, validation={"sums": dataclasses.replace(sums, limit=64)}),
    )
    return to_config_dict(config)
