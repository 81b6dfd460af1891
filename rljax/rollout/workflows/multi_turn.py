"""Multi-turn workflow: the model and an environment answer each other until the environment,
or a limit, ends the episode.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rljax.config.environments import EnvironmentConfig
from rljax.config.registries import workflows
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.environments.session import EnvironmentSpec, Observation, Session
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.transcript import Transcript
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.dialogue import ChatTurns
from rljax.tasks.task import BadRow, Message, Task
from rljax.trajectory import Trajectory
from sidecar.protocol import Completion

_THINKS, _THOUGHT = "<think>", "</think>"


class End(enum.StrEnum):
    """The reason that an episode ended: the `finish_reason` of its trajectory."""

    DONE = "done"  # by the environment's rules
    TRUNCATED = "truncated"  # by a limit of the environment's own
    ACTIONS = "max_actions"
    TURNS = "max_turns"
    TURN_TOKENS = "max_tokens_per_turn"  # max_turns, after a reply without an action that its budget cut
    LENGTH = "sequence_length"


@workflows.register("multi_turn")
class MultiTurn:
    """Plays one episode of the environment that a task names."""

    def __init__(self, tools: Tools) -> None:
        """Creates the workflow. A turn is as long as a reply may be, where its environment says nothing else.

        Raises:
            TemplateError: the chat template carries no dialogue.
        """
        self.tools = tools
        self.chat = ChatTurns(tools.tokenizer, tools.stop_token_ids)

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`. Raises EnvironmentFailure, and whatever engines raise."""
        config = self.tools.environments[task.id.taskset]
        spec = EnvironmentSpec(config.id, config.kwargs)
        async with self.tools.hosts[config.place].session(spec) as session:
            return await _Episode(self, config, task, attempt, pool).play(session)


