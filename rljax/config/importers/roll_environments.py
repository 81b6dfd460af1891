"""ROLL's keys of environments, data and rewards: what becomes of each."""

from __future__ import annotations

from rljax.config.importers import roll_domains as domains
from rljax.config.importers import roll_reward_models as models
from rljax.config.importers import roll_tasks as tasks
from rljax.config.importers import roll_values as made
from rljax.config.importers.rule import Rule, needless, only, refused, same, to

_TRAIN, _ENVIRONMENT, _VALIDATION = "actor_train", "custom_envs.*", "validation.generating_args"
_TRAIN_MANAGER, _VAL_MANAGER = "train_env_manager", "val_env_manager"
_COLUMNS = " ".join(
    f"tasks.train.NAME.{key}"
    for key in ("source", "prompt_key", "messages_key", "answer_key", "tags", "rewards", "reward_args.*")
)


def _each(group: str, keys: str, why: str) -> list[Rule]:
    return [needless(f"{group}.{key}", why) for key in keys.split()]


def _manager(path: str, ours: str) -> list[Rule]:
    return [
        to(
            f"{path}.max_env_num_per_worker",
            f"{ours}.max_env_num_per_worker",
            lambda found: {f"{ours}.max_env_num_per_worker": found.value} if found.value else "0 bounds nothing",
            "environments in one worker; frozen_lake and sokoban have none unless rollout.env_place=process, or ray",
        ),
        to(
            f"{path}.max_traj_per_env",
            "rollout.train_env_manager.max_traj_per_env",
            lambda found: {"rollout.train_env_manager.max_traj_per_env": None if found.value == -1 else found.value},
            "-1 is None",
        )
        if path == _TRAIN_MANAGER
        else needless(f"{path}.max_traj_per_env", "val_batch_size says it"),
        to(f"{path}.num_groups_partition", f"{ours}.num_groups_partition", tasks.partition, "None: equal shares"),
        needless(f"{path}.worker_cls", "custom_envs.NAME.place says where environments compute"),
        needless(f"{path}.format_penalty", "nothing of ROLL reads it here; custom_envs.NAME.format_penalty acts"),
        needless(f"{path}.group_filter_cls", "algorithm.filters names filters"),
        needless(f"{path}.llm_proxy", "the policy's own engines answer", whole=True),
        needless(f"{path}.world_size", "there are as many workers as are needed"),
    ]


