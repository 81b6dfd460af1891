"""Looks for accelerators of this machine in its files, without JAX, CUDA or libtpu."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NVIDIA = ("dev/nvidia0", "dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")
"""Files of a machine with an NVIDIA GPU; the third is that of WSL."""
GOOGLE = "0x1ae0"
"""PCI vendor of TPU chips, and of other devices."""
TPU_CHIPS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x007c", "0x0083")
"""PCI devices of Google's that are TPU chips, as `jax._src.hardware_utils` of jax 0.12 lists them."""


def attached_accelerators(root: Path = Path("/"), search_path: str | None = None) -> list[str]:
    """Returns which of ``gpu`` (NVIDIA) and ``tpu`` this machine has, whether any library can use it or not.

    GPUs that ``CUDA_VISIBLE_DEVICES`` hides do not count.

    Args:
        root: of the file system.
        search_path: where ``nvidia-smi`` is looked for; None for ``PATH``.
    """
    found = []
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    smi = shutil.which("nvidia-smi", path=search_path)
    if not hidden and (smi or any((root / file).exists() for file in NVIDIA)):
        found.append("gpu")
    if any(_is_tpu(device) for device in (root / "sys/bus/pci/devices").glob("*")):
        found.append("tpu")
    return found


def _is_tpu(device: Path) -> bool:
    try:
        vendor, model = ((device / name).read_text().strip() for name in ("vendor", "device"))
    except OSError:  # it has just been unplugged, or is not for everybody to read
        return False
    return vendor == GOOGLE and model in TPU_CHIPS
