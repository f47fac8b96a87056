"""Options of `bottomless train`: each that should change the trained weights does, and every option is known to this test."""

import json
import pathlib
import re
import sys

import pytest
import torch
from helpers import run

transformers = pytest.importorskip("transformers")

BINARY = pathlib.Path(sys.executable).parent / "bottomless"
TEXT = pathlib.Path(json.__file__).with_name("decoder.py").read_text()

# What a run has, beside which each option is set: rates high enough that few steps tell runs apart.
USUAL = {"--steps": "4", "--length": "32", "--lr": "0.01", "--warm-up": "1"}
ADAPTERS = {"--lora": "2"}
CHANGES = [
    ("--steps", "5", {}), ("--length", "48", {}), ("--batch", "2", {}), ("--accumulate", "2", {}), ("--seed", "3", {}),
    ("--epochs", "0.2", {"--steps": None}), ("--eval", "0.4", {}),
    ("--lr", "0.02", {}), ("--schedule", "linear", {"--steps": "6"}), ("--schedule", "constant", {}), ("--warm-up", "3", {}), ("--final-lr", "0.9", {}),
    ("--clip", "0.01", {}), ("--clip", "0", {}), ("--dropout", "0.5", {}), ("--precision", "bfloat16", {}),
    ("--train", "h.1.", {}), ("--freeze", "h.1.", {}),
    *[("--optimizer", name, {}) for name in ["adam", "sgd", "adagrad", "lion", "adafactor"]],
    *[("--weight-decay", "0.5", {"--optimizer": name}) for name in ["adamw", "adam", "sgd", "adagrad", "lion", "adafactor"]],
    *[("--weight-decay", "0.5", {"--optimizer": name, "--clip": "0"}) for name in ["adamw", "sgd"]],
    *[(beta, "0.3", {"--optimizer": name}) for name in ["adamw", "adam", "lion"] for beta in ["--beta1", "--beta2"]],
    ("--momentum", "0.3", {"--optimizer": "sgd"}),
    *[("--states", states, {"--optimizer": name}) for name in ["adamw", "sgd", "adagrad", "lion"] for states in ["bfloat16", "8bit"]],
    ("--lora", "2", {}), ("--lora", "3", ADAPTERS), ("--lora-alpha", "64", ADAPTERS), ("--lora-dropout", "0.5", ADAPTERS),
    ("--lora-targets", "c_fc", ADAPTERS),
]  # fmt: skip
# Another model or other data, which other tests have, or what must change no bit.
OTHERS = {
    "--model", "--data", "--out", "--tokenizer", "--vocabulary", "--resume", "--memory", "--disk", "--disk-limit", "--stage", "--deadline",
    "--merge", "--eval-every", "--save-every", "--save-minutes", "--dry-run", "--json", "--help",
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny model with a tokenizer, and documents."""
    directory = tmp_path_factory.mktemp("base")
    (directory / "data").mkdir()
    for number, part in enumerate(re.split(r"\n\n+", TEXT)):
        (directory / "data" / f"{number:03}.txt").write_text(part + "\n")
    outcome = run([BINARY, "train", "--model", "gpt-10m", "--data", directory / "data", "--out", directory / "run", "--vocabulary", "400",
                   "--length", "32", "--steps", "1"])  # fmt: skip
    assert outcome.code == 0, outcome.err
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory / "run" / "model")
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64, vocab_size=len(tokenizer),
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    return directory


@pytest.fixture(scope="module")
def trained(base):
    """The bits that a run with these options leaves; each run once."""
    found = {}

    def weights(options):
        key = tuple(sorted((name, value) for name, value in options.items() if value is not None))
        if key not in found:
            out = base / f"run{len(found)}"
            words = [word for pair in key for word in pair]
            outcome = run([BINARY, "train", "--model", base / "model", "--data", base / "data", "--out", out, *words])
            assert outcome.code == 0, outcome.err
            part = "adapter/adapter_model.safetensors" if "--lora" in options else "model/model.safetensors"
            found[key] = (out / part).read_bytes()
        return found[key]

    return weights


@pytest.mark.parametrize("name, value, beside", CHANGES)
def test_an_option_changes_the_weights(trained, name, value, beside):
    without = USUAL | beside
    assert trained(without | {name: value}) != trained(without), f"{name} {value} has no effect"


def test_every_option_is_in_a_list_here():
    outcome = run([BINARY, "train", "--help"])
    assert outcome.code == 0, outcome.err
    offered = set(re.findall(r"^\s+(?:-\w,)?(--[a-z0-9-]+)", outcome.out, re.MULTILINE))
    assert offered == {name for name, _, _ in CHANGES} | OTHERS


@pytest.mark.parametrize("words, said", [
    (["--lr", "2x"], "--lr: '2x' is not a number from 0 on"),
    (["--lr", "-1"], "--lr: '-1' is not a number from 0 on"),
    (["--lr", "nan"], "--lr: 'nan' is not a number from 0 on"),
    (["--lr", "1e999"], "--lr: '1e999' is not a number from 0 on"),
    (["--steps", "0"], "--steps: '0' is not a number above 0"),
    (["--beta2", "1"], "--beta2: '1' is not a number from 0 to 0.9999999"),
    (["--stage", "4"], "--stage: '4' is not a number from 1 to 3"),
    (["--weigth-decay", "1"], "there is no option '--weigth-decay'; did you mean '--weight-decay'?"),
])  # fmt: skip
def test_a_value_or_a_name_that_is_wrong_is_named(tmp_path, words, said):
    outcome = run([BINARY, "train", "--model", "gpt-10m", "--data", "x", "--out", tmp_path / "run", *words])
    assert outcome.code == 2, outcome.err
    assert outcome.err.splitlines()[0] == f"bottomless: {said}"


def test_a_name_that_is_wrong_is_named_before_what_is_missing():
    outcome = run([BINARY, "train", "--modle", "gpt-10m"])
    assert (outcome.code, outcome.err.splitlines()[0]) == (2, "bottomless: there is no option '--modle'; did you mean '--model'?")
