"""What comes in from config files and overrides (promise P9)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.arguments import parse_arguments
from rljax.config.environments import EnvironmentConfig
from rljax.config.foreign_keys import FOREIGN_KEYS
from rljax.config.load import key_help, load_config
from rljax.config.schema import Config, JudgeConfig, RewardModelConfig, TasksetConfig, TeacherConfig
from rljax.config.validate import ConfigError, walk

SIMPLE = """
from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.config.load import to_config_dict

def get_config(arg="4"):
    digits = TasksetConfig(source="reverse_digits", args={"digits": int(arg)})
    return to_config_dict(Config(tasks=TasksConfig(train={"digits": digits}, validation={"digits": digits})))
"""


@pytest.fixture
def simple(tmp_path: Path) -> str:
    (tmp_path / "simple.py").write_text(SIMPLE)
    return str(tmp_path / "simple.py")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("eval_steps=7", 7),
        ("eval_steps=None", None),
        ("eval_steps=1e1", 10),
        ("max_steps=1.5E3", 1500),
        ("async_generation_ratio=2", 2.0),
        ("learner.optimizer.learning_rate=1e-3", 1e-3),
        ("observe.tensorboard=false", False),
        ("algorithm.filters=group_variance", ("group_variance",)),
        ("algorithm.filters=overlong,min_std,", ("overlong", "min_std")),
        ("algorithm.filters=()", ()),
        ("algorithm.filters=", ()),
        ("sidecar.generating_args.stop=('a,b', '\\n')", ("a,b", "\n")),
        ("sidecar.generating_args.stop=)", (")",)),
        ("sidecar.generating_args.stop=(a,b)", ("a", "b")),
        ("tasks.train.digits.reward_weights=2", (2.0,)),
        ("tasks.train.digits.reward_weights=none", None),
        ("tasks.train.digits.args.digits=6", 6),
        ("tasks.train.digits.args={}", {}),
        ("tasks.train.digits.reward_args.length.most=3", 3),
        ("tasks.validation={}", {}),
        ("run_dir=/tmp/x=y", "/tmp/x=y"),
    ],
)
def test_an_override_has_the_type_of_its_key(override: str, value: Any, simple: str) -> None:
    path, overrides = parse_arguments([f"--config={simple}", f"--config.{override}"])
    found: Any = load_config(path, overrides)
    for name in override.partition("=")[0].split("."):
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    assert found == value
    assert isinstance(found, Mapping if isinstance(value, dict) else type(value))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("max_step=3", "max_step: unknown key; did you mean max_steps?"),
        ("learning_rate=1", "learning_rate: unknown key; did you mean learner.optimizer.learning_rate?"),
        ("algorithm.grop_size=4", "algorithm.grop_size: unknown key; did you mean group_size?"),
        ("modle.path=tiny", "modle.path: unknown key; did you mean model.path?"),
        ("learner.host.rank=1", "learner.host.rank: unknown key; did you mean learner.hosts.rank?"),
        ("learner.host=2", "learner.host: unknown key; did you mean learner.hosts?"),
        ("learner.mesh.tensors=2", "learner.mesh.tensors: unknown key; did you mean learner.mesh.tensor?"),
        ("tasks.train.digit.limit=3", "tasks.train.digit.limit: unknown key; did you mean tasks.train.digits.limit?"),
        (
            "tasks.train.x.limit=3",
            "tasks.train.x.limit: unknown key; tasks.train has: digits; a new one has tasks.train.x.source",
        ),
        ("max_steps=1e-3", "max_steps=1e-3: expected an integer"),
        ("max_steps=1e999", "max_steps=1e999: expected an integer"),
        ("max_steps=e", "max_steps=e: expected an integer"),
        ("max_steps=5.0", "max_steps=5.0: expected an integer"),
        ("max_steps=None", "max_steps=None: expected an integer"),
        ("observe.tensorboard=yes", "observe.tensorboard=yes: expected true or false"),
        ("learner=3", "learner=3: this is a group of keys; write learner.KEY=VALUE"),
        ("learner.hosts=2", "learner.hosts=2: this is a group of keys; write learner.hosts.KEY=VALUE (number, "),
        ("seed.x=3", "seed.x: seed is a single value and has no key 'x'"),
        ("algorithm.filters=a,,b", "algorithm.filters='a,,b': an element is empty"),
        ("sidecar.generating_args.stop=\n", "sidecar.generating_args.stop='\\n': an element is empty"),
        ("tasks.train.digits.reward_weights=a", "tasks.train.digits.reward_weights=a: expected a number"),
    ],
)
def test_an_override_that_cannot_be_meant_is_one_line(override: str, line: str, simple: str) -> None:
    path, overrides = parse_arguments([f"--config={simple}", f"--config.{override}"])
    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_an_explorer_is_given_a_taskset_on_the_command_line(simple: str) -> None:
    own = {"explorer.tasksets.own.source": "reverse_digits", "explorer.tasksets.own.args.digits": "3"}
    config = load_config(simple, own)
    assert config.explored == ("explorer.tasksets", {"own": TasksetConfig(source="reverse_digits", args={"digits": 3})})
    assert load_config(simple).explored == ("tasks.train", config.tasks.train)
    with pytest.raises(ConfigError, match=r"^explorer.tasksets.own.source: missing$"):
        load_config(simple, {"explorer.tasksets.own.limit": "3"})


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("repeat_times=8", "repeat_times: unknown key; Trinity-RFT has it; write group_size"),
        ("sync_offset=1", "write async_generation_ratio (how many batches the explorers are ahead)"),
        ("sidecar.engine_num=4", "sidecar.engine_num: unknown key; Trinity-RFT has it; write sidecar.num_engines"),
        (
            "explorer.runner_per_model=16",
            "write sidecar.max_concurrency (attempts, not tasks, under way on each engine",
        ),
        ("actor_infer.generating_args.temperature=1", "ROLL has it; write sidecar"),
        ("tasks.train.digits.response_key=a", "write tasks.train.NAME.answer_key"),
        ("use_dynamic_bsz=true", "leave it out: rows are always packed"),
        ("lr=0.1", "Trinity-RFT has it; write learner.optimizer.learning_rate"),
        ("algorithm.lr=0.1", "Trinity-RFT has it; write learner.optimizer.learning_rate"),
        ("algorithm.critic.lr=0.1", "Trinity-RFT has it; write algorithm.critic.optimizer.learning_rate"),
        ("algorithm.critic.optimizer.lr=0.1", "has it; write algorithm.critic.optimizer.learning_rate"),
        ("algorithm.critic.betas=0.9", "write algorithm.critic.optimizer.beta1, algorithm.critic.optimizer.beta2"),
        ("algorithm.eps_clip=0.2", "OpenRLHF has it; write algorithm.loss.clip_low, algorithm.loss.clip_high"),
        ("algorithm.clip_ratio_high=0.2", "verl has it; write algorithm.loss.clip_high"),
        ("is_weight=true", "ROLL has it; write algorithm.correction.mode (truncate)"),
        ("learner.node_num=1", "write learner.devices, sidecar.devices"),
        ("learner.optimizer.critic_warmup=1", "write algorithm.critic.warmup_steps"),
        ("learner.optimizer.epsilon=1e-8", "unknown key; did you mean learner.optimizer.eps?"),
        ("pg_clip=0.2", "ROLL has it; write algorithm.loss.clip_low, algorithm.loss.clip_high"),
        ("num_generations=8", "num_generations: unknown key; TRL has it; write group_size"),
        ("loss_mode=gspo", "verl has it; write algorithm.pg_variant"),
        ("beta=0.04", "beta: unknown key; TRL has it; write algorithm.kl.coef (with algorithm.kl.where=loss)"),
        ("epsilon=0.2", "epsilon: unknown key; TRL has it; write algorithm.loss.clip_low, algorithm.loss.clip_high"),
        ("report_to=wandb", "report_to: unknown key; TRL has it; write observe.tensorboard, observe.wandb"),
        ("learning_rate=1e-6", "learning_rate: unknown key; did you mean learner.optimizer.learning_rate?"),
        ("vllm_mode=colocate", "vllm_mode: unknown key; TRL has it; write sidecar.colocate=true"),
        ("data.train_batch_size=8", "verl has it; write rollout_batch_size (times rollout.n: attempts, not prompts)"),
        ("actor_rollout_ref.rollout.n=8", "verl has it; write group_size"),
        ("rollout.n=8", "rollout.n: unknown key; verl has it; write group_size"),
        ("actor_rollout_ref.rollout.val_kwargs.top_p=1", "verl has it; write sidecar.val_generating_args.*"),
        ("actor_rollout_ref.actor.anything=1", "verl has it; write learner, sidecar, model"),
        (
            "data.anything=1",
            "verl has it; write tasks, model, rollout_batch_size (the group's settings are spread over",
        ),
        ("trainer.anything=1", "Trinity-RFT or verl has it; write learner (the group's settings are spread over"),
        ("learner.data=2", "learner.data: unknown key; did you mean learner.mesh.data?"),
        ("optim.lr=1", "optim.lr: unknown key; verl has it; write learner.optimizer.learning_rate"),
        ("trainer.total_epochs=3", "verl has it; write total_epochs"),
        ("algorithm.use_kl_in_reward=true", "verl has it; write algorithm.kl.where=reward"),
        ("algorithm.use_kl_in_reward=False", "verl has it; write algorithm.kl.where=none (the default)"),
        (
            "actor_rollout_ref.actor.use_kl_loss=False",
            "verl has it; write algorithm.kl.where=none (the default)",
        ),
        ("algorithm.use_kl_loss=0", "verl has it; write algorithm.kl.where=none (the default)"),
        (
            "vllm_mode=server",
            "TRL has it; write sidecar.colocate=false (the default; engines are processes of the run)",
        ),
        ("model.bf16=false", "TRL has it; write model.dtype=fp32 (the default)"),
        ("algorithm.filter_groups.enable=False", "verl has it; write algorithm.filters=() (the default)"),
        ("reward_model.enable=False", "verl has it; leave it out: there is none unless it is named"),
        ("trainer.nnodes=1", "verl has it; write launcher=local (the default)"),
        ("trainer.nnodes=2", "verl has it; write learner.devices, sidecar.devices, launcher=ray"),
        ("trainer.n_gpus_per_node=8", "verl has it; write learner.devices, sidecar.devices"),
        ("trainer.balance_batch=True", "verl has it; leave it out: rows are always packed"),
        ("data.truncation=error", "leave it out: no prompt is cut: one above model.max_prompt_tokens is a bad row"),
        ("data.filter_overlong_prompts=True", "verl has it; write tasks.on_bad_row=skip (at each prompt's turn)"),
        ("data.filter_overlong_prompts=False", "write tasks.on_bad_row=fail (the default: a prompt above model.max_"),
        ("data.reward_fn_key=data_source", "verl has it; write tasks.train.NAME.tag_key (a taskset with tags and rew"),
        (
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
            "verl has it; leave it out: log-probabilities are of learner.rows_per_microbatch rows",
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.param_offload=True",
            "leave it out: nothing is offloaded to the host; learner.mesh.fsdp cuts it over more devices",
        ),
        (
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1",
            "verl has it; write learner.optimizer.warmup_steps (updates, and no share of them)",
        ),
        ("run_name=x", "TRL has it; write run_dir (its name is that of the run)"),
        ("optim=adamw_torch", "TRL has it; leave it out: it is AdamW, with the keys of learner.optimizer"),
        ("remove_unused_columns=False", "leave it out: all columns reach the rewards, in task.metadata"),
        ("vllm_server_host=x", "leave it out: there is no server: engines are processes of the run"),
        ("algorithm.pg_variant=grpo", "there is no such one; write algorithm.adv_estimator=grpo, or closest: gspo"),
        ("algorithm.adv_estimator=gspo", "there is no such one; write algorithm.pg_variant=gspo, or closest: grpo"),
        ("algorithm.cliprange=0.2", "TRL has it; write algorithm.loss.clip_low, algorithm.loss.clip_high"),
    ],
)
def test_a_foreign_key_is_refused_with_what_to_write(override: str, advice: str, simple: str) -> None:
    path, overrides = parse_arguments([f"--config={simple}", f"--config.{override}"])
    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides)
    assert advice in str(refused.value)


def test_the_help_says_the_defaults_that_hold() -> None:
    """Also those of a group that is made with defaults of its own, as the critic's optimizer is."""
    of_functions = re.compile(r"(pg_variant|adv_estimator|filters)=[\w+]+: ")
    said = {path: default for path, default, meaning in key_help() if not of_functions.match(meaning)}
    held = {path: str(value) for path, value, _ in walk(Config(mode="audit"))} | {"mode": "both"}
    groups = {"tasks.train": TasksetConfig(), "custom_envs": EnvironmentConfig(), "judges": JudgeConfig()}
    groups |= {"reward_models": RewardModelConfig(), "algorithm.distill.teachers": TeacherConfig()}
    for group, made in groups.items():
        held |= {f"{group}.NAME.{path}": str(value) for path, value, _ in walk(made)}
    assert said["algorithm.critic.optimizer.learning_rate"] == "1e-05"
    assert said["sidecar.val_generating_args.temperature"] == "0.0"
    others = {path for path in said if path.startswith(("tasks.validation.NAME.", "explorer.tasksets.NAME."))}
    assert {path: said[path] for path in said.keys() - others} == {
        path: held.get(path) for path in said.keys() - others
    }


