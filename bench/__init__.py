"""Benchmarks of rljax's speed and size. Each script is run as ``python -m bench.NAME``."""
