# One target for everything that people do. `make quickstart` and `make test` set up what they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 4
# .txt: with the SHA-256 of each file that the tests ran with; .in: the same versions alone.
LISTED := $(if $(UNCHECKED),in,txt)
REQUIREMENTS := requirements/$(if $(CUDA),cuda,cpu).$(LISTED)
HASHES := $(if $(UNCHECKED),,--require-hashes)
# Packages without wheels are built by what build.txt lists, which is installed first; pip takes no tools from the index.
BUILD := requirements/build.$(LISTED)
# Tests start hundreds of Python processes: each module is compiled once, whatever the environment says.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
PRETTIER := npx --yes prettier@3.10.1 --log-level warn
PAGE := rhymed/show/dashboard/static

.PHONY: help setup quickstart quickstart-gpu test test-gpu test-thorough test-fast test-pythons test-compose test-cuda-imports ray wheels lint types format bench bench-model docs package sbom audit requirements stress-chaos stress-agents stress-siege stress-soak stress-watch stress-fuzz stress-protocol stress-strangers stress-inputs stress-crash stress-disk stress-remove stress-hosts stress-relays stress-slurm stress-move stress-machines site clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

setup: $(VENV)/.ready ## create the virtual environment, with pinned packages; CUDA=1: for NVIDIA GPUs; UNCHECKED=1: without hashes

$(VENV)/.ready: $(REQUIREMENTS) $(BUILD) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile $(HASHES) --no-deps --only-binary :all: -r $(BUILD) && \
		$(PYTHON) -m scripts.supply.listed $(REQUIREMENTS) > $(VENV)/listed.txt && \
		$(BIN)/pip install --quiet --no-compile $(HASHES) $(if $(CUDA),,--no-deps) --no-build-isolation -r $(VENV)/listed.txt || \
		{ echo "a hash of another platform than x86-64 Linux? make setup UNCHECKED=1 compares none; see docs/install.md"; exit 1; }
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

quickstart: setup ## train a real model on this machine, about ten minutes
	$(BIN)/rhymed run configs/quickstart.toml

quickstart-gpu: setup ## the same on a GPU, which engine and trainer share (make setup CUDA=1 first); not tried
	$(BIN)/rhymed run configs/quickstart.toml -o run.name=quickstart-gpu -o schedule.colocate=true -o rollout.gpu_memory=0.5 -o model.dtype=bfloat16

test-gpu: setup ## run the tests that need an accelerator (make setup CUDA=1 first); not tried
	$(BIN)/python -m pytest -m gpu -rs

test: setup ## run the tests, four files at a time (JOBS)
	$(PYTEST) -m "not thorough"

test-thorough: setup ## long tests: whole runs bit for bit, injected faults, hostile peers, every kind of scorer jail
	$(PYTEST) -m thorough

test-fast: setup ## run the tests that need no model
	$(PYTEST) -m "not slow and not thorough"

# Broker, store, wire, messages and settings, which need neither torch nor an engine.
CORE := tests/core/messages tests/core/wire tests/core/config tests/store/codec tests/broker/ledger

test-pythons: setup ## run the fast tests of broker, store, wire and settings on Python 3.12 and 3.13, where these are installed
	@for version in 3.12 3.13; do \
		found=; for each in python$$version "$$(pyenv root 2>/dev/null)"/versions/$$version.*/bin/python; do \
			"$$each" -c "" 2>/dev/null && found=$$each && break; done; \
		test -n "$$found" || { echo "skipped: there is no Python $$version, neither as python$$version nor of pyenv"; continue; }; \
		echo "Python $$version"; \
		$(MAKE) --no-print-directory $(VENV)-$$version/.ready PYTHON="$$found" && \
		env -u PYTHONDONTWRITEBYTECODE PYTHONPATH=.:workers:broker:store $(VENV)-$$version/bin/python -m pytest -m "not slow and not thorough" $(CORE) || exit 1; \
	done

$(VENV)-3.%/.ready: requirements/slim.txt requirements/cpu.txt
	$(PYTHON) -m venv $(VENV)-3.$*
	$(BIN)/python -m scripts.slim pytest pytest-asyncio pytest-timeout hypothesis > $(VENV)-3.$*/listed.txt
	$(VENV)-3.$*/bin/pip install --quiet --no-compile --require-hashes --no-deps --only-binary :all: -r $(VENV)-3.$*/listed.txt
	touch $@

