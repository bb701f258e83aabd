# Every target works on a fresh clone with Python 3.11+, pip and make: .venv is created when it is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Four methods on the embedded data set, two at a time with one thread each.
demo: $(READY)
	$(BIN)/spectail compare --preset demo --device cpu --jobs 2 --threads 1 --output runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/car_step.py
	$(BIN)/python benchmarks/batch_path.py
	$(BIN)/python benchmarks/data_sets.py
	$(BIN)/python benchmarks/loop.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
