"""Resolution of `model.path` to a Hugging Face directory on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rljax.config.fields import ConfigError, user_path
from rljax.config.model import ModelConfig, check_model_path
from rljax.config.model import ModelNotFound as ModelNotFound
from rljax.models.adapter_files import base_config
from rljax.models.common.architecture import Architecture
from rljax.models.files import load_architecture

_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model")


def resolve_model(
    model: ModelConfig, seed: int, directory: Path, progress: Callable[[str, float], None] | None = None
) -> Path:
    """Returns the directory of the model that `model.path` names, made or downloaded where need be.

    Args:
        model: the config; its `path` is ``tiny``, ``smollm2-135m``, a directory or a hub id. Of an adapter's directory
            its base is what is resolved.
        seed: from which ``tiny`` is made.
        directory: the run's; ``tiny`` goes to its ``model``.
        progress: called with what is being done, and which fraction of it is done.

    Returns:
        A directory with `config.json`, safetensors and tokenizer files.

    Raises:
        ModelNotFound: one line: what is missing, where, what to do.
        ConfigError: for a directory that holds no supported model.
    """
    if model.path == "tiny":
        from rljax.models.tiny import make_tiny

        return make_tiny(model, seed, Path(directory) / "model")
    if model.path == "smollm2-135m":
        from rljax.models.smollm2 import DownloadError, smollm2_directory

        try:
            return smollm2_directory(progress)
        except DownloadError as error:
            raise ModelNotFound(f"model.path=smollm2-135m: {error}") from None
    if (base := base_config(model)) is not model:
        return _resolve_base(model.path, base, seed, directory, progress)
    path = user_path(model.path)
    if not path.is_dir():
        path = _download(model.path, progress)
    architecture_at(path, model.path)
    return path


def _resolve_base(
    adapter: str, base: ModelConfig, seed: int, directory: Path, progress: Callable[[str, float], None] | None
) -> Path:
    try:
        return resolve_model(base, seed, directory, progress)
    except ConfigError as error:
        raise type(error)(f"model.path={adapter}: it is an adapter, and of its base: {error}") from None


def architecture_at(directory: Path, named: str) -> Architecture:
    """Returns the architecture of the model in a directory, which ``named`` of `model.path` has led to.

    Raises:
        ConfigError: it holds no supported model.
    """
    try:
        return load_architecture(directory)
    except ValueError as error:
        raise ConfigError(f"model.path={named}: {error}") from None


def _download(name: str, progress: Callable[[str, float], None] | None) -> Path:
    check_model_path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if progress is not None:
        progress(f"downloading {name}", 0.0)
    prefix = f"model.path={name}: there is no such directory, and"
    try:
        found = Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except GatedRepoError:
        raise ModelNotFound(f"{prefix} the hub model is gated; accept its terms, then `hf auth login`") from None
    except RepositoryNotFoundError:
        raise ModelNotFound(f"{prefix} the hub has no such public model; check the name") from None
    except Exception as error:  # the hub client lets the errors of whichever HTTP library it uses through
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelNotFound(
            f"{prefix} it cannot be downloaded from the hub ({reason}); copy the model here and give its directory"
        ) from None
    if progress is not None:
        progress(f"{name} is ready", 1.0)
    return found
