# Sourced by the other scripts: installs what is missing, builds, and puts bottomless into .venv. Says what it does, and
# nothing when there is nothing to do. Details go to build/setup.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build
log=$PWD/build/setup.log
: >"$log"
# However this was started: no terminal, closed standard input, another locale, a home that cannot be written to.
exec </dev/null
export LC_ALL=C.UTF-8
if [ ! -w "${HOME:-}" ]; then
  export HOME=$PWD/build/home CCACHE_DIR=$PWD/build/ccache PIP_CACHE_DIR=$PWD/build/pip-cache
  mkdir -p "$HOME"
fi
# Compiled once, whichever clone and whichever build folder asks; pip's build too. What ccache wants for precompiled headers.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CMAKE_CXX_COMPILER_LAUNCHER=ccache

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

quietly() {
  "$@" >>"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    echo "failed: $* (all of it in $log)" >&2
    exit 1
  }
}

install_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Debian packages: ${missing[*]}"
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  quietly "${as_root[@]}" apt-get update
  quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

install_python_packages() {
  [ -x .venv/bin/python ] || { say "making .venv"; quietly python3 -m venv .venv; }
  local wanted=(torch==2.13.0 numpy "$@")
  if ! .venv/bin/python - "${wanted[@]}" <<'PY' 2>/dev/null; then
import importlib.metadata as metadata, sys
for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    found = metadata.version(name)
    assert not version or found.split("+")[0] == version
PY
    say "installing Python packages into .venv: ${wanted[*]}"
    # torch first and by itself: anything that asked for another version would pull gigabytes.
    quietly .venv/bin/pip install --disable-pip-version-check torch==2.13.0 numpy
    printf 'torch==2.13.0\n' >build/constraints.txt
    quietly .venv/bin/pip install --disable-pip-version-check -c build/constraints.txt "${wanted[@]}"
  fi
}

# build PRESET [cmake options]: configures and builds; quick when nothing has changed.
build() {
  local preset=$1
  shift
  quietly cmake --preset "$preset" "$@"
  ninja -C "build/$preset" -n 2>/dev/null | grep -q 'no work to do' && return
  say "building build/$preset"
  python3 scripts/build_progress.py "build/$preset" "$log"
}

install_into_venv() {
  local packages
  packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  quietly cmake --install build/torch --component python --prefix "$packages"
  quietly cmake --install build/torch --component python_scripts --prefix .venv
}

base_packages=(build-essential ca-certificates ccache cmake git libcli11-dev libhwy-dev libpcre2-dev liburing-dev
  libutf8proc-dev libxxhash-dev ninja-build nlohmann-json3-dev pkg-config python3-dev python3-venv)
