"""A Hugging Face Trainer that the controller can stop, resume, and resize: docs/trainers.md.

weft run --workers 2 examples/trainer_transformers.py
"""

import argparse
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import weft
from weft.integrations.trainer_batches import TrainerBatches
from weft.integrations.transformers import OverlapMixin

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)
tokens = torch.randint(1, 100, (1024, 16), generator=generator)
dataset = [{"input_ids": row, "labels": (row == 7).any().long()} for row in tokens]


class OverlappedTrainer(OverlapMixin, Trainer):
    pass


with weft.session() as run, tempfile.TemporaryDirectory() as folder:
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    trainer = OverlappedTrainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=folder,
            num_train_epochs=options.epochs,
            use_cpu=run.device.type == "cpu",
            save_strategy="no",  # the session saves
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
            dataloader_pin_memory=False,
        ),
        train_dataset=dataset,
    )
    trainer.batches = TrainerBatches(run, run.loader(dataset, batch_size=64), epochs=options.epochs)
    trainer.train()
    if run.rank == 0:
        print(f"{'stopped' if run.stopped else 'done'} after step {run.step}, epoch {trainer.batches.epoch}")
