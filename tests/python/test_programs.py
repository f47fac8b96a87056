"""Real programs of other people's libraries, unchanged: they print the same lines, digests included, inside a limit."""

import pathlib
import sys

import pytest

from helpers import check_moved, limit, run, run_limited

PROGRAMS = pathlib.Path(__file__).parent / "programs"

CASES = {
    "accelerate": ("accelerate_loop.py", "16MiB"),
    "lightning": ("lightning_loop.py", "16MiB"),
    "peft": ("peft_lora.py", "16MiB"),
    "safetensors": ("safe_tensors.py", "12MiB"),
    "loader-fork": ("data_loaders.py fork", "16MiB"),
    "loader-fork-persistent": ("data_loaders.py fork persistent", "16MiB"),
    "loader-forkserver": ("data_loaders.py forkserver pinned", "14MiB"),
    "loader-spawn": ("data_loaders.py spawn", "14MiB"),
    "compile": ("compiled.py", "16MiB"),
}


def words(command):
    script, *options = command.split()
    return [PROGRAMS / script, *options]


@pytest.mark.parametrize("mode", ["0", "1"], ids=["when_needed", "eagerly"])
@pytest.mark.parametrize("name", CASES)
def test_same_lines(name, mode, disk, tmp_path):
    command, memory = CASES[name]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"), "TOKENIZERS_PARALLELISM": "false"}
    plain = run([sys.executable, *words(command)], env=env)
    assert plain.code == 0, plain.err
    limited = run_limited(words(command), memory, disk, "--json", env={**env, "BOTTOMLESS_EVICT_EAGERLY": mode})
    assert limited.code == 0, limited.err
    assert limited.lines == plain.out.splitlines()
    check_moved(limited.stats)


def test_frozen_weights_are_written_once(disk):
    """A LoRA fine-tuning at a limit that holds all but the base model: after the first step nothing is written."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    with limit("24MiB", disk) as runtime:
        config = GPT2Config(n_layer=6, n_embd=384, n_head=4, vocab_size=2000, n_positions=64, use_cache=False)
        adapters = peft.LoraConfig(r=4, target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(AutoModelForCausalLM.from_config(config), adapters)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        written, read = [], []
        for _ in range(4):
            tokens = torch.randint(0, 2000, (1, 16))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            written.append(runtime.stats()["written_bytes"])
            read.append(runtime.stats()["read_bytes"])
    assert written[1:] == written[:1] * 3, written
    assert read[3] > read[0], "the weights must not have fitted"
