"""Measures what a real device makes of rljax: ``python -m bench.accelerator``; see `bench.accelerator.__main__`."""


class NoDeviceError(RuntimeError):
    """torch does not see the device that JAX computes on."""
