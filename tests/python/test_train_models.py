"""The models of `bottomless train` beside transformers', on directories that transformers has made."""

import json
import os
import pathlib
import random
import shutil

import pytest
import torch
from helpers import MIB, ROOT, check_moved, run

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

TOOL = pathlib.Path(os.environ.get("BOTTOMLESS_BUILD", ROOT / "build" / "torch")) / "tests" / "train" / "model_tool"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"{TOOL} is not built")

SEED = int(os.environ.get("BOTTOMLESS_SEED", random.randrange(1 << 32)))
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500.0,
}  # fmt: skip


def tool(**words):
    return run([TOOL, *(f"{key}={value}" for key, value in words.items())])


def outputs(tmp_path, inputs, **words):
    """What the tool writes for these inputs, by name, and how it ended."""
    safetensors.save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, tmp_path / "in.safetensors")
    (tmp_path / "out.safetensors").unlink(missing_ok=True)
    outcome = tool(input=tmp_path / "in.safetensors", output=tmp_path / "out.safetensors", **words)
    assert outcome.code == 0, outcome.err
    return safetensors.load_file(tmp_path / "out.safetensors"), outcome


def results(tmp_path, inputs, **words):
    return outputs(tmp_path, inputs, **words)[0]


def configuration(kind, **given):
    """One with random sizes, small ones; what is given counts."""
    pick = random.Random(f"{SEED} {kind} {given}")
    print(f"BOTTOMLESS_SEED={SEED}")
    heads = pick.choice([2, 4, 6])
    size = {"vocab_size": pick.randrange(60, 200), "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        size |= {"n_embd": heads * pick.choice([4, 7, 8]), "n_head": heads, "n_layer": pick.choice([1, 2, 3])}
        size |= {"n_positions": 40, "n_inner": pick.choice([None, 50])}
        return transformers.GPT2Config(**size | given)
    size |= {"hidden_size": heads * pick.choice([4, 8, 12]), "num_attention_heads": heads}
    size |= {"num_key_value_heads": pick.choice([1, 2, heads]), "num_hidden_layers": pick.choice([1, 2, 3])}
    # transformers multiplies grouped experts only where rows are multiples of 16 bytes.
    size |= {"intermediate_size": pick.randrange(20, 90, 4), "max_position_embeddings": 64}
    return transformers.AutoConfig.for_model(kind, **size | given)


def build(config, directory=None, dtype=torch.float32):
    """A model with parameters that are neither zeros nor ones, so that each of them matters."""
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + ("norm" in name or "ln_" in name))
    model.to(dtype)
    if directory is not None:
        model.save_pretrained(directory)
    return model


def tokens_for(config, batch=2, time=33):
    return torch.randint(0, config.vocab_size, (batch, time), generator=torch.Generator().manual_seed(SEED))


CONFIGURATIONS = {
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2-scaled": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu", "n_layer": 3}),
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "head_dim": 10}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-dynamic": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0},
            "max_position_embeddings": 16,
        },
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 9}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_equal_those_of_transformers(name, tmp_path):
    kind, given = CONFIGURATIONS[name]
    model = build(configuration(kind, **given), tmp_path / "model")
    tokens = tokens_for(model.config)
    with torch.no_grad():
        wanted = model(tokens).logits
    found = results(tmp_path, {"tokens": tokens}, model=tmp_path / "model")["logits"]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    assert wanted.std() > 0.05, "the logits say something"


@pytest.mark.parametrize("name", ["gpt2", "llama-llama3", "mistral-window", "mixtral"])
def test_a_cache_changes_nothing(name, tmp_path):
    kind, given = CONFIGURATIONS[name]
    model = build(configuration(kind, **given), tmp_path / "model")
    tokens = tokens_for(model.config)
    with torch.no_grad():
        wanted = model(tokens).logits
    found = results(tmp_path, {"tokens": tokens}, model=tmp_path / "model", cache=20)["logits"]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama-biases", "mixtral"])
def test_packed_documents_do_not_see_each_other(name, tmp_path):
    kind, given = CONFIGURATIONS[name]
    model = build(configuration(kind, **given), tmp_path / "model")
    tokens = tokens_for(model.config, batch=2, time=24)
    cuts = [[0, 5, 6, 24], [0, 17, 20, 24]]
    documents = torch.zeros_like(tokens)
    wanted = []
    for row, ends in enumerate(cuts):
        parts = list(zip(ends, ends[1:]))
        for number, (begin, end) in enumerate(parts):
            documents[row, begin:end] = number
        with torch.no_grad():
            wanted.append(torch.cat([model(tokens[row : row + 1, b:e]).logits[0] for b, e in parts]))
    found = results(tmp_path, {"tokens": tokens, "documents": documents}, model=tmp_path / "model")["logits"]
    torch.testing.assert_close(found, torch.stack(wanted), atol=1e-4, rtol=0)