test-compose: setup ## test a run in containers; skipped without a Docker engine
	RHYMED_COMPOSE=1 $(BIN)/python -m pytest tests/system/test_compose.py -rs

test-cuda-imports: $(VENV)-cuda/.ready ## look at all that a run on a GPU imports, with CUDA builds and without a GPU; 4 GB once; needs gcc
	@! test -e $(VENV)-cuda/lacking || cat $(VENV)-cuda/lacking
	@test -e $(VENV)-cuda/lacking || env PYTHONPATH=.:workers:broker:store RHYMED_STAND_INS=1 $(VENV)-cuda/bin/python -m pytest -rs tests/cuda tests/scripts/test_torch_contract.py tests/workers/engines/test_contracts.py

$(VENV)-cuda/.ready: requirements/cuda-imports.txt requirements/cpu.txt
	$(PYTHON) -m venv $(VENV)-cuda
	$(PYTHON) -m scripts.supply.listed requirements/cpu.txt requirements/cuda-imports.txt > $(VENV)-cuda/listed.txt
	$(VENV)-cuda/bin/pip install --quiet --no-compile --require-hashes --no-deps --only-binary :all: -r requirements/build.txt
	rm -f $(VENV)-cuda/lacking
	$(VENV)-cuda/bin/pip install --quiet --no-compile --require-hashes --no-deps --no-build-isolation -r $(VENV)-cuda/listed.txt 2> $(VENV)-cuda/errors || \
		{ cat $(VENV)-cuda/errors >&2; grep -q "No matching distribution" $(VENV)-cuda/errors && \
		echo "skipped: the package index has no CUDA builds of torch 2.11 and vLLM 0.26 for this Python and platform, as pip says above" > $(VENV)-cuda/lacking; }
	@test -e $(VENV)-cuda/lacking || touch $@

ray: setup $(VENV)/.ray ## install Ray, 80 MB, without which `make test-thorough` leaves out placement on its clusters

$(VENV)/.ray: requirements/ray.$(LISTED) $(VENV)/.ready
	$(BIN)/pip install --quiet --no-compile $(HASHES) --no-deps --only-binary :all: -r requirements/ray.$(LISTED)
	touch $@

wheels: setup ## download the images' packages to docker/wheels, for builds without a package index (PIP_NO_INDEX=1)
	$(BIN)/pip download --quiet --no-deps --require-hashes --no-build-isolation --dest docker/wheels -r requirements/cpu.txt
	$(BIN)/pip download --quiet --no-deps --require-hashes --only-binary :all: --dest docker/wheels -r requirements/build.txt

lint: setup ## ruff, import directions, secrets and digests, and prettier for the page if npx works
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m scripts.supply.audit --quick
	@if $(PRETTIER) --version >/dev/null 2>&1; then $(PRETTIER) --check $(PAGE); else echo "skipped: $(PAGE) (npx cannot run prettier)"; fi

types: setup ## mypy, strict
	$(BIN)/mypy

format: setup ## format the code: ruff, and prettier for the page if npx works
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@if $(PRETTIER) --version >/dev/null 2>&1; then $(PRETTIER) --write $(PAGE); else echo "skipped: $(PAGE) (npx cannot run prettier)"; fi

bench: setup ## run the benchmarks of single parts in full
	for name in store broker rewards weights index sampler spec pipe train; do $(BIN)/python -m benchmarks $$name || exit 1; done

stress-chaos: setup ## compare a run with injected faults to an undisturbed one; ARGS="--quick", as for all of these
	$(BIN)/python -m tests.stress.chaos $(ARGS)

stress-agents: setup ## kill processes of a run with tools a thousand times, and compare what the tools were asked to do
	$(BIN)/python -m tests.stress.agents $(ARGS)

stress-siege: setup ## kill and stop processes of a run with tools, overlap and dynamic sampling for 15 minutes
	$(BIN)/python -m tests.stress.siege $(ARGS)

stress-soak: setup ## run for an hour and check that memory, files and threads do not grow
	$(BIN)/python -m tests.stress.soak $(ARGS)

stress-watch: setup ## measure what dashboard pages and `rhymed top` cost a run
	$(BIN)/python -m tests.stress.observers $(ARGS)