def test_no_argument_is_answered_by_the_usage_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 5
    assert "--config=NAME|FILE.py" in printed.err


def test_foreign_keys_are_answered_with_keys_that_exist_and_never_hide_one() -> None:
    paths = [path for path, _, _ in key_help()]
    for name, foreign in FOREIGN_KEYS.items():
        assert foreign.here or foreign.remark, name
        assert name not in paths
        for key in foreign.here:
            assert any(path == key or path.startswith(f"{key}.") for path in paths), (name, key)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("to_config_dict(Config(repeat_times=8))", "repeat_times: unknown key; Trinity-RFT has it; write group_size"),
        ("to_config_dict(Config(max_step=8))", "max_step: unknown key; did you mean max_steps?"),
        ("config.actor_train = 1; return config", "actor_train: unknown key; ROLL has it; write learner"),
        (
            "config['sync_offset'] = 1; return config",
            "sync_offset: unknown key; Trinity-RFT has it; write async_generation_ratio",
        ),
    ],
)
def test_a_key_that_a_config_file_makes_up_is_answered_too(line: str, advice: str, tmp_path: Path) -> None:
    file = tmp_path / "made_up.py"
    file.write_text(SIMPLE.replace("    return to_config_dict(", "    config = to_config_dict(") + f"    {line}\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}: {advice}")):
        load_config(str(file))


