# `make demo` and `make test` need Python 3.11 or newer and nothing else; both set up .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Named on its own and first: a bare `torch` would bring a GPU build of several gigabytes.
TORCH ?= torch==2.13.0

.PHONY: demo test endurance lint lock audit ui bench clean

demo: $(VENV)/.installed
	$(BIN)/archetype run --pair ETH --profile smoke

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# What takes minutes: whole backfills under random kills, in one process and on several workers.
endurance: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n0 -m endurance

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The deployment image's dependencies with hashes, and what is known against them (asks a database on the network).
lock: $(VENV)/.installed-dev
	$(BIN)/python deploy/lock.py

audit: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --disable-pip --require-hashes --requirement deploy/requirements.lock

ui: $(VENV)/.installed
	$(BIN)/archetype ui

bench: $(VENV)/.installed
	$(BIN)/archetype bench

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info result .dagster mlruns
