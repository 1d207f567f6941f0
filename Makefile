# Everything runs from a virtual environment of its own, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Folder of labelled data sets for `make real` (see docs/results/real-data.md).
DATA ?= ../shared/data

.DEFAULT_GOAL := help
.PHONY: help install demo screenshot test check format bench gpu real torture figures serve clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.dev  ## install the project and everything needed to develop it

$(VENV)/.runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all]'
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.runtime  ## train four tasks, serve them from one backbone, ask them, show what is saved
	$(BIN)/python demo/gateway.py

screenshot: $(VENV)/.dev  ## take the README's picture of the web page; after `make demo`, needs Chromium
	$(BIN)/python demo/screenshot.py

test: $(VENV)/.dev  ## run the tests
	$(BIN)/python -m pytest

check: $(VENV)/.dev  ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## race the mixed forward against its rivals, half an hour
	$(BIN)/python benchmarks/fanout.py
	$(BIN)/python benchmarks/trunk_cache.py
	$(BIN)/python benchmarks/ragged.py
	$(BIN)/python benchmarks/flat.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/overhead.py

gpu: $(VENV)/.dev  ## check and measure the mixed forward on a CUDA device, 8 minutes at most
	$(BIN)/python benchmarks/gpu.py

real: $(VENV)/.dev  ## train, serve and score five real data sets (DATA=folder)
	$(BIN)/python benchmarks/real_data.py --data $(DATA)

torture: $(VENV)/.dev  ## kill, fail, corrupt and race the registry (ONLY="kills_on_sqlite scale": these alone)
	PYTHONPATH=tests $(BIN)/python benchmarks/torture_registry.py $(if $(ONLY),--only $(ONLY))

figures: $(VENV)/.dev  ## render docs/results from figures.jsonl
	$(BIN)/python benchmarks/render_figures.py

serve: $(VENV)/.runtime  ## serve the default registry on port 8080
	$(BIN)/nunatak serve

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) .bench .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
