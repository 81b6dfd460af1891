"""What the end-to-end tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs, shared by all the processes of a session."""
    return tmp_path_factory.mktemp("compiled")
