PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= 3
unexport PYTHONDONTWRITEBYTECODE  # a test starts some hundred processes: each would compile what it imports
PYTEST = $(BIN)/python -m pytest -q
PARALLEL = -n $(WORKERS) --dist loadgroup
SERIAL = $(shell grep -rl --include='test_*.py' 'mark.serial' tests)

.PHONY: demo test test-slow test-all test-matrices test-pythons test-real wheels test-wheel image test-native fuzz test-js lint-js test-aiperf test-exports lint format docs screenshots bench bench-answers bench-planted bench-reproduce bench-readers bench-certificate bench-scale bench-sending bench-report bench-simulator bench-paired bench-gateway bench-gateways bench-event-loop flame-graph bench-disconnect bench-media bench-spans bench-telemetry bench-changes bench-drift peers calibration client-faults growing-old confusion twins other-twins published what-if intervals schedulers seeds golden example clean

$(VENV)/.installed: setup.cfg setup.py pyproject.toml locust_llm/client/reader/_reader.c
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

test: $(VENV)/.installed-tests    ## every folder and the main job end to end, in three minutes: small matrices, few examples
	$(PYTEST) $(PARALLEL) --hypothesis-profile=few -m "not slow and not full and not serial"
	$(PYTEST) --hypothesis-profile=few -m "serial and not slow and not full" $(SERIAL)

test-slow: $(VENV)/.installed-tests  ## single tests that take seconds: whole runs in each mode, pages in a browser
	$(PYTEST) $(PARALLEL) --hypothesis-profile=few -m "slow and not full and not serial"
	$(PYTEST) --hypothesis-profile=few -m "serial and slow and not full" $(SERIAL)

test-all: test test-slow test-matrices  ## everything, with the whole matrices

# what make test leaves out, in pieces: each prints its time, and what is done is done until a source changes
PIECES = folders web_pages damage endings distributed modes runs probe serial real
folders = tests/access tests/accuracy tests/answers tests/bench tests/client tests/controller tests/deploy tests/files tests/gate \
  tests/integrations tests/lab tests/locust_adapter tests/protocols tests/records tests/report tests/seeds tests/server \
  tests/settings tests/simulator tests/slo tests/text tests/web tests/wire tests/worker tests/workload tests/test_*.py \
  --ignore tests/bench/test_confusion.py --ignore tests/report/test_damage.py --ignore tests/report/render/test_html_report.py
web_pages = tests/e2e/test_web_browser.py tests/e2e/test_web_attack.py tests/report/render/test_html_report.py
endings = tests/e2e/test_endings.py
distributed = tests/e2e/test_distributed.py tests/e2e/test_secrets_of_workers.py
modes = tests/e2e/test_modes.py
probe = tests/bench/test_confusion.py tests/e2e/test_probe.py tests/e2e/test_probe_http.py
real = tests/e2e/test_real.py tests/e2e/test_real_llamacpp.py tests/e2e/test_real_scheduler.py
runs = tests/e2e $(addprefix --ignore ,$(web_pages) $(endings) $(distributed) $(modes) $(probe) $(real))
SOURCES := $(shell git ls-files 'locust_llm/*.py' 'locust_llm/*.c' 'tests/*.py' 2>/dev/null)

test-matrices: $(PIECES:%=.matrices/%)  ## what make test leaves out; interrupted, it goes on where it was

.matrices/%: $(VENV)/.installed-tests $(SOURCES)
	@mkdir -p .matrices
	@echo "$*, since $$(date +%T)"
	@$(PYTEST) $(PARALLEL) -m "full and not serial" $($*) > $@.log 2>&1 || { cat $@.log; exit 1; }
	@tail -1 $@.log | tee $@

.matrices/serial: $(VENV)/.installed-tests $(SOURCES)
	@mkdir -p .matrices
	$(PYTEST) -m "full and serial" $(SERIAL)
	@touch $@

.matrices/damage: $(VENV)/.installed-tests $(SOURCES)  # 19,000 folders of 0.1 s each: half an hour
	@mkdir -p .matrices
	PYTHONPATH=tests $(BIN)/python tests/bench/damage.py .matrices/damage.json
	@mv .matrices/damage.json $@

