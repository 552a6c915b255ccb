# Everything a newcomer needs: `make demo` and `make test`. Both set up `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo check test lint bench clean

help:
	@echo "make demo   train on one worker, two threads, two MPI processes, and compare"
	@echo "make check  lint, types and the quick tests, for every edit"
	@echo "make test   lint, types and the whole test suite"
	@echo "make setup  only make .venv and install"
	@echo "make bench  compare with a plain PyTorch loop and with PyTorch DDP"
	@echo "make clean  remove .venv and caches"

setup: $(VENV)/.ready

# The constraints pin every package, so that a fresh machine gets what the tests ran with.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mpich,ray,test]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The quick tests: rules, and unit tests but for the files that tests/conftest.py calls slow.
check: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" tests/unit tests/test_architecture.py

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

bench: setup
	$(BIN)/python benchmarks/peers/run.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
