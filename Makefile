# make demo | check | test | lint | docs | bench | federated | lowest | soak | clean: each makes its
# own .venv; only Python 3.11+ is needed.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE # tests start processes, and each would compile the package again

.PHONY: demo check test lint docs bench federated lowest soak clean

demo: .venv/.runtime
	$(BIN)/fmrl demo

# Lint and the tests that take less than a second, in about a minute: for every save.
check: lint
	$(BIN)/python -m pytest -m "not slow"

test: lint
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: .venv/.bench
	$(BIN)/python benchmarks/convex.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/practice.py --out build/practice
	$(BIN)/python benchmarks/grouped.py --only fmrl --out build/practice/grouped

# Flower needs other versions than the rest, hence a venv of its own. Its tests start Flower's
# simulation runtime, and a SuperLink with SuperNodes, on this machine: a minute or two.
federated: .venv-federated/.done
	.venv-federated/bin/python -m pytest -n 0 tests/federated src/fmrl/federated

# The fast tests with the oldest version of everything the package asks for.
lowest: .venv-lowest/.done
	.venv-lowest/bin/python -m pytest -m "not slow"

# About an hour of abuse on two cores; stopped, it goes on where it was. One table: results/soak.
soak: .venv/.dev
	$(BIN)/python benchmarks/soak

# The pages come from the docstrings and the records as they are; a broken link or name is an error.
docs: .venv/.docs
	$(BIN)/python scripts/write_practice.py --check
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-federated .venv-lowest fmrl-demo build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv-federated/.done: pyproject.toml constraints-federated.txt
	$(PYTHON) -m venv .venv-federated
	.venv-federated/bin/python -m pip install --quiet -c constraints-federated.txt \
		-e ".[federated]" pytest pytest-xdist
	touch $@

.venv-lowest/.done: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet -c constraints-lowest.txt -e ".[dev]"
	touch $@

.venv/.runtime: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ .venv/.runtime

.venv/.bench: .venv/.dev
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	touch $@

.venv/.docs: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@ .venv/.runtime
