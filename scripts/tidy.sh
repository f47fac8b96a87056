#!/usr/bin/env bash
# clang-tidy on the lines that were changed lately: by the last ten commits, or since BOTTOMLESS_TIDY_SINCE, and in the working
# tree. Of more than eight files a sample that differs from commit to commit; `scripts/tidy.sh FILE ...` takes all lines of these.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}" clang-tidy
install_python_packages
since=${BOTTOMLESS_TIDY_SINCE:-HEAD~10}
filter=()
if [ $# -gt 0 ]; then
  files=("$@")
elif git rev-parse -q --verify "$since^{commit}" >/dev/null; then
  mapfile -t files < <(git diff --name-only --diff-filter=d "$since" -- 'src/*.cc' 'python/*.cc' |
    shuf --random-source=<(yes "$(git rev-parse HEAD)") -n 8 | sort)
  # [{"name": "src/x.cc", "lines": [[first, last], ...]}, ...], headers too.
  filter=("-line-filter=$(git diff -U0 "$since" -- '*.cc' '*.h' | awk '
    /^\+\+\+ b\// { file = substr($2, 3) }
    /^@@/ { split(substr($3, 2), at, ","); count = (at[2] == "") ? 1 : at[2]
            if (count > 0) lines[file] = lines[file] (lines[file] ? "," : "") "[" at[1] "," at[1] + count - 1 "]" }
    END { printf "["; for (file in lines) printf "%s{\"name\":\"%s\",\"lines\":[%s]}", (n++ ? "," : ""), file, lines[file]; printf "]" }')")
else
  files=() # a clone without history
fi
[ ${#files[@]} -gt 0 ] || exit 0
# Commands for single files, without what only gcc can read.
quietly cmake --preset torch -B build/tidy -DBOTTOMLESS_UNITY=OFF -DBOTTOMLESS_PRECOMPILE=OFF -DBOTTOMLESS_TESTS=OFF
say "checking with clang-tidy: ${files[*]}"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet "${filter[@]}" -p build/tidy 2>>"$log"