test-pythons:                     ## the tests once with each Python from 3.11 to 3.14 that this machine has
	.ci/pythons

test-real: $(VENV)/.installed-tests  ## real vLLM, transformers, LiteLLM and llama.cpp: what cannot be started is skipped, with the reason
	REAL_SERVERS=1 $(PYTEST) -rsP $(real)

wheels:                           ## what is published, in dist: wheels for x86-64 and aarch64, sdist
	.ci/build $(PYTHON)

test-wheel:                       ## the same in empty environments, with each Python from 3.11 to 3.14, uvx and pipx: files, demo, report
	.ci/wheel

ENGINE ?= docker
image:                            ## the image (ENGINE=podman: with another builder), a demo in it as a cluster runs it, its SBOM
	.ci/image $(ENGINE)

EDITABLE = $(BIN)/pip install -q --disable-pip-version-check --force-reinstall --no-deps -e .
SANITIZE = -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all

test-native: $(VENV)/.installed-tests  ## the native reader under AddressSanitizer and UBSan; compiled again as it was after that
	$(call sanitized,$(NATIVE) tests/client/reader/test_open_streams.py tests/client/reader/test_reader_failure.py -k 'not five_hundred')

fuzz: $(VENV)/.installed-tests    ## the same with a hundred times as many answers for both readers: some hours
	$(call sanitized,$(NATIVE) -k 'same or events_that_c' --hypothesis-profile=many --hypothesis-show-statistics)

NATIVE = tests/client/reader/test_native_reader.py tests/client/reader/test_readers_agree.py tests/client/test_tls_ends.py
define sanitized
CFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" $(EDITABLE)
LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
  $(PYTEST) $(1); status=$$?; $(EDITABLE); exit $$status
endef

test-aiperf: $(VENV)/.installed-tests  ## AIPerf's own models load our exports (a venv of its own: it brings 49 packages)
	[ -x .aiperf-venv/bin/aiperf ] || { $(PYTHON) -m venv .aiperf-venv && \
	  .aiperf-venv/bin/pip install -q --disable-pip-version-check aiperf==0.13.0; }
	AIPERF_PYTHON=$(CURDIR)/.aiperf-venv/bin/python $(PYTEST) tests/e2e/test_aiperf_loads.py

test-exports: $(VENV)/.installed-tests  ## inference-doctor and llm-d's benchmark-report read our exports (a venv of their own)
	[ -x .exports-venv/bin/inference-doctor ] || { $(PYTHON) -m venv .exports-venv && \
	  .exports-venv/bin/pip install -q --disable-pip-version-check inference-doctor==0.4.1 llmd-benchmark-report==0.2.1; }
	EXPORTS_PYTHON=$(CURDIR)/.exports-venv/bin/python $(PYTEST) tests/e2e/test_exports_load.py

bench: $(VENV)/.installed-tests   ## what the load generator says against what was true, and what it costs
	$(BIN)/python tests/bench/bench.py

bench-answers: $(VENV)/.installed-tests  ## what --check-answers costs: for each word, and for each chunk of 200 and 800 streams, in turn
	PYTHONPATH=tests $(BIN)/python tests/bench/checked_answers.py

bench-planted: $(VENV)/.installed-tests  ## planted faults of answers, and after how many requests each is found; a minute
	PYTHONPATH=tests $(BIN)/python tests/bench/planted_faults.py

bench-reproduce: $(VENV)/.installed-tests  ## a planted fault that needs three of 500 requests, reproduced in ten runs: 40 minutes
	PYTHONPATH=tests $(BIN)/python tests/bench/reproductions.py

bench-readers: $(VENV)/.installed-tests  ## the readers in C and in Python beside a client in C that only reads, seven times: 25 minutes
	$(BIN)/python tests/bench/readers.py

bench-certificate: $(VENV)/.installed-tests  ## do true percentiles lie within the plus-minus, and what do sentinels cost: an hour
	$(BIN)/python tests/bench/certificate.py --cost 5

bench-scale: $(VENV)/.installed-tests  ## 10,000 open streams in one worker, 15,000 over two
	$(BIN)/python tests/bench/scale.py

