"""Text environments, registered with gymnasium by id; their modules are imported when one is made.

Call `register`, then ``gymnasium.make("rljax/FrozenLake-v0")``. gymnasium 1.0 gave up finding installed packages by
their entry points, so that somebody has to call it in every process.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

OTHER_SYMBOLS = {
    "W": "wall",
    ".": "empty",
    "G": "target",
    "C": "box on target",
    "B": "box",
    "A": "player",
    "@": "player on target",
}

_registry = threading.RLock()  # a package that is imported may look an environment up itself

# id -> (where its class is, what it is made with)
_ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rljax/FrozenLake-v0": ("envs.frozen_lake:FrozenLakeEnv", {}),
    "rljax/SimpleSokoban-v0": ("envs.sokoban:SokobanEnv", {"dim_room": (6, 6), "num_boxes": 1, "search_depth": 300}),
    "rljax/LargerSokoban-v0": ("envs.sokoban:SokobanEnv", {"dim_room": (10, 10), "num_boxes": 2, "search_depth": 10}),
    "rljax/SokobanDifferentGridVocab-v0": (
        "envs.sokoban:SokobanEnv",
        {"dim_room": (6, 6), "num_boxes": 1, "search_depth": 30, "grid_vocab": OTHER_SYMBOLS},
    ),
    "rljax/Described-v0": ("envs.described:DescribedEnv", {}),
    "rljax/TextArena-v0": ("envs.textarena:TextArenaEnv", {}),
    "rljax/WebShop-v0": ("envs.webshop.env:WebShop", {}),
}


def register() -> None:
    """Registers the environments with gymnasium; those already registered are left as they are."""
    import gymnasium

    for name, (entry_point, kwargs) in _ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point, kwargs=kwargs)


def registered(env_id: str) -> Any:
    """Returns gymnasium's specification of an environment; its newest version where the id says none.

    Args:
        env_id: its id; ``PACKAGE:ID`` imports the package first.

    Raises:
        gymnasium.error.Error: there is none.
        ImportError: the package cannot be imported.
    """
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id, spec

    with _registry:  # gymnasium goes through all that are registered, and another thread may be registering some
        register()
        package, _, full_name = env_id.rpartition(":")
        if package:
            importlib.import_module(package)
        space, name, version = parse_env_id(full_name)
        return spec(get_env_id(space, name, find_highest_version(space, name) if version is None else version))