def in_files(model, gradients):
    """Gradients by the names that the files have: there each of Mixtral's experts has its own."""
    named = {}
    for name, gradient in gradients.items():
        place, _, last = name.rpartition(".mlp.experts.")
        if place:
            for expert, part in enumerate(gradient):
                stem = f"{place}.block_sparse_moe.experts.{expert}"
                if last == "down_proj":
                    named[f"{stem}.w2.weight"] = part
                else:
                    named[f"{stem}.w1.weight"], named[f"{stem}.w3.weight"] = part.chunk(2)
        else:
            named[name.replace(".mlp.gate.", ".block_sparse_moe.gate.")] = gradient
    return named


@pytest.mark.parametrize("name", ["gpt2", "llama-biases", "qwen2-window", "mixtral"])
def test_gradients_equal_those_of_transformers(name, tmp_path):
    kind, given = CONFIGURATIONS[name]
    config = configuration(kind, **given)
    for dropout in ["attn_pdrop", "embd_pdrop", "resid_pdrop"]:
        setattr(config, dropout, 0.0)
    model = build(config, tmp_path / "model")
    tokens = tokens_for(config)
    targets = tokens.roll(-1, 1)
    targets[:, -1] = -100
    targets[0, 3:9] = -100
    options = {"output_router_logits": True} if kind == "mixtral" else {}
    loss = model(tokens, labels=targets.roll(1, 1), **options).loss
    loss.backward()
    found = results(tmp_path, {"tokens": tokens, "targets": targets}, model=tmp_path / "model")
    torch.testing.assert_close(found.pop("loss"), loss.detach(), atol=1e-5, rtol=1e-5)
    wanted = in_files(model, {name: p.grad for name, p in model.named_parameters()})
    for name in wanted.keys() - found.keys():  # an expert that no token wanted
        assert ".experts." in name and not wanted.pop(name).any()
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def loaded(directory):
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= safetensors.load_file(file)
    return tensors


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("name", ["gpt2", "llama-llama3", "qwen2-window", "mixtral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_back_transformers_loads(name, dtype, tmp_path):
    kind, given = CONFIGURATIONS[name]
    model = build(configuration(kind, **given), tmp_path / "model", getattr(torch, dtype))
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    outcome = tool(
        model=tmp_path / "model", save=tmp_path / "back", save_dtype=dtype, most_bytes=4000, tokenizer=tmp_path / "model"
    )
    assert outcome.code == 0, outcome.err
    names = {file.name for file in (tmp_path / "back").iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json"} <= names
    assert sum(name.endswith(".safetensors") for name in names) > 1
    assert {path.name for path in tmp_path.iterdir()} == {"model", "back"}, "nothing is left beside it"
    assert_same(loaded(tmp_path / "back"), loaded(tmp_path / "model"))
    back, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype="auto", output_loading_info=True
    )
    assert not any(info[kind] for kind in ["missing_keys", "unexpected_keys", "mismatched_keys"]), info
    assert_same(back.state_dict(), model.state_dict())


def test_types_are_converted_on_the_way_in_and_out(tmp_path):
    model = build(configuration("llama"), tmp_path / "model")
    outcome = tool(model=tmp_path / "model", dtype="bfloat16", save=tmp_path / "back", save_dtype="float16")
    assert outcome.code == 0, outcome.err
    wanted = {name: tensor.bfloat16().half() for name, tensor in loaded(tmp_path / "model").items()}
    assert_same(loaded(tmp_path / "back"), wanted)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "float16"
    assert model.config.vocab_size == transformers.AutoConfig.from_pretrained(tmp_path / "back").vocab_size


def test_a_model_directory_is_replaced_and_others_are_left_alone(tmp_path):
    build(configuration("gpt2"), tmp_path / "model")
    assert tool(model=tmp_path / "model", save=tmp_path / "model", save_dtype="bfloat16").code == 0
    assert {tensor.dtype for tensor in loaded(tmp_path / "model").values()} == {torch.bfloat16}
    (tmp_path / "model" / "notes.txt").write_text("mine")
    outcome = tool(model=tmp_path / "model", save=tmp_path / "model")
    assert outcome.code == 1 and "notes.txt" in outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_what_transformers_4_wrote_is_understood(tmp_path):
    model = build(configuration("llama", rope_parameters=LLAMA3), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))
    tokens = tokens_for(model.config)
    with torch.no_grad():
        wanted = model(tokens).logits
    found = results(tmp_path, {"tokens": tokens}, model=tmp_path / "model")["logits"]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_files_of_the_first_gpt2_are_understood(tmp_path):
    """They leave the first part of the names out, and have masks and perhaps the tied head as tensors."""
    model = build(configuration("gpt2"), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in safetensors.load_file(file).items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    safetensors.save_file(tensors, file)
    tokens = tokens_for(model.config)
    with torch.no_grad():
        wanted = model(tokens).logits
    found = results(tmp_path, {"tokens": tokens}, model=tmp_path / "model")["logits"]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def change_config(directory, **changes):
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(directory, change):
    tensors = safetensors.load_file(directory / "model.safetensors")
    change(tensors)
    safetensors.save_file(tensors, directory / "model.safetensors")


DAMAGES = {
    "architecture": (lambda d: change_config(d, model_type="bert"), ["config.json", "'bert'", "gpt2, llama, qwen2"]),
    "missing key": (lambda d: change_config(d, hidden_size=...), ["config.json", "'hidden_size' is missing"]),
    "range": (lambda d: change_config(d, num_attention_heads=0), ["'num_attention_heads' is 0", "from 1"]),
    "activation": (lambda d: change_config(d, hidden_act="mish"), ["'hidden_act' is 'mish'", "silu"]),
    "rope": (lambda d: change_config(d, rope_parameters={"rope_type": "yarn"}), ["'yarn'", "llama3"]),
    "quantised": (lambda d: change_config(d, quantization_config={"bits": 4}), ["quantization_config"]),
    "no JSON": (lambda d: (d / "config.json").write_text("{"), ["config.json"]),
    "no config": (lambda d: (d / "config.json").unlink(), ["there is no config.json"]),
    "no files": (lambda d: (d / "model.safetensors").unlink(), ["no *.safetensors"]),
    "missing tensor": (
        lambda d: change_tensors(d, lambda t: t.pop("model.norm.weight")),
        ["'model.norm.weight'", "none of its safetensors files"],
    ),
    "wrong shape": (
        lambda d: change_tensors(d, lambda t: t.update({"model.norm.weight": torch.ones(3)})),
        ["'model.norm.weight'", "[3]", "config.json"],
    ),
    "unexpected tensor": (
        lambda d: change_tensors(d, lambda t: t.update({"model.extra": torch.ones(3)})),
        ["'model.extra'", "no place in a llama model"],
    ),
    "wrong type": (
        lambda d: change_tensors(d, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].int()})),
        ["'model.norm.weight'", "I32", "BF16"],
    ),
    "cut short": (lambda d: os.truncate(d / "model.safetensors", 2000), ["model.safetensors"]),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sound") / "model"
    build(configuration("llama"), directory)
    return directory


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_refused_in_one_sentence(damage, sound, tmp_path):
    change, said = DAMAGES[damage]
    shutil.copytree(sound, tmp_path / "model")
    change(tmp_path / "model")
    outcome = tool(model=tmp_path / "model", save=tmp_path / "back")
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1 and outcome.out == ""
    assert all(part in outcome.err for part in said), outcome.err
    assert not (tmp_path / "back").exists()


