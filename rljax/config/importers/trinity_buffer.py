"""Trinity-RFT's keys of ``buffer``: what becomes of each."""

from __future__ import annotations

from rljax.config.importers import trinity_tasksets as tasksets
from rljax.config.importers import trinity_values as made
from rljax.config.importers.rule import LEFT_OUT, Found, Make, Refusal, Rule, counted, needless, only, refused, same, to
from rljax.config.importers.trinity_tasksets import TRAINS, VALIDATE

_BUFFER = "buffer.trainer_input.experience_buffer"
_IN_LEDGER = "experiences lie in the run's ledger"


def _each(group: str, keys: str, why: str) -> list[Rule]:
    return [needless(f"{group}.{key}", why) for key in keys.split()]


_ROWS = (
    ("name", "source", "the taskset's name: NAME"),
    ("storage_type", "source", "file is FILE.jsonl, FILE.parquet or the hub: the source says it"),
    ("path", "source", "hub:ID, FILE.jsonl or FILE.parquet"),
    ("subset_name", "subset", ""),
    ("split", "split", ""),
    ("format.prompt_key", "prompt_key", ""),
    ("format.response_key", "answer_key", ""),
    ("format.system_prompt", "system_prompt", ""),
    (
        "default_workflow_type",
        "rewards reward_weights reward_args.* system_prompt",
        "math_workflow: 1 for the answer, and ±0.1 for the format; both are rollout.workflow=single_turn; your own: "
        "rollout.workflow=module:Class",
    ),
    ("data_selector.selector_type", "shuffle", "sequential is false, shuffle true"),
    ("task_selector.selector_type", "shuffle", "sequential is false, shuffle true"),
)
_LEFT_OUT = {
    "split": "train",
    "format.prompt_key": "prompt",
    "format.response_key": "response",
    "default_workflow_type": "math_workflow",
    "data_selector.selector_type": "sequential",
}


def _taskset(path: str, ours: str, make: Make, sampled: str) -> list[Rule]:
    """Returns the rules of what any taskset may say; it is ``ours.NAME`` here, ``sampled`` its generating_args."""
    return [
        *[
            to(
                f"{path}.{key}",
                " ".join(f"{ours}.NAME.{name}" for name in names.split()),
                make,
                remark,
                _LEFT_OUT.get(key, LEFT_OUT) if path == TRAINS else LEFT_OUT,
            )
            for key, names, remark in _ROWS
            if path == TRAINS or key != "path"
        ],
        refused(f"{path}.format.reply_prefix", "there is none; leave it out"),
        needless(f"{path}.format.prompt_type", "prompts are texts"),
        refused(
            f"{path}.default_reward_fn_type",
            f"write --config.{ours}.NAME.rewards and --config.{ours}.NAME.reward_weights",
            f"{ours}.*.rewards",
        ),
        refused(
            f"{path}.reward_fn_args", f"write --config.{ours}.NAME.reward_args", f"{ours}.*.reward_args.*", whole=True
        ),
        refused(
            f"{path}.workflow_args", "write --config.rollout.workflow_args.NAME", "rollout.workflow_args.*", whole=True
        ),
        *[same(f"{path}.rollout_args.{key}", f"{sampled}.{key}") for key in ("temperature", "top_p")],
        to(
            f"{path}.rollout_args.top_k", f"{sampled}.top_k", lambda f: {f"{sampled}.top_k": max(f.value, 0)}, "-1 is 0"
        ),
        same(f"{path}.rollout_args.max_tokens", f"{sampled}.max_new_tokens"),
        needless(f"{path}.rollout_args.logprobs", "log-probabilities are always recorded"),
        *[
            needless(f"{path}.{key}.seed", "the run's seed is the seed of everything")
            for key in ("data_selector", "task_selector")
        ],
        needless(f"{path}.enable_progress_bar", "there is a live view"),
        needless(f"{path}.task_type", "it is what it is listed under"),
    ]


def _listed(found: Found) -> str:
    if found.value:
        raise Refusal("write a list of tasksets")
    return "there is none"


BUFFER: tuple[Rule, ...] = (
    to(
        "buffer.batch_size",
        "rollout_batch_size",
        counted(made.batch, made.REPEATS),
        "in trajectories: tasks times repeat_times",
    ),
    to(
        "buffer.train_batch_size",
        "rollout_batch_size",
        made.batch,
        "in trajectories, as there: batch_size × repeat_times",
    ),
    to(
        "buffer.total_epochs",
        "total_epochs max_steps",
        made.epochs,
        "max_steps is the whole batches in them, where the size of the data is known",
        1,
    ),
    to("buffer.total_steps", "max_steps", lambda f: {"max_steps": f.value}),
    needless("buffer.pad_token_id", "the tokenizer says it"),
    needless("buffer.cache_dir", "the run's own files say it"),
    needless("buffer.default_workflow_type", "that of a taskset without one"),
    *_taskset(TRAINS, "tasks.train", tasksets.taskset, "sidecar.generating_args"),
    needless(f"{TRAINS}.rollout_args.n", "group_size says how many"),
    to(f"{TRAINS}.repeat_times", "group_size", lambda f: {"group_size": f.value}, "of the whole run"),
    refused(
        "buffer.explorer_input.tasksets",
        "write one taskset, or leave it out, and write --config.tasks.train.NAME.source for each",
        whole=True,
    ),
    needless("buffer.explorer_input.default_workflow_type", "that of a taskset without one"),
    needless("buffer.explorer_input.default_eval_workflow_type", "that of a validation's taskset without one"),
    to(VALIDATE, "", _listed, "a list of tasksets"),
    to(f"{VALIDATE}.*.path", "tasks.validation.NAME.*", tasksets.validation, "hub:ID, FILE.jsonl or FILE.parquet"),
    *_taskset(f"{VALIDATE}.*", "tasks.validation", tasksets.validation, "sidecar.val_generating_args"),
    *[
        only(f"{VALIDATE}.*.{key}", (1,), "one each", "a validation samples one of each; write 1")
        for key in ("repeat_times", "rollout_args.n")
    ],
    needless(f"{_BUFFER}.name", _IN_LEDGER),
    only(f"{_BUFFER}.storage_type", ("queue", "sql"), _IN_LEDGER, "write queue"),
    *_each(_BUFFER, "path capacity max_retry_times max_retry_interval wrap_in_ray schema_type", _IN_LEDGER),
    to(f"{_BUFFER}.max_read_timeout", "wait_timeout", made.wait_timeout, "the longer of it and sync_timeout"),
    refused(
        f"{_BUFFER}.replay_buffer",
        "write --config.algorithm.max_uses, which is within the staleness bound",
        "algorithm.max_uses",
        whole=True,
    ),
    refused(
        "buffer.trainer_input.auxiliary_buffers",
        "write tasks.expert, whose answer_key names the response",
        "tasks.expert.source",
        whole=True,
    ),
)
"""Tasks and experiences."""
