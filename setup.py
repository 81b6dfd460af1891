"""Names what pyproject.toml cannot: packages that are found in their folders, beside one that lies elsewhere."""

from tempfile import TemporaryDirectory

from setuptools import find_namespace_packages, setup

build = TemporaryDirectory()  # setuptools would put what it finds in ./build into the wheel too, however old it is

# Folders of data are packages to setuptools too, as they are to Python.
code = find_namespace_packages(include=["rljax*", "sidecar*", "envs*"], exclude=["*.__pycache__"])
data = [f"rljax.configs.{name}" for name in find_namespace_packages("configs", exclude=["*__pycache__"])]

setup(
    packages=[*code, "rljax.configs", *data],
    package_dir={"rljax.configs": "configs"},  # --config=NAME, without a checkout
    options={"build": {"build_base": build.name}},
)