stress-fuzz: setup ## attack broker, store and weights server with malformed messages
	$(BIN)/python -m tests.hostile.fuzz $(ARGS)

stress-protocol: setup ## play histories of honest and dishonest peers against broker and store, an hour
	$(BIN)/python -m tests.hostile.protocol.search $(ARGS)

stress-strangers: setup ## hold 10,000 silent connections of the dashboard and flood it, while its owner uses it
	$(BIN)/python -m tests.hostile.strangers $(ARGS)

stress-inputs: setup ## try generated configurations, datasets, rewards and command lines for five minutes
	$(BIN)/python -m tests.hostile.inputs $(ARGS)

stress-crash: setup ## kill the store thousands of times under load
	$(BIN)/python -m tests.hostile.crash $(ARGS)

stress-disk: setup ## cut the power of recorded sessions 500 times, and run on a disk that fails; needs gcc
	$(BIN)/python -m tests.hostile.disk $(ARGS)

stress-remove: setup ## remove every file and folder of a run, one by one, while it runs
	$(BIN)/python -m tests.hostile.remove $(ARGS)

stress-hosts: setup ## run on two hosts whose network fails; needs root
	$(BIN)/python -m tests.hostile.hosts $(ARGS)

stress-move: setup ## lose the head of a run with its disk and continue on another machine, three times
	$(BIN)/python -m tests.stress.move $(ARGS)

stress-slurm: setup ## run on a Slurm cluster of this machine whose jobs are cancelled and requeued; needs Slurm
	$(BIN)/python -m tests.stress.slurm $(ARGS)

stress-machines: setup ## lose machines of a Ray cluster, and its head; needs the package ray
	$(BIN)/python -m tests.stress.machines $(ARGS)

stress-relays: setup ## run on hosts that pass weights on to each other and die; needs root
	$(BIN)/python -m tests.hostile.relays.run $(ARGS)

bench-model: setup ## train the small reasoning model for benchmarks, about a quarter of an hour
	$(BIN)/python -m benchmarks model

docs: setup ## generate pages from the code
	$(BIN)/python -m scripts.docs.protocol
	$(BIN)/python -m scripts.docs.ledger > docs/ledger.md
	$(BIN)/python -m scripts.docs.config > docs/config.md
	$(BIN)/python -m scripts.docs.cli > docs/cli.md
	$(BIN)/python -m scripts.docs.folders
	$(BIN)/python -m scripts.docs.algorithms

site: $(VENV)-docs/.ready ## build the documentation as web pages in site/, which open from the disk without a network; llms.txt lists them
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet --strict
	@echo "site/index.html"

$(VENV)-docs/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --no-deps --require-hashes --no-build-isolation -r requirements/docs.txt
	touch $@

package: setup $(VENV)-package/.ready ## build wheel, source distribution and bills of materials in dist/, and check what a package index will show
	rm -rf dist
	$(VENV)-package/bin/python -m build --quiet --no-isolation
	$(VENV)-package/bin/twine check --strict dist/*
	$(BIN)/python -m scripts.supply.sbom

sbom: setup ## write bills of materials (CycloneDX) of the packages that rhymed installs, to dist/
	$(BIN)/python -m scripts.supply.sbom

$(VENV)-package/.ready: requirements/package.txt
	$(PYTHON) -m venv $(VENV)-package
	$(VENV)-package/bin/pip install --quiet --no-deps --require-hashes --no-build-isolation -r requirements/package.txt
	touch $@

audit: setup ## look for secrets, changed files, other packages than listed, and known vulnerabilities
	@$(MAKE) --no-print-directory $(VENV)-audit/.ready || echo "pip-audit could not be installed; all other checks are made"
	$(BIN)/python -m scripts.supply.audit --list $(if $(CUDA),cuda,cpu) --tools $(VENV)-audit

requirements: setup $(VENV)-audit/.ready ## write requirements/*.txt, with hashes, from requirements/*.in; needs the index
	$(VENV)-audit/bin/python -m scripts.supply.lock
	$(BIN)/python -m scripts.slim

$(VENV)-audit/.ready: requirements/audit.txt
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --no-deps --require-hashes --no-build-isolation -r requirements/audit.txt
	touch $@

clean: ## remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) $(VENV)-3.* $(VENV)-cuda $(VENV)-docs $(VENV)-package $(VENV)-audit site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
