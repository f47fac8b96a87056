"""Distributed training in the manner of torch's tutorials, on Gloo with two processes: DDP, FSDP2, tensor parallel.

The simplest forms of DDP and FSDP2 are in test_distributed.py; here is what scripts make of them.
"""

import pytest

from forked_ranks import run_ranks

PROGRAM = '''
import os
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from helpers import training_state

task, memory, disk, folder = arguments
runtime = bottomless.limit(memory, disk) if memory else None
torch.manual_seed(0)
WIDTH = 256


class Attention(nn.Module):
    """Query, key, value and output apart, so that a plan can shard them; heads are what is divided."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 32)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.tokens = nn.Embedding(500, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.output = nn.Linear(WIDTH, 500, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def batches(count, seed):
    data = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 500, (2, 16), generator=data) for _ in range(count)]


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def train(model, optimizer, seed, steps=2, clip=True):
    losses = []
    for tokens in batches(steps, seed):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def whole(model):
    state = model.state_dict()
    return fingerprints({n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in state.items()})


def ddp_loop():
    """Accumulation without communication, parameters that are not always used, a checkpoint by one rank for all."""
    inside = Model()
    inside.unused = nn.Linear(WIDTH, WIDTH)
    model = nn.parallel.DistributedDataParallel(inside, bucket_cap_mb=1, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for first, second in zip(batches(2, rank), batches(2, 10 + rank)):
        with model.no_sync():
            loss_of(model, first).backward()
        loss_of(model, second).backward()
        optimizer.step()
        optimizer.zero_grad()
    path = os.path.join(folder, "ddp.pt")
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    saved = torch.load(path, map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return train(model, optimizer, rank), fingerprints(training_state(model, optimizer))


def ddp_uneven():
    """One rank has more batches than the other."""
    model = nn.parallel.DistributedDataParallel(Model(2), bucket_cap_mb=1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with model.join():
        losses = train(model, optimizer, rank, steps=2 + rank, clip=False)
    return losses, fingerprints(dict(model.state_dict()))


def ddp_compressed():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1, static_graph=True)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return train(model, optimizer, rank), fingerprints(training_state(model, optimizer))


def sharded(**options):
    from torch.distributed.fsdp import fully_shard

    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=init_device_mesh("cpu", (ranks,)), **options)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)), **options)
    return model


def fsdp_mixed():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return train(model, optimizer, rank), whole(model)


def fsdp_checkpoint():
    """Written by all ranks with torch.distributed.checkpoint, read into a model that began otherwise."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = train(model, optimizer, rank)
    states = get_state_dict(model, optimizer)
    checkpoint.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=os.path.join(folder, "dcp"))
    torch.manual_seed(9)
    again = sharded()
    its_optimizer = torch.optim.AdamW(again.parameters(), lr=1e-3)
    states = dict(zip(("model", "optimizer"), get_state_dict(again, its_optimizer)))
    checkpoint.load(states, checkpoint_id=os.path.join(folder, "dcp"))
    set_state_dict(again, its_optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    assert whole(again) == whole(model)
    return losses + train(again, its_optimizer, 5 + rank), whole(again)


def parallel(model, mesh, sequence=False):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
    from torch.distributed.tensor.parallel import PrepareModuleInput, parallelize_module

    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {"attention.out": RowwiseParallel()}
    plan |= {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        split = dict(output_layouts=Shard(1))
        plan |= {"attention_norm": SequenceParallel(), "norm": SequenceParallel()}
        plan |= {"attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
        plan |= {"attention.out": RowwiseParallel(**split), "down": RowwiseParallel(**split)}
        plan |= {"up": ColwiseParallel(input_layouts=Shard(1))}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    outer = {"output": ColwiseParallel(input_layouts=Shard(1) if sequence else None, output_layouts=Replicate())}
    inner = Shard(1) if sequence else Replicate()
    outer |= {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=inner)}
    return parallelize_module(model, mesh, outer)


def tensor_parallel(sequence=False):
    model = parallel(Model(), init_device_mesh("cpu", (ranks,)), sequence)
    # Where only some parameters are DTensors, torch has no list operators: neither for clipping nor for the update.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=sequence)
    return train(model, optimizer, 3, clip=sequence), whole(model)


def sequence_parallel():
    return tensor_parallel(sequence=True)


losses, state = globals()[task]()
if runtime:
    check_moved(runtime.stats())
result({"losses": losses, "state": state})
dist.barrier()
dist.destroy_process_group()
'''
# DDP copies all parameters into one tensor when it begins.
TASKS = {
    "ddp_loop": "20MiB",
    "ddp_uneven": "14MiB",
    "ddp_compressed": "20MiB",
    "fsdp_mixed": "14MiB",
    "fsdp_checkpoint": "14MiB",
    "tensor_parallel": "10MiB",
    "sequence_parallel": "10MiB",
}


@pytest.mark.parametrize("mode", ["0", "1"], ids=["when_needed", "eagerly"])
@pytest.mark.parametrize("task", TASKS)
def test_training(task, mode, disk, tmp_path):
    found = []
    for memory in ("", TASKS[task]):
        files = tmp_path / f"files{memory}"
        files.mkdir()
        environment = {"BOTTOMLESS_EVICT_EAGERLY": mode}
        arguments = (task, memory, str(disk), str(files))
        found.append(run_ranks(PROGRAM, 2, tmp_path / "ranks", *arguments, env=environment))
    assert found[1] == found[0]
