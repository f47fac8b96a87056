#!/usr/bin/env bash
# The part that needs torch under AddressSanitizer, on demand: builds libbottomless with it (torch itself is not), and runs Python
# tests against that build. Leaks are not looked for: Python and torch keep much until the end.
#   scripts/asan_torch.sh                    the tests of what accesses memory in unusual ways
#   scripts/asan_torch.sh ARGUMENT ...       pytest's arguments instead
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}"
install_python_packages pytest
[ $# -gt 0 ] || set -- tests/python/test_{signals,raw_access,forks,runtime,errors,deferred,tiles,optim_states}.py

say "building build/asan-torch"
quietly cmake --preset asan-torch
quietly ninja -C build/asan-torch _core bottomless_preload
cp -r python/bottomless build/asan-torch/python/

say "testing Python programs under AddressSanitizer"
# libstdc++ as well: the sanitizer looks for its functions when it starts, and Python has not loaded it by then.
preloaded="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
# Reports go to files, too: a test may not show what its children print.
rm -f build/asan-torch/report.*
ended=0
# Some tests expect a process to end by SIGSEGV, and it does so without the sanitizer, too.
LD_PRELOAD=$preloaded ASAN_OPTIONS=detect_leaks=0:handle_segv=0:log_path=build/asan-torch/report \
  PYTHONPATH=$PWD/build/asan-torch/python .venv/bin/python -m pytest -q -n0 "$@" || ended=$?
if compgen -G 'build/asan-torch/report.*' >/dev/null; then
  grep -h 'ERROR: AddressSanitizer\|SUMMARY' build/asan-torch/report.* | sort | uniq -c >&2
  echo "AddressSanitizer reported: build/asan-torch/report.*" >&2
  exit 1
fi
exit $ended
