"""Builds the parts of a run out of its config, in the same way in every process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np

from rljax.config.load import as_plain
from rljax.config.schema import Config
from rljax.config.validate import ConfigError, context_error
from rljax.ledger import versions
from rljax.ledger.backend import backend_of
from rljax.ledger.database import Database, LedgerError, StaleWriterError, run_row
from rljax.ledger.run_spec import RunSpec
from rljax.models.adapter import adapter_by_name, init_adapter, merged_tensors, publishes_adapter, targeted
from rljax.models.adapter_files import adapter_directory, check_adapter, load_adapter
from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.experts.routing import spread_routes
from rljax.models.files import load_architecture, stored_tensors
from rljax.models.frozen import FrozenBase
from rljax.models.resolve import resolve_model
from rljax.models.tiny import tiny_architecture
from rljax.models.tokenizer import (
    TINY_CHAT_TEMPLATE,
    chosen_template,
    load_tokenizer,
    template_text,
    with_chat_template,
)
from rljax.pipeline.run_dir import RunDir
from rljax.tasks.seeds import stable_hash
from rljax.weights.gathering import DTYPES
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels.versions import AdapterInfo
from sidecar.fingerprint import fingerprint
from sidecar.stored import DamagedFileError

PROBE_TOKENS = 48
"""Tokens of the parity probe, where the context has room for them."""
PARITY_BOUNDS = {"fp32": 1e-3, "bf16": 0.75}
"""Largest log-probability gap allowed, in nats, by compute dtype. On SmolLM2, where probe tokens have −14 nats on
average, bf16 learner and engine were measured 0.37 apart, each 0.2 to 0.3 from fp32.
"""
UNSET = (("min_p", 0.0), ("repetition_penalty", 1.0), ("messages_key", None))
"""Keys that older runs did not have, with the values that change nothing: left out, so that fingerprints stay."""
OF_JUDGE = ("dtype", "max_prompt_tokens", "max_response_tokens", "system_prompt", "template", "generating_args")
"""Keys of a judge that its scores depend on, besides its model."""
OF_REWARD_MODEL = ("dtype", "max_tokens")
"""The same of a reward model."""

ProgressCallback = Callable[[str, float], None]


@dataclass(frozen=True)
class Model:
    """Directory of the policy and what is read from it without its weights; of the adapter that the run goes on from
    too, where `model.path` is one: then the first is that of its base.

    Attributes:
        frozen: the base of an adapter, where a learner of this process has it; None: engines have their own.
    """

    directory: Path
    architecture: Architecture
    tokenizer: Any
    stop_token_ids: tuple[int, ...]
    adapter: Path | None = None
    frozen: FrozenBase | None = None

    @property
    def fingerprint(self) -> str:
        """Identifies the meaning of the model's weights and tokens; the same wherever it is kept."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        shape = replace(self.architecture, max_position_embeddings=0, context=0)  # how far it may go, not what it is
        return f"{stable_hash(repr(shape), *self.stop_token_ids, *itertools.chain(*vocabulary)):016x}"


def open_ledger(config: Config, run: RunDir) -> Database:
    """Opens or creates the run's ledger.

    Raises:
        LedgerError: it belongs to another run, or is none.
    """
    db = Database(backend_of(config, run.root), RunSpec.of(config))
    elsewhere = config.ledger is not None and not run.config.exists()
    if elsewhere and config.mode in ("both", "train") and db.read(lambda tx: run_row(tx).trained):
        db.close()
        raise LedgerError(
            f"{db.label}: a learner has lived there, but not in run_dir={run.root}; set run_dir to that run's, or "
            "ledger or ledger_schema to a new place"
        )
    return db


