"""What the statements of random programs call, besides torch itself. None of them knows whether there is a limit.

Shapes and types are met halfway, so that a program from which statements were left out is still one. Results never
depend on time, addresses or memory that nobody wrote; values stay finite, since the bits of a NaN depend on how a loop
was vectorised.
"""

import ctypes
import hashlib
import io
import math
import mmap
import os
import pickle
import socket
import threading

import numpy as np
import torch

# --- making tensors and bringing them into shape ---


def random(shape, seed, dtype="float32"):
    """Numbers from a generator of its own: threads do not disturb each other."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, dtype)
    if dtype.is_complex or dtype.is_floating_point:
        return torch.rand(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator, dtype=dtype)


def counted(shape, dtype="float32"):
    return torch.arange(math.prod(shape)).remainder_(97).to(getattr(torch, dtype)).reshape(shape)


def flat(x):
    return x.detach().reshape(-1)


def alike(*tensors):
    """As many elements of each as the shortest has, of the first one's type."""
    count = min(x.numel() for x in tensors)
    return [flat(x)[:count].to(tensors[0].dtype) for x in tensors]


def apart(x, y):
    """The second, or a copy where both share memory: what an operator then leaves depends on its order."""
    ranges = [(z.data_ptr(), z.data_ptr() + z.nbytes) for z in (x.untyped_storage(), y.untyped_storage())]
    (begin, end), (other_begin, other_end) = ranges
    return y.clone() if begin < other_end and other_begin < end else y


def pair(x, y):
    """Alike, for an operator that writes to the first."""
    return alike(x, apart(x, y))


def real(x):
    """Floating point numbers of moderate size."""
    if x.dtype in (torch.float32, torch.float64):
        return x.detach().clamp(-4, 4)
    return (x.detach().abs() if x.is_complex() else x.detach()).float().clamp(-4, 4)


def matrix(x, most=256):
    side = min(most, math.isqrt(x.numel()))
    return real(flat(x)[: side * side]).reshape(side, side)


