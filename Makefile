# Everything here works from a fresh copy with Python 3.11 (and its venv module), make, and PyPI.
#
#   make demo    a failing primary, a working backup and relayd, on loopback
#   make test    lint, types, tests; CI runs this and the next one
#   make test-uvloop    every test that starts a real relayd, on uvloop (make test: asyncio)
#   make lint    lint and types only
#   make cover   does each deciding module's own test file cover every branch of it
#   make bench   side-by-side figures; needs RELAYD_BENCH, the folder of the bench runner

PYTHON ?= python3
VENV   ?= .venv

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
KEYS   := setup.cfg pyproject.toml
EXTRAS := test,redis,uvloop,metrics

.PHONY: demo test test-uvloop lint cover bench clean

demo: $(VENV)/.installed
	@$(BIN)/relayd demo

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-uvloop: $(VENV)/.installed-test
	RELAYD_TEST_LOOP=uvloop $(BIN)/python -m pytest -m daemon $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

cover: $(VENV)/.installed-test
	$(BIN)/python -m tests.support.cover $(MODULES)

bench: $(VENV)/.installed-test
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

# The stamps are newer than the files they depend on, so a second run installs nothing. The install
# is editable: a change of the sources needs no new one.
$(VENV)/.installed: $(KEYS) | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(KEYS) | $(BIN)/python
	$(PIP) --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'make: expected Python 3.11 or newer: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo 'make: the venv module is missing: on Debian, apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
