# Every target works on a fresh clone with Python 3.11+, pip and make: .venv is created when it is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-cpus package test-browser test-cluster test-compile test-integrations docs lint bench attack attack-short clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The best classifier for the embedded data set, from scratch, with its report.
demo: $(READY)
	$(BIN)/spectail fit glyphs-lt --model small-cnn --device cpu

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/package

# Tests that depend on arithmetic, as on other processors: no vector instructions, AVX2 at most, and two threads. Large
# matrices and most compilations are left to `make test`. MKL heeds MKL_ENABLE_INSTRUCTIONS on Intel's processors only,
# MKL_CBWR on all.
NUMERIC := tests/test_car.py tests/test_worst_norm.py tests/test_fixed_path.py tests/test_spectral.py tests/test_single_precision.py tests/test_surrogate.py \
	tests/test_functional.py tests/test_losses.py tests/test_metrics.py tests/augment \
	tests/theory/test_bound.py tests/theory/test_inequalities.py tests/theory/test_network.py \
	tests/training/test_loop.py::test_probe_computes_a_feature_once_for_all_cuts_of_the_data
LIGHT := not process and not thousands and not 200 and not 700 and not compiled_evaluation and not compiled_is_eager_for
CPUS := "ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem" \
	"ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 OPENBLAS_CORETYPE=Haswell" "SPECTAIL_THREADS=2"

test-cpus: $(READY)
	for cpu in $(CPUS); do echo "$$cpu"; env $$cpu $(BIN)/python -m pytest $(NUMERIC) -k "$(LIGHT)" || exit 1; done

# Wheel and sdist: what is in them, and whether the wheel works in an empty environment.
package: $(READY)
	$(BIN)/python -m pytest tests/package

# The report and the site in a real browser. Debian's packages; other systems set CHROMIUM and CHROMEDRIVER. Where there is
# npm, axe-core looks at them too.
AXE := $(VENV)/axe/node_modules/axe-core/axe.min.js
test-browser: $(READY)
	command -v chromedriver >/dev/null || [ -n "$$CHROMEDRIVER" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; }
	[ -f $(AXE) ] || ! command -v npm >/dev/null || npm install --silent --no-save --prefix $(VENV)/axe axe-core@4
	SPECTAIL_BROWSER=1 SPECTAIL_AXE=$$(ls $(AXE) 2>/dev/null) $(BIN)/python -m pytest tests/browser

# Many runs on a Ray cluster of two nodes, which the tests start on this machine and kill.
test-cluster: $(READY)
	SPECTAIL_CLUSTER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster

# Every method with the kernels that torch.compile makes, which takes a C++ compiler; `make test` compiles without kernels.
test-compile: $(READY)
	SPECTAIL_COMPILE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/compile

# Examples and adapters in the frameworks of others, which are large: installed here only.
test-integrations: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[integrations]'
	SPECTAIL_INTEGRATIONS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/integrations src/spectail/integrations

# The documentation site, in site/.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet -d site

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/car_step.py
	$(BIN)/python benchmarks/batch_path.py
	$(BIN)/python benchmarks/data_sets.py
	$(BIN)/python benchmarks/loop.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/memory_format.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/allocator.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/tuning.py
	$(BIN)/python benchmarks/meta_sampler.py
	$(BIN)/python benchmarks/analyse.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/label_issues.py
	$(BIN)/python benchmarks/ema_stability.py
	$(BIN)/python benchmarks/mixing.py --pairs 24
	$(BIN)/python benchmarks/metasaug.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/array_classifier.py

# Everything that must not happen, tried: bad input, kills, damage, hostile files, two writers, full disks. Not in CI.
attack: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m attack

attack-short: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m attack --short

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
