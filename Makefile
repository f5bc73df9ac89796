# Two entry points: `make demo` and `make test`. The rest is for developers.
# A fresh Debian needs python3 (3.11 or later), python3-venv and make.

VENV ?= .venv
BIN := $(VENV)/bin
DEMO_TIME ?= 100s
DEMO_OUT ?= edgetune-out/demo
# A file's tests stay together, for their fixtures; files are handed out in the order of collection.
WORKERS ?= --numprocesses=2 --dist=loadfile --no-loadscope-reorder
# What the tests start besides Python: a PostgreSQL server for the team's tuning logs; an SSH server that plays a
# device; what emulates one (an ARM root file system, qemu, the C libraries that the runner takes along); minisign
# and valgrind. Tests of the wrappers for Java and Rust, and of emulated machines, are skipped where compilers are missing.
TEST_PACKAGES := minisign valgrind postgresql openssh-server debootstrap qemu-user-static \
	libc6-arm64-cross libstdc++6-arm64-cross libc6-armhf-cross libgcc-s1-armhf-cross libc6-riscv64-cross libgcc-s1-riscv64-cross

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test lint format docs venv system-packages clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 18

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: apt-get install python3 python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "apt-get install python3-venv, then try again" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed

venv: $(VENV)/.installed-dev  ## the virtual environment with everything for development

demo: $(VENV)/.installed  ## install, tune a real model for this CPU, verify, benchmark: under 6 minutes
	@set -e; model=$$($(BIN)/edgetune models fetch ppocr-cls --quiet); \
	$(BIN)/edgetune tune "$$model" --shape x:1x3x48x192 --target local --time $(DEMO_TIME) --out $(DEMO_OUT); \
	$(BIN)/edgetune compare $(DEMO_OUT); \
	$(BIN)/edgetune benchmark $(DEMO_OUT) --against onnxruntime

test: $(VENV)/.installed-dev system-packages  ## install what the tests need and run them
	$(BIN)/python -m pytest --durations=15 $(WORKERS)

lint: $(VENV)/.installed-dev  ## the quality gates: ruff, its formatter, mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(VENV)/.installed-dev  ## format the sources and mend what ruff can mend
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: $(VENV)/.installed-dev  ## write docs/commands.md from the help texts
	$(BIN)/python -m edgetune.cli.reference > docs/commands.md

system-packages:
	@command -v dpkg >/dev/null || { echo "no dpkg here: install $(TEST_PACKAGES) by hand if missing"; exit 0; }; \
	missing=; for p in $(TEST_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	test -z "$$missing" && exit 0; \
	sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
	$$sudo apt-get update -q && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -yq --no-install-recommends $$missing

clean:  ## remove the virtual environment, caches and the demo's bundle
	rm -rf $(VENV) build dist edgetune-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