def validation_fingerprint(config: Config) -> str:
    """Returns a fingerprint of what is validated, and how; the same wherever its files are kept.

    Raises:
        ConfigError: there is no such chat template.
    """
    plain = as_plain(config)
    tasksets = {
        name: _without_unset(settings)
        | {"source": ",".join(PurePath(part).name for part in settings["source"].split(","))}
        for name, settings in plain["tasks"]["validation"].items()
    }
    models = [
        {name: _as_measured(model, keys) for name, model in plain[section].items()}
        for section, keys in (("judges", OF_JUDGE), ("reward_models", OF_REWARD_MODEL))
        if plain[section]
    ]
    environments = {tag: plain["custom_envs"][tag] for tag in config.val_groups}
    rollout, sampling = plain["rollout"], plain["sidecar"]["val_generating_args"]
    manager = rollout["val_env_manager"]
    workflow = [] if rollout["workflow"] == "by_task" else [rollout["workflow"], rollout["workflow_args"]]
    limits = [config.val_batch_size, config.model.max_prompt_tokens, config.model.max_response_tokens, config.longest]
    template, thinking = config.model.chat_template, config.model.enable_thinking
    chat = [one for one in (template and template_text(template), thinking) if one is not None]
    what = [tasksets, environments, _without_unset(sampling), manager, limits, *models, *workflow, *chat]
    return f"{stable_hash(json.dumps(what, sort_keys=True)):016x}"


def _without_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if (key, value) not in UNSET}


