"""Loads or writes a file with Hugging Face's safetensors, and prints its tensors as JSON.

    hugging_face.py load FILE
    hugging_face.py write FILE
"""

import json
import pathlib
import sys

import safetensors
import torch
from safetensors.torch import load_file, save_file

TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
    torch.uint32, torch.float32, torch.float64, torch.int64, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def raw(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def main():
    verb, path = sys.argv[1:]
    if verb == "write":
        tensors = {f"of {dtype}": torch.arange(6).reshape(3, 2).to(dtype) for dtype in TYPES}
        tensors["none"] = torch.empty(0, 4)
        tensors["scalar"] = torch.tensor(1.5)
        save_file(tensors, path, {"key": "value"})
    loaded = load_file(path)
    printed = {}
    for name, tensor in safetensors.deserialize(pathlib.Path(path).read_bytes()):
        assert list(loaded[name].shape) == tensor["shape"]
        assert raw(loaded[name]) == bytes(tensor["data"]), name
        printed[name] = {"dtype": tensor["dtype"], "shape": tensor["shape"], "bytes": bytes(tensor["data"]).hex()}
    assert loaded.keys() == printed.keys()
    print(json.dumps(printed))


main()
