# Everything is installed into .venv beside this file; nothing else on the machine is touched.

PYTHON ?= python3
# Another package index for torch: on Linux without an NVIDIA GPU the one with its CPU builds saves the download
# of the CUDA libraries.
TORCH_INDEX ?=

# More options for the demo, as --set training.steps=50.
DEMO ?=

BIN := .venv/bin
READY := .venv/ready
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test check soak clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up and train a small model with pipeline and tensor parallelism"
	@echo "make test    set up and run every check and test"
	@echo "make check   formatting, lint, types, import contracts, spelling"
	@echo "make soak    the long tests: many kills, long runs"
	@echo "make clean   remove .venv and caches; runs/ stays"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 10) <= sys.version_info < (3, 14) else \
	  f"partrain needs Python 3.10 to 3.13, $(PYTHON) is {sys.version.split()[0]}; try make PYTHON=python3.12")'
	@echo "Setting up .venv (torch is the largest part; see README, Install)"
	$(PYTHON) -m venv .venv
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@# DeepSpeed comes as source; its operators are not used, so none is compiled
	DS_BUILD_OPS=0 $(PIP) --editable '.[train,dev]'
	@touch $@

demo: $(READY)
	$(BIN)/partrain launch jobs/demo.yaml --new $(DEMO)
	@echo "(partrain is $(BIN)/partrain here)"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/typos

test: check
	$(BIN)/python -m pytest -n 2 -m "not torch and not soak" --ignore=tests/engine
	$(BIN)/python -m pytest -m "torch and not soak"

soak: $(READY)
	$(BIN)/python -m pytest tests -m soak

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
