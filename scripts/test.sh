#!/usr/bin/env bash
# Sets up, builds, and runs all tests: the torch-free core plain and under sanitizers, then everything with torch.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}" clang clang-format libgtest-dev libbenchmark-dev python3
install_python_packages transformers accelerate peft safetensors lightning expecttest pytest pytest-xdist scikit-build-core

say "checking the format"
find include src tests bench examples python -name '*.h' -o -name '*.cc' | xargs clang-format --dry-run -Werror

say "checking locks with clang's thread-safety analysis"
build thread-safety -DBOTTOMLESS_TESTS=OFF

for preset in dev asan tsan; do
  build $preset
  say "testing the core ($preset)"
  ctest --test-dir build/$preset --output-on-failure --no-tests=error -j 2 | tail -n 4
done

build torch -DBOTTOMLESS_TESTS=ON
install_into_venv
say "testing the C++ parts that need torch"
ctest --test-dir build/torch -L torch --output-on-failure --no-tests=error | tail -n 4
say "testing Python programs"
.venv/bin/python -m pytest -q -n 2 tests/python
