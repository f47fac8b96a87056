"""Whole training steps of `bottomless train` with all the memory it wants, beside transformers and torch's fused AdamW.

    .venv/bin/python bench/train_tokens.py [--batch 4] [--length 256] [--accumulate 1] [--steps 6] [--rounds 3]

GPT-2 124M without dropout, gradients clipped, float32. Both take turns, round by round; medians over all steps but the first
of each round. The tokenizer only knows bytes, and has as many tokens as the model: what it says does not matter here.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

import tokenizers
import torch
import transformers

BINARY = pathlib.Path(sys.executable).parent / "bottomless"


def write_model(directory):
    config = transformers.GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(directory)
    tokens = [*tokenizers.pre_tokenizers.ByteLevel.alphabet(), *(f"unused{i}" for i in range(config.vocab_size - 257)), "<|endoftext|>"]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": config.vocab_size - 1, "content": "<|endoftext|>", "special": True, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False}
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return model


def ours(directory, options, out):
    text = pathlib.Path(sysconfig.get_path("stdlib")) / "argparse.py"
    command = [BINARY, "train", "--model", directory, "--data", text, "--out", out, "--steps", options.steps]
    command += ["--length", options.length, "--batch", options.batch, "--accumulate", options.accumulate]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [step["step_seconds"] for step in steps[1:]]


def theirs(model, optimizer, options):
    seconds = []
    for _ in range(options.steps):
        rows = torch.randint(0, 256, (options.accumulate, options.batch, options.length))
        begin = time.perf_counter()
        for batch in rows:
            (model(batch, labels=batch).loss / options.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("batch", 4), ("length", 256), ("accumulate", 1), ("steps", 6), ("rounds", 3)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "model").mkdir()
        model = write_model(scratch / "model").train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        took = {"bottomless train": [], "transformers": []}
        for turn in range(options.rounds):
            took["bottomless train"] += ours(scratch / "model", options, scratch / f"run{turn}")
            took["transformers"] += theirs(model, optimizer, options)
    tokens = options.batch * options.length * options.accumulate
    for name, seconds in took.items():
        middle = statistics.median(seconds)
        print(f"{name:18} {middle:7.3f} s a step {tokens / middle:8.1f} tokens/s")
    ratio = statistics.median(took["transformers"]) / statistics.median(took["bottomless train"])
    print(f"{ratio:.2f} of the tokens/s of transformers")


if __name__ == "__main__":
    main()
