"""Checkpoints over ranks: saved from one number of ranks, loaded on another, by plain PyTorch, and after kill -9."""

import json
import random
import time

import pytest
import safetensors.torch
import torch
from torch import nn

import bottomless
from helpers import HANGS, fingerprints
from forked_ranks import Ranks, run_ranks

# Some large enough to be shared out, some small, one tied, one frozen, one of 16 bits, one channels_last; buffers.
MODEL = '''
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(64)
        self.first = nn.Linear(1024, 512)
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
        self.narrow = nn.Parameter(torch.full((70001,), 0.5, dtype=torch.bfloat16))
        self.frozen = nn.Linear(512, 512).requires_grad_(False)
        self.last = nn.Linear(512, 512, bias=False)
        self.last.weight = self.layers[0].weight
        self.empty = nn.Parameter(torch.empty(0))
        self.register_buffer("passing", torch.ones(3), persistent=False)

    def forward(self, x):
        x = self.norm(self.conv(x)).flatten(1)
        x = self.frozen(self.layers(torch.relu(self.first(x))))
        return self.last(x) * self.narrow.float().square().mean()


def state_of(optimizer):
    return {f"{i}.{name}": value for i, state in optimizer.state_dict()["state"].items()
            for name, value in state.items() if torch.is_tensor(value)}


def make_optimizer(kind, model):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1]},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "lr": 0.01}]
    return {
        "adamw": lambda: torch.optim.AdamW(groups, lr=0.001, weight_decay=0.1),
        "ours": lambda: bottomless.optim.AdamW(groups, lr=0.001),
        "8bit": lambda: bottomless.optim.AdamW(groups, lr=0.001, state_dtype="8bit"),
        "sgd": lambda: torch.optim.SGD(groups, lr=0.001, momentum=0.9),
        "adafactor": lambda: torch.optim.Adafactor(groups, lr=0.001),
    }[kind]()
'''
exec(MODEL)
RANKS = MODEL + '''
first, last, kind, stage, disk, directory, load, save = arguments
runtime = bottomless.limit("14MiB" if kind == "adafactor" else "20MiB", disk)
torch.manual_seed(1 if load else 0)  # what is loaded replaces something else
model = Model()
optimizer = make_optimizer(kind, model)
sharded = bottomless.shard(model, optimizer, stage=stage, deadline=600)
found = {}
if load:
    found["loaded"] = sharded.load(directory)
    assert found["loaded"]["step"] == first
losses = []
saving = None
for step in range(first, last):
    if step == save:
        saving = sharded.save_in_background(directory, extra={"pair": (1, 2.5), "nothing": None})
    data = torch.Generator().manual_seed(1000 * step + rank)
    optimizer.zero_grad()
    loss = model(torch.randn(4, 64, 4, 4, generator=data)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
if saving:
    saving.wait()
elif save is not None:
    sharded.save(directory, extra={"pair": (1, 2.5), "nothing": None})
    sharded.save(directory, extra={"pair": (1, 2.5), "nothing": None})  # over the first one
stats = runtime.stats()
assert stats["peak_bytes"] <= stats["limit_bytes"], stats
small = ranks > 2 and kind == "8bit"  # a third of so little fits
assert stats["evictions"] > 0 or first == last or small, stats
if last == first or save is not None:
    whole = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    found["model"] = fingerprints(whole)
result({"losses": losses, **found})
sharded.close()
'''


def train(ranks, tmp_path, directory, first=0, last=2, kind="adamw", stage=3, load=False, save=None):
    disk = tmp_path / "disk"
    disk.mkdir(exist_ok=True)
    return run_ranks(RANKS, ranks, tmp_path / "results", first, last, kind, stage, disk, directory, load, save)


def plain(kind, directory):
    """The checkpoint, loaded into plain PyTorch."""
    loaded = bottomless.load_checkpoint(directory)
    model = Model()  # noqa: F821
    optimizer = make_optimizer(kind, model)  # noqa: F821
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    return model, optimizer, loaded


def content(directory):
    loaded = bottomless.load_checkpoint(directory)
    named = {f"model.{name}": tensor for name, tensor in loaded["model"].items()}
    for number, state in loaded["optimizer"]["state"].items():
        named |= {f"{number}.{name}": value for name, value in state.items() if torch.is_tensor(value)}
    return fingerprints(named), loaded["optimizer"]["param_groups"]


def check_files(directory, loaded):
    """Hugging Face's library reads each; none is much larger than the others."""
    shards = sorted(directory.glob("*.safetensors"))
    sizes = [shard.stat().st_size for shard in shards]
    assert len(shards) == 4 and max(sizes) < 2 * min(sizes), sizes
    tensors = {name: tensor for shard in shards for name, tensor in safetensors.torch.load_file(shard).items()}
    for name, tensor in loaded["model"].items():
        assert name == "last.weight" or torch.equal(tensors[f"model.{name}"], tensor), name
    assert tensors["model.conv.weight"].shape == (64, 64, 3, 3)


def same_everywhere(results):
    assert all(result["model"] == results[0]["model"] for result in results)
    return {name: tuple(tuple(part) if isinstance(part, list) else part for part in print_)
            for name, print_ in results[0]["model"].items()}  # fmt: skip


