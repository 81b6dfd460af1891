"""Names what pyproject.toml cannot: packages that are found in their folders, beside one that lies elsewhere."""

from tempfile import TemporaryDirectory

from setuptools import find_packages, setup

build = TemporaryDirectory()  # setuptools would put what it finds in ./build into the wheel too, however old it is

setup(
    packages=[*find_packages(include=["rljax*", "sidecar*", "envs*"]), "rljax.configs"],
    package_dir={"rljax.configs": "configs"},  # --config=NAME, without a checkout
    options={"build": {"build_base": build.name}},
)
