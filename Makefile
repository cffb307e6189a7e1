# The same words on a laptop and on a cluster. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

SCALE ?= cpu
CLUSTER ?= local
JOBS ?= 0
TABLE ?= table2
SEEDS ?=
PAIRS ?=
ROWS ?=
OVERRIDES ?=
REPORTED ?=
FORMAT ?= term
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM = false

# Every target but the stamp is a command, never a file.
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

setup: $(STAMP) ## create .venv and install the pinned CPU set

$(STAMP): requirements/cpu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements/torch-cpu.txt
	$(PY) -m pip install --quiet -r requirements/cpu.txt
	touch $(STAMP)

SWEEP = $(PY) -m sweeps
CELLS = $(TABLE) --scale $(SCALE) --cluster $(CLUSTER) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(ROWS),--rows $(ROWS)) $(if $(OVERRIDES),--overrides $(OVERRIDES))

TABLES := 1 2 4 5 6 7 8 9
reproduce-table1: ## the main comparison: three pairs, every benchmark
reproduce-table2: ## train, evaluate, write and print table 2 [SCALE=smoke|cpu|paper] [CLUSTER=local|slurm] [JOBS=k] [SEEDS="0 1 2"] [PAIRS="1 2 3"] [ROWS="full grpo_n8"]
reproduce-table4: ## the spread over three training seeds, every pair
reproduce-table5: ## scores beside device-hours by the rules of the paper
reproduce-table6: ## GRAFT from the log of the peer's finished GRPO run, beside GRAFT with a live peer, on all pairs
reproduce-table7: ## table 2's components, each benchmark in its own column
reproduce-table8: ## GRAFT's and other methods' choice of prompts and update, crossed
reproduce-table9: ## clipping dynamics by the position of the peer minibatches
$(TABLES:%=reproduce-table%): reproduce-table%: $(STAMP)
	@$(MAKE) --no-print-directory table TABLE=table$*

FIGURES := 1 3a 3b 4 5
reproduce-figure1: ## complementarity over training: launch what is missing, then reports/<scale>/figure1.{pdf,png,csv}
reproduce-figure3a: ## score of the pair against device-hours
reproduce-figure3b: ## stored against live peers
reproduce-figure4: ## validation curves
reproduce-figure5: ## score against the whole joint run charged to each model
$(FIGURES:%=reproduce-figure%): reproduce-figure%: $(STAMP)
	@$(MAKE) --no-print-directory table TABLE=figure$*

reproduce-extra: $(STAMP) ## baselines beyond the paper: GRPO with n=16/32 and dynamic sampling, GSPO, Dr. GRPO, RL-ZVP, naive sharing
	@$(MAKE) --no-print-directory table TABLE=extra_baselines

reproduce: $(STAMP) ## write every table and figure that the runs on record allow, and say which are incomplete; starts nothing [SCALE=]
	@$(PY) -m analysis reproduce --scale $(SCALE) --out reports

selection-audit: $(STAMP) ## how much of each score comes from picking the best checkpoint on the benchmarks [SCALE=]
	@$(PY) -m analysis selection-audit --scale $(SCALE) --out reports

report: $(STAMP) ## one self-contained page with tables, figures, claims, costs and records: reports/<scale>/index.html [SCALE=] [SEEDS="0 1 2": of the claims]
	@$(PY) -m analysis report --scale $(SCALE) $(if $(SEEDS),--seeds $(SEEDS)) --out reports

table: $(STAMP)
	@$(SWEEP) launch $(CELLS) --jobs $(JOBS) --wait $(if $(RETRY),--retry-failed)
	@$(PY) -m analysis $(TABLE) --scale $(SCALE) --out reports

plan: $(STAMP) ## what stands behind TABLE=table2|figure4|all, what is missing, what it costs [SCALE=] [CLUSTER=] [SBATCH=1] [BUDGET=<GPU-hours>]
	@$(SWEEP) plan $(CELLS) $(if $(SBATCH),--sbatch) $(if $(BUDGET),--budget-gpu-hours $(BUDGET))

launch: $(STAMP) ## start what is missing of TABLE= [WAIT=1] [RETRY=1: failed runs, too] [BUDGET=<GPU-hours>] [CLEAN=1]
	@$(SWEEP) launch $(CELLS) --jobs $(JOBS) $(if $(WAIT),--wait) $(if $(RETRY),--retry-failed) $(if $(BUDGET),--budget-gpu-hours $(BUDGET)) $(if $(CLEAN),--require-clean)

status: $(STAMP) ## where the runs of TABLE= stand
	@$(SWEEP) status $(CELLS)

cancel: $(STAMP) ## stop the queued and running runs of TABLE=, and nothing else
	@$(SWEEP) cancel $(CELLS)

