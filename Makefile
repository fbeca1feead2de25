# Everything runs in .venv, which is made on first use with the newest Python >= 3.11 found (or make PYTHON=...).
# `make help` lists the targets.

VENV := .venv
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Half as many again as cores where ranks under test wait for each other.
WORKERS := $(shell expr $(CORES) \* 3 / 2)
BIN := $(VENV)/bin
OUT := out/demo
PYTHON ?=
PYTEST_ARGS ?= -n $(WORKERS) --dist worksteal
test: WORKERS = $(CORES)
EXAMPLES ?= all
DEMO_ARGS ?=
COVERAGE := --cov=simnet --cov=binsgdm --cov-branch --cov-report=term:skip-covered
GPU_OUT := out/gpu
GPU_ARGS ?=
# Empty: the newest torch that the driver can run.
TORCH_GPU ?=
TORCH ?= torch==2.13.0
TRITON ?= triton==3.9.0
MLXTEND ?= mlxtend==0.25.0

# Else every command under test compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles what it imports; pip would compile all of torch, for half a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help demo test test-all nightly-test evidence check nightly lint types torch extras docs gpu gpu-commit

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## speedup of BinSGDM for BERT-Base and ResNet-50: table, CSV and figures in out/demo
	$(BIN)/simnet sweep speedup $(DEMO_ARGS) -o $(OUT)
	$(BIN)/simnet report $(OUT) --figures $(OUT)

test: $(VENV)/.installed-dev ## run the tests that are not slow (PYTEST_ARGS="-k name" to choose)
	$(BIN)/python -m pytest -m 'not slow and not timed and not nightly' $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev ## all tests but those of `make nightly-test`
	$(BIN)/python -m pytest -m 'not timed and not nightly' --hypothesis-profile=$(EXAMPLES) $(PYTEST_ARGS)

nightly-test: $(VENV)/.installed-dev ## the tests that build, install or open something large; then, one after another, those that time something
	$(BIN)/python -m pytest -m 'nightly' $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m 'timed'

evidence: $(VENV)/.installed-dev ## the tests of the evidence; then, one after another, the lab and what times something: root, a quiet machine
	$(BIN)/python -m pytest -c evidence/pyproject.toml --rootdir=. -m 'not lab and not timed' $(PYTEST_ARGS)
	$(BIN)/python -m pytest -c evidence/pyproject.toml --rootdir=. -m 'lab or timed'

check: lint ## what CI runs: format, lint, types, all tests but those of `make nightly`
	@$(MAKE) --no-print-directory --jobs EXAMPLES=ci types test-all

nightly: ## what CI runs, with the branches that no test takes; site, notebooks, wheel, browser and libraries; what times something; the evidence
	@$(MAKE) --no-print-directory check PYTEST_ARGS="$(PYTEST_ARGS) $(COVERAGE)"
	@$(MAKE) --no-print-directory nightly-test evidence

lint: $(VENV)/.installed-dev ## ruff: its format, which `.venv/bin/ruff format .` repairs, and its rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev ## mypy --strict; of binsgdm too where torch is installed, and of a script that uses the API
	$(BIN)/mypy $$($(BIN)/python -c "import torch, numba" 2>/dev/null || echo --package simnet)
	$(BIN)/mypy --strict examples/ask_from_python.py

torch: $(VENV)/.installed-dev ## add torch, numba, scikit-learn and, if to be had, mlxtend and Triton for the tests of binsgdm (TORCH=..., TRITON=...)
	$(INSTALL) '$(TORCH)' 'numba>=0.60' scikit-learn
	@$(INSTALL) --no-deps '$(MLXTEND)' \
		|| echo 'mlxtend cannot be installed here: training on its MNIST images will not be tested'
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(INSTALL) --no-deps '$(TRITON)' \
		|| echo 'Triton cannot be installed here: its kernels will not be tested'

extras: $(VENV)/.installed-dev ## add what reports, Dask, TensorBoard, notebooks, the docs site and their tests need, Chromium too if root
	$(INSTALL) --editable '.[report,dask,tensorboard,docs,notebooks,checks]'
	@# Without what it asks for and does not use here: jupyterlab is 100 MB.
	@$(BIN)/python -c 'import hta' 2>/dev/null || $(INSTALL) --no-deps 'HolisticTraceAnalysis==0.5.*'
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
		|| echo 'Chromium cannot be installed here: pages in a browser will not be tested'

docs: $(VENV)/.installed-dev ## build the site of the docs in out/site, every link checked: open out/site/index.html
	@$(BIN)/python -c 'import mkdocs, nbconvert' 2>/dev/null || $(INSTALL) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml

# Finds or installs a torch with CUDA by itself: what .venv has stays as it is.
gpu: ## test and measure the GPUs of this machine, and calibrate to them: out/gpu, out/gpu-card (GPU_ARGS=--only=kernels)
	@VENV='$(VENV)' PYTHON='$(PYTHON)' TORCH_GPU='$(TORCH_GPU)' sh .ci/gpu.sh $(GPU_OUT) $(GPU_ARGS)

gpu-commit: $(VENV)/.installed ## calibration, compute rows and samples of the GPU measured in out/gpu, into this checkout (GPU_ARGS=--force)
	$(BIN)/simnet measure gpu --card $(GPU_OUT) --base a100_tcp_estimate --into . $(GPU_ARGS)

# The stamps hold the installations, so that a target installs only after pyproject.toml has changed.
$(VENV)/.installed: pyproject.toml
	@PYTHON='$(PYTHON)' sh .ci/make_venv.sh $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	@PYTHON='$(PYTHON)' sh .ci/make_venv.sh $(VENV)
	$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.installed $@
