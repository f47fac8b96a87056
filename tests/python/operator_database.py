"""torch's own databases of operators, modules and optimizers, inside a limit against plain PyTorch, bit for bit.

    operator_database.py operators|modules|optimizers [--part 0/4] [--samples 3] [--only NAME] [--memory 64MiB]

Every CPU float32 sample is run forward and backward, twice plainly and once inside a limit in eager mode: every storage
is managed, every unpinned block leaves at once, and its memory is poisoned. --samples bounds the samples of each entry
(0: all of them). Prints one line for each entry that differs, and a summary; exits 1 if any differs.
"""

import argparse
import hashlib
import itertools
import os
import sys
import tempfile
import warnings

os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
os.environ["BOTTOMLESS_EVICT_EAGERLY"] = "1"

import torch
from torch.utils._pytree import tree_leaves

import bottomless

# Their results are whatever memory held before: nothing can be compared.
UNINITIALISED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip


EMPTY = hashlib.sha256(b"").hexdigest()


def bits(value):
    """A digest of a tensor's type, shape and bits, or the text of anything else."""
    if not torch.is_tensor(value):
        return repr(value)
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_quantized:
        flat = flat.int_repr()
    digest = hashlib.sha256(flat.view(torch.uint8).numpy() if flat.numel() else b"").hexdigest()
    return f"{value.dtype} {tuple(value.shape)} {digest}"


def backward(outputs, inputs):
    """Gradients of all outputs with respect to all leaves among the inputs."""
    leaves = [leaf for leaf in tree_leaves(inputs) if torch.is_tensor(leaf) and leaf.is_leaf and leaf.requires_grad]
    outputs = [out for out in tree_leaves(outputs) if torch.is_tensor(out) and out.requires_grad]
    if not leaves or not outputs:
        return []
    weights = [torch.ones_like(out) for out in outputs]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def operator_runs(operator):
    for sample in operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd):

        def run(sample=sample):
            torch.manual_seed(1)
            inputs = (sample.input, sample.args, sample.kwargs)
            out = operator(sample.input, *sample.args, **sample.kwargs)
            return [out, backward(out, inputs)]

        yield run


def module_runs(module):
    for training in (True, False):
        inputs = module.module_inputs_func(module, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for given in inputs:

            def run(given=given, training=training):
                torch.manual_seed(1)
                arguments, forward = given.constructor_input, given.forward_input
                made = module.module_cls(*arguments.args, **arguments.kwargs).to(dtype=torch.float32).train(training)
                out = made(*forward.args, **forward.kwargs)
                return [out, backward(out, (forward.args, forward.kwargs, list(made.parameters()))), made.state_dict()]

            yield run


def optimizer_runs(optimizer):
    for given, implementation in itertools.product(
        optimizer.optim_inputs_func(device="cpu"), ["for-loop", *optimizer.supported_impls]
    ):

        def run(given=given, implementation=implementation):
            torch.manual_seed(1)
            flags = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
            options = {**given.kwargs, **(flags.get(implementation, {}) if implementation in optimizer.supported_impls else {})}
            model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Tanh(), torch.nn.Linear(40, 8, bias=False))
            made = optimizer.optim_cls([p for p in model.parameters() if p.dim() == 2 or optimizer.name != "Muon"], **options)
            data = torch.randn(16, 24)

            def closure():
                made.zero_grad()
                loss = model(data).square().sum()
                loss.backward()
                return loss

            losses = [made.step(closure) for _ in range(3)]
            return [losses, list(model.parameters()), made.state_dict()]

        yield run


def entries(kind):
    """Pairs of a name and a function that yields the runs of that entry."""
    if kind == "operators":
        from torch.testing._internal.common_methods_invocations import op_db

        for entry in op_db:
            name = entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")
            if entry.supports_dtype(torch.float32, "cpu") and entry.name not in UNINITIALISED:
                yield name, lambda entry=entry: operator_runs(entry)
    elif kind == "modules":
        from torch.testing._internal.common_modules import module_db

        for entry in module_db:
            yield entry.name, lambda entry=entry: module_runs(entry)
    else:
        from torch.testing._internal.common_optimizers import optim_db

        for entry in optim_db:
            if entry.name != "SparseAdam":  # takes sparse gradients only: see test_equality.py
                yield entry.name, lambda entry=entry: optimizer_runs(entry)


def outcomes(runs, samples):
    """What every sample gives, or which exception. At most `samples` of them, spread over all."""
    torch.manual_seed(0)
    every = list(runs())
    chosen = every if samples == 0 or len(every) <= samples else every[:: -(-len(every) // samples)]
    results = []
    for run in chosen:
        try:
            results.append([bits(leaf) for leaf in tree_leaves(run())])
        except Exception as exception:  # noqa: BLE001  the same exception is the same outcome
            results.append([f"raised {type(exception).__name__}: {exception}".splitlines()[0]])
    return results


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kind", choices=["operators", "modules", "optimizers"])
    arguments.add_argument("--part", default="0/1", help="which of how many equal parts")
    arguments.add_argument("--samples", type=int, default=3)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--memory", default="64MiB")
    arguments = arguments.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    checked = compared = 0
    different, unsteady, unavailable = [], [], []
    for index, (name, runs) in enumerate(entries(arguments.kind)):
        if index % parts != part or not name.startswith(arguments.only):
            continue
        try:
            plain = outcomes(runs, arguments.samples)
            again = outcomes(runs, arguments.samples)
        except Exception as exception:  # noqa: BLE001  needs a library or a device that is not there
            unavailable.append(f"{name} ({type(exception).__name__})")
            continue
        if plain != again:
            unsteady.append(name)
            continue
        with tempfile.TemporaryDirectory() as disk, bottomless.limit(arguments.memory, disk) as runtime:
            limited = outcomes(runs, arguments.samples)
            evictions = runtime.stats()["evictions"]
        checked += 1
        compared += len(plain)
        wrong = [i for i, (ours, theirs) in enumerate(zip(limited, plain)) if ours != theirs]
        if wrong or len(plain) != len(limited):
            different.append(name)
            first = [f"\n  {limited[i][:3]}\n  {plain[i][:3]}" for i in wrong[:1]]
            print(f"{name}: samples {wrong} differ", *first, flush=True)
        elif evictions == 0 and any(EMPTY not in leaf and leaf.startswith("torch.") for result in plain for leaf in result):
            print(f"{name}: nothing was evicted, so nothing is proved", flush=True)
            different.append(name)
    print(f"{checked} {arguments.kind}, {compared} samples, {len(different)} different")
    if unsteady:
        print("plain PyTorch does not reproduce:", *unsteady)
    if unavailable:
        print("cannot be run here:", *unavailable)
    sys.exit(1 if different or checked == 0 else 0)


if __name__ == "__main__":
    main()
