#!/usr/bin/env bash
# Sets up, builds, and runs all tests: the torch-free core plain and under sanitizers, then everything with torch.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}" clang clang-format libgtest-dev libbenchmark-dev python3
install_python_packages transformers accelerate peft safetensors lightning expecttest pytest pytest-xdist scikit-build-core

say "checking the format"
find include src tests bench examples python -name '*.h' -o -name '*.cc' | xargs clang-format --dry-run -Werror

say "checking locks with clang's thread-safety analysis"
build thread-safety -DBOTTOMLESS_TESTS=OFF

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

for preset in dev asan tsan; do
  build $preset
  say "testing the core ($preset)"
  run_ctest $preset -j 2
done

build torch -DBOTTOMLESS_TESTS=ON
install_into_venv
say "testing the C++ parts that need torch"
run_ctest torch -L torch
say "testing Python programs"
.venv/bin/python -m pytest -q -n 2 tests/python
