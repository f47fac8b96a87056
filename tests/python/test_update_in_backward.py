"""update_in_backward: the same bits as without, no gradients left for step(), and refusals where that cannot be.

A script here is a function that is given `check`, calls it right before every optimizer.step() of its own, and returns
its model and its optimizers.
"""

import contextlib
import copy
import functools
import gc
import io
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

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


def test_new_groups_and_parameters_that_thaw_are_taken_over():
    def script(check):
        model = network()
        model[3].requires_grad_(False)
        optimizer = torch.optim.Adam([*model[0].parameters(), *model[3].parameters()])
        train(check, model, optimizer, steps=4)
        optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.1})
        model[3].requires_grad_(True)
        train(lambda _: None, model, optimizer, steps=2)
        return train(check, model, optimizer, steps=4)

    same(script)


def test_groups_that_the_script_takes_away_stay_as_they_are():
    def script(check):
        model = network()
        optimizer = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[1:].parameters()}])
        train(check, model, optimizer, steps=4)
        del optimizer.param_groups[0]
        train(lambda _: None, model, optimizer, steps=1)  # all have moved: this step runs as always
        for parameter in model[0].parameters():
            parameter.grad = None
        return train(check, model, optimizer, steps=4)[0], torch.optim.SGD(model.parameters())

    same(script)


def test_a_hook_of_the_script_that_comes_later_finds_every_gradient():
    found = []

    def script(check):
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        train(check, model, optimizer, steps=4)
        norms = []
        found.append(norms)
        model[0].weight.register_post_accumulate_grad_hook(lambda parameter: norms.append(float(parameter.grad.norm())))
        train(lambda _: None, model, optimizer, steps=1)
        return train(check, model, optimizer, steps=4)

    same(script)
    assert len(found[0]) == 5
    assert found[0] == found[1]


def test_a_script_that_already_updates_in_backward_is_left_alone():
    def script(check):
        model = network()
        optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(STEPS):
            loss_of(model).backward()
        return model, *optimizers.values()

    plain = outcome(script, None)
    with updating():
        assert outcome(script, None) == plain


def test_others_can_tell_our_steps_from_those_of_the_script():
    ours, theirs = [], []
    with updating() as updates:
        model = network()
        with counting(updates, ours, theirs):
            train(lambda _: None, model, torch.optim.Adam(model.parameters()))
        assert not updates.stepping
    assert (len(ours), len(theirs)) == ((STEPS - 2) * len(list(model.parameters())), STEPS)


def test_threads_train_independently():
    def script(check):
        models = nn.ModuleList(network() for _ in range(2))
        optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        batches = [torch.randn(6, 8) for _ in range(30)]

        def work(model, optimizer):
            for batch in batches:
                train(check, model, optimizer, steps=1, loss=lambda model: model(batch).square().mean())

        threads = [threading.Thread(target=work, args=pair) for pair in zip(models, optimizers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return models, *optimizers

    same(script)


def test_a_step_that_fails_leaves_the_optimizer_whole():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if fail:
                raise ValueError("as asked")
            return super().step(closure)

    fail = False
    model = network()
    with updating() as updates:
        optimizer = Failing(model.parameters(), lr=0.1)
        train(lambda _: None, model, optimizer, steps=3)
        fail = True
        with pytest.raises(ValueError, match="as asked"):
            loss_of(model).backward()
        assert not updates.stepping
    assert parameters_of(optimizer) == list(model.parameters())


def test_close_removes_every_hook():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with updating() as updates:
        train(lambda _: None, model, optimizer)
        updates.close()
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        train(lambda _: None, model, optimizer, steps=1)
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_dropped_optimizer_is_freed_and_its_hooks_go():
    with updating():
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        train(lambda _: None, model, optimizer)
        dropped = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert dropped() is None
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        train(lambda _: None, model, torch.optim.SGD(model.parameters(), lr=0.1))  # a successor is welcome
        dropped = weakref.ref(model[0].weight)
        del model
        gc.collect()
        assert dropped() is None


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
