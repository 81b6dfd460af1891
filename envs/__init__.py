"""Text environments, registered with gymnasium by id; their modules are imported when one is made.

Call `register`, then ``gymnasium.make("rljax/FrozenLake-v0")``. gymnasium 1.0 gave up finding installed packages by
their entry points, so that somebody has to call it in every process.
"""

from __future__ import annotations

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
