"""`bottomless train`, `generate`, `verify` and `export`, as a user runs them."""

import ctypes.util
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from helpers import HANGS, MIB, ROOT, check_moved, run, wait_until

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

BINARY = pathlib.Path(sys.executable).parent / "bottomless"
SMALL = ["--length", "64", "--vocabulary", "600", "--lr", "0.001"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "sources.py"
    file.write_text(pathlib.Path(json.__file__).with_name("decoder.py").read_text() * 2)
    return file


def train(data, out, *options, model="gpt-10m", through=(), **how):
    return run([*through, BINARY, "train", "--model", model, "--data", data, "--out", out, "--json", *SMALL, *options], **how)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of five steps with all the memory it wants, and its outcome."""
    out = tmp_path_factory.mktemp("trained") / "run"
    outcome = train(data, out, "--steps", "5", "--accumulate", "2")
    assert outcome.code == 0, outcome.err
    return out, outcome


def weights(run_directory):
    return (run_directory / "model" / "model.safetensors").read_bytes()


def test_a_limit_changes_no_bit(data, trained, tmp_path):
    outcome = train(data, tmp_path / "run", "--steps", "5", "--accumulate", "2", "--memory", "40MiB")
    assert outcome.code == 0, outcome.err
    assert outcome.stats["stats"]["evictions"] > 0
    assert outcome.stats["stats"]["peak_bytes"] <= 40 << 20
    assert weights(tmp_path / "run") == weights(trained[0])


def test_a_run_that_was_told_to_stop_goes_on_as_if_it_had_not_been(data, trained, tmp_path):
    out = tmp_path / "run"
    command = [BINARY, "train", "--model", "gpt-10m", "--data", data, "--out", out, *SMALL]
    command += ["--steps", "5", "--accumulate", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = out / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 1, process)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=HANGS)[1]
    assert process.returncode == 128 + signal.SIGTERM, said
    refused = train(data, out, "--steps", "5", "--accumulate", "2")
    assert refused.code == 1 and "--resume" in refused.err
    other = train(data, out, "--steps", "5", "--accumulate", "1", "--resume")
    assert other.code == 1 and "--accumulate" in other.err
    narrow = train(data, out, "--steps", "5", "--accumulate", "2", "--precision", "bfloat16", "--resume")
    assert narrow.code == 1 and 'it was begun with --precision = "float32", and now it is "bfloat16"' in narrow.err
    outcome = train(data, out, "--steps", "5", "--accumulate", "2", "--resume")
    assert outcome.code == 0, outcome.err
    assert weights(out) == weights(trained[0])
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5]


def test_a_step_that_beats_the_measured_speed_corrects_it(data, tmp_path, monkeypatch):
    """However slow the machine was when it was measured: no step has more than all of the hardware."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "bottomless" / "measured"
    first = train(data, tmp_path / "dry", "--steps", "2", "--dry-run")
    assert first.code == 0 and first.stats["estimate"]["computing_seconds"] > 0, first.err
    heading, entry = kept.read_text().splitlines()
    key = entry.split("\t")[0]
    assert f"torch {torch.__version__.partition('+')[0]}, " in key and "Float products" in key
    kept.write_text(f"{heading}\n{key}\t1000\t1000\t1\n")
    outcome = train(data, tmp_path / "run", "--steps", "2")
    assert outcome.code == 0, outcome.err
    assert outcome.stats["estimate"]["computing_seconds"] > 1000, "it was not measured again"
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    shares = [step["hardware_share"] for step in steps]
    assert max(shares) == 1 and min(shares) > 0
    low, high, quiet = map(float, kept.read_text().splitlines()[1].split("\t")[1:])
    assert low == 1000 and high > 1e6 and quiet == 1
    after = train(data, tmp_path / "after", "--steps", "2", "--dry-run")
    assert after.stats["estimate"]["computing_seconds"] < 1000 < after.stats["estimate"]["computing_seconds_most"]


def seal(manifest):
    """The checksum that a manifest has: of all the rest of it."""
    library = ctypes.util.find_library("xxhash")
    if library is None:
        pytest.skip("no xxhash library to make a manifest with")
    hashed = ctypes.CDLL(library).XXH3_64bits
    hashed.argtypes, hashed.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
    del manifest["xxh3"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    manifest["xxh3"] = f"{hashed(text, len(text)):016x}"


@pytest.mark.parametrize("broken", ["tokens", "data", "row", "settings", "config", "negative"])
def test_a_checkpoint_that_says_something_else_of_the_run_is_an_error_that_names_it(data, trained, tmp_path, broken):
    out = tmp_path / "run"
    shutil.copytree(trained[0], out)
    manifest = out / "checkpoint" / "manifest.json"
    content = json.loads(manifest.read_text())
    extra = content["extra"]
    if broken == "row":
        extra["data"]["row"] = "three"
    elif broken == "negative":
        extra["tokens"] = -5
    elif broken == "config":
        extra["config"] = {"model_type": 7}
    else:
        extra[broken] = [1]
    seal(content)
    manifest.write_text(json.dumps(content))
    if broken == "config":
        outcome = run([BINARY, "export", out, "--out", tmp_path / "model"])
    else:
        outcome = train(data, out, "--steps", "5", "--accumulate", "2", "--resume")
    assert outcome.code == 1, outcome.err
    assert f"'{out}'" in outcome.err and "cannot be read" in outcome.err, outcome.err


def test_transformers_goes_on_where_it_ended(trained):
    model = transformers.AutoModelForCausalLM.from_pretrained(trained[0] / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained[0] / "model")
    prompt = tokenizer("def decode", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=8, do_sample=False)[0])
    outcome = run([BINARY, "generate", "--model", trained[0], "--prompt", "def decode", "--tokens", "8"])
    assert outcome.code == 0, outcome.err
    assert outcome.out == text + "\n"


def test_verify_and_export(trained, tmp_path):
    outcome = run([BINARY, "verify", trained[0], "--json"])
    assert outcome.code == 0, outcome.err
    assert [found["kind"] for found in json.loads(outcome.out)] == ["checkpoint", "model"]
    outcome = run([BINARY, "export", trained[0], "--out", tmp_path / "model", "--memory", "40MiB"])
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights(trained[0])


def test_verify_finds_a_flipped_bit(trained, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    for file in (trained[0] / "checkpoint").iterdir():
        content = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            content[-1] ^= 1
        (tmp_path / "checkpoint" / file.name).write_bytes(content)
    outcome = run([BINARY, "verify", tmp_path / "checkpoint"])
    assert outcome.code == 1 and "optimizer." in outcome.err


def test_verify_reads_adapters(data, trained, tmp_path):
    outcome = train(data, tmp_path / "run", "--steps", "2", "--lora", "4", model=trained[0] / "model")
    assert outcome.code == 0, outcome.err
    outcome = run([BINARY, "verify", tmp_path / "run", "--json"])
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert [part["kind"] for part in found] == ["checkpoint", "adapter"]
    assert found[1]["tensors"] == 2 * 8  # of c_attn in each of 8 layers
    adapter = tmp_path / "run" / "adapter"
    file = adapter / "adapter_model.safetensors"
    whole = file.read_bytes()

    def said(content=whole, **changed):
        file.write_bytes(content)
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps(config | changed))
        outcome = run([BINARY, "verify", adapter])
        assert outcome.code == 1, outcome.out
        return outcome.out + outcome.err

    assert "not finite: 1 elements of base_model.model." in said(whole[:-4] + b"\0\0\xc0\x7f")
    assert str(file) in said(whole[:-8])
    assert "is not one of a pair of rank 5" in said(r=5)


def test_peft_loads_adapters(data, trained, tmp_path):
    base = trained[0] / "model"
    outcome = train(data, tmp_path / "run", "--steps", "3", "--lora", "4", "--merge", model=base)
    assert outcome.code == 0, outcome.err
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "run" / "adapter")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        ours, theirs = merged(tokens).logits, adapted(tokens).logits
        assert torch.allclose(ours, theirs, atol=1e-4)
        with adapted.disable_adapter():
            assert not torch.allclose(ours, adapted(tokens).logits, atol=1e-4)


