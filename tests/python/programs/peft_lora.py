"""A LoRA fine-tuning script with peft: the base weights are frozen, only the adapters learn."""

import sys
import tempfile

import peft
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from digest import digest

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3
torch.manual_seed(0)
config = GPT2Config(n_layer=6, n_embd=256, n_head=4, vocab_size=2000, n_positions=64, use_cache=False)
model = peft.get_peft_model(
    AutoModelForCausalLM.from_config(config),
    peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], lora_dropout=0.1, task_type="CAUSAL_LM"),
)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(steps):
    tokens = torch.randint(0, 2000, (2, 32))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), flush=True)
with tempfile.TemporaryDirectory() as directory:
    model.save_pretrained(directory)  # safetensors
    again = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_config(config), directory)
    print(digest(peft.get_peft_model_state_dict(again)))
print(digest(model.state_dict(), optimizer.state_dict()))