def _as_measured(model: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Returns what of a judge or reward model its scores depend on, but for its devices and engines."""
    return {"path": PurePath(model["path"]).name} | {key: model[key] for key in keys}


def open_model(config: Config, run: RunDir, progress: ProgressCallback | None = None) -> Model:
    """Opens the model's directory: finds, downloads or creates it.

    Raises:
        ModelNotFound: it is not here and cannot be fetched.
        ConfigError: as `check_architecture`; or there is no tokenizer, or no such chat template.
    """
    return open_model_at(config, run.root, progress)


def open_model_at(config: Config, root: Path, progress: ProgressCallback | None = None) -> Model:
    """Opens the model's directory, as `open_model`; one that is made goes below ``root``."""
    template, thinking = config.model.chat_template, config.model.enable_thinking
    if config.model.path == "tiny":  # of what is refused none is made
        check_architecture(config, tiny_architecture(config.model))
        chosen_template(TINY_CHAT_TEMPLATE, template, thinking)
    directory = resolve_model(config.model, config.seed, root, progress)
    architecture = load_architecture(directory)
    check_architecture(config, architecture)
    architecture = architecture.within(config.context)
    adapter = adapter_directory(config.model)
    if adapter is not None:
        check_adapter(adapter, architecture, config.model.lora)
    try:
        own = load_tokenizer(directory)
    except ValueError as error:
        raise ConfigError(f"model.path={config.model.path}: {error}") from None
    tokenizer = with_chat_template(own, template, thinking)
    return Model(directory, architecture, tokenizer, _stop_token_ids(directory, tokenizer), adapter)


def initial_tensors(config: Config, model: Model) -> dict[str, Any]:
    """Returns the weights that a run begins with, by Hugging Face name; none is read but when it is used.

    Raises:
        ConfigError: the adapter that it goes on from cannot be read.
    """
    tensors, lora = stored_tensors(model.directory), config.model.lora
    if model.adapter is None:
        return dict(tensors)
    adapter = load_adapter(model.adapter, model.architecture, lora)
    return merged_tensors(tensors, adapter, model.architecture, lora)


def check_architecture(config: Config, architecture: Architecture) -> None:
    """Checks that the run can train such a model.

    Raises:
        ConfigError: prompt and response do not fit into the model's context, or `tensor` does not divide its heads;
            `expert` does not divide its experts, or it has none and a key is theirs; it has no such
            matrices as `model.lora` names.
    """
    check_computed(config, architecture)
    targeted(architecture, config.model.lora)
    _check_experts(config, architecture.experts)


def check_computed(config: Config, architecture: Architecture) -> None:
    """Checks that the learner can compute such a model, the policy or a teacher of it.

    Raises:
        ConfigError: prompt and response do not fit into the model's context, or `tensor` does not divide its heads.
    """
    longest = config.longest
    if longest > architecture.max_position_embeddings:
        raise ConfigError(context_error(longest, architecture.max_position_embeddings))
    tensor, heads = config.learner.mesh.tensor, architecture.num_heads
    if heads % tensor:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ConfigError(f"learner.mesh.tensor={tensor}: must divide the model's {heads} heads; write {divisors}")


def _check_experts(config: Config, experts: Experts | None) -> None:
    algorithm, shards = config.algorithm, config.learner.mesh.expert
    if experts is None:
        of_experts = {
            "learner.mesh.expert": shards > 1 and shards,
            "algorithm.router_aux_loss_coef": algorithm.router_aux_loss_coef,
            "algorithm.router_z_loss_coef": algorithm.router_z_loss_coef,
            "algorithm.router_replay": algorithm.records_routes and algorithm.router_replay,
        }
        if named := [f"{name}={value}" for name, value in of_experts.items() if value]:
            raise ConfigError(f"{named[0]}: the model has no experts; leave it out")
    elif experts.count % shards:
        divisors = ", ".join(str(n) for n in range(1, experts.count + 1) if experts.count % n == 0)
        raise ConfigError(
            f"learner.mesh.expert={shards}: must divide the model's {experts.count} experts; write {divisors}"
        )


def _stop_token_ids(directory: Path, tokenizer: Any) -> tuple[int, ...]:
    """Returns the tokens that end a turn: the tokenizer's, and generation_config.json's (Llama 3 has several)."""
    found = {tokenizer.eos_token_id}
    file = directory / "generation_config.json"
    if file.exists():
        listed = json.loads(file.read_text()).get("eos_token_id")
        found.update(listed if isinstance(listed, list) else [listed])
    return tuple(sorted(token for token in found if token is not None))


def probe_tokens(config: Config, architecture: Architecture) -> np.ndarray:
    """Returns int32 ``[probe]``: the text on which learner and engines are compared, the same in every process."""
    length = min(PROBE_TOKENS, config.longest)
    ids = [stable_hash("probe", i) % architecture.vocab_size for i in range(length)]
    return np.asarray(ids, np.int32)


def probe_routes(config: Config, architecture: Architecture) -> np.ndarray | None:
    """Returns the experts that engines send the tokens of the probe to, int16 ``[probe, layers, picked]``, as
    `Learner.score` does; None: those that their routers choose.
    """
    if architecture.experts is None or not config.probe_is_routed:
        return None
    return spread_routes(len(probe_tokens(config, architecture)), architecture.num_layers, architecture.experts)


def parity_bound(config: Config) -> float:
    """Returns the largest gap allowed, in nats."""
    dtypes = {config.model.dtype, config.resolved_sync_dtype, config.engine_dtype}
    coarsest = "bf16" if dtypes & {"bf16", "fp16"} else "fp32"
    return PARITY_BOUNDS[coarsest] if config.parity_bound is None else config.parity_bound


def publish_initial_weights(config: Config, run: RunDir, db: Database, model: Model) -> None:
    """Publishes version 0 where no learner has lived yet, so that an explorer need not wait for one.

    A learner that starts meanwhile publishes the same weights; then this does nothing.
    """
    if versions.newest(db) is not None:
        return
    dtype, publisher = config.resolved_sync_dtype, OrbaxPublisher(run.weights)
    given, adapter = _initial_version(config, model)
    tensors = {name: tensor.astype(DTYPES[dtype]) for name, tensor in given.items()}
    try:
        path = publisher.publish(0, 0, tensors, model=config.model.path, dtype=dtype, adapter=adapter)
        versions.announce(db, 0, 0, run.announced_path(path))
    except (StaleWriterError, PublishError, DamagedFileError):
        if versions.newest(db) is None and versions.lineage(db) == 0:
            raise
        if (0, 0) not in versions.standing(db):  # what the learner has looked through may have come after that
            publisher.delete(0, 0)


def _initial_version(config: Config, model: Model) -> tuple[dict[str, Any], AdapterInfo | None]:
    """Returns the tensors of version 0 as a learner publishes them, and what they change."""
    if not publishes_adapter(config):
        return initial_tensors(config, model), None
    architecture, lora = model.architecture, config.model.lora
    begun = init_adapter(architecture, lora, config.seed)
    adapter = begun if model.adapter is None else load_adapter(model.adapter, architecture, lora)
    info = AdapterInfo(fingerprint(stored_tensors(model.directory)), config.model.dtype, lora.scale)
    return dict(adapter_by_name(jax.tree.map(np.asarray, adapter), architecture, lora)), info