compare-seeds: $(STAMP) ## GRPO against GRAFT, 3 seeds on each of the 3 pairs (about 35 minutes on 2 cores), then the per-seed table
	@$(SWEEP) launch table2 --scale $(SCALE) --cluster $(CLUSTER) --wait --jobs $(JOBS) --seeds 0 1 2 --pairs 1 2 3 --rows base grpo_n8 full
	@$(PY) -m analysis table2 --scale $(SCALE) --over-seeds

audit-paper: $(STAMP) ## what the paper's printed numbers say about each other
	@$(PY) -m analysis audit-paper

claims: $(STAMP) ## the paper's claims against the runs on record [SCALE=] [SEEDS="0 1 2"], or with REPORTED=1 against its own numbers
	@$(PY) -m analysis claims $(if $(REPORTED),--reported,--scale $(SCALE) $(if $(SEEDS),--seeds $(SEEDS)))

PAPER_CONFIG := docs/configs/graft-pair1-paper-h200x4.yaml
paper-config: $(STAMP) ## write the resolved configuration of the paper's setting into docs/configs, after a change that is meant
	$(PY) -m experiments.resolved method=graft pair=1 scale=paper cluster=h200x4 > $(PAPER_CONFIG).new
	mv $(PAPER_CONFIG).new $(PAPER_CONFIG)

lint: $(STAMP) ## format, lint, types, import contracts
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

check: lint ## lint and the quick tests
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not slow"

test: $(STAMP) ## all tests
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

SLURM_TESTS ?= require
slurm-test: $(STAMP) ## the tests against a real Slurm on this machine (Debian; installs and starts it as root) [SLURM_TESTS=1: skip where it cannot be had]
	tests/slurm/cluster/install.sh || [ "$(SLURM_TESTS)" = 1 ]
	SLURM_TESTS=$(SLURM_TESTS) $(PY) -m pytest tests/slurm

bench-rollout: $(STAMP) ## our policy against TRL's GRPOTrainer in one run (installs TRL into its own .venv-bench)
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet -r requirements/torch-cpu.txt
	.venv-bench/bin/python -m pip install --quiet -r requirements/cpu.txt -r requirements/bench.txt
	.venv-bench/bin/python -m benchmarks.rollout

bench-verifier: $(STAMP) ## answers/s of our verifier against math-verify called serially; [DATA=<folder of the JSONL files>]
	$(PY) -m benchmarks.verifier $(if $(DATA),--data $(DATA))

bench-collect: $(STAMP) ## seconds and memory to collect 700,000 evaluation rows in 1,000 files, without and with the cache
	$(PY) -m benchmarks.collect

bench-sweeps: $(STAMP) ## seconds that planning 300 cells and the status of 300 runs take
	$(PY) -m benchmarks.sweeps

bench-exchange: $(STAMP) ## selection, re-tokenisation and receiver scoring as a share of the step: measured at cpu scale, by a cost model at paper scale
	$(PY) -m benchmarks.exchange

setup-eval: $(STAMP) ## .venv-eval with lm-eval, for engine=lm-eval-hf
	test -x .venv-eval/bin/python || $(PYTHON) -m venv .venv-eval
	.venv-eval/bin/python -m pip install --quiet -r requirements/torch-cpu.txt
	.venv-eval/bin/python -m pip install --quiet -r requirements/cpu.txt -r requirements/eval.txt

eval-test: setup-eval ## the tests that need lm-eval
	.venv-eval/bin/python -m pytest tests/experiments/test_evaluation_lm_eval.py

VERL_STAMP := .venv-verl/.installed
$(VERL_STAMP): requirements/verl-cpu.txt
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install --quiet --no-deps -r requirements/verl-cpu.txt
	touch $(VERL_STAMP)

setup-verl: $(VERL_STAMP) ## .venv-verl with verl, Ray, FSDP2 and vLLM for the CPU, to try and test policy=verl (3 GB)

setup-gpu: ## .venv with verl and vLLM for NVIDIA GPUs instead of the CPU set (docs/verl.md; not run by the authors)
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -r requirements/verl-gpu.txt
	$(PY) -m pip install --no-build-isolation flash-attn==2.8.3
	touch $(STAMP)

VERL_TESTS ?= tests/verl
verl-test: $(VERL_STAMP) ## the tests of policy=verl on a CPU: parity with the torch policy, whole runs, kill and resume [VERL_TESTS=<files>]
	.venv-verl/bin/python -m pytest -v $(VERL_TESTS)

tiny-models: $(STAMP) ## rebuild the stand-in base models from their seeded recipe into build/tiny_models
	$(PY) -m experiments.tiny --out build/tiny_models