def test_part_of_a_model(data, trained, tmp_path):
    base = trained[0] / "model"
    outcome = train(data, tmp_path / "run", "--steps", "2", "--train", "h.1.", model=base)
    assert outcome.code == 0, outcome.err
    before = transformers.AutoModelForCausalLM.from_pretrained(base).state_dict()
    after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed and all(".h.1." in name for name in changed)


@pytest.mark.parametrize("what, options, said", [
    ("no model", {"model": "gpt-9000"}, "neither a directory nor a preset"),
    ("no data", {"data": "missing.txt"}, "missing.txt"),
    ("empty data", {"data": "empty.txt"}, "empty.txt"),
    ("no JSON", {"data": "bad.jsonl"}, "line 2"),
])  # fmt: skip
def test_errors_say_what_to_do(data, tmp_path, what, options, said):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.jsonl").write_text('{"text": "a b c"}\nnot JSON\n')
    named = options.get("data")
    outcome = train(tmp_path / named if named else data, tmp_path / "run", "--steps", "1", model=options.get("model", "gpt-10m"))
    assert outcome.code == 1
    assert said in outcome.err.splitlines()[-1], outcome.err


# Samples: only what is to be answered counts.

PAIRS = [("def add(a, b):\n", "    return a + b\n"), ("# twice\n", "x = 2 * x\n"), ("import ", "json, re\n")]
CHATS = [
    [{"role": "user", "content": "two plus two?"}, {"role": "assistant", "content": "four"},
     {"role": "user", "content": "and one?"}, {"role": "assistant", "content": "five, I think"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "def"}, {"role": "assistant", "content": "decode(s)"}],
]  # fmt: skip
# The blank in front of the reply is not part of it, but of its first token.
TEMPLATE = (
    "{% for message in messages %}{{ '[' + message.role + '] ' }}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + eos_token }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\\n' }}{% endfor %}"
)


