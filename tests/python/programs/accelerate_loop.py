"""An accelerate loop as in its documentation: gradient accumulation, clipping, a schedule, state saved and loaded."""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from digest import digest

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=8)
loader = DataLoader(TensorDataset(torch.randn(64, 512), torch.randn(64, 512)), batch_size=16, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(2):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(loss.item().hex())
    with tempfile.TemporaryDirectory() as directory:
        accelerator.save_state(directory)
        accelerator.load_state(directory)
print(digest(model.state_dict(), optimizer.state_dict()))
