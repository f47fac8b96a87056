"""Element-wise work on tensors that are large for the limit is cut into tiles; not one bit may tell.

ATen runs most of a range through vector code and the rest of each thread's part through scalar code, and the two round
differently: a cut in the wrong place shows. Hence odd lengths, several numbers of threads, and a bit for bit comparison.
"""

import pytest
import torch
from torch.nn import functional as F

from helpers import fingerprints, limit, same_under_limit


def filled(*shape, dtype=torch.float32, low=-3.0, high=3.0):
    """Random numbers, made in pieces: a tensor larger than the limit could not be made at once."""
    tensor = torch.empty(shape, dtype=dtype)
    for part in tensor.view(-1).split(1 << 17):
        part.copy_(torch.empty(part.shape).uniform_(low, high))
    return tensor


def images(x):
    return x[:995_328].view(16, 3, 144, 144)


def strided(x):
    """Makes the strides part of the result."""
    return x.as_strided((x.numel(),), (1,)) + sum(x.stride())


def parts_of(tensor):
    """Splits what is too large to be looked at in one piece."""
    return {f"{tensor.shape}-{i}": part for i, part in enumerate(tensor.detach().view(-1).split(1 << 18))}


# --- optimizers on one large parameter ---

UPDATES = {
    "AdamW-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adam-fused-amsgrad": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True, weight_decay=0.1),
    "SGD-fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True, momentum=0.9, weight_decay=0.1),
    "Adagrad-fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "Adam-foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "AdamW-foreach-amsgrad": lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True),
    "RMSprop-foreach": lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.5, centered=True),
    "SGD-foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True, momentum=0.9, nesterov=True),
    "Adam-loop": lambda p: torch.optim.Adam(p, foreach=False, weight_decay=0.1),
    "AdamW-loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "Adagrad-loop": lambda p: torch.optim.Adagrad(p, foreach=False),
}


def updated(make, *shapes, dtype=torch.float32, steps=2):
    parameters = [torch.nn.Parameter(filled(*shape, dtype=dtype)) for shape in shapes]
    optimizer = make(parameters)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = filled(*parameter.shape, dtype=dtype, low=-0.1, high=0.1)
        optimizer.step()
    tensors = {}
    for i, parameter in enumerate(parameters):
        tensors |= {f"{i}-{name}": part for name, part in parts_of(parameter).items()}
        for state, value in optimizer.state[parameter].items():
            if torch.is_tensor(value) and value.numel() > 1:
                tensors |= {f"{i}-{state}-{name}": part for name, part in parts_of(value).items()}
    return tensors


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", UPDATES)
def test_update_of_a_parameter_that_must_be_cut(name, threads, disk):
    torch.set_num_threads(threads)
    same_under_limit(disk, lambda: updated(UPDATES[name], (1_000_003,)), "16MiB")


@pytest.mark.parametrize("name", ["AdamW-fused", "Adam-foreach", "Adam-loop"])
def test_update_in_which_every_tile_leaves_at_once(name, disk, monkeypatch):
    monkeypatch.setenv("BOTTOMLESS_EVICT_EAGERLY", "1")
    same_under_limit(disk, lambda: updated(UPDATES[name], (600_011,), steps=1), "12MiB")


@pytest.mark.parametrize("name", ["AdamW-fused", "SGD-fused", "Adam-foreach", "Adam-loop"])
@pytest.mark.parametrize(
    "shapes",
    [[(997, 1009), (131_072,), (262_145,)], [(65_537,), (1, 524_287), (7, 11, 13, 509)]],
    ids=["matrix", "mixed"],
)
def test_update_of_other_shapes(name, shapes, disk):
    same_under_limit(disk, lambda: updated(UPDATES[name], *shapes), "10MiB")


def test_update_of_a_parameter_larger_than_the_limit(disk):
    same_under_limit(disk, lambda: updated(UPDATES["SGD-fused"], (3_000_017,)), "10MiB")


@pytest.mark.parametrize("name", ["AdamW-fused", "Adam-foreach", "Adam-loop"])
def test_states_larger_than_the_limit(name, disk):
    same_under_limit(disk, lambda: updated(UPDATES[name], (3_000_017,)), "10MiB")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["AdamW-fused", "Adam-foreach", "Adam-loop"])
