# Every command sets up what it needs; nothing but Python 3.11+ and make is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUITE ?= all

.DEFAULT_GOAL := help
.PHONY: help setup docs demo test check format bench chaos lock clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Create the virtual environment from the lock files, and build the web UI and the docs
	@$(BIN)/python ui/build.py
	@$(BIN)/python -m docs_site.build

docs: $(VENV)/.ready ## Build the docs site and say where it is
	@$(BIN)/python -m docs_site.build
	@echo "open src/traceplane/gateway/docs/index.html, or /docs of a running gateway"

$(VENV)/.ready: pyproject.toml locks/bootstrap.txt locks/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit("Traceplane needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/bootstrap.txt
	@$(BIN)/uv pip sync --quiet --system-certs --python $(BIN)/python --require-hashes locks/dev.txt
	@$(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# What each start of Spark would otherwise load again; those who only look at the demo need not wait for it.
$(VENV)/.classes: $(VENV)/.ready
	@echo "preparing Spark's classes (once; about a minute)"
	@-$(BIN)/python -m traceplane.spark.classes
	@touch $@

demo: setup ## Watch the product work, in the terminal and in a browser; CI=1 ends when it is done
	@$(BIN)/python -m examples

PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

# Three at a time on two cores: tests of processes spend much of their time waiting for one to start.
# What fails beside others is run once more alone: a machine with other work can be too slow for a test that waits.
test: check $(VENV)/.classes ## Run all tests but the long ones of `make chaos`
	@$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder || { [ $$? -eq 1 ] && \
	  echo "running once more, alone, what failed beside other tests" && \
	  $(PYTEST) --last-failed --last-failed-no-failures none; }

check: setup ## Format, lint, types, layers
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }

format: setup ## Rewrite the code in the project's format
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

bench: setup $(VENV)/.classes ## Measure against peers, side by side: make bench SUITE=control
	@$(BIN)/python -m bench.run $(SUITE)

chaos: setup $(VENV)/.classes ## Minutes of random kills under load, then the counts
	@$(BIN)/python -m pytest -m chaos -s --timeout 1500 tests/chaos tests/property tests/e2e tests/chain tests/spark tests/trigger tests/process tests/postgres/test_hot_tables.py

lock: setup ## Resolve the dependencies anew
	@$(BIN)/uv pip compile --quiet --system-certs --upgrade pyproject.toml --extra aws --extra celery --extra trigger --group dev --universal --generate-hashes --no-header -o locks/dev.txt

clean: ## Remove what the commands made
	@rm -rf $(VENV) .traceplane bench/out bench/.venvs ui/node_modules ui/screens src/traceplane/gateway/docs src/traceplane/gateway/ui
