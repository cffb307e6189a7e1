# The same words on a laptop and on a cluster. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

SCALE ?= cpu
CLUSTER ?= local
JOBS ?= 0
SEEDS ?= 0
PAIRS ?=
FORMAT ?= term
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM = false

.PHONY: help setup reproduce-table2 compare-seeds check test bench-rollout tiny-models clean-venv

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

setup: $(STAMP) ## create .venv and install the pinned CPU set

$(STAMP): requirements/cpu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements/torch-cpu.txt
	$(PY) -m pip install --quiet -r requirements/cpu.txt
	touch $(STAMP)

reproduce-table2: $(STAMP) ## train, evaluate, write and print table 2 [SCALE=smoke|cpu] [JOBS=k] [SEEDS="0 1 2"] [PAIRS="1 2 3"]
	@if [ "$(CLUSTER)" != local ]; then echo "error: CLUSTER=$(CLUSTER) is not in this version; CLUSTER=local is" >&2; exit 2; fi
	@$(PY) -m sweeps.launch table2 --scale $(SCALE) --jobs $(JOBS) --seeds $(SEEDS) $(if $(PAIRS),--pairs $(PAIRS))
	@$(PY) -m analysis table2 --scale $(SCALE) --out reports

compare-seeds: $(STAMP) ## GRPO against GRAFT, 3 seeds on each of the 3 pairs (about 35 minutes on 2 cores), then the per-seed table
	@$(PY) -m sweeps.launch table2 --scale $(SCALE) --jobs $(JOBS) --seeds 0 1 2 --pairs 1 2 3 --rows base grpo_n8 full
	@$(PY) -m analysis table2 --scale $(SCALE) --over-seeds

check: $(STAMP) ## format, lint, types, import contracts, quick tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not slow"

test: $(STAMP) ## all tests
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile

bench-rollout: $(STAMP) ## our policy against TRL's GRPOTrainer in one run (installs TRL into its own .venv-bench)
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet -r requirements/torch-cpu.txt
	.venv-bench/bin/python -m pip install --quiet -r requirements/cpu.txt -r requirements/bench.txt
	.venv-bench/bin/python -m benchmarks.rollout

tiny-models: $(STAMP) ## rebuild the stand-in base models from their seeded recipe into build/tiny_models
	$(PY) -m experiments.tiny --out build/tiny_models
