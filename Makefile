# `make demo` and `make test` set everything up by themselves; see scripts/setup for what that is.

VENV ?= .venv
export VENV
BIN := $(VENV)/bin

# How many files of tests are run at a time; with 0, one after the other in one process. Tests wait often, so
# that it takes four to keep two processors busy (12:31 minutes instead of 14:10 with three, 2026-11-28). The longest
# files begin first, by tests/support/order.py.
JOBS ?= 4

# Where `make install-units` puts what systemd reads, and where the daemon is that the units start.
DESTDIR ?=
UNITDIR ?= /usr/local/lib/systemd
CONFDIR ?= /usr/local/lib
SANDKEEPD ?= /usr/bin/sandkeepd

# Deadlines of tests are this many times longer: see tests/README.md. After DUMP_S a test shows what its threads do.
export SANDKEEP_TEST_PATIENCE ?= 1
DUMP_S = $(shell echo 120 '$(SANDKEEP_TEST_PATIENCE)' | awk '{ print $$1 * $$2 }')

# Compiled modules halve the start of a daemon (640 ms instead of 1,244), of which the tests have a thousand.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test bench check check-types check-rest soak vm docs clean setup-demo setup-test install-units

help:
	@echo "make demo    see Sandkeep do its job, in half a minute"
	@echo "make test    run the tests"
	@echo "make check   style, types, layers, and whether docs/reference is fresh"
	@echo "make bench   measure against the floors; writes benches/README.md"
	@echo "make soak    the deep and slow tests"
	@echo "make vm      try it on a Debian with systemd, under qemu; see tests/vm/README.md"
	@echo "make docs    write docs/reference from the tables"
	@echo "make install-units   put the systemd units in place; see docs/how-to/install-as-a-service.md"
	@echo "make clean   remove what the others made"

setup-demo:
	@scripts/setup demo

setup-test:
	@scripts/setup test

demo: setup-demo
	@$(BIN)/python -m sandkeep.cli demo

test: setup-test
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -o faulthandler_timeout=$(DUMP_S) $(ARGS)

bench: setup-test
	@$(BIN)/python -m benches $(ARGS)

# Types take as long as all the rest, which runs beside them.
check: setup-test
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-types check-rest

check-types:
	@$(BIN)/mypy

check-rest:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@PYTHONPATH=scripts $(BIN)/python -m sandkeep_reference --check docs/reference
	@$(BIN)/python scripts/build-seccomp --check

soak: setup-test
	@$(BIN)/python -m pytest -m soak -o faulthandler_timeout=0 $(ARGS)  # many last longer; a dump of busy threads may crash

vm: setup-demo
	@scripts/vm

docs: setup-test
	@PYTHONPATH=scripts $(BIN)/python -m sandkeep_reference --write docs/reference

clean:
	rm -rf $(VENV) .setup .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install-units:
	@systemd/install '$(DESTDIR)' '$(UNITDIR)' '$(CONFDIR)' '$(SANDKEEPD)'
