# `make demo` and `make test` work on a fresh Debian or Ubuntu with Python 3.11; both set up `.venv` first.

PYTHON ?= python3.11
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread for each of several test processes; more get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full lint format

help:
	@echo "make demo        set up, then the main job: demonstrations, base policy, RL, report (about 10 minutes)"
	@echo "make test        set up, then lint and the test suite"
	@echo "make test-full   also the tests that take long"
	@echo "make setup       the environment in $(VENV), with pinned packages"
	@echo "make lint        ruff, mypy and the layering"
	@echo "make format      let ruff format and fix what it can"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt .ci/system-libraries.sh
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) is missing: sudo apt-get install -y python3.11 python3.11-venv, or make PYTHON=python3.12" >&2; \
		exit 1; }
	.ci/system-libraries.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/robot-rl demo

# A test that hangs ends by its name; the longest of these takes two minutes.
test: lint
	$(PYTEST) --timeout=900

test-full: lint
	$(PYTEST) -m ""

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
