PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test test-all test-real lint format bench wheel-test clean

$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "locust-llm needs Python 3.11 or newer (PYTHON=... names one)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-tests: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -e .[test,lint]
	touch $@

demo: $(VENV)/.installed          ## a first result without a GPU: simulator, load test, tables
	$(BIN)/locust-llm demo

test: $(VENV)/.installed-tests    ## every test, with reduced matrices
	$(BIN)/python -m pytest -q -m "not full"

test-all: $(VENV)/.installed-tests  ## every test, with the whole matrices
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-tests
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .test-venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
