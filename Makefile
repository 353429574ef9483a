# Two commands do everything from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --editable
BASE := $(VENV)/.installed-base
STAMP := $(VENV)/.installed
WORKERS ?= 2
CODE := lit_transformers datamodules ablations sweeps reports tests benchmarks claims docs

# What is imported is compiled once and kept, or every process of the tests would compile the whole suite again, and
# pytest all tests. What is never imported, most of what pip installs, is not compiled at all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick lint types check ghost claims docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   ask whether recurrence helps, on this machine: about five minutes on two cores"
	@echo "make test   all tests, the slow proofs included"
	@echo "make quick  the tests that take seconds"
	@echo "make check  lint, types and all tests: what has to pass before a change lands"
	@echo "make ghost  what the suite does on a GPU, on a machine without one: installs 6.4 GB into .ghost/, then takes ten minutes;"
	@echo "            LIT_GHOST=/path/to/venv uses an environment that exists"
	@echo "make docs   the site of the documentation, into site/: open site/index.html; some minutes for the gallery"
	@echo "make claims which numbers of README and docs are older than the code; measures those again, for an hour or so"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "installing into $(VENV): a minute or two"
	@$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml | $(BIN)/python
	$(INSTALL) .
	@touch $(BASE)

# What the tests need includes what the demo needs: one call installs both.
$(STAMP): pyproject.toml | $(BIN)/python
	$(INSTALL) ".[dev]"
	@touch $(BASE) $(STAMP)

demo: $(BASE)
	$(BIN)/python -m ablations run xl_recurrence

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

quick: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/python -m docs lint

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

ghost:
	$(PYTHON) -m tests.ghost install
	$(PYTHON) -m tests.ghost check --workers $(WORKERS)
	$(PYTHON) -m tests.ghost contracts

claims: $(STAMP)
	$(BIN)/python -m claims measure

docs: $(STAMP)
	$(BIN)/python -m docs build

clean:
	rm -rf $(VENV) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
