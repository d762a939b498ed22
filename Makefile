PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -q
PARALLEL = -n $(WORKERS) --dist loadgroup

.PHONY: demo test test-all test-matrices test-real test-wheel test-aiperf lint format docs screenshots bench bench-scale bench-report bench-simulator bench-paired soak confusion schedulers seeds example clean

$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "locust-llm needs Python 3.11 or newer (PYTHON=... names one)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-tests: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -e .[test,lint]
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -e .[docs]
	touch $@

demo: $(VENV)/.installed          ## a first result without a GPU: simulator, load test, tables
	$(BIN)/locust-llm demo

test: $(VENV)/.installed-tests    ## every room and the main job end to end, in three minutes: small matrices, few examples
	$(PYTEST) $(PARALLEL) --hypothesis-profile=few -m "not full and not serial"
	$(PYTEST) --hypothesis-profile=few -m "serial and not full"

test-all: $(VENV)/.installed-tests  ## everything, with the whole matrices
	$(PYTEST) $(PARALLEL) -m "not serial"
	$(PYTEST) -m serial

test-matrices: $(VENV)/.installed-tests  ## what make test leaves out, but for the three longest: signals at any time, workers, the confusion matrix
	$(PYTEST) $(PARALLEL) $(MORE) -m "full and not serial" --ignore tests/e2e/test_endings.py --ignore tests/e2e/test_distributed.py --ignore tests/bench

test-real: $(VENV)/.installed-tests  ## real vLLM, transformers, LiteLLM and llama.cpp: what cannot be started is skipped, with the reason
	REAL_SERVERS=1 $(PYTEST) -rsP tests/e2e/test_real.py tests/e2e/test_real_llamacpp.py

test-wheel:                       ## the wheel in an empty environment: its files, the import, the demo, a report
	.ci/wheel $(PYTHON)

test-aiperf: $(VENV)/.installed-tests  ## AIPerf's own models load our exports (a venv of its own: it brings 49 packages)
	[ -x .aiperf-venv/bin/aiperf ] || { $(PYTHON) -m venv .aiperf-venv && \
	  .aiperf-venv/bin/pip install -q --disable-pip-version-check aiperf==0.13.0; }
	AIPERF_PYTHON=$(CURDIR)/.aiperf-venv/bin/python $(PYTEST) tests/e2e/test_aiperf_loads.py

bench: $(VENV)/.installed-tests   ## what the load generator says against what was true, and what it costs
	$(BIN)/python tests/bench/bench.py

bench-scale: $(VENV)/.installed-tests  ## 10,000 open streams in one worker, 15,000 over two
	$(BIN)/python tests/bench/scale.py

bench-report: $(VENV)/.installed-tests  ## the report of 100,000 and of a million requests: seconds and memory
	$(BIN)/python tests/bench/report.py

bench-simulator: $(VENV)/.installed-tests  ## tokens a second from the simulator, and virtual time: a million requests
	$(BIN)/python tests/bench/simulator.py

soak: $(VENV)/.installed-tests    ## ten minutes of faults and firehoses: whether anything grows or is lost
	PYTHONPATH=tests $(BIN)/python tests/bench/soak.py

confusion: $(VENV)/.installed-tests  ## which scheduler the probe says a simulated server has, and which it has: 750 probes
	PYTHONPATH=tests $(BIN)/python tests/bench/confusion.py

bench-paired: $(VENV)/.installed-tests  ## A/B in pairs: equal arms called different, 5 % found, against two runs one after the other; virtual time
	$(BIN)/python tests/bench/paired.py methods
	$(BIN)/python tests/bench/paired.py server

schedulers: $(VENV)/.installed-tests  ## the probe on six real servers whose scheduler is known; 25 minutes on an idle machine
	PYTHONPATH=tests $(BIN)/python tests/bench/schedulers.py .schedulers --times 2

example: $(VENV)/.installed       ## the report in reports/example, made anew
	$(BIN)/python tests/example.py

seeds: $(VENV)/.installed-tests   ## the seed documents' claims in the simulator: the page and figures of reports/seeds
	$(BIN)/python tests/seeds/make.py

docs: $(VENV)/.installed-docs     ## the documentation as a site in build/docs; a dead link is an error
	$(BIN)/python docs/generate_options.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

screenshots: $(VENV)/.installed-tests  ## docs/images anew: a live page and a report, in headless Chromium
	$(BIN)/python docs/screenshots.py

lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-tests
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .test-venv .aiperf-venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