def loss_of_samples(directory, samples):
    """By transformers, each sample by itself: the mean over all targets that count, and how many there are."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    total, count = 0.0, 0
    with torch.no_grad():
        for ids, counts in samples:
            losses = torch.nn.functional.cross_entropy(model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]), reduction="none")
            chosen = losses[torch.tensor(counts[1:], dtype=torch.bool)]
            total, count = total + chosen.double().sum().item(), count + len(chosen)
    return total / count, count


def first_loss(data, base, out, *options):
    outcome = run([BINARY, "train", "--model", base, "--data", data, "--out", out, "--length", "256", "--steps", "1", "--json", *options])
    assert outcome.code == 0, outcome.err
    assert outcome.stats["stats"]["evictions"] > 0
    return outcome.stats["last"]["loss"], outcome.stats["targets"]


def test_of_prompts_and_responses_the_responses_are_learned(trained, tmp_path):
    base = trained[0] / "model"
    lines = [json.dumps({"prompt": prompt, "response": response}) for prompt, response in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    samples = []
    for prompt, response in PAIRS:
        asked, answered = tokenizer(prompt).input_ids, tokenizer(response).input_ids + [tokenizer.eos_token_id]
        samples.append((asked + answered, [0] * len(asked) + [1] * len(answered)))
    expected, count = loss_of_samples(base, samples)
    loss, targets = first_loss(tmp_path / "pairs.jsonl", base, tmp_path / "run", "--memory", "40MiB")
    assert targets == count
    assert loss == pytest.approx(expected, rel=1e-5)


def test_of_conversations_the_replies_are_learned(trained, tmp_path):
    base = tmp_path / "chat"
    shutil.copytree(trained[0] / "model", base)
    (base / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"messages": chat}) for chat in CHATS))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    samples = []
    for chat in CHATS:
        encoded = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        samples.append((encoded["input_ids"], encoded["assistant_masks"]))
    expected, count = loss_of_samples(base, samples)
    loss, targets = first_loss(tmp_path / "chats.jsonl", base, tmp_path / "run", "--memory", "40MiB")
    assert targets == count
    assert loss == pytest.approx(expected, rel=1e-5)


def test_tokens_are_made_anew_when_a_file_of_the_tokenizer_changes(data, trained, tmp_path):
    base = tmp_path / "model"
    shutil.copytree(trained[0] / "model", base)
    for name in ["added_tokens.json", "vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json"]:
        made = set((tmp_path / "run" / "tokens").glob("*.bltok"))
        file = base / name
        file.write_text(file.read_text() + "\n" if file.exists() else "{}")
        outcome = train(data, tmp_path / "run", "--steps", "1", "--dry-run", model=base)
        assert outcome.code == 0, outcome.err
        assert len(set((tmp_path / "run" / "tokens").glob("*.bltok")) - made) == 1, name


def test_generation_with_adapters_is_that_of_peft(data, trained, tmp_path):
    base = trained[0] / "model"
    options = ["--length", "64", "--steps", "5", "--lora", "8", "--lr", "0.05", "--memory", "16MiB", "--json"]
    outcome = run([BINARY, "train", "--model", base, "--data", data, "--out", tmp_path / "run", *options])
    assert outcome.code == 0, outcome.err
    assert outcome.stats["stats"]["evictions"] > 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    prompt = tokenizer("def decode", return_tensors="pt")

    def text(model):
        return tokenizer.decode(model.generate(**prompt, max_new_tokens=8, do_sample=False)[0])

    without = text(plain)
    expected = text(peft.PeftModel.from_pretrained(plain, tmp_path / "run" / "adapter"))
    assert expected != without
    outcome = run([BINARY, "generate", "--model", base, "--adapter", tmp_path / "run" / "adapter", "--prompt", "def decode", "--tokens", "8"])
    assert outcome.code == 0, outcome.err
    assert outcome.out == expected + "\n"


@pytest.fixture
def disk_of(tmp_path):
    """Makes a directory on a disk of so many MiB; who may not mount one gets what limits the size of files, to start programs."""
    mounted = tmp_path / "disk"

    def make(mebibytes):
        mounted.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", mounted], capture_output=True)
        limit = ["sh", "-c", f"trap '' XFSZ; ulimit -f {mebibytes * 2048}; exec \"$@\"", "sh"]
        return mounted, [] if done.returncode == 0 else limit

    yield make
    if mounted.is_mount():
        subprocess.run(["umount", mounted], check=True)


@pytest.mark.parametrize("mebibytes, what", [(24, "checkpoint"), (36, "model")])
def test_a_full_disk_leaves_nothing_half_written(data, disk_of, mebibytes, what):
    disk, through = disk_of(mebibytes)
    if through and what == "model":
        pytest.skip("may not mount a file system, and no file of the model is larger than those of the checkpoint")
    out = disk / "run"
    outcome = train(data, out, "--steps", "2", through=through)
    assert outcome.code == 1
    said = outcome.err.splitlines()[-1]
    assert said.startswith("bottomless: ") and str(out) in said, said
    assert ("File too large" if through else "No space left") in said, said
    assert (out / "metrics.jsonl").read_text().count("\n") == 2
    assert [file.name for file in out.iterdir() if file.name.startswith(".")] == []
    assert not (out / "model").exists()
    checkpoint = sorted(file.suffix for file in (out / "checkpoint").iterdir())
    assert checkpoint == ([] if what == "checkpoint" else [".json", ".safetensors"])
    if what == "model":
        assert run([BINARY, "verify", out]).code == 0


def test_loading_takes_no_more_than_the_limit(tmp_path):
    """By the kernel's own count, less what program and libraries take anyway; bench/load_peak.py is the same with 10 GiB in 1 GiB."""
    command = [sys.executable, ROOT / "bench" / "load_peak.py", "--size", "300MiB", "--memory", "64MiB", "--directory", tmp_path, "--json"]
    outcome = run(command)
    assert outcome.code == 0, outcome.err
    found = outcome.stats
    assert found["model_bytes"] > 4.6 * found["limit_bytes"]
    check_moved(found["stats"])
    assert found["fixed_bytes"] > 0
    assert 0 < found["loading_bytes"] <= found["limit_bytes"] + 8 * MIB, "besides the limit there are a few pages of code"
    assert list(tmp_path.iterdir()) == []


