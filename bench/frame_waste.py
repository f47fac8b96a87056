"""What rounding up to whole frames wastes, on the allocations of real training steps.

    .venv/bin/python bench/frame_waste.py               # a table: waste by model and limit, in percent of the bytes asked for
    .venv/bin/python bench/frame_waste.py --record      # makes the traces anew, with torch and transformers

A trace lists the allocations of a model's making and one training step that are large enough to be managed: every
storage that torch's CPU allocator was asked for, temporaries inside kernels included. The table is made by the program
frame_waste beside this one, built with the core: `cmake --preset release && cmake --build --preset release`.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import subprocess
from typing import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRACES = ROOT / "tests" / "memory" / "traces"
LEAST_MANAGED = 128 << 10


def language_model(model, sequence: int) -> Iterator:
    import torch

    yield model
    tokens = torch.randint(0, model.config.vocab_size, (1, sequence))
    yield model(input_ids=tokens, labels=tokens).loss


def gpt2() -> Iterator:
    from transformers import GPT2Config, GPT2LMHeadModel

    yield from language_model(GPT2LMHeadModel(GPT2Config(use_cache=False)), sequence=512)


def llama() -> Iterator:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=640, intermediate_size=1728, num_hidden_layers=12, num_attention_heads=10, use_cache=False
    )
    yield from language_model(LlamaForCausalLM(config), sequence=512)


def resnet50() -> Iterator:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    yield model
    yield model(pixel_values=torch.randn(4, 3, 224, 224), labels=torch.randint(0, 1000, (4,))).loss


def lstm() -> Iterator:
    import torch
    from torch import nn

    model = nn.ModuleDict({"body": nn.LSTM(1024, 1024, num_layers=2), "head": nn.Linear(1024, 10000)})
    yield model
    outputs, _ = model["body"](torch.randn(64, 16, 1024))
    yield nn.functional.cross_entropy(model["head"](outputs).flatten(0, 1), torch.randint(0, 10000, (64 * 16,)))


MODELS: dict[str, tuple[Callable[[], Iterator], str]] = {
    "gpt2": (gpt2, "GPT-2 124M of transformers, batch 1 x 512"),
    "llama": (llama, "a Llama of transformers with 100M parameters, batch 1 x 512"),
    "resnet50": (resnet50, "ResNet-50 of transformers, batch 4 x 3 x 224 x 224"),
    "lstm": (lstm, "an LSTM of 2 layers of 1024 and a head of 10000 words, 64 steps of batch 16"),
}


def allocations(make: Callable[[], Iterator]) -> collections.Counter[int]:
    """How many storages of which size a model and one training step with AdamW ask for."""
    import torch

    torch.manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        stages = make()
        model = next(stages)
        optimizer = torch.optim.AdamW(model.parameters())
        next(stages).backward()
        optimizer.step()
    events = profiler.profiler.kineto_results.events()
    sizes = collections.Counter(event.nbytes() for event in events if event.name() == "[memory]")
    return collections.Counter({size: count for size, count in sizes.items() if size >= LEAST_MANAGED})


def record() -> None:
    import torch

    TRACES.mkdir(exist_ok=True)
    for name, (make, description) in MODELS.items():
        sizes = allocations(make)
        lines = [f"# {description}; AdamW, torch {torch.__version__}. Bytes and count of each size of storage."]
        lines += ["# Made by bench/frame_waste.py --record."]
        lines += [f"{size} {sizes[size]}" for size in sorted(sizes)]
        (TRACES / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print(f"{name}: {sum(sizes.values())} allocations, {sum(n * c for n, c in sizes.items()) >> 20} MiB", flush=True)


def print_table() -> None:
    built = [ROOT / "build" / preset / "bench" / "frame_waste" for preset in ("release", "dev", "torch")]
    program = next((path for path in built if path.exists()), None)
    if program is None:
        raise SystemExit("bench/frame_waste is not built: cmake --preset release && cmake --build --preset release")
    subprocess.run([program, *(TRACES / f"{name}.txt" for name in MODELS)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="make the traces anew")
    record() if parser.parse_args().record else print_table()


if __name__ == "__main__":
    main()
