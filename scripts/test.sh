#!/usr/bin/env bash
# Sets up, builds, and runs all tests: the torch-free core under sanitizers (with clang's analysis of locks), then everything.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}" clang clang-format libclang-rt-dev libgtest-dev libbenchmark-dev iproute2 openmpi-bin python3
# Those that others' models are made with: a new release has broken a configuration before.
install_python_packages transformers==5.23.0 accelerate==1.15.0 peft==0.21.2 lightning==2.6.6 safetensors sentencepiece expecttest \
  pytest pytest-xdist scikit-build-core tensorboard

say "checking the format"
find include src tests bench examples python -name '*.h' -o -name '*.cc' | xargs clang-format --dry-run -Werror

# run_ctest PRESET [ctest options]: one line when all is well, what failed and how otherwise.
run_ctest() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error "$@" >"build/$preset/tests.log" 2>&1 || {
    tail -n 120 "build/$preset/tests.log" >&2
    exit 1
  }
  grep 'tests passed' "build/$preset/tests.log"
}

for preset in asan tsan; do
  build $preset
  say "testing the core ($preset)"
  run_ctest $preset -j 2
done

build torch -DBOTTOMLESS_TESTS=ON
install_into_venv
say "testing the core"
run_ctest torch -LE torch -j 2
say "testing the C++ parts that need torch"
run_ctest torch -L torch
say "testing Python programs"
.venv/bin/python -m pytest -q -n 2 tests/python