ENVIRONMENTS: list[Rule] = [
    *_manager(_TRAIN_MANAGER, "rollout.train_env_manager"),
    *_manager(_VAL_MANAGER, "rollout.val_env_manager"),
    same(f"{_TRAIN_MANAGER}.num_env_groups", "rollout.train_env_manager.num_env_groups"),
    to(f"{_TRAIN_MANAGER}.group_size", "group_size", made.group_size, "of the whole run", 1),
    same(f"{_TRAIN_MANAGER}.group_size_redundancy", "rollout.train_env_manager.group_size_redundancy"),
    to(f"{_TRAIN_MANAGER}.tags", "rollout.train_env_manager.tags", tasks.train_tags, "", ["SimpleSokoban"]),
    to(
        f"{_VAL_MANAGER}.num_env_groups",
        "rollout.val_env_manager.num_env_groups",
        tasks.val_batch,
        "val_batch_size episodes in all",
        128,
    ),
    to(
        f"{_VAL_MANAGER}.group_size",
        "rollout.val_env_manager.group_size",
        tasks.val_group,
        "1: greedy episodes of one seed are all the same",
    ),
    needless(f"{_VAL_MANAGER}.group_size_redundancy", "a validation waits for all"),
    to(
        f"{_VAL_MANAGER}.tags",
        "rollout.val_env_manager.tags custom_envs.*",
        tasks.val_tags,
        "a shop's goals are held out",
    ),
    to(
        f"{_ENVIRONMENT}.env_type",
        "custom_envs.NAME.id custom_envs.NAME.place custom_envs.NAME.kwargs.split",
        tasks.environment,
        "a gymnasium id; frozen_lake, sokoban and webshop are here",
    ),
    to(
        f"{_ENVIRONMENT}.max_steps", "custom_envs.NAME.max_actions", lambda f: {"custom_envs.NAME.max_actions": f.value}
    ),
    to(f"{_ENVIRONMENT}.max_tokens_per_step", "custom_envs.NAME.max_tokens_per_turn", tasks.turn, "or max_new_tokens"),
    to(
        f"{_ENVIRONMENT}.env_manager_cls",
        "custom_envs.NAME.history_length",
        tasks.manager,
        "rollout.workflow=multi_turn. None: one dialogue, one row; set: a row for each turn",
    ),
    to(f"{_ENVIRONMENT}.history_length", "custom_envs.NAME.history_length", tasks.history, "of StepEnvManager"),
    same(f"{_ENVIRONMENT}.agent_system_template", "custom_envs.NAME.system_prompt"),
    to(f"{_ENVIRONMENT}.agent_template", "custom_envs.NAME.template", tasks.template),
    needless(f"{_ENVIRONMENT}.use_thread_lock", "environments share no global random numbers"),
    needless(f"{_ENVIRONMENT}.max_env_step_concurrent", "max_env_num_per_worker bounds it"),
    to(
        f"{_ENVIRONMENT}.env_config.action_pattern",
        "custom_envs.NAME.action_pattern",
        tasks.pattern,
        "the first group is the action; ROLL's is the last",
    ),
    to(
        f"{_ENVIRONMENT}.env_config.max_steps",
        "custom_envs.NAME.max_actions",
        lambda f: {"custom_envs.NAME.max_actions": f.value},
    ),
    to(
        f"{_ENVIRONMENT}.env_config.format_penalty",
        "custom_envs.NAME.format_penalty",
        tasks.penalty,
        "0 or above: it is taken off",
    ),
    to(
        f"{_ENVIRONMENT}.env_config.env_instruction",
        "custom_envs.NAME.first_template",
        lambda f: {"custom_envs.NAME.first_template": f"{f.value}\n\n"},
    ),
    needless(f"{_ENVIRONMENT}.env_config.grid_lookup", "grid_vocab says it", whole=True),
    *[
        to(
            f"{_ENVIRONMENT}.env_config.{key}",
            f"custom_envs.NAME.kwargs.{key}",
            lambda f: {f"custom_envs.NAME.kwargs.{f.path.rpartition('.')[2]}": f.value},
            "an argument of gymnasium.make",
            whole=True,
        )
        for key in (
            "is_slippery",
            "size",
            "p",
            "dim_room",
            "num_boxes",
            "search_depth",
            "grid_vocab",
            "observation_mode",
            "show_attrs",
            "num_products",
        )
    ],
    to(
        f"{_ENVIRONMENT}.env_config.*",
        "custom_envs.NAME.kwargs.*",
        tasks.argument,
        "an argument of gymnasium.make, of an environment of one's own",
        whole=True,
    ),
    *_each("env_monitor", "enable monitor_interval", "an environment that hangs is replaced, always"),
    to(
        "env_monitor.hung_timeout",
        "rollout.env_timeout",
        lambda f: {"rollout.env_timeout": float(f.value)},
        "seconds for one answer of an environment in a worker",
    ),
    needless("skip_mock_system_prompt", "a chat template without a system message has none"),
    refused("parse_tool_call_parameter_to_dict", "there are no tool calls; leave it out"),
    refused("open_feedback_turn", "leave it out"),
]
"""Environments."""

