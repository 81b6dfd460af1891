"""Programs of this room are compiled quickly."""

from tests.unoptimised import unoptimised

__all__ = ["unoptimised"]
