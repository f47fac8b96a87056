"""Encoding on one thread, beside the PyPI packages `tokenizers` and `sentencepiece`.

    tokenizers_speed.py [--probe build/release/tests/tokenizers/tokenizer_probe] [--rounds 5] [model ...]

Texts: the sources of Python's library, line by line and as whole files, and lines of varied Unicode. Models: those of
tests/python/tokenizer_models.py, and `learned`, a GPT-2-like one of 16,384 tokens learned from the sources. Each package is asked by its
fastest call, for all texts at once. Both sides are asked in turns; prints medians.
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

LINES = 20_000
SOURCES = sorted(tokenizer_models.SOURCES)


def ours(directory, texts, probe):
    done = run("time", directory, 1, asked="".join(escape(text) + "\n" for text in texts).encode(), probe=probe)
    seconds, tokens = done.stdout.split()
    return float(seconds), int(tokens)


def theirs(encode, texts):
    start = time.perf_counter()
    encoded = encode(texts)
    return time.perf_counter() - start, sum(map(len, encoded))


def of_json(tokenizer):
    return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False)


def make(name, directory, probe):
    """How the package encodes; our files are in the directory then."""
    if name == "learned":
        run("train", directory, 16384, asked="".join(f"{path}\n" for path in SOURCES).encode(), probe=probe)
        return of_json(tokenizers.Tokenizer.from_file(f"{directory}/tokenizer.json"))
    if name in tokenizer_models.JSON_MODELS:
        return of_json(tokenizer_models.make_json(name, directory))
    model = tokenizer_models.make_sentencepiece(name, directory)
    return lambda texts: model.encode(texts, num_threads=1)


def main():
    known = ["learned", *tokenizer_models.JSON_MODELS, *tokenizer_models.SENTENCEPIECE_MODELS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=PROBE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("models", nargs="*", default=known, metavar="model")
    arguments = parser.parse_args()
    files = [path.read_text(errors="replace") for path in SOURCES]
    kinds = {
        "lines": [line for text in files for line in text.splitlines()],
        "files": files,
        "unicode": list(tokenizer_models.lines(LINES, seed=1)),
    }
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as directory:
            encode = make(name, pathlib.Path(directory), arguments.probe)
            for kind, texts in kinds.items():
                megabytes = sum(len(text.encode()) for text in texts) / 1e6
                measured = [(ours(directory, texts, arguments.probe), theirs(encode, texts)) for _ in range(arguments.rounds)]
                assert all(mine[1] == other[1] for mine, other in measured), "not the same tokens"
                mine, other = (megabytes / statistics.median(one[side][0] for one in measured) for side in (0, 1))
                print(f"{name:16} {kind:8} {megabytes:4.1f} MB, ours {mine:5.1f} MB/s, PyPI's {other:5.1f} MB/s: {mine / other:5.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
