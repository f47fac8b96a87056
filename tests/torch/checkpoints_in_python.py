"""The other side of shard_checkpoint_test.cc: Python's model and optimizer of the same names.

PACKAGE load DIRECTORY OPTIMIZER: into plain PyTorch, and one step; PACKAGE save DIRECTORY OPTIMIZER DISK: as one of several ranks.
PACKAGE is where bottomless was built.
"""

import importlib.util
import pathlib
import sys

import torch
from torch import nn

package, task, directory, name, *rest = sys.argv[1:]
# What is in the source tree, with the libraries of the build tree.
source = pathlib.Path(__file__).parents[2] / "python" / "bottomless"
spec = importlib.util.spec_from_file_location(
    "bottomless", source / "__init__.py", submodule_search_locations=[str(source), f"{package}/bottomless"]
)
bottomless = sys.modules["bottomless"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bottomless)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
        self.narrow = nn.Parameter(torch.full((70001,), 0.5, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.tied = self.layers[0].weight
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x):
        self.steps.add_(1)
        return self.layers(x) * self.scale * self.narrow.float().square().mean()


OPTIMIZERS = {
    "AdamW": lambda own: torch.optim.AdamW(own, lr=0.5),
    "SGD": lambda own: torch.optim.SGD(own, lr=0.5),
    "EightBits": lambda own: bottomless.optim.AdamW(own, lr=0.5, state_dtype="8bit"),
    "Adafactor": lambda own: bottomless.optim.Adafactor(own, lr=0.5),
}

torch.manual_seed(3)
model = Net()
optimizer = OPTIMIZERS[name](model.parameters())


def step():
    loss = model(torch.randn(8, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if task == "load":
    loaded = bottomless.load_checkpoint(directory)
    assert loaded["extra"] == {"seed": [1, 2.5]}, loaded["extra"]
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    states = optimizer.state_dict()["state"]
    assert len(states) == len(list(model.parameters())), states.keys()
    assert optimizer.param_groups[0]["lr"] != 0.5
    assert model.steps.tolist() == [loaded["step"]] * 3
    for state in states.values():
        assert name == "SGD" or state["step"] == loaded["step"], state["step"]
    assert step() > 0
    print("loaded", loaded["step"])
else:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    with bottomless.limit("20MiB", rest[0]):
        sharded = bottomless.shard(model, optimizer, deadline=60)
        step(), step()
        sharded.save(directory, extra={"pair": (1, {"a": None})})
        sharded.close()
    dist.destroy_process_group()