class _Episode:
    """Plays one attempt, from reset to trajectory."""

    def __init__(
        self, workflow: MultiTurn, config: EnvironmentConfig, task: Task, attempt: Attempt, pool: EnginePool
    ) -> None:
        self._tools = workflow.tools
        self._chat = workflow.chat
        self._config = config
        self._task = task
        self._attempt = attempt
        self._pool = pool
        self._transcript = Transcript()
        self._history: list[tuple[str, str]] = []
        self._earned: list[float] = []
        self._states: list[str] = []
        self._invalid = 0
        self._cut_turns = 0
        self._instruction = ""

    async def play(self, session: Session) -> Trajectory:
        seen = await session.reset(self._task.seed)
        self._instruction = seen.instruction
        reply, cut_without_action = np.zeros(0, np.int32), False
        while (end := self._ended(seen)) is None and self._show(seen, reply):
            completion = await self._reply()
            self._transcript.add_reply(completion)
            reply = completion.token_ids
            text = self._tools.text(reply)
            self._states.append(seen.state or seen.text)
            before, action = seen.text, parse_action(text, self._config.action_pattern)
            seen = await session.step(action)
            if not action:  # whatever the environment makes of it
                seen = replace(seen, valid=False)
            self._history.append((before, text))
            self._invalid += not seen.valid
            self._earned.append(seen.reward - (0.0 if seen.valid else self._config.format_penalty))
            cut = self._cut_by_budget(completion)
            self._cut_turns += cut
            cut_without_action = cut and not seen.valid
        if end is End.TURNS and cut_without_action:
            end = End.TURN_TOKENS
        return self._trajectory(seen, end or End.LENGTH)

    def _ended(self, seen: Observation) -> End | None:
        turns = len(self._earned)
        if seen.over:
            return End.DONE if seen.terminated else End.TRUNCATED
        if turns - self._invalid >= self._config.max_actions:
            return End.ACTIONS
        return End.TURNS if turns >= self._config.turn_limit else None

    def _cut_by_budget(self, completion: Completion) -> bool:
        """Returns whether the token budget of a turn cut the reply, rather than the room that its row has left."""
        return completion.finish_reason == "length" and len(completion.token_ids) >= self._turn_budget

    def _show(self, seen: Observation, reply: np.ndarray) -> bool:
        """Appends an observation to the transcript; returns False where that leaves no room for a reply.

        Raises:
            BadRow: not even the first fits.
        """
        text = self._message(seen)
        first = not self._earned
        one_row_a_turn = self._config.history_length is not None
        if first or one_row_a_turn:
            tokens = self._chat.opening(self._opening(text))
            length = len(tokens)
        else:
            tokens = self._chat.between(reply, text)
            length = self._transcript.row_length + len(tokens)
        if length >= self._tools.sequence_length:
            if first:
                raise BadRow(
                    f"task {self._task.id}: an opening of {length} tokens leaves no room for a reply; "
                    f"model.sequence_length is {self._tools.sequence_length}"
                )
            return False
        if one_row_a_turn:
            self._transcript.begin_row()
        self._transcript.add_text(tokens)
        return True

    def _opening(self, text: str) -> list[Message]:
        system = self._config.system_prompt
        messages = [] if system is None else [{"role": "system", "content": self._fill_template(system, {})}]
        return [*messages, {"role": "user", "content": text}]

    def _message(self, seen: Observation) -> str:
        config, turn = self._config, len(self._earned)
        first = turn == 0 or config.history_length is not None
        template = (config.first_template if first else "") + config.template
        kept = self._history[max(turn - (config.history_length or 0), 0) :]
        number = turn - len(kept)
        turns = (f"[Observation {i}: '{o}', Action {i}: '{a}']" for i, (o, a) in enumerate(kept, number + 1))
        return self._fill_template(
            template,
            {
                "turn_idx": turn + 1,
                "observation": seen.text,
                "suffix": seen.suffix,
                "actions_left": min(config.max_actions - (turn - self._invalid), self._config.turn_limit - turn),
                "history": "\n".join(turns),
                "history_length": len(kept),
            },
        )

    def _fill_template(self, template: str, values: Mapping[str, Any]) -> str:
        """Fills in the template's names, all at once: braces within an observation stay."""
        values = {
            **values,
            "env_instruction": self._instruction,
            "max_response_length": min(self._turn_budget, self._tools.sequence_length),
        }
        return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), template)

    @property
    def _turn_budget(self) -> int:
        most = self._tools.reply_tokens
        return min(self._config.max_tokens_per_turn or most, most)

    async def _reply(self) -> Completion:
        turn = len(self._earned)
        return await self._tools.ask(
            self._task, self._attempt, self._pool, self._transcript.row, turn, most=self._turn_budget
        )

    def _trajectory(self, seen: Observation, end: End) -> Trajectory:
        earned = np.array(self._earned, np.float64)
        penalty = self._config.format_penalty * self._invalid
        return self._tools.trajectory(
            self._task,
            self._attempt,
            self._transcript,
            reward=float(earned.sum()),
            turn_rewards=earned,
            turn_states=tuple(self._states),
            reward_parts={"environment": float(earned.sum()) + penalty, "format": -penalty},
            finish_reason=str(end),
            metrics={
                **{f"env/{name}": value for name, value in seen.metrics.items()},
                "success": float(seen.success),
                "turns": float(len(earned)),
                "invalid_actions": float(self._invalid),
                "cut_turns": float(self._cut_turns),
            },
        )


def parse_action(text: str, pattern: str) -> str:
    """Extracts the action of a reply: the first group of the pattern, outside of any
    thinking; empty where there is none.

    >>> parse_action("<think>not <answer>Up</answer></think><answer> Left </answer>", "<answer>(.*?)</answer>")
    'Left'
    """
    _, _, said = text.rpartition(_THOUGHT)
    said, _, _ = said.partition(_THINKS)
    found = re.search(pattern, said, re.DOTALL | re.IGNORECASE)
    return (found[1] or "").strip() if found else ""
