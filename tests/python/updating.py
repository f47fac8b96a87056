"""What the tests of update_in_backward share.

A script is a function that is given `check`, calls it right before every optimizer.step() of its own, and returns
its model and its optimizers.
"""

import contextlib

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from bottomless._update_in_backward import UpdateInBackward
from helpers import fingerprints, training_state

STEPS = 8


@contextlib.contextmanager
def updating():
    updates = UpdateInBackward()
    try:
        yield updates
    finally:
        updates.close()


@contextlib.contextmanager
def counting(updates, ours, theirs):
    """Notes the steps that end, of ours and of the script."""
    count = lambda optimizer, args, kwargs: (ours if updates.stepping else theirs).append(optimizer)
    hook = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        hook.remove()


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def outcome(script, check):
    """All that the script leaves behind, gradients excepted."""
    torch.manual_seed(0)
    model, *optimizers = script(check)
    tensors, options = {}, []
    for index, optimizer in enumerate(optimizers):
        state = training_state(model, optimizer)
        tensors |= {f"{index}.{name}": tensor for name, tensor in state.items() if not name.endswith(".grad")}
        options.append(optimizer.state_dict()["param_groups"])
    return fingerprints(tensors), options


def same(script, may_stay=()):
    """Both ways give the same bits, and from the third step of an optimizer on, step() found no gradients.

    `may_stay` are the indices of parameters that may have one nevertheless.
    """
    calls = []

    def check(optimizer):
        gone = [p.grad is None for i, p in enumerate(parameters_of(optimizer)) if p.requires_grad and i not in may_stay]
        calls.append((optimizer, all(gone)))

    plain, options = outcome(script, check)
    assert len(calls) >= 6 and not any(gone for _, gone in calls)
    calls.clear()
    with updating():
        updated, updated_options = outcome(script, check)
    different = [name for name in plain if updated.get(name) != plain[name]]
    assert not different and updated.keys() == plain.keys()
    assert updated_options == options
    for one in {optimizer for optimizer, _ in calls}:
        gone = [gone for optimizer, gone in calls if optimizer is one]
        assert gone == [False, False] + [True] * (len(gone) - 2)
        assert len(gone) >= 4


def network(width=24):
    return nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 5))


def loss_of(model):
    return model(torch.randn(6, 8)).square().mean()


def train(check, model, *optimizers, steps=STEPS, loss=loss_of, before_step=(), after_step=(), **zero):
    """The usual loop; `before_step` and `after_step` are called around the optimizers' steps."""
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad(**zero)
        loss(model).backward()
        for each in before_step:
            each()
        for optimizer in optimizers:
            check(optimizer)
            optimizer.step()
        for each in after_step:
            each()
    return model, *optimizers
