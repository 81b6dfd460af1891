"""Names a version as the ledger announces it: for those who load it, who need not have the database."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Announced:
    """Version that is announced to all processes. ``path`` is relative to the run directory."""

    version: int
    lineage: int
    path: str
    probe: np.ndarray | None = field(default=None, compare=False)
