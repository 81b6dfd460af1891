"""Keys that belong to the function that another key names: typed, complete, and those of no other function."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rljax.algorithms.losses import cispo, mix, ppo, tis
from rljax.algorithms.registry import advantages, check_names, filters, policy_losses
from rljax.config.arguments import parse_arguments
from rljax.config.foreign_keys import FOREIGN_KEYS, MOVED
from rljax.config.load import as_plain, from_plain, key_help, load_config, to_config_dict
from rljax.config.schema import AlgorithmConfig
from rljax.config.validate import ConfigError
from tests.config.making import make
from tests.config.test_load import SIMPLE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that the config can name."""
    module = ModuleType("mine_of_the_test")
    text = (
        "from __future__ import annotations\n"
        "def loss(inputs, *, bound: float = 2.0, kinds: tuple[str, ...] = (), limit: int | None = None): ...\n"
        "def hard(inputs, *, bound: float): ...\n"
        "def old(inputs, config): ...\n"
        "def few(group, *, least: int = 2):\n"
        "    return 'few' if len(group.trajectories) < least else None\n"
    )
    exec(compile(text, "mine_of_the_test.py", "exec", dont_inherit=True), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def simple(tmp_path: Path) -> str:
    (tmp_path / "simple.py").write_text(SIMPLE)
    return str(tmp_path / "simple.py")


def loaded(file: str, *overrides: str, mode: str = "both") -> AlgorithmConfig:
    algorithm = [f"--config.algorithm.{one}" for one in overrides]
    return load_config(*parse_arguments([f"--config={file}", f"--config.mode={mode}", *algorithm])).algorithm


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["loss.clip_low=0.1"], ppo.Config(clip_low=0.1)),
        (["pg_variant=cispo", "loss.clip_low=0.6"], cispo.Config(clip_low=0.6)),
        (["pg_variant=tis", "loss.high=4"], tis.Config(high=4.0)),
        (
            [
                "pg_variant=mix",
                "loss.variant=tis",
                "loss.variant_args.low=0.25",
                "allow_uncorrected=true",
                "loss.phi=true",
            ],
            mix.Config(variant="tis", variant_args={"low": 0.25}, phi=True),
        ),
    ],
)
def test_the_command_line_gives_the_chosen_loss_its_keys_in_whatever_order(
    overrides: list[str], keys: Any, turned: bool, simple: str
) -> None:
    assert loaded(simple, *(reversed(overrides) if turned else overrides), mode="audit").loss == keys


