# One target for everything that people do. `make quickstart` and `make test` set up what they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 3
REQUIREMENTS := requirements/$(if $(CUDA),cuda,cpu).txt
# Tests start hundreds of Python processes: each module is compiled once, whatever the environment says.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
PRETTIER := npx --yes prettier@3.10.1 --log-level warn
PAGE := rhymed/dashboard/static

.PHONY: help setup quickstart quickstart-gpu test test-gpu test-thorough test-fast test-compose wheels lint types format bench bench-model docs package stress-chaos stress-soak stress-watch stress-fuzz stress-crash stress-hosts site clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

setup: $(VENV)/.ready ## create the virtual environment, with pinned packages; CUDA=1: for NVIDIA GPUs

$(VENV)/.ready: $(REQUIREMENTS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile $(if $(CUDA),,--no-deps) -r $(REQUIREMENTS)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

quickstart: setup ## train a real model on this machine, about ten minutes
	$(BIN)/rhymed run configs/quickstart.toml

quickstart-gpu: setup ## the same on a GPU, which engine and trainer share (make setup CUDA=1 first); not tried
	$(BIN)/rhymed run configs/quickstart.toml -o run.name=quickstart-gpu -o schedule.colocate=true -o rollout.gpu_memory=0.5 -o model.dtype=bfloat16

test-gpu: setup ## run the tests that need an accelerator (make setup CUDA=1 first); not tried
	$(BIN)/python -m pytest -m gpu -rs

test: setup ## run the tests, three files at a time (JOBS)
	$(PYTEST) -m "not thorough"

test-thorough: setup ## long tests: whole runs bit for bit, injected faults, hostile peers, every kind of scorer jail
	$(PYTEST) -m thorough

test-fast: setup ## run the tests that need no model
	$(PYTEST) -m "not slow and not thorough"

test-compose: setup ## test a run in containers; skipped without a Docker engine
	RHYMED_COMPOSE=1 $(BIN)/python -m pytest tests/system/test_compose.py -rs

wheels: setup ## download the images' packages to docker/wheels, for builds without a package index (PIP_NO_INDEX=1)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir docker/wheels -r requirements/cpu.txt 'setuptools>=77,<81'

lint: setup ## ruff, import directions, sizes, and prettier for the page if npx works
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m scripts.sizes
	@if $(PRETTIER) --version >/dev/null 2>&1; then $(PRETTIER) --check $(PAGE); else echo "skipped: $(PAGE) (npx cannot run prettier)"; fi

types: setup ## mypy, strict
	$(BIN)/mypy

format: setup ## format the code: ruff, and prettier for the page if npx works
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@if $(PRETTIER) --version >/dev/null 2>&1; then $(PRETTIER) --write $(PAGE); else echo "skipped: $(PAGE) (npx cannot run prettier)"; fi

bench: setup ## run every benchmark in full
	for name in store broker weights index sampler spec pipe train; do $(BIN)/rhymed bench $$name || exit 1; done

stress-chaos: setup ## compare a run with injected faults to an undisturbed one; ARGS="--quick", as for all of these
	$(BIN)/python -m tests.stress.chaos $(ARGS)

stress-soak: setup ## run for an hour and check that memory, files and threads do not grow
	$(BIN)/python -m tests.stress.soak $(ARGS)

stress-watch: setup ## measure what dashboard pages and `rhymed top` cost a run
	$(BIN)/python -m tests.stress.observers $(ARGS)

stress-fuzz: setup ## attack broker, store and weights server with malformed messages
	$(BIN)/python -m tests.hostile.fuzz $(ARGS)

stress-crash: setup ## kill the store thousands of times under load
	$(BIN)/python -m tests.hostile.crash $(ARGS)

stress-hosts: setup ## run on two hosts whose network fails; needs root
	$(BIN)/python -m tests.hostile.hosts $(ARGS)

bench-model: setup ## train the small reasoning model for benchmarks, about a quarter of an hour
	$(BIN)/rhymed bench model

docs: setup ## generate pages from the code
	$(BIN)/python -m scripts.docs.protocol
	$(BIN)/python -m scripts.docs.ledger > docs/ledger.md
	$(BIN)/python -m scripts.docs.config > docs/config.md
	$(BIN)/python -m scripts.docs.cli > docs/cli.md
	$(BIN)/python -m scripts.docs.folders
	$(BIN)/python -m scripts.docs.algorithms

site: $(VENV)-docs/.ready ## build the documentation as web pages in site/, which open from the disk without a network
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet --strict
	@echo "site/index.html"

$(VENV)-docs/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --no-deps -r requirements/docs.txt
	touch $@

package: $(VENV)-package/.ready ## build wheel and source distribution in dist/, and check what a package index will show
	rm -rf dist
	$(VENV)-package/bin/python -m build --quiet
	$(VENV)-package/bin/twine check --strict dist/*

$(VENV)-package/.ready: requirements/package.txt
	$(PYTHON) -m venv $(VENV)-package
	$(VENV)-package/bin/pip install --quiet --no-deps -r requirements/package.txt
	touch $@

clean: ## remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) $(VENV)-docs $(VENV)-package site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
