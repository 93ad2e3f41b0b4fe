# Everything a newcomer needs: `make demo` and `make test` set up all they use in .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORE := $(shell find cpp -name '*.cpp' -o -name '*.h') CMakeLists.txt pyproject.toml
# Tools from the virtual environment (cmake, ninja, clang-format) before the system's.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup demo test test-cpp test-python lint format build-sanitized sanitize build-fuzz fuzz soak bench clean

setup: $(STAMP)

$(VENV)/.dependencies: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy typer rich
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['dev'])")
	touch $@

$(STAMP): $(VENV)/.dependencies $(CORE)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $@

demo: setup
	$(BIN)/optireduce demo --out reports/demo

test: setup lint test-cpp test-python

test-cpp: setup
	cmake --preset test
	cmake --build --preset test
	ctest --preset test -j 2

test-python: setup
	$(BIN)/pytest

# The core's own tests under ASan+UBSan, and under TSan those that have threads.
THREADED := test_engine test_engine_sleep test_multicast_sockets test_turns
build-sanitized: setup
	cmake --preset asan && cmake --build --preset asan
	cmake --preset tsan && cmake --build --preset tsan --target $(THREADED)

sanitize: build-sanitized
	ctest --preset asan -j 2
	ctest --preset tsan -R "^($$(echo $(THREADED) | tr ' ' '|'))$$"

# Hostile packets against the core, for FUZZ_SECONDS in all: with libFuzzer where there is clang, else with a driver
# of our own (tests/fuzz).
FUZZ_SECONDS ?= 60
FUZZ_CXX := $(shell command -v clang++ || echo g++)
build-fuzz: setup
	CXX=$(FUZZ_CXX) cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_decode fuzz_group

fuzz: build-fuzz
	tests/fuzz/run decode $$(($(FUZZ_SECONDS) / 6))
	tests/fuzz/run group $$(($(FUZZ_SECONDS) - $(FUZZ_SECONDS) / 6))

# All-reduces and training in a lab under faults that take turns (docs/reliability.md). Needs root or user namespaces.
# SANITIZER=address (ASan and UBSan) or thread (TSan): the ranks run with a core built under it.
SOAK_MINUTES ?= 10
soak: setup
ifdef SANITIZER
	tests/soak/sanitized $(SANITIZER) $(SOAK_MINUTES)
else
	$(BIN)/optireduce lab soak --minutes $(SOAK_MINUTES)
endif

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h')

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h')

bench: setup
	$(BIN)/optireduce bench --backends gloo,optireduce --nproc 2,4,8 --sizes 64K,1M,25M,100M

clean:
	rm -rf build $(VENV)