# What is said before a run.


def test_the_estimate_counts_adapters(data, trained, tmp_path):
    base = trained[0] / "model"
    outcome = train(data, tmp_path / "run", "--steps", "1", "--lora", "4", "--memory", "30MiB", "--dry-run", model=base)
    assert outcome.code == 0, outcome.err
    adapters = 8 * 4 * (160 + 3 * 160)  # of c_attn in each of 8 layers
    assert outcome.stats["trained"] == adapters


def test_a_step_moves_what_the_estimate_says(data, tmp_path):
    """Within a factor of two, both ways: docs/estimate.md says so."""
    outcome = train(data, tmp_path / "run", "--steps", "8", "--accumulate", "2", "--memory", "30MiB")
    assert outcome.code == 0, outcome.err
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert outcome.stats["stats"]["evictions"] > 0
    for counter in ["read_bytes", "written_bytes"]:
        measured = (steps[-1][counter] - steps[3][counter]) / (len(steps) - 4)
        estimated = outcome.stats["estimate"][counter]
        assert estimated / 2 <= measured <= estimated * 2, (counter, measured, estimated)
    assert 0 < steps[-1]["disk_bytes"] <= outcome.stats["stats"]["disk_bytes"]


@pytest.mark.parametrize("width, length", [(64, 256), (64, 64), (128, 256)])
def test_advice_about_the_limit_works_when_it_is_followed(data, trained, tmp_path, width, length):
    """Of a model of many small tensors, which never leave memory: what is said before the first step, or by it, is enough."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained[0] / "model")
    config = transformers.MixtralConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
        vocab_size=2048, max_position_embeddings=512,
    )  # fmt: skip
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = ["--data", data, "--length", length, "--steps", 4, "--model", tmp_path / "model"]
    memory = "8MiB"
    for attempt in range(2):
        outcome = run([BINARY, "train", *map(str, words), "--memory", memory, "--out", tmp_path / f"run{attempt}"])
        if outcome.code == 0:
            return
        said = outcome.err.splitlines()[-1]
        advice = re.search(r"(?:needs a limit of|raise it to at least) ([\d.]+ [MG]iB)", said)
        assert advice, said
        memory = advice[1].replace(" ", "")
    pytest.fail(f"{memory} was not enough either: {said}")
