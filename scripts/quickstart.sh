#!/usr/bin/env bash
# Sets up, builds, trains a new GPT of 350M parameters inside 1 GiB on the sources of Python's standard library, and lets it write.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}"
install_python_packages
build torch -DBOTTOMLESS_TESTS=OFF
install_into_venv

steps=${1:-12}
out=build/quickstart
rm -rf "$out"
mkdir -p "$out/disk"
library=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
say "training a GPT of 350M parameters in 1 GiB on the Python standard library, $steps steps"
.venv/bin/bottomless train --model gpt-350m --data "$library"/*.py --memory 1GiB --disk "$out/disk" --out "$out/run" \
  --steps "$steps" --length 256 --batch 2 --accumulate 2 --lr 6e-4 --warm-up 2
say "what it would write"
.venv/bin/bottomless generate --model "$out/run" --prompt 'def ' --tokens 60 --temperature 0.8 --top-k 40 --memory 1GiB --disk "$out/disk"
say "how it went, as a page: $out/run/report.html"
say "next: .venv/bin/bottomless run --memory 1GiB --disk /tmp your_script.py"
