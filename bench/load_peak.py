"""How much memory loading a model takes that does not fit: peak of resident memory (VmHWM) less the fixed cost, in the same process.

    .venv/bin/python bench/load_peak.py [--size 10GiB] [--memory 1GiB] [--directory DIR] [--json]

Makes a Llama of that size in float32, of files of zeros that take no room on the disk, and lets `bottomless generate` load it and say one
token. The scratch files take as much of the directory's disk as does not fit; everything is removed at the end.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import tokenizers

BINARY = pathlib.Path(sys.executable).parent / "bottomless"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
VOCABULARY, FILE_BYTES, ELEMENT = 512, 2 << 30, 4


def in_bytes(text):
    return int(float(text[:-3]) * UNITS[text[-3:]])


def shapes_of(config):
    width, inside = config["hidden_size"], config["intermediate_size"]
    yield "model.embed_tokens.weight", (VOCABULARY, width)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (width,)
        for name in "qkvo":
            yield prefix + f"self_attn.{name}_proj.weight", (width, width)
        yield prefix + "post_attention_layernorm.weight", (width,)
        yield prefix + "mlp.gate_proj.weight", (inside, width)
        yield prefix + "mlp.up_proj.weight", (inside, width)
        yield prefix + "mlp.down_proj.weight", (width, inside)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (VOCABULARY, width)


def bytes_of(shape):
    return ELEMENT * shape[0] * (shape[1] if len(shape) > 1 else 1)


def configuration(size):
    """At least that large; with the widths of Llama 7B if there are some layers of them, else of a small one."""
    width, inside = (4096, 11008) if size >= 4 << 30 else (1024, 2816)
    layer = ELEMENT * (4 * width * width + 3 * width * inside + 2 * width)
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inside,
        "num_hidden_layers": -(-size // layer), "num_attention_heads": width // 128, "num_key_value_heads": width // 128,
        "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def write_zeros(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end := end + bytes_of(shape)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_model(directory, size):
    """Returns its bytes."""
    config, files = configuration(size), [[]]
    for name, shape in shapes_of(config):
        if sum(bytes_of(other) for _, other in files[-1]) + bytes_of(shape) > FILE_BYTES:
            files.append([])
        files[-1].append((name, shape))
    where = {}
    for index, tensors in enumerate(files):
        file = f"model-{index + 1:05}-of-{len(files):05}.safetensors"
        write_zeros(directory / file, tensors)
        where |= {name: file for name, _ in tensors}
    total = sum(bytes_of(shape) for _, shape in shapes_of(config))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    (directory / "config.json").write_text(json.dumps(config))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {token: i for i, token in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = {
        "version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=in_bytes, default="10GiB")
    parser.add_argument("--memory", type=in_bytes, default="1GiB")
    parser.add_argument("--directory", type=pathlib.Path, help="for the model and what does not fit; a temporary one if not given")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        scratch = pathlib.Path(scratch)
        size = write_model(scratch, options.size)
        command = [BINARY, "generate", "--model", scratch, "--prompt", "a", "--tokens", 1, "--temperature", 0]
        command += ["--memory", options.memory, "--disk", scratch, "--json"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    said = json.loads(done.stdout.splitlines()[-1])
    resident = said["resident"]
    found = {
        "model_bytes": size,
        "limit_bytes": options.memory,
        "fixed_bytes": resident["fixed_bytes"],
        "loading_bytes": resident["loaded_bytes"] - resident["fixed_bytes"],
        "running_bytes": resident["peak_bytes"] - resident["fixed_bytes"],
        "stats": said["stats"],
    }
    if options.json:
        print(json.dumps(found))
        return
    mebibytes = {name: value / (1 << 20) for name, value in found.items() if name != "stats"}
    print(
        "a model of {model_bytes:.0f} MiB under a limit of {limit_bytes:.0f} MiB: besides {fixed_bytes:.0f} MiB of program and libraries,\n"
        "loading it took {loading_bytes:.1f} MiB, and with one token {running_bytes:.1f} MiB".format(**mebibytes)
    )


if __name__ == "__main__":
    main()
