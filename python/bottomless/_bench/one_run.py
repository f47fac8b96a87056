"""One training run in a process of its own: GPT-2 as transformers make it, for a few steps.

    python -m bottomless._bench.one_run '{"model": "124M", "memory": "1GiB", ...}'

Prints what it took as one line of JSON. Without "memory" it is plain PyTorch, with "deepspeed" ZeRO-Infinity.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from typing import Any, Callable

VOCABULARY = 50257
MODELS = {  # layers, width, heads
    "6M": (4, 256, 4),
    "124M": (12, 768, 12),
    "355M": (24, 1024, 16),
    "774M": (36, 1280, 20),
    "1.3B": (24, 2048, 16),
}
COUNTERS = ("read_bytes", "written_bytes", "stall_seconds", "planned_fetches", "demand_fetches", "faults")


def resident_bytes(field: str) -> int:
    """VmRSS or VmHWM, as the kernel counts them."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def transferred_bytes() -> int:
    """What this process has read from disks and written to them, as the kernel counts it."""
    with open("/proc/self/io") as counts:
        fields = dict(line.split(": ") for line in counts)
    return int(fields["read_bytes"]) + int(fields["write_bytes"])


def make_model(options: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    layers, width, heads = MODELS[options["model"]]
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False
    )
    model = AutoModelForCausalLM.from_config(config)
    if options["checkpointing"]:
        model.gradient_checkpointing_enable()
    return model


def plain_step(options: dict[str, Any]) -> tuple[Callable[[Any], Any], int]:
    """What a user writes: nothing in it knows of a limit."""
    import torch

    model = make_model(options)
    clips = options["clip"]
    if options.get("states"):
        from bottomless.optim import AdamW

        states = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(options["states"], "8bit")
        max_norm = 1.0 if clips else None
        optimizer: Any = AdamW(model.parameters(), lr=1e-4, state_dtype=states, max_norm=max_norm)
        clips = False
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens: Any) -> Any:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step, sum(parameter.numel() for parameter in model.parameters())


def deepspeed_step(options: dict[str, Any], scratch: str) -> tuple[Callable[[Any], Any], int]:
    """ZeRO-Infinity with parameters and states on the disk, with the buffers that it needs not to stop."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    largest = int(VOCABULARY * MODELS[options["model"]][1] * 1.02)
    place = {"device": "nvme", "nvme_path": scratch, "pin_memory": False}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0 if options["clip"] else 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "single_submit": False, "overlap_events": True},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 100_000_000,
            "stage3_max_live_parameters": 200_000_000,
            "stage3_max_reuse_distance": 100_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "reduce_bucket_size": 50_000_000,
            # Pipelined, it fails an assertion unless it has three times the buffers, more than plain PyTorch takes.
            "offload_optimizer": {**place, "buffer_count": 4, "pipeline_read": False, "pipeline_write": False},
            "offload_param": {**place, "buffer_count": 12, "buffer_size": largest, "max_in_cpu": 0},
        },
        "steps_per_print": 10**9,
    }
    deepspeed.init_distributed(dist_backend="gloo")
    keep_alive = HfDeepSpeedConfig(config)  # transformers look for it while the model is made
    model = make_model(options)
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=list(model.parameters()))
    del keep_alive

    def step(tokens: Any) -> Any:
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss

    return step, sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())


def measure(options: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    before = resident_bytes("VmRSS")
    runtime = None
    if options.get("memory"):
        import bottomless

        runtime = bottomless.limit(
            options["memory"], options["disk"], update_in_backward=options.get("update_in_backward", False)
        )
    scratch = tempfile.mkdtemp(dir=options["disk"], prefix="bottomless-bench-") if options.get("deepspeed") else None
    try:
        step, parameters = deepspeed_step(options, scratch) if scratch else plain_step(options)
        tokens = torch.randint(0, VOCABULARY, (1, options["sequence"]), generator=torch.Generator().manual_seed(1))
        steps: list[dict[str, Any]] = []
        for _ in range(options["warm_up"] + options["steps"]):
            counted = runtime.stats() if runtime else {}
            moved = transferred_bytes()
            start = time.perf_counter()
            loss = step(tokens)
            seconds = time.perf_counter() - start
            after = runtime.stats() if runtime else {}
            steps.append({"seconds": seconds, "loss": float(loss.detach()).hex(), "moved": transferred_bytes() - moved})
            steps[-1].update({name: after[name] - counted[name] for name in COUNTERS if runtime})
            if runtime:  # as we count it: the kernel's figure includes what other files need
                steps[-1]["moved"] = steps[-1]["read_bytes"] + steps[-1]["written_bytes"]
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    return {
        "parameters": parameters,
        "peak_rss": resident_bytes("VmHWM"),
        "grown": resident_bytes("VmHWM") - before,
        "steps": steps[options["warm_up"] :],
        "losses": [each["loss"] for each in steps],
    }


if __name__ == "__main__":
    result = measure(json.loads(sys.argv[1]))
    print(json.dumps(result), flush=True)
    if "deepspeed" in sys.modules:
        os._exit(0)  # its threads may keep the interpreter from ending
