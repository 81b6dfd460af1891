"""Accelerators are found by their files, without a library that could use them."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax._src import hardware_utils

from rljax.observe import accelerators
from rljax.observe.accelerators import attached_accelerators

FILES = ("dev/nvidia0", "dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")


@pytest.fixture(autouse=True)
def nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def made(root: Path, file: str, text: str = "") -> Path:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    return root / file


def attached(root: Path) -> list[str]:
    return attached_accelerators(root, search_path=str(root / "bin"))


def pci(root: Path, slot: str, vendor: str, device: str) -> None:
    made(root, f"sys/bus/pci/devices/{slot}/vendor", f"{vendor}\n")
    made(root, f"sys/bus/pci/devices/{slot}/device", f"{device}\n")


@pytest.mark.parametrize("file", FILES)
def test_a_gpu_is_found_by_its_files(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attached(tmp_path) == []
    made(tmp_path, file)
    assert attached(tmp_path) == ["gpu"]
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert attached(tmp_path) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert attached(tmp_path) == ["gpu"]


def test_a_gpu_is_found_by_its_tool(tmp_path: Path) -> None:
    tool = made(tmp_path, "bin/nvidia-smi", "#!/bin/sh\n")
    assert attached(tmp_path) == []
    tool.chmod(0o755)
    assert attached(tmp_path) == ["gpu"]


def test_a_tpu_is_found_by_its_pci_devices(tmp_path: Path) -> None:
    pci(tmp_path, "0000:00:03.0", "0x1ae0", "0x0042")  # the network card of every machine of Google's cloud
    pci(tmp_path, "0000:00:04.0", "0x10de", "0x0063")  # another vendor's
    made(tmp_path, "sys/bus/pci/devices/0000:00:06.0/vendor", "0x1ae0\n")  # without a device
    assert attached(tmp_path) == []
    pci(tmp_path, "0000:00:05.0", "0x1ae0", "0x0063")
    assert attached(tmp_path) == ["tpu"]
    made(tmp_path, "dev/nvidiactl")
    assert attached(tmp_path) == ["gpu", "tpu"]


def test_the_chips_are_those_that_jax_knows() -> None:
    assert set(accelerators.TPU_CHIPS) >= set(hardware_utils._TPU_PCI_DEVICE_IDS)
    assert accelerators.GOOGLE == hardware_utils._GOOGLE_PCI_VENDOR_ID
    assert {f"/{file}" for file in accelerators.NVIDIA} >= set(hardware_utils._NVIDIA_GPU_DEVICES)