_DATA = "data_args"
_OWN_TEMPLATE = "the model's own chat template is used, as native, qwen2_5 and qwen3 have it"
RLVR: list[Rule] = [
    to(f"{_TRAIN}.{_DATA}.file_name", _COLUMNS, domains.rows, "a taskset for each domain", whole=True),
    to(
        f"validation.{_DATA}.file_name",
        _COLUMNS.replace("train", "validation"),
        domains.rows,
        "a taskset for each domain",
        whole=True,
    ),
    *[
        rule
        for side in (_TRAIN, "validation")
        for rule in (
            to(
                f"{side}.{_DATA}.prompt",
                f"tasks.{'train' if side == _TRAIN else 'validation'}.NAME.prompt_key",
                domains.prompt,
            ),
            only(f"{side}.{_DATA}.dataset_type", ("json",), "FILE.jsonl", "write FILE.jsonl or FILE.parquet"),
            *_each(
                f"{side}.{_DATA}",
                "preprocessing_num_workers interleave_probs dataset_dir id tag eval_file_name response",
                "rows are read as they are needed",
            ),
            to(
                f"{side}.{_DATA}.messages",
                f"tasks.{'train' if side == _TRAIN else side}.NAME.messages_key",
                domains.messages,
                "left out: messages, where the files are here and have such a column; before prompt, as there",
            ),
        )
    ],
    to(f"{_TRAIN}.{_DATA}.template", "", made.chat, _OWN_TEMPLATE),
    needless(f"validation.{_DATA}.template", "as there, actor_train's is used"),
    to(
        f"{_TRAIN}.{_DATA}.domain_interleave_probs",
        "tasks.train.NAME.weight",
        domains.shares,
        "shares of the domains",
        whole=True,
    ),
    *[
        rule
        for key in ("temperature", "top_p", "min_p", "repetition_penalty")
        for rule in (same(f"{_VALIDATION}.{key}", f"sidecar.val_generating_args.{key}"),)
    ],
    to(f"{_VALIDATION}.top_k", "sidecar.val_generating_args.top_k", made.top_k("sidecar.val_generating_args.top_k")),
    to(
        f"{_VALIDATION}.max_new_tokens",
        "sidecar.val_generating_args.max_new_tokens",
        made.turn_budget,
        "the run's response_length",
    ),
    only(f"{_VALIDATION}.num_beams", (1,), "attempts are sampled", "there is no beam search; write 1"),
    only(f"{_VALIDATION}.num_return_sequences", (1,), "one each", "a validation samples one of each; write 1"),
    only(f"{_VALIDATION}.do_sample", (True,), "temperature says it", "write temperature: 0"),
    needless("validation.model_args", "the policy is validated", whole=True),
    needless("validation.strategy_args", "the policy's engines validate", whole=True),
    needless("validation.eval_steps", "the run's eval_steps says it"),
    needless("validation.device_mapping", "the policy's engines validate"),
    to(
        "rewards.*.worker_cls",
        f"tasks.train.NAME.rewards {models.KEYS}",
        domains.judged,
        ", ".join(f"{worker} is {', '.join(rewards)}" for worker, rewards in domains.REWARDS.items()),
    ),
    to(
        "rewards.*.tag_included",
        "tasks.train.NAME.tags",
        domains.tags,
        "of several domains; a run of one trains all rows of its files",
        whole=True,
    ),
    to(
        "rewards.*.query_filter_config",
        "algorithm.filters algorithm.filter.mean_band.low "
        "algorithm.filter.mean_band.high algorithm.filter.min_std.bound",
        tasks.query_filter,
        "mean_band and min_std",
        whole=True,
    ),
    needless("rewards.*.response_filter_config", "nothing of ROLL reads it", whole=True),
    to(
        "rewards.*.model_args",
        "judges.NAME.path judges.NAME.dtype",
        domains.judge_key(domains.judge_model),
        "of a judge",
        whole=True,
    ),
    to(
        "rewards.*.generating_args",
        "judges.NAME.max_response_tokens judges.NAME.generating_args.temperature judges.NAME.generating_args.top_p "
        "judges.NAME.generating_args.top_k judges.NAME.generating_args.min_p "
        "judges.NAME.generating_args.repetition_penalty judges.NAME.generating_args.stop",
        domains.judge_key(domains.judge_sampling),
        "of a judge; left out: temperature 0.95, top_p 0.7, top_k 50, max_new_tokens 8192, as there",
        whole=True,
    ),
    to(
        "rewards.*.strategy_args",
        "judges.NAME.engine judges.NAME.gpu_memory_utilization judges.NAME.engine_args.*",
        domains.judge_key(domains.judge_engine),
        "of a judge: vllm is vllm, on one device; every other is embedded",
        whole=True,
    ),
    *[
        needless(f"rewards.*.{key}", "rewards are functions, not workers", whole=key == "data_args")
        for key in ("data_args", "world_size", "num_gpus_per_worker", "reward_type")
    ],
    needless("rewards.*.infer_batch_size", "rewards are functions, not workers; of a reward model worker_cls says it"),
    needless(
        "rewards.*.device_mapping",
        "rewards are functions, and a judge takes what learner and engines leave; judges.NAME.devices says otherwise; "
        "of a reward model worker_cls says it",
    ),
    to(
        "rewards.*.judge_prompt",
        "judges.NAME.template",
        domains.judge_prompt,
        "ROLL's by name, or none, is asked in our words, for YES or NO",
    ),
    to(
        "rewards.*.judge_model_type",
        "",
        domains.judge_type,
        "api is behind a URL; inference is on an engine of its own",
    ),
    needless("rewards.*.judge_model_name", "with judge_model_type api it is reward_args.llm_judge.model"),
    needless("rewards.*.judge_api_url", "with judge_model_type api it is reward_args.llm_judge.url"),
    refused(
        "rewards.*.judge_api_key",
        "a config holds no key; write tasks.train.NAME.reward_args.llm_judge.key_variable=VARIABLE, of the environment",
        "tasks.train.NAME.reward_args.llm_judge.key_variable",
    ),
    refused("rewards.*.code_url", "code runs here, in a sandbox; leave it out"),
    *[
        refused(
            f"rewards.*.{key}",
            "write --config.tasks.train.NAME.rewards=module:function, a reward of your own",
            "tasks.train.NAME.rewards",
        )
        for key in ("format_pattern", "response_length_penalty_coef")
    ],
    needless("rewards.*.use_local", "code always runs here, in a sandbox"),
    refused(
        "reward_model",
        "in ROLL the engines of judges: write --config.judges.NAME.path=MODEL, and llm_judge among the rewards of a "
        "taskset; a head that scores is reward_models.NAME.path",
        "judges.NAME.path",
        whole=True,
    ),
    to("reward", models.KEYS, models.cluster, "its devices where they are its own, else auto", whole=True),
    to("global_template", "", made.chat, _OWN_TEMPLATE),
    to("tag_to_template", "", made.chat, _OWN_TEMPLATE, whole=True),
    needless("dataset_filter", "nothing of ROLL reads it", whole=True),
]
"""Data and rewards of RLVR."""

TASKS: tuple[Rule, ...] = (*ENVIRONMENTS, *RLVR)
