"""What the speed and the size of rljax are measured with. Each script is run as ``python -m bench.NAME``."""
