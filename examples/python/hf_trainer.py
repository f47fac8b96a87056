"""The Hugging Face Trainer on a fresh GPT-2: fused AdamW, warm-up, dropout and clipping."""

import collections
import re
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

import common


class Words(torch.utils.data.Dataset):
    """The standard library's sources in its most frequent words; word 0 stands for all others."""

    def __init__(self, vocabulary, context):
        words = re.findall(r"\w+|\s+|[^\w\s]", common.library_text().decode(errors="replace"))
        frequent = collections.Counter(words).most_common(vocabulary - 1)
        numbers = {word: number for number, (word, _) in enumerate(frequent, start=1)}
        self.words = torch.tensor([numbers.get(word, 0) for word in words])
        self.context = context

    def __len__(self):
        return len(self.words) // self.context

    def __getitem__(self, index):
        words = self.words[index * self.context : (index + 1) * self.context]
        return {"input_ids": words, "labels": words}


class ReportingTrainer(Trainer):
    """The Trainer's log rounds the loss; this one shows every bit of it."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        common.report(self.state.global_step, loss)
        return loss


def main():
    args = common.options(
        __doc__, layers=10, width=256, heads=4, vocabulary=1024, context=96, batch=3
    )
    config = GPT2Config(
        n_layer=args.layers,
        n_embd=args.width,
        n_head=args.heads,
        n_positions=args.context,
        vocab_size=args.vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # the default, but unsaid it earns a warning
    with tempfile.TemporaryDirectory() as output:
        trainer = ReportingTrainer(
            model=model,
            args=TrainingArguments(
                output_dir=output,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch,
                learning_rate=1e-3,
                warmup_steps=2,
                optim="adamw_torch_fused",
                max_grad_norm=1.0,
                seed=args.seed,
                use_cpu=True,
                dataloader_pin_memory=False,
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
            ),
            train_dataset=Words(args.vocabulary, args.context),
        )
        trainer.remove_callback(PrinterCallback)  # it prints times, which differ from run to run
        trainer.train()
    common.finish(trainer.model, trainer.optimizer)


if __name__ == "__main__":
    main()