@pytest.mark.parametrize("kind, stage", [("adamw", 3), ("ours", 2), ("adafactor", 3)])
def test_saved_by_four_ranks_and_loaded_by_any_number(kind, stage, tmp_path):
    saved = tmp_path / "saved"
    results = train(4, tmp_path, saved, kind=kind, stage=stage, save=2)
    whole = same_everywhere(results)
    model, optimizer, loaded = plain(kind, saved)
    assert fingerprints(model.state_dict()) == whole
    assert (loaded["step"], loaded["extra"]) == (2, {"pair": (1, 2.5), "nothing": None})
    assert [group["lr"] for group in loaded["optimizer"]["param_groups"]] == [0.001, 0.01]
    assert all(state["step"] == 2 for state in loaded["optimizer"]["state"].values())
    assert {len(group["params"]) for group in loaded["optimizer"]["param_groups"]} == {6, 10}
    check_files(saved, loaded)
    before = content(saved)
    for ranks in (1, 2, 3) if kind == "adamw" else (2,):
        # Saving what was loaded must give the same checkpoint, byte for byte.
        again = train(ranks, tmp_path, saved, first=2, last=2, kind=kind, stage=4 - stage, load=True, save=2)
        assert same_everywhere(again) == whole
        assert content(saved) == before, ranks


def test_training_goes_on_as_if_nothing_had_been_and_the_background_save_is_of_its_step(tmp_path):
    saved, beside = tmp_path / "saved", tmp_path / "beside"
    unbroken = train(2, tmp_path, beside, last=4, save=2)  # in the background, before step 2
    before = train(2, tmp_path, saved, last=2, save=2)
    after = train(2, tmp_path, saved, first=2, last=4, load=True)
    for whole, begin, end in zip(unbroken, before, after):
        assert begin["losses"] + end["losses"] == whole["losses"]
    assert content(beside) == content(saved)


def test_states_of_8_bits_are_saved_as_float32(tmp_path):
    saved = tmp_path / "saved"
    train(2, tmp_path, saved, kind="8bit", save=2)
    _, optimizer, loaded = plain("sgd", saved)
    assert {state["exp_avg"].dtype for state in loaded["optimizer"]["state"].values()} == {torch.float32}
    train(3, tmp_path, saved, first=2, last=3, kind="8bit", load=True)


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path):
    program = '''
disk, directory = arguments
runtime = bottomless.limit("16MiB", disk)


def sharded_model(width, dtype=torch.float32, extra=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, width), nn.Linear(width, 8)).to(dtype)
    if extra:
        model.register_parameter("more", nn.Parameter(torch.ones(3)))
    return bottomless.shard(model, torch.optim.AdamW(model.parameters()), deadline=600)


def refused(**how):
    sharded = sharded_model(**how)
    before = fingerprints(sharded.model.state_dict())
    try:
        sharded.load(directory)
    except RuntimeError as error:
        assert fingerprints(sharded.model.state_dict()) == before
        sharded.close()
        return str(error)


saved = sharded_model(256, extra=True)
with torch.no_grad():
    saved.model[0].weight.fill_(7.0)  # no step follows
    saved.model[1].bias.fill_(8.0)
saved.save(directory, step=5)
assert (saved.model[0].weight == 7.0).all()
try:
    saved.save(directory, extra={"what": object()})
except RuntimeError as error:
    unwritable = str(error)
try:
    saved.save(directory + "/not/there")
except RuntimeError as error:
    nowhere = str(error)
saved.close()
result([refused(width=256), refused(width=300, extra=True), refused(width=256, dtype=torch.bfloat16, extra=True),
        unwritable, nowhere])
'''
    (tmp_path / "disk").mkdir()
    for unknown, shape, dtype, unwritable, nowhere in run_ranks(
        program, 2, tmp_path / "results", tmp_path / "disk", tmp_path / "saved"
    ):
        assert "'model.more' of the checkpoint is not in this model" in unknown
        assert "'model.0.weight' has shape (256, 512) in the checkpoint, here (300, 512)" in shape
        assert "'model.0.weight' is of torch.float32 in the checkpoint, here of torch.bfloat16" in dtype
        assert "'extra: what': object cannot be written as JSON" in unwritable
        assert "rank 0" in nowhere and "not/there" in nowhere
    loaded = bottomless.load_checkpoint(tmp_path / "saved")
    assert loaded["step"] == 5 and (loaded["model"]["0.weight"] == 7.0).all() and (loaded["model"]["1.bias"] == 8.0).all()


# Every gradient is 1: after n steps each element of a momentum is n, and of a parameter -(1 + 2 + ... + n).
COUNTING = '''
disk, directory, background = arguments
runtime = bottomless.limit("12MiB", disk)
model = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in (7, 300000, 40000, 1000, 200000)])
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=1.0)
sharded = bottomless.shard(model, optimizer, deadline=600)
step = sharded.load(directory)["step"] if os.path.exists(os.path.join(directory, "manifest.json")) else 0
print("begins", step, flush=True)
while True:
    optimizer.zero_grad()
    sum(parameter.sum() for parameter in model).backward()
    optimizer.step()
    save = sharded.save_in_background if background else sharded.save
    save(directory)
'''


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    saved, disk = tmp_path / "saved", tmp_path / "disk"
    disk.mkdir()
    step = 0
    for background in (False, True) * 4:
        ranks = Ranks(COUNTING, randomly.choice([1, 2, 3]), tmp_path / "results", disk, saved, background)
        until = time.monotonic() + HANGS
        while saved_step(saved) <= step and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(randomly.uniform(0, 0.15))
        out = ranks.kill()
        loaded = bottomless.load_checkpoint(saved)  # compares checksums
        assert loaded["step"] > step, out
        step = loaded["step"]
        for name, tensor in loaded["model"].items():
            assert (tensor == -step * (step + 1) // 2).all(), name
        for number, state in loaded["optimizer"]["state"].items():
            assert (state["momentum_buffer"] == step).all(), number


def saved_step(directory):
    try:
        return json.loads((directory / "manifest.json").read_text())["step"]
    except OSError:
        return 0
