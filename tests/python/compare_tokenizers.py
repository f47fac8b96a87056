"""Compares our tokenizers with those of PyPI on many lines of varied Unicode: ids, and the text decoded from them.

    compare_tokenizers.py [--probe build/release/tests/tokenizers/tokenizer_probe] [--lines 1000000] [--seed 1] [model ...]

Prints one line for each model, and every difference up to a few; exits 1 if there is any.
"""

import argparse
import itertools
import pathlib
import sys
import tempfile

import tokenizer_models
from tokenizer_probe import ask, escape


class Oracle:
    """The two packages behind one face."""

    def __init__(self, name, directory):
        self.name, self.directory = name, directory
        self.is_json = name in tokenizer_models.JSON_MODELS
        make = tokenizer_models.make_json if self.is_json else tokenizer_models.make_sentencepiece
        self.made = make(name, directory)

    def encode(self, texts):
        if self.is_json:
            return [one.ids for one in self.made.encode_batch_fast(texts, add_special_tokens=False)]
        return self.made.encode(texts)

    def decode(self, ids):
        return self.made.decode_batch(ids, skip_special_tokens=False) if self.is_json else self.made.decode(ids)


def differences(probe, oracle, texts):
    """What differs: (text, its ids, our ids), and (ids, their text, our text)."""
    expected = oracle.encode(texts)
    answers = ask("ids", oracle.directory, [escape(text) for text in texts], probe)
    for text, ids, answer in zip(texts, expected, answers):
        if " ".join(map(str, ids)) != answer:
            yield text, ids, answer
    decoded = ask("text", oracle.directory, [" ".join(map(str, ids)) for ids in expected], probe)
    for ids, text, answer in zip(expected, oracle.decode(expected), decoded):
        if escape(text) != answer:
            yield ids, escape(text), answer


def compare(probe, name, count, seed, batch=20000):
    """How many lines differ."""
    with tempfile.TemporaryDirectory() as directory:
        oracle = Oracle(name, pathlib.Path(directory) / name)
        made, found = tokenizer_models.lines(count, seed), 0
        while texts := list(itertools.islice(made, batch)):
            for difference in differences(probe, oracle, texts):
                found += 1
                if found <= 5:
                    print("different:", *map(repr, difference), sep="\n  ")
    print(f"{name}: {count} lines with seed {seed}, {found} differences", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*tokenizer_models.JSON_MODELS, *tokenizer_models.SENTENCEPIECE_MODELS]
    parser.add_argument("--probe", help="the program to ask; that of a build in build/ if not given")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("models", nargs="*", default=known, metavar="model")
    arguments = parser.parse_args()
    return 1 if sum(compare(arguments.probe, name, arguments.lines, arguments.seed) for name in arguments.models) else 0


if __name__ == "__main__":
    sys.exit(main())
