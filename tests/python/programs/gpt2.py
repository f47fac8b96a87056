"""GPT-2 as transformers make it, 124M parameters or a tiny one, trained for a few steps.

    gpt2.py tiny|124M

Prints the loss of each step and a digest of the weights, and last what the kernel says of the process's memory.
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from digest import digest

SEQUENCE = 64
STEPS = 2


def kernel_says():
    """The fields of /proc/self/status that are sizes, in bytes."""
    with open("/proc/self/status") as status:
        return {line.split(":")[0]: int(line.split()[1]) << 10 for line in status if line.endswith(" kB\n")}


torch.manual_seed(0)
config = GPT2Config() if sys.argv[1] == "124M" else GPT2Config(n_layer=1, n_embd=64, n_head=1, vocab_size=1000)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(STEPS):
    tokens = torch.randint(0, config.vocab_size, (1, SEQUENCE))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), flush=True)
print(digest(model.state_dict()))
memory = kernel_says()
print("VmData", memory["VmData"])
print("VmHWM", memory["VmHWM"])
