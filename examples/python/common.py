"""What the examples share: options, a text that every machine has, an exact account of results."""

import argparse
import hashlib
import pathlib
import sysconfig

import torch


def options(description, **sizes):
    """Parses --steps, --seed and one integer option per keyword (its default); seeds torch."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in {**sizes, "steps": 4, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    return args


def library_text(size=1 << 20):
    """The first `size` bytes of the Python standard library's sources, in order of file name."""
    text = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return bytes(text[:size])


class ByteBatches:
    """Random windows of a text, as (input, target) pairs: the target is the next byte."""

    def __init__(self, batch, context):
        self.text = torch.frombuffer(bytearray(library_text()), dtype=torch.uint8)
        self.batch, self.context = batch, context

    def next(self):
        starts = torch.randint(len(self.text) - self.context, (self.batch, 1))
        windows = self.text[starts + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]


def report(step, loss):
    """Prints a step's loss with every bit of it: repr's digits read back as the same float."""
    print(f"step {step} loss {loss.item()!r}", flush=True)


def digest(model, optimizer):
    """SHA-256 over every parameter, buffer and optimizer state, one tensor at a time."""
    tensors = {f"model.{name}": tensor for name, tensor in model.named_parameters()}
    tensors |= {f"model.{name}": tensor for name, tensor in model.named_buffers()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if torch.is_tensor(value):
                tensors[f"optimizer.{index}.{name}"] = value

    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # numpy does not know bfloat16, and a tensor without dimensions has no view as bytes.
        flat = tensor.detach().contiguous().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def finish(model, optimizer):
    print(f"digest {digest(model, optimizer)}", flush=True)
