# make demo · make test · make test-all · make bench · make lint · make lock · make clean
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; all of torch and ray would take a minute. What it compiled it has to keep, though: tests and
# demo start hundreds of processes, and torch alone takes each of them two seconds more.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all lint bench lock clean

help:
	@echo 'make demo      builds a corpus from this Python'"'"'s own documentation and trains on it (about 5 minutes)'
	@echo 'make test      linters and the tests that a change must pass'
	@echo 'make test-all  the slow tests too'
	@echo 'make lint      ruff, mypy, import-linter'
	@echo 'make bench     benchmarks beside other projects, with their figures (installs those)'
	@echo 'make lock      resolves requirements/*.txt anew (ARGS=--upgrade takes new releases)'
	@echo 'make clean     removes what the other targets made'

# The environment is made once, and again when a lock or the packaging changes. Locks of the pipeline are complete and
# installed as they stand; torch brings the libraries that suit the machine.
$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; name it with make PYTHON=...'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo '$(PYTHON) is older than Python 3.11; name another with make PYTHON=...'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: requirements/pipeline.txt requirements/trainer.txt pyproject.toml | $(VENV)/bin/python
	@echo 'installing what the pipeline and the trainer need into $(VENV): some minutes, and 2.2 GB'
	$(PIP) --no-deps -r requirements/pipeline.txt
	$(PIP) -r requirements/trainer.txt
	$(PIP) --no-deps --config-settings editable_mode=compat --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/run.stamp
	@echo 'installing what the tests need'
	$(PIP) -r requirements/dev.txt
	@touch $@

venv: $(VENV)/dev.stamp

demo: $(VENV)/run.stamp
	$(BIN)/python -m demo

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests of one file share what they build, so a file stays in one process; each process may start a Ray of its own.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

test: lint
	$(PYTEST) -m 'not slow'

test-all: lint
	$(PYTEST)

# Other people's implementations, to be compared with. They change no version of what stands above.
$(VENV)/bench.stamp: requirements/bench.txt $(VENV)/dev.stamp
	$(PIP) -r requirements/bench.txt
	@touch $@

bench: $(VENV)/bench.stamp
	$(BIN)/python -m pytest -s bench

lock:
	test -x .venv-lock/bin/pip-compile || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check install --quiet 'pip==25.3' 'pip-tools==7.6.2'
	PATH="$(CURDIR)/.venv-lock/bin:$$PATH" requirements/lock $(ARGS)

clean:
	rm -rf $(VENV) .venv-lock demo/out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
