#!/usr/bin/env bash
# Sets up, builds, and runs all tests: checks of the sources, the torch-free core under sanitizers (with clang's analysis of
# locks), then everything. At its end it says how long each stage took.
#   scripts/test.sh            all of it
#   scripts/test.sh STAGE      one of: checks asan tsan core torch python
#   scripts/test.sh PATTERN    the tests whose names contain it, in C++ (under asan, and with torch) and in Python
source "$(dirname "$0")/setup.sh"
stages=(checks asan tsan core torch python)
pattern=${1:-}
for stage in "${stages[@]}"; do [ "$pattern" = "$stage" ] && stages=("$stage") pattern=; done
[ -n "$pattern" ] && stages=(asan core torch python)

install_packages "${base_packages[@]}" clang clang-format clang-tidy libclang-rt-dev libgtest-dev libbenchmark-dev iproute2 \
  openmpi-bin python3
# Those that others' models are made with: a new release has broken a configuration before.
install_python_packages transformers==5.23.0 accelerate==1.15.0 peft==0.21.2 lightning==2.6.6 trl==1.16.0 safetensors sentencepiece \
  expecttest pytest pytest-xdist scikit-build-core tensorboard

# run_ctest PRESET [ctest options]: one line when all is well, what failed and how otherwise.
run_ctest() {
  local preset=$1 report=build/$1/tests.log
  shift
  ctest --test-dir "build/$preset" --output-on-failure ${pattern:+-R "$pattern"} "$@" >"$report" 2>&1 || {
    grep -A 40 -m 3 'Failed  \|\*\*\*Failed\|\*\*\*Exception\|\*\*\*Timeout' "$report" >&2
    sed -n '/tests passed/,$p' "$report" >&2
    exit 1
  }
  grep 'tests passed' "$report" || { [ -n "$pattern" ] || { echo "no test was found in build/$preset" >&2; exit 1; }; }
}

build_torch() {
  build torch -DBOTTOMLESS_TESTS=ON
  install_into_venv
}

run_checks() {
  say "checking the format"
  git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror
  scripts/tidy.sh
}
run_asan() { build asan; say "testing the core under AddressSanitizer and UBSan"; run_ctest asan -j 3; }
run_tsan() { build tsan; say "testing the core under ThreadSanitizer"; run_ctest tsan -j 3; }
run_core() { build_torch; say "testing the core"; run_ctest torch -LE torch -j 3; }
run_torch() { build_torch; say "testing the C++ parts that need torch"; run_ctest torch -L torch; }
run_python() {
  build_torch
  say "testing Python programs"
  local ended=0
  .venv/bin/python -m pytest -q -n 2 --dist worksteal --durations=10 ${pattern:+-k "$pattern"} tests/python || ended=$?
  [ $ended -eq 0 ] || [ $ended -eq 5 -a -n "$pattern" ] || exit $ended # 5: nothing has that name
}

took=()
for stage in "${stages[@]}"; do
  began=$SECONDS
  "run_$stage"
  took+=("$(printf '%-8s %3d min %02d s' "$stage" $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)))")
done
say "how long each stage took, its build included"
printf '    %s\n' "${took[@]}" "$(printf '%-8s %3d min %02d s' all $((SECONDS / 60)) $((SECONDS % 60)))"
if [ $SECONDS -gt 2400 ]; then say "more than 40 minutes: the suite wants thinning, see --durations"; fi
