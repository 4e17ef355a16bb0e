"""Scripts that train under a trainer in a session and write down each sample that a step has used.

python session_scripts.py lightning|transformers|accelerate LEDGER
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import weft
from weft.integrations.trainer_batches import TrainerBatches

NUM_SAMPLES, BATCH, EPOCHS = 60, 4, 3  # far more steps than a stop request needs to be noticed


class Indexed(torch.utils.data.Dataset[Any]):
    """Each sample is its own number."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor(index % 2)}


class Net(nn.Module):
    def __init__(self, batches: TrainerBatches, ledger: Path) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))
        self.batches = [batches]  # in a list: not a submodule, not in the state dict
        self.ledger = ledger

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        (batches,) = self.batches
        with open(self.ledger, "a") as ledger:
            ledger.writelines(f"{batches.epoch} {int(value)}\n" for value in x.flatten().tolist())
        if batches.run.step == 3 and "STOP_AT_3" in os.environ:
            os.kill(os.getpid(), signal.SIGTERM)  # what the controller sends
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def lightning(batches: TrainerBatches, net: Net) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from weft.integrations.lightning import SessionCallback

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(**batch)["loss"]
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            pass

        def on_validation_end(self) -> None:
            if self.global_rank == 0:
                with open(f"{net.ledger}.validated", "a") as file:
                    file.write(f"{self.current_epoch}\n")

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1.0)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)}

    trainer = Trainer(
        accelerator="cpu",
        devices=batches.run.world_size,
        strategy="weft",
        max_epochs=EPOCHS,
        callbacks=[SessionCallback(batches)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Module(), batches, torch.utils.data.DataLoader(Indexed(), batch_size=BATCH))
    if not batches.run.stopped and batches.run.rank == 0:
        (learning_rate,) = trainer.lr_scheduler_configs[0].scheduler.get_last_lr()
        Path(f"{net.ledger}.end").write_text(f"{learning_rate} {trainer.global_step}")


def transformers(batches: TrainerBatches, net: Net) -> None:
    from transformers import Trainer, TrainingArguments

    from weft.integrations.transformers import OverlapMixin

    class OverlappedTrainer(OverlapMixin, Trainer):  # type: ignore[misc]
        pass

    arguments = TrainingArguments(
        output_dir=str(net.ledger.parent / "out"),
        num_train_epochs=EPOCHS,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        report_to=[],
        dataloader_pin_memory=False,
    )
    trainer = OverlappedTrainer(model=net, args=arguments, train_dataset=batches.data.dataset)
    trainer.batches = batches
    trainer.train()
    if not batches.run.stopped and batches.run.rank == 0:
        Path(f"{net.ledger}.end").write_text(f"{trainer.state.epoch} {trainer.state.global_step}")


def accelerate(batches: TrainerBatches, net: Net) -> None:
    from accelerate import Accelerator

    from weft.integrations.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    adamw = torch.optim.AdamW(net.parameters(), lr=1e-2)
    model, optimizer = prepare(accelerator, net, adamw)
    batches.run.resume(model=model, optimizer=adamw, data=batches.data)
    for batch in batches.run.steps(batches.data, epochs=EPOCHS):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def main(trainer: str, ledger: str) -> None:
    from tests.compat.tasks import declare_missing_operators

    declare_missing_operators()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with weft.session() as run:
        batches = TrainerBatches(run, run.loader(Indexed(), batch_size=BATCH), epochs=EPOCHS)
        trainers = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}
        trainers[trainer](batches, Net(batches, Path(ledger)))


if __name__ == "__main__":
    main(*sys.argv[1:])
