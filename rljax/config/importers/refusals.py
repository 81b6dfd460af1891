"""Table of what is refused of a file of ROLL's or Trinity-RFT's."""

from __future__ import annotations

from collections.abc import Sequence

from rljax.config.fields import ConfigError


class RefusedFile(ConfigError):
    """Keys of a file are refused: a table of lines."""

    def __init__(self, title: str, said: Sequence[tuple[str, str]]) -> None:
        """Takes what stands above the table, and each key with what is said of it."""
        width = min(max(len(key) for key, _ in said), 60)
        super().__init__("\n".join([f"{title}:", *(f"  {key:<{width}}  {remark}" for key, remark in said)]))
