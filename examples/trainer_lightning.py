"""A Lightning training that the controller can stop, resume, and resize: docs/trainers.md.

weft run --workers 2 examples/trainer_lightning.py
"""

import argparse
import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft
from weft.integrations.lightning import SessionCallback
from weft.integrations.trainer_batches import TrainerBatches

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()
logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(4096, 20, generator=generator)
targets = (inputs[:, :3].prod(1) > 0).long()


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        run.log(loss=loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


with weft.session() as run:
    batches = TrainerBatches(run, run.loader(TensorDataset(inputs, targets), batch_size=128), epochs=options.epochs)
    trainer = Trainer(
        accelerator="auto",
        devices=run.world_size,
        strategy="weft",
        max_epochs=options.epochs,
        callbacks=[SessionCallback(batches)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), batches)
    if run.rank == 0:
        print(f"{'stopped' if run.stopped else 'done'} after step {run.step}, epoch {batches.epoch}")