def test_each_filter_has_its_own_keys(simple: str) -> None:
    config = loaded(simple, "filter.mean_band.low=0.25", "filters=overlong,mean_band,min_std", "filter.min_std.bound=1")
    assert as_plain(config)["filter"] == {"mean_band": {"low": 0.25, "high": None}, "min_std": {"bound": 1.0}}
    assert dataclasses.replace(make(), algorithm=config).algorithm.filter == config.filter


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["loss.clip_lo=1"], "algorithm.loss.clip_lo: ppo has no such key; closest: clip_low, clip_high"),
        (["pg_variant=tis", "loss.clip_low=1"], "algorithm.loss.clip_low: tis has no such key; closest: low"),
        (["pg_variant=vanilla", "loss.low=1"], "algorithm.loss.low: vanilla has no such key; it has none"),
        (["pg_variant=pop", "loss.low=1"], "algorithm.pg_variant='pop': there is no such one; closest: ppo, topr"),
        (["loss.clip_low=two"], "algorithm.loss.clip_low=two: expected a number"),
        (["loss.clip_low=2"], "algorithm.loss.clip_low=2.0: must be at most 1"),
        (["loss.ratio_level=word"], "algorithm.loss.ratio_level='word': not one of token, turn, sequence"),
        (
            ["adv_estimator=gae", "advantage.lambda=1"],
            "algorithm.advantage.lambda: gae has no such key; closest: lambd",
        ),
        (
            ["filter.mean_band.low=1"],
            "algorithm.filter.mean_band.low: nothing reads it; add mean_band to algorithm.filt",
        ),
        (
            ["filters=overlong,one.module:same,another:same"],
            "algorithm.filters: one.module:same and another:same share the keys algorithm.filter.same; rename one",
        ),
        (
            ["filters=mine:overlong,overlong"],
            "algorithm.filters: mine:overlong and overlong share the keys algorithm.filter.overlong; rename one",
        ),
        (["filters=mean_band", "filter.mean_band=1"], "algorithm.filter.mean_band=1: this is a group of keys; write"),
        (
            ["filters=mean_band", "filter.mean_band.lo=1", "filter.mean_band.high=1"],
            "algorithm.filter.mean_band.lo: mean_band has no such key; clos",
        ),
        (
            ["pg_variant=mix", "loss.variant=pop", "loss.variant_args.low=1"],
            "algorithm.loss.variant='pop': there is no",
        ),
        (["loss=3", "loss.clip_low=0.1"], "algorithm.loss=3: this is a group of keys; write algorithm.loss.KEY=VALUE"),
        (["loss=3", "pg_variant=gspo"], "algorithm.loss=3: this is a group of keys; write algorithm.loss.KEY=VALUE"),
        (["filters=mean_band", "filter=x"], "algorithm.filter=x: this is a group of keys; write algorithm.filter.KEY"),
        (["loss=3"], "algorithm.loss=3: this is a group of keys; write algorithm.loss.KEY=VALUE"),
    ],
)
def test_a_key_that_the_chosen_function_does_not_have_is_one_line(overrides: list[str], line: str, simple: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(simple, *overrides, mode="audit")  # where no loss is stale, nor has nothing to imitate
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_another_loss_on_the_command_line_begins_with_its_own_defaults(simple: str) -> None:
    text = Path(simple).read_text().replace("import Config,", "import AlgorithmConfig, Config,")
    wide = "Config(algorithm=AlgorithmConfig(loss={'clip_low': 0.8, 'clip_high': 3.0}), tasks="
    Path(simple).write_text(text.replace("Config(tasks=", wide))
    assert loaded(simple).loss == ppo.Config(clip_low=0.8, clip_high=3.0)
    assert loaded(simple, "pg_variant=tis").loss == tis.Config()
    assert loaded(simple, "pg_variant=ppo").loss == ppo.Config(clip_low=0.8, clip_high=3.0)


def test_keys_of_another_function_are_never_kept() -> None:
    plain = AlgorithmConfig()
    assert dataclasses.replace(plain, pg_variant="tis").loss == tis.Config()
    set_by_hand = AlgorithmConfig(loss=ppo.Config(clip_low=0.1))
    assert set_by_hand == AlgorithmConfig(loss={"clip_low": 0.1})
    with pytest.raises(ConfigError, match=r"algorithm.loss: holds keys of rljax.algorithms.losses.ppo, and pg_var"):
        dataclasses.replace(set_by_hand, pg_variant="tis")
    assert dataclasses.replace(set_by_hand, pg_variant="tis", loss={"low": 1}).loss == tis.Config(low=1.0)
    with pytest.raises(ConfigError, match=r"algorithm.loss.clip_low='a': expected a number, not str"):
        AlgorithmConfig(loss={"clip_low": "a"})
    with pytest.raises(ConfigError, match=r"algorithm.filter.min_std: nothing reads it; add min_std to"):
        AlgorithmConfig(filter={"min_std": {"bound": 0.5}})


def test_a_config_survives_being_written_down() -> None:
    config = make(
        algorithm=AlgorithmConfig(
            adv_estimator="gae",
            advantage={"lambd": 0.5},
            loss={"dual_clip": 3.0},
            filters=("mean_band", "overlong"),
            filter={"mean_band": {"low": 0.1}},
        )
    )
    assert from_plain(json.loads(json.dumps(as_plain(config)))) == config


def test_a_config_file_may_change_a_key_of_the_loss_and_is_refused_a_typo(simple: str, tmp_path: Path) -> None:
    editable = to_config_dict(make())
    editable.algorithm.loss.clip_low = 0.1
    editable.algorithm.loss.clip_lo = 0.1
    with pytest.raises(ConfigError, match=r"algorithm.loss.clip_lo: ppo has no such key; closest: clip_low"):
        from_plain(editable.to_dict())
    editable = to_config_dict(make())
    editable.algorithm.clip_low = 0.1
    with pytest.raises(ConfigError, match=r"algorithm.clip_low: unknown key"):
        from_plain(editable.to_dict())


def test_the_help_lists_the_keys_of_each_function_under_its_name() -> None:
    rows = key_help()
    for slot, group, chooser in (
        (policy_losses, "loss", "pg_variant"),
        (advantages, "advantage", "adv_estimator"),
    ):
        for entry in slot.built_in():
            keys = [f"algorithm.{group}.{spec.name}" for spec in dataclasses.fields(entry.keys)]
            listed = [path for path, _, meaning in rows if meaning.startswith(f"{chooser}={entry.name}: ")]
            assert [path.removesuffix(".KEY") for path in listed] == keys
    assert ("algorithm.loss.high", "1.0", "pg_variant=tis: upper bound of the ratio") in rows
    meaning = "filters=min_std: drops groups whose rewards deviate by no more than this"
    assert ("algorithm.filter.min_std.bound", "0.0", meaning) in rows


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_key_of_before_is_answered_with_the_one_of_now(name: str, simple: str, tmp_path: Path) -> None:
    for chosen in (AlgorithmConfig(), AlgorithmConfig(pg_variant="mix", loss={"variant": "gspo"})):
        assert not hasattr(chosen, name)
    with pytest.raises(ConfigError, match=f"^algorithm.{name}: unknown key; an earlier rljax has it; write algorithm"):
        loaded(simple, f"{name}=1")
    resumed = tmp_path / "config.json"
    plain = as_plain(make())
    plain["algorithm"][name] = 1
    resumed.write_text(json.dumps(plain))
    with pytest.raises(ConfigError) as refused:
        load_config(str(resumed))
    assert f"write {FOREIGN_KEYS[name].here[0]}" in str(refused.value)
    for key in MOVED[name].here:  # exists, under what the remark says
        options = re.findall(r"[\w+]+", MOVED[name].remark.partition("=")[2]) or [""]
        assert any(path == key for path, _, meaning in key_help() if any(o in meaning for o in options))


def test_a_function_of_ones_own_has_the_keys_of_its_signature(own: ModuleType, simple: str) -> None:
    loss = "mine_of_the_test:loss"
    config = loaded(simple, "allow_uncorrected=true", f"pg_variant={loss}", "loss.bound=3", "loss.kinds=a,b")
    assert config.loss == {"bound": 3.0, "kinds": ("a", "b"), "limit": None}
    assert from_plain(as_plain(make(algorithm=config))).algorithm == config
    bound = policy_losses.bound(config.pg_variant, config.loss)
    assert bound.keywords == config.loss  # type: ignore[attr-defined]
    for keys, line in (
        ({"bond": 1}, "algorithm.loss.bond: mine_of_the_test:loss has no such key; closest: bound"),
        ({"bound": "1"}, "algorithm.loss.bound='1': expected a number, not str; write the number without quotes"),
        ({"limit": 1.5}, "algorithm.loss.limit=1.5: expected an integer, not float"),
    ):
        with pytest.raises(ConfigError, match=re.escape(line)):
            AlgorithmConfig(pg_variant=loss, loss=keys)
    with pytest.raises(ConfigError, match=r"algorithm.pg_variant.bound: .*:hard needs it"):
        check_names(AlgorithmConfig(pg_variant="mine_of_the_test:hard"))
    with pytest.raises(ConfigError, match=r"algorithm.pg_variant='.*:old': must take 1 argument, and its keys as keyw"):
        check_names(AlgorithmConfig(pg_variant="mine_of_the_test:old"))


def test_a_filter_of_ones_own_has_its_keys_by_the_name_of_the_function(own: ModuleType, simple: str) -> None:
    from rljax.algorithms.registry import chosen_filters
    from tests.algorithms.builders import answers

    config = loaded(simple, "filters=mine_of_the_test:few,overlong", "filter.few.least=3")
    (_, few), _ = chosen_filters(config)
    assert (few(answers(0.0, 1.0)), few(answers(0.0, 1.0, 2.0))) == ("few", None)
    (_, few), _ = chosen_filters(dataclasses.replace(config, filter={}))
    assert few(answers(0.0, 1.0)) is None


def test_a_registered_function_says_what_it_is() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        bound: float = 2.0

    @policy_losses.register("held", Config=Config, bounds_step=lambda config: config.bound < 3)
    def held(inputs: Any, config: Config) -> Any:
        return inputs, config.bound

    assert make(algorithm=AlgorithmConfig(pg_variant="held")).algorithm.loss == Config()
    assert policy_losses.bound("held", {"bound": 1.0})(7) == (7, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="neither trust region nor correction"):
        make(algorithm=AlgorithmConfig(pg_variant="held", loss={"bound": 3.0}))
    with pytest.raises(TypeError, match="bound_step"):
        policy_losses.register("held", bound_step=True)

    @filters.register("odd", among_members=True)
    def odd(group: Any) -> str | None:
        return None

    with pytest.raises(ConfigError, match=r"algorithm.filters: odd drops every group of one"):
        make(algorithm=AlgorithmConfig(filters=("odd",), adv_estimator="reinforce"), group_size=1)


def test_a_name_of_the_notebook_can_be_given_by_keyword() -> None:
    advantages.register("scaled")(lambda rewards, *, by=2.0: rewards * by)
    config = AlgorithmConfig(adv_estimator="scaled", advantage={"by": 3.0})
    assert advantages.bound("scaled", config.advantage)(np.ones((1, 2))).tolist() == [[3.0, 3.0]]
    assert advantages.bound("scaled")(np.ones((1, 2))).tolist() == [[2.0, 2.0]]


def test_reading_a_config_touches_no_accelerator() -> None:
    """The keys of a loss stand beside its formula: its module is imported, but no backend is made."""
    program = (
        "import sys, rljax\n"
        "config = rljax.load_config('configs/quickstart.py', **{'algorithm.pg_variant': 'tis'})\n"
        "import jax._src.xla_bridge as bridge\n"
        "heavy = [name for name in ('torch', 'vllm', 'ray', 'flax') if name in sys.modules]\n"
        "print(config.algorithm.loss.high, bridge._backends, heavy)"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (found.stdout.strip(), found.stderr) == ("1.0 {} []", "")