def test_a_model_larger_than_its_limit_streams_in_and_out(disk, tmp_path):
    """Also the parameters that are alone larger than the limit."""
    config = configuration(
        "llama", hidden_size=512, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=8,
        num_hidden_layers=6, vocab_size=24000,
    )  # fmt: skip
    model = build(config, tmp_path / "model")
    size = sum(parameter.nbytes for parameter in model.parameters())
    limit = 32 * MIB
    assert size > 4 * limit and model.lm_head.weight.nbytes > limit
    outcome = tool(model=tmp_path / "model", save=tmp_path / "back", memory=limit, disk=disk)
    assert outcome.code == 0, outcome.err
    loading, stats = map(json.loads, outcome.out.splitlines())
    check_moved(stats)
    assert size - limit < stats["written_bytes"] < 1.1 * size, "each block leaves once"
    assert loading["loading_bytes"] < limit + 8 * MIB, "besides the limit there are a few pages of code"
    assert_same(loaded(tmp_path / "back"), loaded(tmp_path / "model"))


def test_logits_under_a_limit_are_the_same_bits(disk, tmp_path):
    model = build(configuration("llama", num_hidden_layers=6, hidden_size=96, intermediate_size=8000), tmp_path / "model")
    inputs = {"tokens": tokens_for(model.config)}
    plain = results(tmp_path, inputs, model=tmp_path / "model")["logits"]
    limited, outcome = outputs(tmp_path, inputs, model=tmp_path / "model", memory=16 * MIB, disk=disk)
    check_moved(outcome.stats)
    assert torch.equal(plain, limited["logits"])


@pytest.mark.parametrize("memory", [None, 24 * MIB])
def test_presets_begin_as_their_seed_says_whatever_the_memory(memory, disk, tmp_path):
    limit = {"memory": memory, "disk": disk} if memory else {}
    assert tool(preset="gpt-10m", seed=7, save=tmp_path / "one", **limit).code == 0
    assert tool(preset="gpt-10m", seed=7, save=tmp_path / "same").code == 0
    assert tool(preset="gpt-10m", seed=8, save=tmp_path / "other").code == 0
    one, other = loaded(tmp_path / "one"), loaded(tmp_path / "other")
    assert_same(one, loaded(tmp_path / "same"))
    name = "transformer.h.3.mlp.c_fc.weight"
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one[name.replace("3", "4")])
    assert abs(one["transformer.wte.weight"].std() - 0.02) < 1e-4
    assert abs(one["transformer.h.0.mlp.c_proj.weight"].std() - 0.02 / 16**0.5) < 1e-4
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert abs(sum(p.numel() for p in model.parameters()) / 10e6 - 1) < 0.1


def test_unknown_presets_are_refused():
    outcome = tool(preset="gpt-11m")
    assert outcome.code == 1 and "gpt-124m" in outcome.err and "llama-70b" in outcome.err
