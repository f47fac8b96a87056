"""What people do with PyTorch besides the loops of test_equality.py: every case leaves the bits that plain PyTorch leaves.

Each case runs when blocks leave as needed and when they leave at once.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import same_under_limit, training_state
from test_equality import WIDTH, layers, loss_of, train

# --- architectures ---


def recurrent(kind):
    model = kind(256, 256, num_layers=4, batch_first=True, bidirectional=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 6, 256))[0].square().mean().backward()
        optimizer.step()
    return training_state(model, optimizer)


def lstm():
    return recurrent(nn.LSTM)


def gru():
    return recurrent(nn.GRU)


class StateSpace(nn.Module):
    """A diagonal state-space layer: a scan over time that depends on the input."""

    def __init__(self, width, states=8):
        super().__init__()
        self.decay = nn.Parameter(-torch.rand(width, states))
        self.inside, self.outside = nn.Linear(width, 2 * states), nn.Linear(width, width)
        self.step = nn.Linear(width, width)

    def forward(self, x):
        delta = F.softplus(self.step(x))
        write, read = self.inside(x).chunk(2, -1)
        state = torch.zeros(*x.shape[::2], self.decay.shape[1])
        outputs = []
        for t in range(x.shape[1]):
            state = state * torch.exp(delta[:, t, :, None] * self.decay) + (delta[:, t] * x[:, t])[..., None] * write[:, t, None]
            outputs.append((state * read[:, t, None]).sum(-1))
        return x + self.outside(torch.stack(outputs, 1))


def state_space():
    model = nn.Sequential(*(StateSpace(WIDTH) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 6, WIDTH)).square().mean().backward()
        optimizer.step()
    return training_state(model, optimizer)


def convolutions_with_batch_norm():
    blocks = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True)) for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 3, 24, 24)), torch.randint(0, 10, (8,))).backward()
        optimizer.step()
    model.eval()
    return {**training_state(model, optimizer), "evaluated": model(torch.randn(2, 3, 24, 24))}


def transformer():
    model = nn.Transformer(128, 4, 3, 3, 512, dropout=0.1, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 12, 128), torch.randn(2, 9, 128)).square().mean().backward()
        optimizer.step()
    return training_state(model, optimizer)


def frozen_parameters():
    model = layers(10)
    model[:7].requires_grad_(False)
    return train(model, torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters())))


# --- views, in-place operators, saved tensors ---


def in_place_operators_and_views():
    base = torch.randn(10, WIDTH, WIDTH)
    leaf = torch.randn(WIDTH, WIDTH, requires_grad=True)
    work = leaf * 1
    for index in range(10):
        base[index].mul_(0.5).add_(work.detach())
        base[index, ::3] = index
        work[index::16].add_(base[index, index::16])
        work.t()[:, :8].clamp_(max=1)
    base.transpose(0, 2)[3].zero_()
    base.view(-1)[5::7].sub_(1)
    base.index_fill_(1, torch.tensor([1, 9]), 2.5)
    torch.add(base[0], base[1], out=base[2])
    torch.where(base[3] > 0, base[4], base[5], out=base[6])
    work.square().sum().backward()
    return {"base": base, "grad": leaf.grad, "strided": base.as_strided((100, 100), (3, 1001))}


def saved_tensor_hooks():
    model, kept = layers(8), []
    pack = lambda tensor: (kept.append(tensor.shape), tensor.clone())[1]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 1):
        loss_of(model).backward()
    assert kept
    return training_state(model)


def saved_on_cpu():
    model = layers(8)
    with torch.autograd.graph.save_on_cpu():
        loss_of(model).backward()
    return training_state(model)


def inference_mode():
    model = layers(20)
    with torch.inference_mode():
        out = model(torch.randn(64, WIDTH))
        out += 1
        return {"out": out.clone(), "half": model.half()(torch.randn(64, WIDTH).half()).clone()}


# --- function transforms ---


def function_transforms():
    model = layers(6)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(given, x):
        return torch.func.functional_call(model, given, (x,)).square().mean()

    x = torch.randn(8, WIDTH)
    gradients = torch.func.grad(loss)(parameters, x)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))({"0.1.bias": parameters["0.1.bias"]}, x[:, None])
    jacobian = torch.func.jacrev(lambda w: (w @ x.t())[:4].sum(0))(parameters["1.1.weight"])
    _, tangent = torch.func.jvp(lambda w: (w @ w).relu(), (parameters["2.1.weight"],), (parameters["3.1.weight"],))
    product = torch.func.vjp(lambda w: w.softmax(-1), parameters["4.1.weight"])[1](parameters["5.1.weight"])[0]
    return {**gradients, **{f"each-{n}": g for n, g in each.items()}, "jacobian": jacobian, "jvp": tangent, "vjp": product}


# --- optimizers and what surrounds them ---


def tensor_learning_rate():
    model = layers(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3), foreach=False)
    return train(model, optimizer)


def adafactor_and_muon():
    model, other = layers(6), layers(6)
    first = train(model, torch.optim.Adafactor(model.parameters()))
    matrices = [parameter for parameter in other.parameters() if parameter.dim() == 2]
    return {**first, **{f"muon-{n}": t for n, t in train(other, torch.optim.Muon(matrices)).items()}}


def gradient_scaler():
    model = layers(8)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model)
        scaler.scale(loss * (float("inf") if step == 1 else 1)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return {**training_state(model, optimizer), "scale": torch.tensor(scaler.get_scale())}


def schedules():
    model = layers(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])
    for _ in range(4):
        state = train(model, optimizer, steps=1)
        both.step()
    return state


# --- states, copies, pickles, scripts ---


def states_loaded_back():
    model, twin = layers(6), layers(6)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    twin.load_state_dict(model.state_dict())
    again = torch.optim.AdamW(twin.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return train(twin, again)


def pickled():
    model = pickle.loads(pickle.dumps(layers(14)))
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def started_on_the_meta_device():
    with torch.device("meta"):
        model = layers(8)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.05, 0.05)
    assigned = nn.Linear(WIDTH, WIDTH, device="meta")
    assigned.load_state_dict({"weight": torch.randn(WIDTH, WIDTH), "bias": torch.randn(WIDTH)}, assign=True)
    model.append(assigned)
    return train(model, torch.optim.AdamW(model.parameters()))


def scripted():
    model = torch.jit.script(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))))
    file = io.BytesIO()
    torch.jit.save(model, file)
    file.seek(0)
    model = torch.jit.load(file)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def traced():
    model = torch.jit.trace(layers(8), torch.randn(2, WIDTH))
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


@torch.jit.script
def _squared(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).relu()


@torch.jit.script
def _in_parallel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first = torch.jit.fork(_squared, x)
    second = torch.jit.fork(_squared, y)
    return torch.jit.wait(first) - torch.jit.wait(second)


def forked_by_torchscript():
    matrices = [torch.randn(WIDTH, WIDTH) for _ in range(12)]
    return {str(n): _in_parallel(matrices[n], matrices[-1 - n]) for n in range(6)}


CASES = [
    lstm, gru, state_space, convolutions_with_batch_norm, transformer, frozen_parameters, in_place_operators_and_views,
    saved_tensor_hooks, saved_on_cpu, inference_mode, function_transforms, tensor_learning_rate, adafactor_and_muon,
    gradient_scaler, schedules, states_loaded_back, pickled, started_on_the_meta_device, scripted, traced,
    forked_by_torchscript,
]  # fmt: skip


LIMITS = {in_place_operators_and_views: "14MiB"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_case(case, disk, eviction):
    same_under_limit(disk, case, LIMITS.get(case, "16MiB"))
