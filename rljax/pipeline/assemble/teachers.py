"""Opens the teachers that a config asks for: their files, and whether they know what the policy says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljax.config.distill import TEACHERS
from rljax.config.fields import ConfigError
from rljax.config.schema import Config, ModelConfig
from rljax.learner.teachers import StoredTeacher
from rljax.models.common.architecture import Architecture
from rljax.models.files import load_architecture, stored_tensors
from rljax.models.resolve import ModelNotFound, resolve_model
from rljax.models.tokenizer import load_tokenizer
from rljax.pipeline.assemble.run import Model, ProgressCallback, check_computed


def open_teachers(config: Config, model: Model, progress: ProgressCallback | None = None) -> dict[str, StoredTeacher]:
    """Finds or fetches the teachers of the policy ``model``, by name; reads none of their weights.

    Raises:
        ModelNotFound: a teacher is not here and cannot be fetched.
        ConfigError: it is no model that the learner can compute, or has another vocabulary.
    """
    found: dict[str, StoredTeacher] = {}
    for name, settings in config.algorithm.distill.teachers.items():
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