def test_what_a_config_file_sets_wrong_is_told_at_once_and_settled_by_overrides(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    lines = ("config.learner.optimizer.weight_decy = 0.1", "config.max_steps = 'many'", "config.group_size = 0")
    set_wrong = "".join(f"    {line}\n" for line in (*lines, "return config"))
    file.write_text(SIMPLE.replace("    return to_config_dict(", "    config = to_config_dict(") + set_wrong)
    typo = "learner.optimizer.weight_decy: unknown key; did you mean learner.optimizer.weight_decay?"
    with pytest.raises(ConfigError) as refused:
        load_config(str(file))
    said = str(refused.value)
    assert all(part in said for part in (typo, "max_steps='many': expected an integer", "group_size=0"))
    with pytest.raises(ConfigError, match=re.escape(typo)):
        load_config(str(file), {"max_steps": 4, "group_size": 8})


QUICKSTART = str(Path(__file__).parents[2] / "configs" / "quickstart.py")
MADE_UP_ELSEWHERE = [
    (
        "policy_losses.register('mine', bounds_stp=True)",
        "TypeError: LossTraits.__init__() got an unexpected keyword argument 'bounds_stp'",
    ),
    ("nothing(seed=1)", "TypeError: nothing() got an unexpected keyword argument 'seed'"),
]


@pytest.mark.parametrize(("line", "told"), MADE_UP_ELSEWHERE, ids=["register", "function"])
def test_a_slip_below_a_config_file_is_no_key_of_it(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss file that the config imports, for one: the line names the file that must be mended."""
    below, file = tmp_path / "slips_below.py", tmp_path / "above.py"
    below.write_text(f"from rljax.algorithms.registry import policy_losses\ndef nothing(): ...\n{line}\n")
    file.write_text(f"import slips_below\n{SIMPLE}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_config(str(file))
    said = str(refused.value)
    assert said.startswith(f"{file}: {told}")  # Python 3.13 adds what may have been meant
    assert said.endswith(f" ({below}:3)")


def test_the_argument_of_a_config_file_and_its_faults(simple: str, tmp_path: Path) -> None:
    assert load_config(f"{simple}:9").tasks.train["digits"].args == {"digits": 9}
    assert load_config(simple).run_dir == "runs/simple"
    with pytest.raises(ConfigError, match=r"simple\.py: ValueError: invalid literal"):
        load_config(f"{simple}:many")
    with pytest.raises(ConfigError, match=r"quickstart\.py: takes no argument; write --config=.* without :x$"):
        load_config(f"{QUICKSTART}:x")
    with pytest.raises(ConfigError, match=r"the config has: algorithm, .*, and \d+ more; --help lists them$"):
        load_config(simple, {"zzzz.n": "8"})
    with pytest.raises(ConfigError, match=r"no such config file; did you mean .*simple\.py\?"):
        load_config(str(tmp_path / "simpel.py"))
    with pytest.raises(ConfigError, match="--config: missing"):
        parse_arguments([])
    with pytest.raises(ConfigError, match=r"^--steps: unknown argument; write --config=FILE\.py"):
        parse_arguments([f"--config={simple}", "--steps=3"])


def test_a_config_file_of_a_name_that_no_file_has_is_one_line(simple: str) -> None:
    for name in ("a" * 5000 + ".py", "a" * 5000 + ".json"):
        with pytest.raises(ConfigError, match=r"^--config='a{60}'…: the path is too long; write a shorter one$"):
            load_config(name)
    with pytest.raises(ConfigError, match=r"^seed=2147483648: must be at most 2147483647$"):
        load_config(simple, {"seed": "2147483648"})
    with pytest.raises(ConfigError, match=r"^async_generation_ratio=10{59}…: beyond any number that is computed with$"):
        load_config(simple, {"async_generation_ratio": 10**400})


def test_none_is_no_tuple() -> None:
    with pytest.raises(ConfigError, match=r"filters=None: expected a tuple: a,b,c; an empty one is written .*=\(\)"):
        load_config(QUICKSTART, {"algorithm.filters": "None"})
    assert load_config(QUICKSTART, {"algorithm.filters": "()"}).algorithm.filters == ()


def test_a_slip_in_a_group_is_answered_with_the_whole_key(simple: str) -> None:
    with pytest.raises(ConfigError, match=r"^learner\.mehs\.fsdp: unknown key; did you mean learner\.mesh\.fsdp\?$"):
        load_config(simple, {"learner.mehs.fsdp": "2"})
    with pytest.raises(ConfigError, match=r"^learner\.mehs\.fdsp: unknown key; did you mean learner\.mesh\?$"):
        load_config(simple, {"learner.mehs.fdsp": "2"})
