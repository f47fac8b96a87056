"""torch.compile: kernels that the compiler wrote read and write through raw pointers, past every operator."""

import torch
from torch import nn

from digest import digest

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU()) for _ in range(6)))
table = nn.Parameter(torch.randn(512, 512))
optimizer = torch.optim.AdamW([*model.parameters(), table], foreach=True)


@torch.compile
def loss_of(x):
    return (model(x) @ table).square().mean()


@torch.compile
def scale_(tensor, factor):
    return tensor.mul_(factor).add_(1)


running = [torch.randn(512, 512) for _ in range(8)]
for step in range(3):
    optimizer.zero_grad()
    loss = loss_of(torch.randn(32, 512))
    loss.backward()
    optimizer.step()
    for tensor in running:
        scale_(tensor, 0.5)
    print(loss.item().hex())
print(digest(model.state_dict(), optimizer.state_dict(), running))