def part(x, begin, end, step=1):
    """A view of a piece; begin and end in thousandths."""
    whole = x.reshape(-1) if x.is_contiguous() else x
    length = whole.shape[0] if whole.dim() else 1
    whole = whole if whole.dim() else whole.reshape(1)
    return whole[length * begin // 1000 : max(length * begin // 1000 + 1, length * end // 1000) : step]


def indices(x, seed, count=64):
    return torch.randint(0, max(1, x.numel()), (min(count, x.numel()),), generator=torch.Generator().manual_seed(seed))


def gradients(function, *tensors):
    inputs = [real(x).requires_grad_() for x in tensors]
    function(*inputs).sum().backward()
    return [x.grad for x in inputs]


# --- memory without operators ---


def array(x):
    """The tensor's own memory as bytes; of a tensor with gaps, of a copy."""
    x = x.detach().contiguous()
    x = x.as_strided((x.numel(),), (1,))  # those of a single element may be anything
    return x.view(torch.uint8).numpy()


def set_bytes(x, begin, end, value):
    """Through a raw pointer; begin and end in thousandths."""
    x = x.detach().contiguous()
    bytes_ = x.numel() * x.element_size()
    ctypes.memset(x.data_ptr() + bytes_ * begin // 1000, value, bytes_ * end // 1000 - bytes_ * begin // 1000)


def move_bytes(to, source):
    """From one tensor's memory to another's, of the same type."""
    source = source.detach().contiguous()
    if to.dtype == source.dtype and to.is_contiguous():
        ctypes.memmove(to.data_ptr(), source.data_ptr(), min(to.numel(), source.numel()) * to.element_size())


def in_numpy(x, step):
    if x.dtype == torch.bfloat16 or x.dim() == 0:
        return
    values = x.detach().numpy()[::step]
    if values.dtype.kind == "b":
        np.logical_not(values, out=values)
    elif values.dtype.kind in "iu":
        values //= 2
    else:
        np.multiply(values, 0.5, out=values)


def by_dlpack(x):
    if x.dtype != torch.bool:
        torch.from_dlpack(x.detach()).mul_(0 if x.dtype == torch.uint8 else 1).add_(1)
        return np.from_dlpack(flat(x))[:5].tolist() if x.dtype != torch.bfloat16 else None


def into(x, read):
    """Fills a tensor's own memory by `read(memoryview)`, as far as that goes."""
    if x.is_contiguous() and x.dtype != torch.bool:
        view = memoryview(x.detach().reshape(-1).view(torch.uint8).numpy())
        while view and (count := read(view)):
            view = view[count:]


# --- files, pipes, sockets ---


def write_file(path, x, how):
    data = array(x)
    if how == "tofile":
        data.tofile(path)
    elif how == "buffered":
        with open(path, "wb") as file:
            file.write(data)
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        done = 0
        while done < len(data):
            rest = memoryview(data)[done:]
            done += {
                "write": lambda: os.write(descriptor, rest),
                "pwrite": lambda: os.pwrite(descriptor, rest, done),
                "pwritev": lambda: os.pwritev(descriptor, [rest[:1], rest[1:]], done),
                "writev": lambda: os.writev(descriptor, [rest[: len(rest) // 2], rest[len(rest) // 2 :]]),
            }[how]()
        os.close(descriptor)


def read_file(path, x, how):
    """Into the tensor's memory what a tensor of the same type wrote."""
    if how == "fromfile":
        if x.dtype != torch.bool and x.is_contiguous():
            data = torch.from_numpy(np.fromfile(path, np.uint8))
            count = min(len(data), x.numel() * x.element_size())
            x.detach().reshape(-1).view(torch.uint8)[:count] = data[:count]
        return
    with open(path, "rb", buffering=1 << 16 if how == "buffered" else 0) as file:
        if how == "preadv":
            at = 0

            def read(view):
                nonlocal at
                got = os.preadv(file.fileno(), [view[: len(view) // 3], view[len(view) // 3 :]], at)
                at += got
                return got

            into(x, read)
        elif how == "mmap":
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                into(x, io.BytesIO(mapped[:]).readinto)
        else:
            into(x, file.readinto)


def through(channel, x, y):
    """Sends one tensor's bytes and receives them in another's memory, by a thread, through a pipe or a socket."""
    if channel == "pipe":
        out, back = os.pipe()
        send, receive = (lambda view: os.write(back, view)), (lambda view: os.readv(out, [view]))
        close = (lambda: os.close(back)), (lambda: os.close(out))
    else:
        here, there = socket.socketpair()
        send = {"send": here.send, "sendmsg": lambda view: here.sendmsg([view[:1], view[1:]])}[channel]
        receive = there.recv_into
        close = here.close, there.close
    data = memoryview(array(apart(y, x)))

    def deliver():
        done = 0
        try:
            while done < len(data):
                done += send(data[done:])
        except OSError:  # nobody listens any more
            pass
        close[0]()

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        if x.dtype == y.dtype:
            into(y, receive)
        drain = bytearray(1 << 16)
        while receive(memoryview(drain)):
            pass
    finally:
        thread.join()
        close[1]()


def saved(x, path, how):
    """What comes back of a tensor that was saved."""
    if how == "pickle":
        return pickle.loads(pickle.dumps(x))
    if how == "memory":
        buffer = io.BytesIO()
        torch.save({"x": x}, buffer)
        buffer.seek(0)
        return torch.load(buffer)["x"]
    torch.save([x, x], path)
    first, second = torch.load(path, mmap=how == "mmap")
    os.unlink(path)  # what is mapped stays; the zip's own bytes need not be the same
    return first if how == "mmap" else second


# --- things that go wrong ---


class Refuses(torch.autograd.Function):
    """Fails halfway through a backward."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError(context.saved_tensors[0].numel())


def too_much(x, mebibytes):
    """What may not fit into the limit, and need not: then all is as before."""
    times = (mebibytes << 20) // max(1, x.numel() * x.element_size())
    try:
        x.detach().reshape(1, -1).expand(times, -1).contiguous()
    except RuntimeError:
        pass


def digest_of(x):
    """Type, shape and bits, a NaN as one NaN."""
    x = x.detach()
    if x.is_sparse:
        x = x.coalesce()
        return digest_of(x.indices()) + digest_of(x.values())
    if x.is_floating_point():
        x = torch.nan_to_num(x, nan=float("nan"), posinf=float("inf"), neginf=float("-inf"))
    return f"{x.dtype} {tuple(x.shape)} {hashlib.sha256(array(x)).hexdigest()[:16]}"
