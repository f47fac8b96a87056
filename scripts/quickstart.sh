#!/usr/bin/env bash
# Sets up, builds, and trains a GPT of 120M parameters twice: with all the memory it wants, and with a quarter of it.
source "$(dirname "$0")/setup.sh"
install_packages "${base_packages[@]}"
install_python_packages
build torch -DBOTTOMLESS_TESTS=OFF
install_into_venv

steps=${1:-5}
out=build/quickstart
mkdir -p "$out/disk"
# One math mode for both runs: MKL may otherwise choose its code by the alignment of an address.
export MKL_CBWR=COMPATIBLE
say "training a GPT of 120M parameters, $steps steps, without a limit"
build/torch/examples/cpp/train_gpt --steps "$steps" --json "$out/unlimited.json"
memory=$(.venv/bin/python scripts/compare_runs.py --share 0.25 "$out/unlimited.json")
say "the same in a quarter of that memory: $((memory >> 20)) MiB"
build/torch/examples/cpp/train_gpt --steps "$steps" --memory "${memory}B" --disk "$out/disk" --json "$out/limited.json"
say "what it took"
.venv/bin/python scripts/compare_runs.py "$out/unlimited.json" "$out/limited.json"
say "next: .venv/bin/bottomless run --memory 1GiB --disk /tmp your_script.py"
