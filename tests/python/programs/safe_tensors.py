"""safetensors: files written from tensors that are on disk, and read back in several ways."""

import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

from digest import digest

torch.manual_seed(0)
tensors = {f"tensor {n}": torch.randn(512, 513) for n in range(24)}
with tempfile.TemporaryDirectory() as directory:
    save_file(tensors, f"{directory}/all.safetensors")
    print(digest(load_file(f"{directory}/all.safetensors")))
    with safe_open(f"{directory}/all.safetensors", "pt") as file:
        print(digest({name: file.get_tensor(name) for name in file.keys()}))
        print(digest({name: file.get_slice(name)[5:7, ::3] for name in file.keys()}))
few = {name: tensors[name] for name in list(tensors)[:3]}
print(digest(dict(sorted(load(save(few)).items()))))  # it gives them in any order
print(digest(tensors))
