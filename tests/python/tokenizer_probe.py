"""Finds and asks tests/tokenizers/tokenizer_probe, the program through which tests here reach our tokenizers."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = [ROOT / "build" / preset / "tests" / "tokenizers" / "tokenizer_probe" for preset in ("torch", "release", "dev")]
PROBE = os.environ.get("BOTTOMLESS_TOKENIZER_PROBE") or next((str(place) for place in PLACES if place.exists()), None)

needs_probe = pytest.mark.skipif(PROBE is None, reason="tokenizer_probe is not built: build with -DBOTTOMLESS_TESTS=ON")


def run(*arguments, asked=b"", probe=None):
    return subprocess.run([probe or PROBE, *map(str, arguments)], input=asked, capture_output=True)


def ask(verb, argument, questions, probe=None):
    """One answer for each question, in order. Questions are lines; bytes are taken as they are."""
    asked = b"".join((one if isinstance(one, bytes) else one.encode()) + b"\n" for one in questions)
    done = run(verb, argument, asked=asked, probe=probe)
    assert done.returncode == 0, done.stderr.decode()
    answers = done.stdout.decode().split("\n")[:-1]
    assert len(answers) == len(questions), (len(answers), len(questions))
    return answers


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n")
