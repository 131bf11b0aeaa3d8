# One command into the course, one to check it: `make lab`, `make test`. For GNU make 3.81 (macOS) and later.

PYTHON ?= python3
LAB_ARGS ?=
NOTEBOOKS ?= $(wildcard notebooks/*.ipynb)
GPU_TESTS ?= tests/kernels
EXHAUSTIVE_TESTS ?= tests
BROWSER_TESTS ?= tests/browser
BIN := .venv/bin
STAMP := .venv/.stamp
# The stamps of the extras of pyproject.toml beyond the course's.
TEST_STAMP := .venv/.stamp-test
BROWSER_STAMP := .venv/.stamp-browser
TRANSFORMERS_STAMP := .venv/.stamp-transformers
SITE_STAMP := .venv/.stamp-site
# The Triton with which hopper.json was measured: with it, too, the kernels must compile.
MEASURED_TRITON := .venv/triton-3.6.0
# JupyterLab keeps its layout here: a learner's other projects keep theirs.
WORKSPACES := .venv/workspaces
WORKSPACE := $(WORKSPACES)/default-37a8.jupyterlab-workspace
# npm writes this file when it has installed what the lock file names.
NODE_STAMP := .venv/node_modules/.package-lock.json
BIOME := .venv/node_modules/.bin/biome
# The pins; the weekly run sets /dev/null in their place, for the newest versions.
CONSTRAINTS := constraints.txt
INSTALL := $(BIN)/python tests/tools/install.py --constraint $(CONSTRAINTS)
# Without a GPU and without what a learner has solved: the same tests and the same stored outputs everywhere. One thread
# per worker: the arrays are small, and the workers share the cores. Bytecode is kept whatever the environment says: the
# workers, and a kernel per notebook, import the same files.
PLAIN := CUDA_VISIBLE_DEVICES= FLASHLAB_PROGRESS=/dev/null OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
# No AMX, in lessons and tests: some virtual machines announce it and do not grant it, and torch's bfloat16 products on
# the CPU then end the process.
ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
export ONEDNN_MAX_CPU_ISA
# Where the home directory cannot be written, caches and settings of Triton, Jupyter and pip go into .venv.
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo writable),writable)
export HOME := $(CURDIR)/.venv/home
endif
# Small shapes, forward and backward: under the sanitizer a kernel takes a thousand times longer.
SMALL := tests/kernels/test_coverage.py -k "lower_right or grouped_heads or rows_that_see"
# One worker runs all cells of a notebook, in order. tests.tools.kernels names a kernel that died.
NBVAL := -p tests.tools.kernels --nbval --nbval-sanitize-with tests/tools/sanitize.cfg --nbval-cell-timeout 600
WORKERS := -n 2 --dist loadfile
# Notebooks wait for their kernels to start: three workers keep two cores busy.
QUICK_WORKERS := -n 3 --dist loadfile
# On a GPU nearly all of the time is the compilers': a worker per core, each with its part of the GPU's memory, and one
# thread for what it compares with. A test is dealt out when a worker is free: some take minutes.
GPU_WORKERS := -n logical --maxprocesses 24 --maxschedchunk 1

NEEDS_GPU = @$(BIN)/python -c 'import torch; torch.cuda.is_available() or exit(1)' || { \
	echo 'make $@: torch finds no NVIDIA GPU here; make test checks the kernels without one.'; exit 1; }

# A checkout that was moved is set up again: .venv has its old path in many files.
$(shell test -x $(BIN)/python && test "$$(cat $(STAMP))" = "$$(pwd)" || rm -f $(STAMP)*)

.PHONY: help lab lint format test test-all test-page test-browser test-gpu test-gpu-values test-gpu-memory notebooks bench site size clean
help:
	@echo 'make lab           the course, in JupyterLab (LAB_ARGS="--port=9999 --no-browser" for another port, no browser)'
	@echo 'make test          the unit tests, and every cell of every notebook; needs no GPU and uses none'
	@echo 'make test-all      the same, then what takes long: every wrong implementation and shape, models of transformers'
	@echo 'make test-page     every figure on its page of the site, and three lessons; needs Chromium'
	@echo 'make test-browser  every figure driven in a real JupyterLab, and all pages of the site; needs Chromium'
	@echo 'make test-gpu      the kernels on this GPU: make test-gpu-values (GPU_TESTS=... for some), make test-gpu-memory'
	@echo 'make lint          ruff and mypy, and Biome for JavaScript; make format fixes what they can fix'
	@echo 'make notebooks     runs the notebooks and stores their outputs (NOTEBOOKS=... for some of them)'
	@echo 'make bench         how fast figures answer a key and notebooks run here'
	@echo 'make site          the course as web pages, in _site/: open _site/index.html'
	@echo 'make size          lines of code by folder'
	@echo 'make clean         removes .venv and caches'

lab: $(STAMP) $(WORKSPACE)
	@$(BIN)/python -m flashlab.course.copies
	@JUPYTERLAB_WORKSPACES_DIR=$(WORKSPACES) $(BIN)/python -m jupyterlab --allow-root --ServerApp.root_dir=. \
		--LabApp.default_url=/lab/tree/notebooks/mine/00_start_here.ipynb $(LAB_ARGS)

# The first layout: the file browser is closed, and a lesson has the width of the window.
$(WORKSPACE): | $(STAMP)
	@mkdir -p $(@D) && cp .jupyter/workspace.json $@

lint: $(TEST_STAMP) $(NODE_STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check --quiet . || { echo "make format writes the files above in ruff's form."; exit 1; }
	$(BIN)/python -m mypy
	$(BIN)/python -m codespell_lib
	@test ! -e $(NODE_STAMP) || $(BIOME) check --error-on-warnings

format: $(TEST_STAMP) $(NODE_STAMP)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	@test ! -e $(NODE_STAMP) || $(BIOME) check --write

test: $(TEST_STAMP)
	$(PLAIN) $(BIN)/python -m pytest -m "not exhaustive" $(QUICK_WORKERS) $(NBVAL) tests notebooks

test-all: test $(TRANSFORMERS_STAMP) $(MEASURED_TRITON)
	$(PLAIN) $(BIN)/python -m pytest -m exhaustive $(WORKERS) $(EXHAUSTIVE_TESTS)

test-page: $(TEST_STAMP) $(BROWSER_STAMP) $(SITE_STAMP)
	$(PLAIN) $(BIN)/python -m pytest tests/browser/test_quick.py

test-browser: $(TEST_STAMP) $(BROWSER_STAMP) $(SITE_STAMP) $(NODE_STAMP)
	$(PLAIN) $(BIN)/python -m pytest $(BROWSER_TESTS)

# Two parts, which can be made alone: the first compiles, and the second, in which kernels are slow, finds them compiled.
test-gpu: test-gpu-values test-gpu-memory

# Failures are printed as they come, for a machine that may be taken away; GPU_TESTS=... are some of the tests.
test-gpu-values: $(TEST_STAMP)
	$(NEEDS_GPU)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(GPU_WORKERS) -p tests.tools.at_once --durations 20 $(GPU_TESTS)

test-gpu-memory: $(TEST_STAMP)
	$(NEEDS_GPU)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.sanitize $(SMALL)

notebooks: $(TEST_STAMP)
	$(PLAIN) $(BIN)/python -m tests.tools.normalise $(NOTEBOOKS)

bench: $(TEST_STAMP) $(BROWSER_STAMP) $(SITE_STAMP)
	$(PLAIN) $(BIN)/python -m tests.tools.browser_bench

site: $(SITE_STAMP)
	$(PLAIN) $(BIN)/python -m docs.build
	@echo 'The site is _site/index.html'

size: $(STAMP)
	@$(BIN)/python -m tests.tools.size

clean:
	rm -rf .venv _site .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The stamp comes last: whatever interrupts the set-up, the next make goes on with it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 14) or sys.exit(1)' 2>/dev/null || { \
		found=$$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo missing); \
		echo "flashlab needs Python 3.11 to 3.14, but $(PYTHON) is $$found:" \
			"install one and name it, as in make lab PYTHON=python3.12."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) comes without its venv module: install it (Debian, Ubuntu: apt-get install python3-venv)" \
			"and run the same command again."; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "The first set-up installs the course's packages in .venv: about 500 MB to download, on Linux with NVIDIA's" \
			"libraries 2,850 MB, then 2 minutes on two cores."; \
		$(PYTHON) -m venv --clear .venv; }
	@$(INSTALL) --editable '.[course]' || { \
		echo "The packages could not be installed, for the reason above: check the network, the proxy and the room" \
			"on the disk, then run the same command again."; exit 1; }
	@printed=$$($(BIN)/python -m jupyterlab.labextensions disable --level=sys_prefix \
		'@jupyterlab/apputils-extension:announcements' 2>&1) || { echo "$$printed"; \
		echo "JupyterLab does not start, for the reason above: run make clean, then the same command again."; \
		exit 1; } # the news pop-up
	@pwd > $@

$(STAMP)-%: $(STAMP)
	@$(INSTALL) --editable '.[$*]' || { \
		echo "The packages for '$*' in pyproject.toml could not be installed, for the reason above: check the network," \
			"then run the same command again."; exit 1; }
	@pwd > $@

$(MEASURED_TRITON): | $(STAMP)
	@$(BIN)/python -m pip install --quiet --no-deps --target $@ "triton==$(@:.venv/triton-%=%); sys_platform == 'linux'"

# Biome, and the checker of accessibility: what the lock file names, and no script of a package.
$(NODE_STAMP): tests/tools/package.json tests/tools/package-lock.json | $(STAMP)
	@command -v npm >/dev/null || { \
		echo "There is no npm here: JavaScript is left out of lint and format, and tests with axe are skipped."; exit 0; }; \
		cp $^ .venv && npm ci --prefix .venv --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@ || { \
		echo "The packages of npm could not be installed, for the reason above: check the network, then run the same" \
			"command again."; exit 1; }

.DEFAULT:
	@echo "There is no 'make $@'; there are:"; $(MAKE) --no-print-directory help; exit 1
