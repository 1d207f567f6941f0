# Everything runs from a virtual environment of its own, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
# Folder of labelled data sets, for `make real` and `make papers` (see docs/training.md).
DATA ?=
needs-data = $(if $(DATA),,$(error name the folder of data sets, as in `make $@ DATA=folder`; docs/training.md has its layout))

# Processes of the tests. A file stays with one process, and tests/e2e comes first.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Folder of backbones, for `make papers` and `make elsa` (docs/results/elsa.md).
MODELS ?=
needs-models = $(if $(MODELS),,$(error name the folder of backbones, as in `make $@ DATA=folder MODELS=folder`))
# Registry of the versions that `make elsa` serves.
ELSA ?= .bench/elsa/registry

# As the command does: threads of torch that wait let other programs have the cores.
export GOMP_SPINCOUNT ?= 10000
# Bytecode is kept, or each process would compile the product and its libraries again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo ops screenshot test test-slow check format client openapi docs release audit image bench race gpu real papers elsa torture abuse report figures configuration serve clean clean-results

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

install: $(VENV)/.dev $(VENV)/.ops  ## install the project and everything needed to develop it

# What the product imports is compiled. pip would compile all of each library, which takes minutes.
# The pip that comes with Python 3.11 takes three times as long to choose the versions.
$(VENV)/.runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) pip
	$(PIP) torch
	$(PIP) --editable '.[all]'
	$(BIN)/python -c 'import nunatak_server.app, nunatak_training.train'
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) --editable '.[dev]'
	touch $@

# A server without them is slower and gives the same answers, so their absence stops nothing.
$(VENV)/.ops: $(VENV)/.runtime $(wildcard kernels/*.toml kernels/*.py kernels/nunatak_ops/*.py kernels/src/*)
	@set -- $${CXX:-g++}; if ! command -v "$$1" >/dev/null; then \
	  echo "no C++ compiler: torch's operations serve, slower than those of nunatak-ops (docs/install.md)"; \
	elif ! $(MAKE) --no-print-directory ops >$(VENV)/ops.log 2>&1; then \
	  echo "nunatak-ops could not be built ($(VENV)/ops.log): torch's operations serve, slower (docs/install.md)"; \
	fi

demo: $(VENV)/.runtime $(VENV)/.ops  ## train four tasks, serve them from one backbone, ask them, show what is saved
	$(BIN)/python demo/gateway.py

ops: $(VENV)/.runtime  ## build and install the native operators for CPUs; needs g++
	$(PIP) 'setuptools>=77'
	$(PIP) --no-build-isolation --no-deps ./kernels
	touch $(VENV)/.ops

screenshot: $(VENV)/.dev  ## take the README's picture of the web page; after `make demo`, needs Chromium
	$(BIN)/python demo/screenshot.py

test: $(VENV)/.dev  ## run the tests on two workers (WORKERS=0: in one process)
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.dev  ## run the tests that take long: the demo, the savings report, walks of users
	$(PYTEST) -m slow

check: $(VENV)/.dev  ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

openapi: $(VENV)/.dev  ## write docs/openapi.json from the server
	$(BIN)/python -m release.openapi

docs: $(VENV)/.dev  ## build the documents as a site in build/docs/site; refuse dead links
	$(BIN)/python -m release.site

release: $(VENV)/.dev  ## audit the pins, build the files of a release into dist, install and try them; needs g++, npm, curl
	$(BIN)/python -m release.build $(OPTIONS)

audit: $(VENV)/.dev  ## refuse pinned versions with a known vulnerability; asks the OSV database
	$(BIN)/python -m release.audit

image: $(VENV)/.dev  ## build the image, start it, ask it, end it, and save it in dist; needs docker, or podman and debootstrap
	rm -f dist/*-image-*
	NUNATAK_SAVE_IMAGE=$(CURDIR)/dist $(BIN)/python -m pytest -m slow tests/e2e/test_container.py
	@ls dist/*-image-*

client: $(VENV)/.dev  ## make the blocking client from the asyncio client
	$(BIN)/python -m release.blocking_client

bench: $(VENV)/.dev  ## race the mixed forward against its rivals, half an hour
	$(BIN)/python -m benchmarks.forward.fanout
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.forward.fanout --part integers --rounds 5
	$(BIN)/python -m benchmarks.forward.trunk_cache
	$(BIN)/python -m benchmarks.forward.ragged
	$(BIN)/python -m benchmarks.forward.flat
	$(BIN)/python -m benchmarks.forward.int8
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.forward.int8 --part layer --rounds 5
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.forward.int8 --part levels --rounds 5

race: $(VENV)/.dev  ## race five classifiers on one trunk against five full models; DATA=folder: with F1
	$(BIN)/python -m benchmarks.savings.five --rounds $(or $(ROUNDS),2)
	$(if $(DATA),OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python -m benchmarks.papers.shared_quality --data $(DATA))

gpu: $(VENV)/.dev  ## check and measure the mixed forward on a CUDA device, 8 minutes at most
	failed=0; timeout 170 $(BIN)/python -m pytest -q -n 0 tests/gpu || failed=1; \
	for part in mixed forms fanout; do timeout 100 $(BIN)/python -m benchmarks.forward.gpu $$part || failed=1; done; \
	exit $$failed

real: $(VENV)/.dev  ## train, serve and score five real data sets (DATA=folder)
	$(needs-data)$(BIN)/python -m benchmarks.papers.real_data --data $(DATA)

papers: $(VENV)/.dev  ## train the papers' runs that have no line yet on one thread, then write the pages and figures (DATA=folder MODELS=folder)
	$(needs-data)$(needs-models)OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python -m benchmarks.papers.long_runs --data $(DATA) --models $(MODELS) \
	  --registry $(ELSA) --checkpoints .bench/papers $(OPTIONS)
	$(BIN)/python -m benchmarks.papers.render --record

elsa: $(VENV)/.dev  ## serve eight tasks on one real model: memory by PSS and formula, quality from the lines (DATA=folder MODELS=folder)
	$(needs-data)$(needs-models)OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python -m benchmarks.papers.elsa_page --data $(DATA) --models $(MODELS) --registry $(ELSA)

torture: $(VENV)/.dev  ## kill, fail, corrupt and race the registry, thousands of times (ONLY="kills or race": these tests alone)
	TORTURE=1 $(BIN)/python -m pytest -q -n 0 --timeout 0 tests/torture $(if $(ONLY),-k "$(ONLY)")

abuse: $(VENV)/.dev  ## send a server bad requests by the thousand, what its schema allows, and slow clients
	ABUSE=30 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 0 --timeout 3600 -m "slow or not slow" \
	  $(addprefix tests/integration/server/test_,bad_input.py refusals.py slow_clients.py)

report: $(VENV)/.dev  ## measure what sharing saves in whole servers (PARTS="race memory")
	$(BIN)/python -m benchmarks.savings.report --rounds $(or $(ROUNDS),1) $(PARTS)

figures: $(VENV)/.dev  ## render docs/results from figures.jsonl
	$(BIN)/python -m benchmarks.render_figures

configuration: $(VENV)/.dev  ## render docs/configuration.md from the settings
	$(BIN)/python docs/configuration.py docs/configuration.md

serve: $(VENV)/.runtime  ## serve the default registry on port 8080
	$(BIN)/nunatak serve

clean:  ## remove the virtual environment and the tools' caches; what was measured or trained stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-results:  ## remove .bench too: hours of `make papers`, and the peers' environments
	rm -rf .bench
