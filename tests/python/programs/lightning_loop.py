"""A Lightning module and its Trainer: training, validation, a checkpoint written and read."""

import logging
import tempfile
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from digest import digest

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(10)))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.body(batch[0]), batch[1])
        print(loss.item().hex())
        return loss

    def validation_step(self, batch, _):
        self.log("validation", nn.functional.l1_loss(self.body(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


torch.manual_seed(0)
module = Regression()
data = DataLoader(TensorDataset(torch.randn(48, 512), torch.randn(48, 512)), batch_size=16)
with tempfile.TemporaryDirectory() as directory:
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, default_root_dir=directory, gradient_clip_val=1.0, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data, data)
    trainer.save_checkpoint(f"{directory}/last.ckpt")
    again = Regression.load_from_checkpoint(f"{directory}/last.ckpt")
print(trainer.callback_metrics["validation"].item().hex())
print(digest(module.state_dict(), again.state_dict(), module.optimizers().optimizer.state_dict()))
