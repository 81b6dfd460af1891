"""rljax: asynchronous reinforcement learning of language models, with a Flax learner and engines that generate ahead.

Importing this package starts nothing and touches no accelerator; `Run` brings the rest in when it is asked for.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

TYPE_CHECKING = False  # typing is imported once Ctrl-C ends the program with a line, as all that takes time is
if TYPE_CHECKING:
    from typing import Any

    from rljax.config.schema import Config
    from rljax.run import Run

__all__ = ["Run", "__version__", "load_config"]

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BESIDE = ("envs", "sidecar")
_IN_CHECKOUT = () if os.path.isdir(os.path.join(_FOLDER, "rljax", "configs")) else ("rljax.configs",)


class _Beside:
    """Finds the packages that are installed beside this one there, whatever else goes by their names. (A wheel has
    `configs/` within this one.)

    A script, a notebook and ``python -m`` look into the current directory first, and users have folders so named.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [_FOLDER]) if name in _BESIDE + _IN_CHECKOUT else None


for _name in _BESIDE:
    _file = getattr(sys.modules.get(_name), "__file__", __file__)
    if _file is None or not _file.startswith(_FOLDER + os.sep):
        raise ImportError(f"a package {_name} other than rljax's is imported ({_file}); import rljax before it")
sys.meta_path.insert(0, _Beside)


def load_config(path: str, **overrides: Any) -> Config:
    """Loads ``FILE.py[:arg]``, or a config that comes along by its name; overrides are given by dotted key:
    ``load_config("quickstart", **{"learner.mesh.data": 2})``.

    Raises:
        rljax.config.validate.ConfigError: an unknown key, a wrong type or an impossible combination.
    """
    from rljax.config import load

    return load.load_config(path, overrides)


def __getattr__(name: str) -> Any:
    if name == "Run":
        from rljax.run import Run

        return Run
    if name == "__version__":
        from importlib.metadata import version

        return version("rljax")
    raise AttributeError(f"module 'rljax' has no attribute {name!r}")
