"""update_in_backward where it cannot give the same result: refused, with the reason."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from updating import STEPS, counting, loss_of, network, train, updating


def clipping(clip):
    def script(model, optimizer):
        train(lambda _: None, model, optimizer, before_step=[lambda: clip(list(model.parameters()))])

    return script


def write_through_data(parameters):
    for parameter in parameters:
        parameter.grad.data.mul_(0.5)


def replace_gradients(parameters):
    for parameter in parameters:
        parameter.grad = parameter.grad.clone()


def drop_a_gradient(parameters):
    parameters[0].grad = None


def decay_weights(parameters):
    with torch.no_grad():
        torch._foreach_mul_(parameters, 0.9)


def accumulation(first, then=2):
    """So many steps of one backward, then steps of several."""

    def script(model, optimizer):
        for step in range(STEPS):
            optimizer.zero_grad()
            for _ in range(1 if step < first else then):
                loss_of(model).backward()
            optimizer.step()

    return script


def no_zero_grad(model, optimizer):
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()


def shared_layer_recomputed_reentrantly(model, optimizer):
    """A backward within backward for each of its uses."""
    once = lambda model: checkpoint(model, torch.randn(6, 8, requires_grad=True), use_reentrant=True)
    loss = lambda model: (once(model) + once(model)).sum()
    train(lambda _: None, model, optimizer, loss=loss)


def grad_scaler(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()


def closure(model, optimizer):
    def evaluate():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(evaluate)


def rate_set_before_step(model, optimizer):
    def change():
        optimizer.param_groups[0]["lr"] *= 0.9

    train(lambda _: None, model, optimizer, before_step=[change])


def second_order(model, optimizer):
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward(create_graph=True)
        optimizer.step()


def second_optimizer(model, optimizer):
    train(lambda _: None, model, optimizer, torch.optim.SGD(model[3].parameters(), lr=0.1))


def own_step_hook(model, optimizer):
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 0.01) and None)
    train(lambda _: None, model, optimizer)


class CountsInGroups(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


class CountsItself(torch.optim.SGD):
    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


class DrawsNoise(torch.optim.SGD):
    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad + 1e-3 * torch.randn_like(parameter), alpha=-0.1)


class CountsInState(torch.optim.SGD):
    def step(self, closure=None):
        self.state["count"] = 1
        return super().step(closure)


SGD = functools.partial(torch.optim.SGD, lr=0.1)
CHANGED, SEVERAL = "changed between backward and", "more than one backward"
REFUSALS = {
    "clip_grad_norm": (SGD, clipping(lambda p: nn.utils.clip_grad_norm_(p, 0.1)), 2, CHANGED),
    "clip_grad_norm_without_effect": (SGD, clipping(lambda p: nn.utils.clip_grad_norm_(p, 1e9)), 2, CHANGED),
    "clip_grad_value": (SGD, clipping(lambda p: nn.utils.clip_grad_value_(p, 0.1)), 2, CHANGED),
    "write_through_data": (SGD, clipping(write_through_data), 2, CHANGED),
    "replaced_gradients": (SGD, clipping(replace_gradients), 2, CHANGED),
    "dropped_gradient": (SGD, clipping(drop_a_gradient), 2, CHANGED),
    "weight_decay_by_hand": (SGD, clipping(decay_weights), 2, CHANGED),
    "rate_set_before_step": (SGD, rate_set_before_step, 2, "lr " + CHANGED),
    "accumulation": (SGD, accumulation(0), 2, SEVERAL),
    "accumulation_later": (SGD, accumulation(5), 6, SEVERAL + ".*already updated"),
    "no_zero_grad": (SGD, no_zero_grad, 2, SEVERAL + ".*nothing called zero_grad"),
    "shared_layer_recomputed": (SGD, shared_layer_recomputed_reentrantly, 2, SEVERAL),
    "grad_scaler": (SGD, grad_scaler, 2, "GradScaler"),
    "grad_scaler_fused": (functools.partial(torch.optim.Adam, fused=True), grad_scaler, 1, "GradScaler"),
    "closure": (SGD, closure, 1, "closure"),
    "lbfgs": (torch.optim.LBFGS, closure, 1, "closure"),
    "create_graph": (SGD, second_order, 2, "create_graph"),
    "second_optimizer": (SGD, second_optimizer, 2, "second optimizer"),
    "own_step_hook": (SGD, own_step_hook, 1, "hooks of its own"),
    "counts_in_groups": (functools.partial(CountsInGroups, lr=0.1), clipping(lambda p: None), 1, "count"),
    "counts_itself": (functools.partial(CountsItself, lr=0.1), clipping(lambda p: None), 1, "count"),
    "draws_noise": (functools.partial(DrawsNoise, lr=0.1), clipping(lambda p: None), 2, "random numbers"),
    "counts_in_state": (functools.partial(CountsInState, lr=0.1), clipping(lambda p: None), 1, "common.*state"),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_give_the_same_result_is_refused(name):
    """In the step given; up to the second one, nothing has been updated in backward."""
    make, script, step, reason = REFUSALS[name]
    model = network()
    optimizer = make(model.parameters())
    ours, theirs = [], []
    with updating() as updates, counting(updates, ours, theirs):
        with pytest.raises(RuntimeError, match=f"^bottomless: update_in_backward: .*{reason}.*leave.*out$"):
            script(model, optimizer)
    assert len(theirs) == step - 1
    assert bool(ours) == (step > 2)
