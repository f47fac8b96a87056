"""DataLoader with workers of every kind, over a dataset that is itself made of tensors."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from digest import digest

if __name__ == "__main__":
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(48, 1 << 16), torch.arange(48))
    model = torch.nn.Linear(1 << 16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    options = dict(batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1], persistent_workers="persistent" in sys.argv)
    loader = DataLoader(dataset, pin_memory="pinned" in sys.argv, shuffle=True, **options)
    for epoch in range(2):
        for inputs, index in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            print(index.tolist())
    print(digest(model.state_dict(), optimizer.state_dict()))
