# The project's commands. Each makes what it needs: a virtual environment in .venv with the pinned packages.
#
#   make demo       the live racing game, learned while it runs
#   make test       the default tests          make test-long   the tests marked "long"
#   make check      lint, format, types, architecture
#   make bench      every benchmark, shortened  make clean       remove what was made
#
# Another interpreter:  make test PYTHON=/path/to/python3.12

# The first interpreter that runs and has a version we support; a shim that only prints an error is passed over.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 \
	&& echo $$p && break; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-long check bench clean install
.DEFAULT_GOAL := test

install: $(STAMP)

# The stamp is written last, so that a broken or interrupted install is done again from the start.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found. Install one, or: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON) and the pinned packages; this takes a few minutes the first time."
	@rm -f $@
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/tickrate demo

# A font cache of our own, so that a home directory that is missing or read-only does not slow every process.
test test-long bench: export MPLCONFIGDIR := $(CURDIR)/$(VENV)/matplotlib

test: $(STAMP)
	$(BIN)/python -m pytest

# Two at a time: half of the long tests wait for processes that they killed, the other half compute.
test-long: $(STAMP)
	$(BIN)/python -m pytest -m long --timeout 600 -n 2 --dist loadgroup

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

# Runs them all even if one fails, then reports the failure.
bench: $(STAMP)
	@failed=""; for script in benchmarks/[!_]*.py; do \
		[ -e "$$script" ] || continue; \
		echo "== $$script --quick"; $(BIN)/python $$script --quick || failed="$$failed $$script"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find tickrate tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
