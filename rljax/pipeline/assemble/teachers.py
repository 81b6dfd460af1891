"""Opens the teachers that a config asks for: their files, and whether they know what the policy says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from rljax.config.distill import TEACHERS
from rljax.config.fields import ConfigError
from rljax.config.schema import Config, ModelConfig
from rljax.learner.hosts import Hosts
from rljax.learner.leading import asked_by_leader
from rljax.learner.served import Endpoint, Recorded, TeacherAway, TeacherError
from rljax.learner.teachers import Ask, AskedTeacher, StoredTeacher
from rljax.models.common.architecture import Architecture
from rljax.models.files import load_architecture, stored_tensors
from rljax.models.resolve import ModelNotFound, resolve_model
from rljax.models.tokenizer import load_tokenizer
from rljax.pipeline.assemble.checkpoints import oldest_checkpoint
from rljax.pipeline.assemble.run import Model, ProgressCallback, check_computed
from rljax.pipeline.run_dir import RunDir

log = logging.getLogger(__name__)

TRIAL_SECONDS = 60.0
"""Seconds in which a served teacher has to answer before a run starts."""
_TRIED = 256


def open_teachers(
    config: Config, model: Model, progress: ProgressCallback | None = None, hosts: Hosts | None = None
) -> dict[str, StoredTeacher | AskedTeacher]:
    """Finds or fetches the teachers of the policy ``model``, by name, and reads none of their weights; asks those that
    are served a first time.

    Args:
        config: of the run.
        model: the policy.
        progress: called with messages on downloads.
        hosts: that are the learner together; None: this process is.

    Raises:
        ModelNotFound: a teacher is not here and cannot be fetched.
        ConfigError: it is no model that the learner can compute, or that can be asked, or has another vocabulary.
        TeacherAway: one that is served does not answer in time.
    """
    found: dict[str, StoredTeacher | AskedTeacher] = {}
    run = RunDir.at(config)
    for name, settings in config.algorithm.distill.served.items():
        ask: Ask | None = None
        if hosts is None or hosts.leads:
            try:
                if config.mode != "replay":  # which asks nothing that was answered
                    seconds = min(TRIAL_SECONDS, config.wait_timeout)
                    check_served(Endpoint(name, settings, seconds, " before the run starts"), config, model)
            except TeacherAway:
                raise
            except TeacherError as error:
                room = f"a sequence of the run has up to {config.longest} tokens, and one more has to fit there"
                hint = f"; {room} (vLLM: --max-model-len, rljax: sidecar.max_model_len)" * ("context" in str(error))
                raise ConfigError(f"{error}{hint}") from None
            asked = Endpoint(name, settings, config.wait_timeout).logprobs
            ask = Recorded(asked, run.teachers / name, lambda: oldest_checkpoint(config, run))
        found[name] = AskedTeacher(settings, ask if hosts is None else asked_by_leader(hosts, ask))
    for name, settings in config.algorithm.distill.stored.items():
        try:
            directory = resolve_model(ModelConfig(path=settings.path), config.seed, Path(), progress)
            architecture, tensors = load_architecture(directory), stored_tensors(directory)
            check_computed(config, architecture)
            check_vocabulary(model.tokenizer, model.architecture, load_tokenizer(directory), architecture)
        except ModelNotFound as error:
            raise ModelNotFound(f"{TEACHERS}.{name}: {error}") from None
        except ValueError as error:  # a ConfigError, or what the files of a model are refused with
            raise ConfigError(f"{TEACHERS}.{name}: {error}") from None
        found[name] = StoredTeacher(architecture.within(config.context), tensors)
    return found


def check_served(endpoint: Endpoint, config: Config, model: Model) -> None:
    """Asks a served teacher about a sequence as long as any of the run, of tokens of the policy from all over its
    vocabulary; the text of each has to be the same there.

    Raises:
        ConfigError: one is not.
        TeacherError: it cannot be asked, has no room for that, or knows fewer tokens.
    """
    tokenizer, last = model.tokenizer, model.architecture.vocab_size - 1
    special = set(tokenizer.all_special_ids)
    plain = np.array(sorted({token for token in tokenizer.get_vocab().values() if token < last} - special))
    chosen = plain[np.linspace(0, len(plain) - 1, min(_TRIED, len(plain), config.longest - 1)).astype(int)]
    ids = np.append(np.resize(chosen, config.longest - 1), last).astype(np.int32)
    said = [(int(token), text) for token, text in zip(ids[:-1], endpoint.texts(ids), strict=False)]
    compared = [(token, text, tokenizer.decode([token]).strip()) for token, text in said if text != f"token_id:{token}"]
    if not said:
        log.warning("%s: it says no tokens, so that its vocabulary is not compared with the policy's", endpoint.where)
    for token, text, mine in compared:
        if mine.isascii() and mine.isprintable() and text.strip() != mine:
            raise ConfigError(
                f"{endpoint.where}: token {token} of the policy, {mine!r}, is {text!r} there; write a teacher with "
                "the policy's vocabulary"
            )


def check_vocabulary(mine: Any, architecture: Architecture, its: Any, of_teacher: Architecture) -> None:
    """Checks that a token of the policy is the same token of the teacher, which may know more.

    Args:
        mine: tokenizer of the policy.
        architecture: of the policy.
        its: tokenizer of the teacher.
        of_teacher: its architecture.

    Raises:
        ConfigError: some token is not.
    """
    vocabulary = its.get_vocab()
    other = sorted((number, token) for token, number in mine.get_vocab().items() if vocabulary.get(token) != number)
    if other:
        number, token = other[0]
        instead = f"is {vocabulary[token]} there" if token in vocabulary else "is not there"
        raise ConfigError(
            f"{len(other)} tokens of the policy are not the teacher's, the first is {number}, {token!r}, which "
            f"{instead}; write a teacher with the policy's vocabulary"
        )
    if of_teacher.vocab_size < architecture.vocab_size:
        raise ConfigError(
            f"it gives a probability to {of_teacher.vocab_size} tokens, and the policy may say "
            f"{architecture.vocab_size}; write a teacher with at least as many rows of its embedding"
        )
