"""update_in_backward beside all else that a script does: its own hooks, threads, failures, an end."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from updating import STEPS, counting, loss_of, network, outcome, parameters_of, same, train, updating


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