bench-sending: $(VENV)/.installed-tests  ## short requests: CPU of each, how late they leave; how full the gate keeps the server
	$(BIN)/python tests/bench/sending.py

bench-report: $(VENV)/.installed-tests  ## the report of 100,000 and of a million requests: seconds and memory
	$(BIN)/python tests/bench/report.py

bench-simulator: $(VENV)/.installed-tests  ## tokens a second from the simulator, and virtual time: a million requests
	$(BIN)/python tests/bench/simulator.py

bench-event-loop: $(VENV)/.installed-tests  ## does one event loop inflate TTFT as an M/G/1 queue does: three tools at rising rates; ten minutes on an idle machine
	$(BIN)/python tests/bench/event_loop.py

SVG ?= flame-graph.svg
TREE ?= .
flame-graph: $(VENV)/.installed-tests  ## where the CPU of 200 streams goes, as an SVG (TREE=another checkout with its .venv); needs perf and py-spy
	$(BIN)/python tests/bench/flame_graph.py $(SVG) --tree $(TREE)

peers: $(VENV)/.installed-tests   ## eight load testers, each in a venv of its own (13 GB), on the truth server: what they say, and what it costs; half an hour
	$(BIN)/python tests/bench/peers.py

calibration: $(VENV)/.installed   ## simulated times beside measured ones, row by row
	$(BIN)/python tests/bench/calibration.py

client-faults: $(VENV)/.installed-tests    ## ten minutes of faults and firehoses: whether anything grows or is lost
	PYTHONPATH=tests $(BIN)/python tests/bench/client_faults.py

growing-old: $(VENV)/.installed-tests  ## soaks in virtual time: alarms of 1,000 stable servers, and the share of planted leaks that is found; ten minutes
	PYTHONPATH=tests $(BIN)/python tests/bench/growing_old.py stable
	PYTHONPATH=tests $(BIN)/python tests/bench/growing_old.py unseen
	PYTHONPATH=tests $(BIN)/python tests/bench/growing_old.py walks
	PYTHONPATH=tests $(BIN)/python tests/bench/growing_old.py power

intervals: $(VENV)/.installed-tests  ## how often SLO intervals hold the truth and verdicts are wrong or missing: 250 runs of each kind of load, then of those held out
	PYTHONPATH=tests $(BIN)/python tests/bench/intervals.py
	PYTHONPATH=tests $(BIN)/python tests/bench/intervals.py --which seen
	PYTHONPATH=tests $(BIN)/python tests/bench/intervals.py --which seen-later
	PYTHONPATH=tests $(BIN)/python tests/bench/intervals.py --which held-out
	PYTHONPATH=tests $(BIN)/python tests/bench/intervals.py --which looked-at-once
	PYTHONPATH=tests $(BIN)/python tests/bench/intervals.py --which looked-at-later

confusion: $(VENV)/.installed-tests  ## which scheduler the probe says a simulated server has, and which it has: 750 probes
	PYTHONPATH=tests $(BIN)/python tests/bench/confusion.py

twins: $(VENV)/.installed-tests  ## twins of 24 hidden servers and of six outside of every model: parameters, predictions, intervals
	PYTHONPATH=tests $(BIN)/python tests/bench/twins.py

other-twins: $(VENV)/.installed-tests  ## twins of servers that share nothing with the simulator (other laws of cost; with VLLM_PYTHON vLLM's scheduler): errors, intervals
	PYTHONPATH=tests $(BIN)/python tests/bench/other_twins.py

capacity: $(VENV)/.installed-tests  ## how often the interval of --find-max holds the capacity of simulated servers, and how wide it is; two hours
	$(BIN)/python tests/bench/capacity.py

published: $(VENV)/.installed-tests  ## a twin of two rows of published measurements of an H100, beside the others
	PYTHONPATH=tests $(BIN)/python tests/bench/published.py

what-if: $(VENV)/.installed-tests  ## twins of a real vLLM and llama.cpp: what they say of other flags, and what such servers do; an hour on an idle machine
	for server in vllm llamacpp; do for step in fit measure; do \
	  PYTHONPATH=tests $(BIN)/python tests/bench/what_if.py $$step $$server .what-if/$$server || exit 1; \
	done; done

