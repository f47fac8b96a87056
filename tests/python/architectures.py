"""Small models of many architectures from transformers, with random weights: one training step each.

    architectures.py [--only NAME]    trains each plainly and inside a limit in eager mode; prints what differs

A configuration is shrunk by the names that its attributes have in common with others.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
import warnings

os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
os.environ["BOTTOMLESS_EVICT_EAGERLY"] = "1"

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import bottomless

CAUSAL = """
    bloom codegen cohere cohere2 ctrl ernie4_5 falcon falcon_mamba gemma gemma2
    gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granitemoe helium
    jamba jetmoe llama mamba mistral mixtral mpt olmo olmo2 olmoe openai-gpt opt persimmon phi phi3
    phimoe qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma smollm3 stablelm starcoder2 xglm xlnet zamba
""".split()
MASKED = """
    albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie fnet ibert
    mobilebert modernbert mpnet mra nystromformer rembert roberta roformer squeezebert xlm xlm-roberta yoso
""".split()
SEQ2SEQ = "bart blenderbot blenderbot-small fsmt led m2m_100 marian mbart mt5 mvp pegasus plbart prophetnet t5 umt5".split()

SMALL = {
    "vocab_size": 128, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embedding_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "intermediate_size": 64,
    "ffn_dim": 64, "d_ff": 64, "d_inner": 64, "hidden_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "n_inner": 64,
    "dff": 64, "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "num_local_experts": 4, "num_experts": 4,
    "n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "state_size": 4, "mamba_d_state": 4, "mamba_n_heads": 8,
    "mamba_d_head": 8, "rotary_dim": 4, "use_cache": False, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
    "decoder_start_token_id": 2, "sliding_window": 16, "pad_vocab_size_multiple": 1, "lru_width": 32, "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": 2, "src_vocab_size": 128, "decoder_vocab_size": 128, "tgt_vocab_size": 128,
}  # fmt: skip


def is_worked_out(config, key):
    """From others, perhaps under another name: it cannot be set."""
    return isinstance(getattr(type(config), type(config).attribute_map.get(key, key), None), property)


def configuration(name):
    config = AutoConfig.for_model(name)
    for key, value in SMALL.items():
        if getattr(config, key, None) is not None and not is_worked_out(config, key):
            setattr(config, key, value)
    if getattr(config, "layer_types", None) and not is_worked_out(config, "layer_types"):
        config.layer_types = config.layer_types[:2]
    config.decoder_start_token_id = 2
    return config


def train(name):
    """One training step; everything that it leaves, as one digest."""
    torch.manual_seed(0)
    kind = AutoModelForSeq2SeqLM if name in SEQ2SEQ else AutoModelForMaskedLM if name in MASKED else AutoModelForCausalLM
    model = kind.from_config(configuration(name))
    if sum(parameter.numel() for parameter in model.parameters()) > 4_000_000:
        raise ValueError("this is not small")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tokens = torch.randint(4, 128, (2, 16))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    result = hashlib.sha256(loss.detach().numpy())
    for tensor in model.state_dict().values():
        result.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return result.hexdigest()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="")
    arguments = arguments.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    same, different, unavailable = [], [], []
    for name in [*CAUSAL, *MASKED, *SEQ2SEQ]:
        if not name.startswith(arguments.only):
            continue
        began = time.monotonic()
        try:
            plain = train(name)
        except Exception as exception:  # noqa: BLE001  a configuration that cannot be shrunk like this
            unavailable.append(f"{name} ({type(exception).__name__}: {str(exception)[:60]})")
            continue
        if train(name) != plain:
            unavailable.append(f"{name} (plain PyTorch does not reproduce it)")
            continue
        plainly = time.monotonic() - began
        with tempfile.TemporaryDirectory() as disk, bottomless.limit("96MiB", disk) as runtime:
            limited = train(name)
            assert runtime.stats()["evictions"] > 0
        (same if limited == plain else different).append(name)
        if arguments.only or limited != plain:
            seconds = time.monotonic() - began - plainly
            print(f"{name}: {'same' if limited == plain else 'DIFFERENT'}, {plainly / 2:.1f} s, limited {seconds:.1f} s", flush=True)
    print(f"{len(same)} architectures the same, {len(different)} different")
    if unavailable:
        print("not run:", *unavailable, sep="\n  ")
    sys.exit(1 if different or unavailable or not same else 0)


if __name__ == "__main__":
    main()
