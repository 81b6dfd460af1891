"""Text environments, registered by id: ``envs.register()``, then ``gymnasium.make("rljax/WebShop-v0")``."""

from __future__ import annotations

# Strings, so that registering imports none of them.
ENTRY_POINTS = {
    "rljax/WebShop-v0": "envs.webshop.env:WebShop",
}


def register() -> None:
    """Makes every environment known to gymnasium; a second call changes nothing."""
    from gymnasium.envs import registration

    for name, entry_point in ENTRY_POINTS.items():
        if name not in registration.registry:
            registration.register(id=name, entry_point=entry_point)