bench-drift: $(VENV)/.installed-tests  ## false alarms of twin drift, and what it finds of servers that changed: 600 and 490 minutes, in virtual time
	PYTHONPATH=tests $(BIN)/python tests/bench/drift.py

bench-gateway: $(VENV)/.installed-tests  ## the added time that the gateway bench measures, against the stamps of a proxy with planted delays; five minutes on an idle machine
	PYTHONPATH=tests $(BIN)/python tests/bench/gateway.py

bench-gateways: $(VENV)/.installed-tests  ## nginx, HAProxy, Caddy and LiteLLM (REAL_SERVERS_HOME) in one series, three times; 19 minutes on an idle machine
	PYTHONPATH=tests $(BIN)/python tests/bench/gateways.py --page

bench-disconnect: $(VENV)/.installed-tests  ## ghost tokens that a witness stream finds without counters, in 100 sessions each, in virtual time; ten minutes
	PYTHONPATH=tests $(BIN)/python tests/bench/disconnect.py

bench-media: $(VENV)/.installed-tests  ## do requests with 4 MB of pictures leave on time
	$(BIN)/python tests/bench/media.py

bench-spans: $(VENV)/.installed-tests  ## what spans of 2,000 and 10,000 requests a second cost the process of the run, and the receiver's
	PYTHONPATH=tests $(BIN)/python tests/bench/spans.py

bench-telemetry: $(VENV)/.installed-tests  ## what --otel costs the load generator and the exporting process, for each request and chunk
	PYTHONPATH=tests $(BIN)/python tests/bench/telemetry.py

bench-changes: $(VENV)/.installed-tests  ## the history's changes on known truth: planted ones found, false alarms, runs until they show
	$(BIN)/python tests/bench/changes.py planted --seeds 1000
	$(BIN)/python tests/bench/changes.py alarms --years 3000
	$(BIN)/python tests/bench/changes.py daily --years 100
	$(BIN)/python tests/bench/changes.py delay
	$(BIN)/python tests/bench/changes.py index

bench-paired: $(VENV)/.installed-tests  ## A/B in pairs: equal arms called different, 5 % found, against two runs one after the other; virtual time
	$(BIN)/python tests/bench/paired.py methods
	$(BIN)/python tests/bench/paired.py weathers
	$(BIN)/python tests/bench/paired.py server

schedulers: $(VENV)/.installed-tests  ## the probe on six real servers whose scheduler is known; 25 minutes on an idle machine
	PYTHONPATH=tests $(BIN)/python tests/bench/schedulers.py .schedulers --times 2

golden: $(VENV)/.installed-tests  ## what users rely on, written anew into tests/golden: help, exit statuses, imports, pages
	PYTHONPATH=tests $(BIN)/python -m support.golden

example: $(VENV)/.installed       ## the report in reports/example, made anew
	$(BIN)/python tests/example.py

seeds: $(VENV)/.installed-tests   ## the seed documents' claims in the simulator: the page and figures of reports/seeds
	$(BIN)/python tests/seeds/make.py

docs: $(VENV)/.installed-docs     ## the documentation as a site in build/docs; a dead link is an error
	$(BIN)/python docs/generate_options.py
	$(BIN)/python docs/generate_metrics.py
	$(BIN)/python docs/generate_scenarios.py
	$(BIN)/python docs/generate_schemas.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

screenshots: $(VENV)/.installed-tests  ## docs/images anew in headless Chromium: report of the example, live page, sweep, comparison; five minutes
	$(BIN)/python docs/screenshots.py

lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(MAKE) lint-js

lint-js: node_modules/.installed  ## the scripts of the pages
	npx --no-install eslint .

test-js: node_modules/.installed  ## the parts of the scripts that need no browser, by node's own runner
	node --test tests/js/

node_modules/.installed: package.json package-lock.json
	npm ci --silent --no-progress --ignore-scripts
	touch $@

format: $(VENV)/.installed-tests
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) locust_llm/client/reader/*.so .test-venv .aiperf-venv .exports-venv .peers .matrices .what-if build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
