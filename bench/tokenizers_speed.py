"""Encoding on one thread, beside the PyPI package `tokenizers`: the sources of Python's library, line by line and as whole files.

    tokenizers_speed.py [--probe build/release/tests/text/tokenizer_probe] [--rounds 5]

Learns a GPT-2-like tokenizer of 16,384 tokens first. Both sides are asked in turns; prints medians.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

import tokenizer_models
from tokenizer_probe import PROBE, escape, run


def ours(directory, texts, probe):
    done = run("time", directory, 1, asked="".join(escape(text) + "\n" for text in texts).encode(), probe=probe)
    seconds, tokens = done.stdout.split()
    return float(seconds), int(tokens)


def theirs(tokenizer, texts):
    start = time.perf_counter()
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    return time.perf_counter() - start, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=PROBE)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sources = sorted(tokenizer_models.SOURCES)
    files = [path.read_text(errors="replace") for path in sources]
    with tempfile.TemporaryDirectory() as directory:
        run("train", directory, 16384, asked="".join(f"{path}\n" for path in sources).encode(), probe=arguments.probe)
        tokenizer = tokenizers.Tokenizer.from_file(f"{directory}/tokenizer.json")
        for name, texts in [("lines", [line for text in files for line in text.splitlines()]), ("files", files)]:
            megabytes = sum(len(text.encode()) for text in texts) / 1e6
            measured = [(ours(directory, texts, arguments.probe), theirs(tokenizer, texts)) for _ in range(arguments.rounds)]
            assert all(mine[1] == other[1] for mine, other in measured), "not the same tokens"
            mine, other = (megabytes / statistics.median(one[side][0] for one in measured) for side in (0, 1))
            print(f"{name}: {megabytes:.1f} MB, ours {mine:.1f} MB/s, tokenizers {other:.1f} MB/s, {mine / other:.1f} times as fast")


if __name__ == "__main__":
    main()
