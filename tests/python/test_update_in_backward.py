"""update_in_backward: the same bits as without, and no gradients left for step()."""

import copy
import functools
import io
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from updating import STEPS, loss_of, network, same, train

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "sgd_momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adam": torch.optim.Adam,
    "adam_amsgrad": functools.partial(torch.optim.Adam, amsgrad=True, weight_decay=0.01),
    "adam_maximize": functools.partial(torch.optim.Adam, maximize=True, foreach=True),
    "adam_tensor_rate": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "adamw_fused": functools.partial(torch.optim.AdamW, fused=True),
    "adamw_foreach": functools.partial(torch.optim.AdamW, foreach=True),
    "adamw_loop": functools.partial(torch.optim.AdamW, foreach=False, fused=False),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": functools.partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adafactor": torch.optim.Adafactor,
    "asgd": functools.partial(torch.optim.ASGD, t0=3),
    "adamax": torch.optim.Adamax,
    "rprop": torch.optim.Rprop,
    "adadelta": torch.optim.Adadelta,
    "muon": torch.optim.Muon,
}


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_gives_the_same_bits(name, set_to_none):
    def script(check):
        model = network() if name != "muon" else nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
        return train(check, model, OPTIMIZERS[name](model.parameters()), set_to_none=set_to_none)

    same(script)


class Tied(nn.Module):
    """A language model in small: input and output share their weights."""

    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.out = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.middle(self.embed(x.argmax(1)))))


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return torch.tanh(x @ self.weight) @ self.weight


class Recomputed(nn.Module):
    """Backward runs each layer's forward again, when later layers are already updated."""

    reentrant = False

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x.requires_grad_()
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=self.reentrant))
        return x


class RecomputedReentrantly(Recomputed):
    """Each layer's gradients come from a backward within backward."""

    reentrant = True


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("architecture", [Tied, UsedTwice, Recomputed, RecomputedReentrantly])
def test_every_way_to_use_a_parameter_gives_the_same_bits(architecture, set_to_none):
    def script(check):
        model = architecture()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return train(check, model, optimizer, set_to_none=set_to_none)

    same(script)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_sign_of_zero_stays(set_to_none):
    """A gradient of -0 becomes 0 when it is added to zeros, and then -0 stays -0."""

    def script(check):
        model = nn.ParameterList([torch.tensor([-0.0, 0.0, 1.0])])
        factors = iter([0.0] + [-0.0] * (STEPS - 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return train(check, model, optimizer, loss=lambda _: (model[0] * next(factors)).sum(), set_to_none=set_to_none)

    same(script)


def frozen_parameters(check):
    model = network().requires_grad_(False)
    model[3].requires_grad_(True)
    return train(check, model, torch.optim.Adam(model.parameters()))


def several_groups(check):
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1:].parameters()}]
    return train(check, model, torch.optim.SGD(groups, lr=0.01, momentum=0.9))


def two_optimizers(check):
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    return train(check, model, first, torch.optim.Adam(model[1:].parameters()))


def two_losses(check):
    """Each optimizer with a backward of its own, as long as that does not reach the other's parameters."""
    model = nn.ModuleList([network(), network()])
    optimizers = [torch.optim.Adam(part.parameters()) for part in model]
    for _ in range(STEPS):
        for part, optimizer in zip(model, optimizers):
            train(check, part, optimizer, steps=1)
    return model, *optimizers


def back_to_a_checkpoint(check):
    """The same optimizer gets an earlier state, which replaces its groups."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(check, model, optimizer, steps=2, after_step=[scheduler.step])
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
    train(check, model, optimizer, steps=3, after_step=[scheduler.step])
    for part, state in zip((model, optimizer, scheduler), saved):
        part.load_state_dict(state)
    return train(check, model, optimizer, steps=3, after_step=[scheduler.step])


def on_from_a_checkpoint(check):
    """A new model and optimizer go on where others were saved."""
    old = network()
    old_optimizer = torch.optim.AdamW(old.parameters())
    train(check, old, old_optimizer, steps=4)
    file = io.BytesIO()
    torch.save([old.state_dict(), old_optimizer.state_dict()], file)
    torch.save(old, io.BytesIO())  # with its hooks
    file.seek(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for part, state in zip((model, optimizer), torch.load(file)):
        part.load_state_dict(state)
    return train(check, model, optimizer, steps=4)


def gradients_of_gradients(check):
    """torch.autograd.grad accumulates nothing, and retain_graph only keeps the graph for it."""

    def loss(model):
        x = torch.randn(6, 8, requires_grad=True)
        out = model(x).square().mean()
        torch.autograd.grad(out, list(model.parameters()), retain_graph=True)
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        return out + slope.square().sum()

    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model).backward(retain_graph=True)
        check(optimizer)
        optimizer.step()
    return model, optimizer


def changes_in_hooks_of_backward(check):

    def clamp(parameter):
        parameter.grad.clamp_(-1e-3, 1e-3)

    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    model[0].weight.register_hook(lambda grad: grad * 2)
    model[0].weight.register_post_accumulate_grad_hook(clamp)
    return train(check, model, optimizer)


def low_precision(check):
    model = network().bfloat16()
    loss = lambda model: model(torch.randn(6, 8).bfloat16()).square().mean()
    return train(check, model, torch.optim.AdamW(model.parameters()), loss=loss)


@pytest.mark.parametrize(
    "script",
    [
        frozen_parameters, several_groups, two_optimizers, two_losses, back_to_a_checkpoint, on_from_a_checkpoint,
        gradients_of_gradients, changes_in_hooks_of_backward, low_precision,
    ],
    ids=lambda script: script.__name__,
)  # fmt: skip
def test_scripts_give_the_same_bits(script):
    same(script)


SCHEDULERS = {
    "one_cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=STEPS + 2),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS),
    "warmup": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_give_the_same_rates_without_a_warning(name):
    rates = []

    def script(check):
        model = network()
        groups = [{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.1}]
        optimizer = torch.optim.AdamW(groups)
        scheduler = SCHEDULERS[name](optimizer)
        rates.append([])
        note = lambda: rates[-1].append(scheduler.get_last_lr())
        return train(check, model, optimizer, after_step=[scheduler.step, note])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(script)
    assert rates[0] == rates[1]
    assert len(set(map(str, rates[0]))) > 2


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_parameter_without_gradient_in_some_steps_gives_the_same_bits(set_to_none, momentum):
    """With zeros kept by zero_grad it moves on by its momentum, otherwise it stays."""

    def script(check):
        model = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        uses = iter([[0], [0, 1], [0, 1, 2], [0], [0, 2], [0, 2], [0], [0], [0, 1], [0, 1, 2]])
        loss = lambda model: sum(loss_of(model[layer]) for layer in next(uses))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        return train(check, model, optimizer, steps=10, loss=loss, set_to_none=set_to_none)

    same(script, may_stay={2, 3, 4, 5})


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize(
    "make", [torch.optim.SparseAdam, functools.partial(torch.optim.SGD, lr=0.1)], ids=["sparse_adam", "sgd"]
)
def test_sparse_gradients_give_the_same_bits(make, set_to_none):
    def script(check):
        model = nn.ModuleList(nn.EmbeddingBag(20, 4, sparse=True) for _ in range(2))
        uses = iter([[0], [0, 1], [0, 1], [0], [0, 1], [0], [0, 1], [0]])
        loss = lambda model: sum(model[i](torch.randint(20, (3, 4))).square().sum() for i in next(uses))
        return train(check, model, make(model.parameters()), loss=loss, set_to_none=set_to_none)

    same(script, may_stay={1})
