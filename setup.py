"""Names what pyproject.toml cannot: packages that are found in their folders, beside one that lies elsewhere."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["rljax*", "sidecar*", "envs*"]), "rljax.configs"],
    package_dir={"rljax.configs": "configs"},  # --config=NAME, without a checkout
)