def test_update_of_other_types(name, dtype, disk):
    elements = 8_000_033 // dtype.itemsize
    same_under_limit(disk, lambda: updated(UPDATES[name], (elements,), dtype=dtype), "18MiB")


# --- element-wise operators ---

UNARY = """abs neg exp expm1 exp2 log1p sin cos tan asinh atan sinh cosh tanh sigmoid erf erfc square sqrt rsqrt
    reciprocal floor ceil round trunc frac sign sgn relu isnan isfinite logical_not signbit nan_to_num positive""".split()
BINARY = """add sub mul div atan2 hypot maximum minimum fmax fmin fmod remainder copysign eq ne lt le logical_and
    logical_xor nextafter heaviside xlogy logaddexp pow floor_divide""".split()
OTHERS = {
    "gelu": lambda x, y, z: F.gelu(x),
    "gelu-tanh": lambda x, y, z: F.gelu(x, approximate="tanh"),
    "silu": lambda x, y, z: F.silu(x),
    "mish": lambda x, y, z: F.mish(x),
    "elu": lambda x, y, z: F.elu(x),
    "leaky_relu": lambda x, y, z: F.leaky_relu(x, 0.1),
    "softplus": lambda x, y, z: F.softplus(x),
    "hardswish": lambda x, y, z: F.hardswish(x),
    "logit": lambda x, y, z: torch.logit(torch.sigmoid(x)),
    "clamp": lambda x, y, z: x.clamp(-1, 1),
    "clamp-tensors": lambda x, y, z: torch.clamp(x, y, z),
    "pow-number": lambda x, y, z: x**3,
    "number-pow": lambda x, y, z: 2.5**x,
    "rsub": lambda x, y, z: 1.5 - x,
    "div-rounded": lambda x, y, z: torch.div(x, y, rounding_mode="floor"),
    "add-alpha": lambda x, y, z: torch.add(x, y, alpha=0.3),
    "where": lambda x, y, z: torch.where(x > 0, y, z),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.7),
    "lerp-tensor": lambda x, y, z: torch.lerp(x, y, z),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.3),
    "threshold": lambda x, y, z: F.threshold(x, 0.1, 20),
    "masked_fill": lambda x, y, z: x.masked_fill(y > 0, 7.0),
    "dropout": lambda x, y, z: F.dropout(x, 0.3),
    "dropout-in-place": lambda x, y, z: F.dropout(x.clone(), 0.3, inplace=True),
    "cast": lambda x, y, z: x.to(torch.float64),
    "half": lambda x, y, z: x.half() * y.half() + z,
    "bfloat16": lambda x, y, z: torch.tanh(x.bfloat16()) + y.bfloat16(),
    "integers": lambda x, y, z: (x * 1000).int() // (y * 10).int().clamp(min=1),
    "integer-plus-float": lambda x, y, z: (x * 1000).int() + y,
    "bits": lambda x, y, z: (x * 1000).int() ^ (y * 1000).int(),
    "shift": lambda x, y, z: (x * 1000).int() >> 3,
    "complex": lambda x, y, z: torch.view_as_real(torch.complex(x, y) * torch.complex(z, x).conj()),
    "complex-abs": lambda x, y, z: torch.complex(x, y).abs(),
    "in-place-chain": lambda x, y, z: x.clone().mul_(y).add_(z, alpha=2).addcdiv_(y, z, value=-1).clamp_(-9, 9),
    "in-place-functions": lambda x, y, z: x.clone().exp_().sigmoid_().sqrt_().tanh_().lerp_(y, 0.1),
    "in-place-compare": lambda x, y, z: x.clone().gt_(y),
    "scaled-by-one": lambda x, y, z: x * torch.tensor([0.3], dtype=torch.float64) + torch.tensor(0.7),
    "one-adds-dimensions": lambda x, y, z: x + torch.ones(1, 1, 1),
    "broadcast": lambda x, y, z: x.unsqueeze(0) + y[:3].unsqueeze(1).expand(3, 1)[:1],
    "transposed": lambda x, y, z: (x[:999_999].view(999, 1001).t() * y[:999_999].view(1001, 999)),
    "transposed-alike": lambda x, y, z: torch.tanh(x[:999_999].view(999, 1001).t()) + z[:999_999].view(999, 1001).t(),
    # oneDNN's kernels for what is contiguous, torch's own for the rest
    "transposed-gelu": lambda x, y, z: F.gelu(x[:999_999].view(999, 1001).t()),
    "transposed-gelu-in-place": lambda x, y, z: torch.ops.aten.gelu_(x[:999_999].clone().view(999, 1001).t()),
    "transposed-gelu-backward": lambda x, y, z: torch.ops.aten.gelu_backward(
        x[:999_999].view(999, 1001).t(), y[:999_999].view(999, 1001).t()
    ),
    "channels-last-gelu": lambda x, y, z: F.gelu(images(x).contiguous(memory_format=torch.channels_last)),
    "contiguous": lambda x, y, z: x[:999_999].view(999, 1001).t().contiguous().view(-1),
    "contiguous-clone": lambda x, y, z: x.view(1, -1).clone(memory_format=torch.contiguous_format).view(-1),
    "channels-last": lambda x, y, z: torch.exp(images(x).contiguous(memory_format=torch.channels_last)),
    "channels-last-clone": lambda x, y, z: strided(images(x).clone(memory_format=torch.channels_last).clone()),
    "channels-last-again": lambda x, y, z: strided(
        images(x).to(memory_format=torch.channels_last).clone(memory_format=torch.channels_last)
    ),
    "sliced": lambda x, y, z: torch.exp(x[1:]) + y[:-1],
    "every-second": lambda x, y, z: torch.exp(x[::2]) + z[::2],
    "to-itself": lambda x, y, z: x.clone().add_(x).mul_(x),
    "filled": lambda x, y, z: torch.zeros_like(x) + torch.full_like(y, 3) + torch.ones_like(z),
    "sigmoid-backward": lambda x, y, z: torch.ops.aten.sigmoid_backward(x, y),
    "tanh-backward": lambda x, y, z: torch.ops.aten.tanh_backward(x, y),
    "gelu-backward": lambda x, y, z: torch.ops.aten.gelu_backward(x, y),
    "silu-backward": lambda x, y, z: torch.ops.aten.silu_backward(x, y),
    "threshold-backward": lambda x, y, z: torch.ops.aten.threshold_backward(x, y, 0),
}
OPERATORS = (
    {name: lambda x, y, z, name=name: getattr(torch, name)(x) for name in UNARY}
    | {name: lambda x, y, z, name=name: getattr(torch, name)(x, y) for name in BINARY}
    | OTHERS
)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("elements", [1_000_003, 999_936 + 256 * 2 + 17])
def test_operators(elements, threads, disk):
    torch.set_num_threads(threads)

    def results():
        x, y, z = (filled(elements) for _ in range(3))
        for name, operator in OPERATORS.items():
            torch.manual_seed(1)
            yield from fingerprints({name: operator(x, y, z)}).items()

    torch.manual_seed(0)
    plain = dict(results())
    torch.manual_seed(0)
    with limit("28MiB", disk):  # of which one of x, y and z is more than an eighth
        limited = dict(results())
    assert [name for name in plain if limited[name] != plain[name]] == []


GRADIENTS = {name: OPERATORS[name] for name in "exp tanh sigmoid gelu silu softplus div pow lerp-tensor where".split()}


def test_gradients(disk):
    def work():
        tensors = {}
        x, y, z = (filled(700_001, low=0.1).requires_grad_() for _ in range(3))
        for name, operator in GRADIENTS.items():
            used = operator(x, y, z).sum()
            for which, gradient in zip("xyz", torch.autograd.grad(used, (x, y, z), allow_unused=True)):
                tensors[f"{name}-{which}"] = gradient
        return tensors

    same_under_limit(disk, work, "20MiB")


def computed_in_tiles():
    x, y = filled(3_000_017), filled(3_000_017)
    z = x * y
    z.add_(x, alpha=0.5).tanh_()
    y += z.exp()
    return parts_of(y)


def filled_and_copied_in_tiles():
    x = filled(3_000_017)
    y = torch.zeros(3_000_017)
    y.copy_(x)
    return parts_of(y)


@pytest.mark.parametrize("work", [computed_in_tiles, filled_and_copied_in_tiles])
def test_tensor_larger_than_the_limit(work, disk):
    """No operator needs it as a whole."""
    same_under_limit(disk, work, "9MiB")
