#!/usr/bin/env bash
# clang-tidy on the sources that were changed lately: by the last ten commits, or since BOTTOMLESS_TIDY_SINCE, and in the working
# tree. Of more than a dozen a sample that differs from commit to commit; `scripts/tidy.sh FILE ...` takes just these.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}" clang-tidy libgtest-dev libbenchmark-dev
install_python_packages
since=${BOTTOMLESS_TIDY_SINCE:-HEAD~10}
if [ $# -gt 0 ]; then
  files=("$@")
elif git rev-parse -q --verify "$since^{commit}" >/dev/null; then
  mapfile -t files < <(git diff --name-only --diff-filter=d "$since" -- 'src/*.cc' 'python/*.cc' |
    shuf --random-source=<(yes "$(git rev-parse HEAD)") -n 12 | sort)
else
  files=() # a clone without history
fi
[ ${#files[@]} -gt 0 ] || exit 0
# Commands for single files, without what only gcc can read.
quietly cmake --preset torch -B build/tidy -DBOTTOMLESS_UNITY=OFF -DBOTTOMLESS_PRECOMPILE=OFF -DBOTTOMLESS_TESTS=OFF
say "checking with clang-tidy: ${files[*]}"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/tidy 2>>"$log"
