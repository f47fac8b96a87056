"""Trainers of other libraries: Hugging Face's with each flag that changes what is executed, TRL's for SFT and DPO."""

import pathlib
import tempfile

import pytest
import torch

from foreign import Sentences, sentence, small_llama, small_tokenizer
from helpers import same_under_limit, training_state

transformers = pytest.importorskip("transformers")
BASE = dict(
    max_steps=3,
    per_device_train_batch_size=2,
    learning_rate=1e-3,
    use_cpu=True,
    dataloader_pin_memory=False,
    disable_tqdm=True,
    report_to=[],
    save_strategy="no",
    logging_strategy="no",
    seed=3,
)
FLAGS = {
    "plain": {},
    "accumulation": dict(gradient_accumulation_steps=3),
    "checkpointing": dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}),
    "reentrant_checkpointing": dict(
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}
    ),
    "bf16": dict(bf16=True),
    "bf16_accumulation": dict(bf16=True, gradient_accumulation_steps=2, max_grad_norm=0.1),
    "unclipped": dict(max_grad_norm=0.0),
    "adafactor": dict(optim="adafactor"),
    "sgd": dict(optim="sgd"),
    "rmsprop": dict(optim="rmsprop"),
    "adagrad": dict(optim="adagrad"),
    "fused": dict(optim="adamw_torch_fused", weight_decay=0.1),
    "stepwise_optimizer": dict(optim="adamw_torch", adam_beta2=0.9),
    "smoothed_labels": dict(label_smoothing_factor=0.1),
    "neftune": dict(neftune_noise_alpha=5.0),
    "cosine": dict(lr_scheduler_type="cosine", warmup_steps=2),
    "grouped_by_length": dict(train_sampling_strategy="group_by_length"),
    "workers": dict(dataloader_num_workers=1, dataloader_persistent_workers=True),
    "workers_prefetch": dict(dataloader_num_workers=1, dataloader_prefetch_factor=3, dataloader_drop_last=True),
    "jit_off_compile_off": dict(torch_compile=False, full_determinism=False),
    "evaluation": dict(eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=3, eval_accumulation_steps=2),
    "full_bf16_evaluation": dict(eval_strategy="steps", eval_steps=2, bf16_full_eval=True),
    "saving_best": dict(
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        save_total_limit=1,
    ),
    "auto_batch_size": dict(auto_find_batch_size=True),
    "empty_cache": dict(torch_empty_cache_steps=1),
    "average_tokens": dict(average_tokens_across_devices=True, include_num_input_tokens_seen="all"),
    "nan_filter_off": dict(logging_nan_inf_filter=False, logging_strategy="steps", logging_steps=1),
    "prediction_loss_only": dict(eval_strategy="epoch", prediction_loss_only=True, max_steps=-1, num_train_epochs=1),
}


def quiet(trainer):
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def losses_of(trainer):
    found = [
        entry[key]
        for entry in trainer.state.log_history
        for key in ("loss", "eval_loss", "train_loss")
        if key in entry
    ]
    return {"losses": torch.tensor(found, dtype=torch.float64)}


def left_by(trainer):
    return {**training_state(trainer.model, trainer.optimizer), **losses_of(trainer)}


@pytest.mark.parametrize("flag", FLAGS)
def test_trainer(flag, disk, eviction):
    layers = 8 if flag in ("adafactor", "sgd") else 4  # they keep little beside the parameters

    def work():
        with tempfile.TemporaryDirectory() as output:
            arguments = transformers.TrainingArguments(output_dir=output, **{**BASE, **FLAGS[flag]})
            trainer = quiet(
                transformers.Trainer(
                    small_llama(layers), arguments, train_dataset=Sentences(), eval_dataset=Sentences(6)
                )
            )
            trainer.train()
            return left_by(trainer)

    same_under_limit(disk, work, "9MiB")


def test_trainer_resumes(disk, eviction):
    """Two steps and a checkpoint, then another Trainer goes on from it: as if it had never stopped."""

    def work():
        with tempfile.TemporaryDirectory() as output:
            options = {
                **BASE,
                "max_steps": 4,
                "save_strategy": "steps",
                "save_steps": 2,
                "lr_scheduler_type": "linear",
            }
            arguments = transformers.TrainingArguments(output_dir=output, **options)
            whole = quiet(transformers.Trainer(small_llama(), arguments, train_dataset=Sentences()))
            whole.train()
            resumed = quiet(transformers.Trainer(small_llama(seed=9), arguments, train_dataset=Sentences()))
            resumed.train(resume_from_checkpoint=str(pathlib.Path(output, "checkpoint-2")))
            ours, theirs = (dict(trainer.model.named_parameters()) for trainer in (resumed, whole))
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
            return left_by(resumed)

    same_under_limit(disk, work, "10MiB")


TRL = ["sft", "sft_packed", "sft_assistant", "dpo", "dpo_precomputed", "dpo_ipo"]


@pytest.mark.parametrize("case", TRL)
def test_trl(case, disk, eviction):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    method, _, variant = case.partition("_")

    def work():
        with tempfile.TemporaryDirectory() as output:
            options = {
                **BASE,
                "output_dir": output,
                "max_length": 32,
                "gradient_checkpointing": variant == "ipo",
                "bf16": False,
            }
            model, tokenizer = small_llama(layers=2, width=256), small_tokenizer()
            if method == "sft":
                options |= {"packing": variant == "packed", "packing_strategy": "wrapped"}
                rows = [{"text": sentence(n)} for n in range(16)]
                if variant == "assistant":
                    rows = [{"prompt": sentence(n, 6), "completion": sentence(n + 99, 9)} for n in range(16)]
                arguments, kind, more = trl.SFTConfig(**options), trl.SFTTrainer, {}
            else:
                options |= {"precompute_ref_log_probs": variant == "precomputed"}
                options |= {"loss_type": "ipo" if variant == "ipo" else "sigmoid"}
                texts = zip(range(12), range(99, 111), range(199, 211))
                rows = [
                    {"prompt": sentence(a, 6), "chosen": sentence(b, 8), "rejected": sentence(c, 8)}
                    for a, b, c in texts
                ]
                arguments, kind = trl.DPOConfig(**options), trl.DPOTrainer
                more = {"ref_model": None if variant == "precomputed" else small_llama(layers=2, width=256, seed=1)}
            data = datasets.Dataset.from_list(rows)
            trainer = quiet(kind(model, args=arguments, train_dataset=data, processing_class=tokenizer, **more))
            trainer.train()
            return left_by(trainer)

    # TRL computes logits in rows of 32,768 columns, however few are used; such a view is wanted from its first byte to its last.
    same_under_limit(disk, work, "14MiB")
