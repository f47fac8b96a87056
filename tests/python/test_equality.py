"""Training under a tight limit leaves the same bits behind as plain training: optimizers, and what else loops do."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from helpers import fingerprints, limit, same_under_limit, training_state

WIDTH = 512  # a weight of 1 MiB


def layers(count, width=WIDTH):
    blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(count)]
    return nn.Sequential(*blocks)


def loss_of(model, batch=32, width=WIDTH):
    return F.mse_loss(model(torch.randn(batch, width)), torch.randn(batch, width))


def train(model, optimizer, steps=2, after_backward=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        after_backward()
        optimizer.step()
    return {**training_state(model, optimizer), "loss": loss}


# --- optimizers ---

OPTIMIZERS = {
    "SGD": dict(lr=0.1),
    "SGD-nesterov": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": dict(lr=1e-3, weight_decay=0.01),
    "Adam-amsgrad": dict(lr=1e-3, amsgrad=True),
    "AdamW": dict(lr=1e-3),
    "AdamW-maximize": dict(lr=1e-3, maximize=True),
    "Adagrad": dict(lr=0.01, weight_decay=0.01),
    "RMSprop": dict(lr=1e-3, momentum=0.9, centered=True),
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "ASGD": {},
    "Rprop": {},
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
VARIANTS = [
    (name, variant)
    for name in OPTIMIZERS
    for variant in ("loop", "foreach", "fused")
    if variant != "fused" or name.split("-")[0] in FUSED
]


@pytest.mark.parametrize("name, variant", VARIANTS, ids=lambda word: word)
def test_optimizer(name, variant, disk):
    choice = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[variant]

    def work():
        model = layers(8)
        optimizer = getattr(torch.optim, name.split("-")[0])(model.parameters(), **OPTIMIZERS[name], **choice)
        return train(model, optimizer)

    same_under_limit(disk, work, "9MiB")


def test_lbfgs(disk):
    def work():
        model = layers(3)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=4)
        inputs, targets = torch.randn(16, WIDTH), torch.randn(16, WIDTH)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).detach().clone() for _ in range(2)]
        return {**training_state(model, optimizer), "losses": torch.stack(losses)}

    same_under_limit(disk, work, "16MiB")


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sparse_embedding_gradients(mode, disk, eviction):
    def work():
        bag = nn.EmbeddingBag(20_000, 64, mode=mode, sparse=True)
        table = nn.Embedding(18_000, 64, sparse=True)
        optimizer = torch.optim.SparseAdam([*bag.parameters(), *table.parameters()], lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            bags = bag(torch.randint(20_000, (64, 7)))
            loss = (bags - table(torch.randint(18_000, (64,)))).square().sum()
            loss.backward()
            optimizer.step()
        return {"loss": loss, **training_state(nn.ModuleList([bag, table]), optimizer)}

    same_under_limit(disk, work, "16MiB")


# --- what else training loops do ---


def clipped_by_norm():
    model = layers(8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    norms = []
    clip = lambda: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    return {**train(model, optimizer, after_backward=clip), "norms": torch.stack(norms)}


def clipped_by_norm_one_by_one():
    model = layers(8)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=1.0, foreach=False)
    return train(model, torch.optim.SGD(model.parameters(), lr=1.0), after_backward=clip)


def accumulated_gradients():
    model = layers(8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            (loss_of(model) / 3).backward()
        optimizer.step()
    return training_state(model, optimizer)


def tied_weights():
    model = layers(8)
    for block in model[1::2]:
        block[1].weight = model[0][1].weight
    model.append(nn.Linear(WIDTH, WIDTH))
    model[-1].weight = nn.Parameter(model[2][1].weight.detach().t())  # one storage, two parameters
    return train(model, torch.optim.AdamW(model.parameters(), fused=True))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks, self.dropout, self.reentrant = layers(8), nn.Dropout(0.3), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(lambda y: self.dropout(block(y)), x, use_reentrant=self.reentrant)
        return x


def checkpointed():
    model = Checkpointed(reentrant=False)
    return train(model, torch.optim.AdamW(model.parameters()))


def checkpointed_reentrant():
    model = Checkpointed(reentrant=True)
    model.blocks[0].requires_grad_(False)
    inputs = torch.randn(32, WIDTH, requires_grad=True)
    model(inputs).square().mean().backward()
    return {**training_state(model), "inputs": inputs.grad}


def without_gradients():
    model = layers(16).eval()
    with torch.no_grad():
        first = model(torch.randn(64, WIDTH))
    with torch.inference_mode():
        second = model(torch.randn(64, WIDTH))
        second += 1
    return {"first": first, "second": second, **training_state(model)}


def double_backward():
    model = layers(8)
    inputs = torch.randn(64, WIDTH, requires_grad=True)
    (slope,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    return {**training_state(model), "inputs": inputs.grad, "slope": slope}


def autocast_bfloat16():
    model = layers(8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch=64)
        loss.backward()
        optimizer.step()
    return training_state(model, optimizer)


def bfloat16_parameters():
    model = layers(16).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(64, WIDTH, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
    return training_state(model, optimizer)


def updated_inside_backward():
    model = layers(8)
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        loss_of(model).backward()
    return training_state(model)


def averaged_weights_and_schedule():
    model = layers(6)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=4)
    for _ in range(3):
        train(model, optimizer, steps=1)
        schedule.step()
        average.update_parameters(model)
    return {**training_state(model, optimizer), **{f"average.{k}": v for k, v in average.state_dict().items()}}


def copied_deeply():
    model = layers(6)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, steps=1)
    twin, other = copy.deepcopy((model, optimizer))
    train(model, optimizer, steps=1)
    return {**training_state(model, optimizer), **{f"twin.{k}": v for k, v in training_state(twin, other).items()}}


def saved_and_loaded_in_memory():
    model = layers(6)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    train(model, optimizer, steps=1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    del model, optimizer
    file.seek(0)
    saved = torch.load(file)
    model = layers(6)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return train(model, optimizer, steps=1)


WORKS = [
    clipped_by_norm, clipped_by_norm_one_by_one, accumulated_gradients, tied_weights, checkpointed,
    checkpointed_reentrant, without_gradients, double_backward, autocast_bfloat16, bfloat16_parameters,
    updated_inside_backward, averaged_weights_and_schedule, copied_deeply, saved_and_loaded_in_memory,
]  # fmt: skip


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_training(work, disk, eviction):
    same_under_limit(disk, work, "9MiB")


@pytest.mark.parametrize("elements", [1 << 18, 3 << 20], ids=["small", "larger_than_the_limit"])
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mmap"])
def test_saved_to_a_file_and_loaded(mmap, elements, disk, tmp_path, eviction):
    """A file is written by system calls, which do not fault on memory that is away but fail."""

    def work():
        model = layers(8)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, steps=1)
        one = torch.empty(elements)
        for part in one.split(1 << 18):
            part.normal_()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "one": one}, tmp_path / "state")
        del model, optimizer, one
        saved = torch.load(tmp_path / "state", mmap=mmap)
        model = layers(8)
        optimizer = torch.optim.AdamW(model.parameters())
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return {**train(model, optimizer, steps=1), "one": saved["one"]}

    same_under_limit(disk, work, "9MiB")


def test_many_limits_in_one_process(disk):
    """Opened and closed again and again, with a model that lives through all of them."""
    torch.manual_seed(3)
    model = layers(8)
    optimizer = torch.optim.AdamW(model.parameters())
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    for turn in range(6):
        torch.manual_seed(turn)
        plain = train(twin, twin_optimizer, steps=1)
        torch.manual_seed(turn)
        with limit(f"{8 + turn % 2}MiB", disk):
            limited = train(model, optimizer, steps=1)
        assert fingerprints(limited) == fingerprints(plain), f"turn {turn}"
