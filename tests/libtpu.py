"""The Python that compiles for TPUs that are not here. It is another than that of the tests, whose JAX would take
libtpu for a TPU.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "RLJAX_TPU_PYTHON"
"""Environment variable that names another."""
PYTHON = Path(os.environ.get(VARIABLE, Path(__file__).parents[1] / ".venv-tpu" / "bin" / "python"))
