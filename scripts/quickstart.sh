#!/usr/bin/env bash
# Sets up, builds, trains a new GPT of 11M parameters inside 64 MiB on the sources of Python's package json, and lets it write.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}"
install_python_packages
build torch -DBOTTOMLESS_TESTS=OFF
install_into_venv

steps=${1:-400}
out=build/quickstart
rm -rf "$out"
mkdir -p "$out/disk"
library=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
say "training a GPT of 11M parameters in 64 MiB on Python's package json, $steps steps"
# Little text, read 14 times: so that a few minutes are enough to learn it. A higher rate, or one that rises faster, makes the loss jump.
.venv/bin/bottomless train --model gpt-30m --vocabulary 1024 --data "$library/json" --memory 64MiB --disk "$out/disk" --out "$out/run" \
  --steps "$steps" --length 256 --batch 2 --lr 5e-4 --warm-up 40
say "what it would write"
.venv/bin/bottomless generate --model "$out/run" --prompt 'class JSONDecoder(object):' --tokens 120 --temperature 0.5 --top-k 40 --memory 64MiB --disk "$out/disk"
say "how it went, as a page: $out/run/report.html"
say "next: the same for a model of 350M parameters in 1 GiB (--model gpt-350m --memory 1GiB), or your own program:"
say "      .venv/bin/bottomless run --memory 1GiB --disk /tmp your_script.py"
