"""Parameters of a model."""

from __future__ import annotations

from typing import Any

Params = dict[str, Any]
"""Nested dict of arrays, as in the table of `rljax.models.transformer`."""
