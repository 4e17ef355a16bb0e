"""Each trainer's own DDP against weft in the same trainer, on two workers, bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.compat import tasks
from tests.integrations import environment
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from training import Parameters, assert_same
from weft.overlap.handle import handle_of
from workers import on_workers


class Net(nn.Module):
    """Layers with BatchNorm; the loss is computed inside, as transformers expects."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.body(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def net() -> Net:
    torch.manual_seed(3 + dist.get_rank())  # different on every worker: rank 0's values must win
    return Net()


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=generator)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long() + (x[:, 3] > 1).long())


def loader() -> DataLoader[Any]:
    dataset = samples()
    return DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, shuffle=False))


def values(model: nn.Module) -> Parameters:
    """Parameters, and rank 0's buffers: DDP leaves those of other ranks as their last forward made them."""
    kept = model.state_dict() if dist.get_rank() == 0 else dict(model.named_parameters())
    return {name: value.detach().clone() for name, value in kept.items()}


def with_lightning(strategy: Any, accumulate: int, clip: float | None, tmp_path: Path) -> Parameters:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.net.forward(*batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Module()
    with environment.of_torchrun(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator="cpu",
            devices=dist.get_world_size(),
            strategy=strategy,
            max_epochs=2,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=clip,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loader())
    assert trainer.global_step == 2 * 8 // accumulate
    assert handle_of(module) is None, "the strategy did not detach"
    return values(module)


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (1, 0.1)])
@on_workers(2)
def test_lightning_trains_to_the_same_bits_as_its_ddp(accumulate: int, clip: float | None, tmp_path: Path) -> None:
    tasks.declare_missing_operators()
    pytest.importorskip("lightning")
    from weft.integrations.lightning import WeftStrategy

    expected = with_lightning("ddp", accumulate, clip, tmp_path)
    ours: Any = "weft" if clip is None else WeftStrategy(exact_clipping=True)
    assert_same(with_lightning(ours, accumulate, clip, tmp_path), expected)


def with_accelerate(weft_instead: bool) -> Parameters:
    from accelerate import Accelerator

    from weft.integrations.accelerate import prepare

    model, dataset = net(), samples()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with environment.of_torchrun():
        try:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            batches = accelerator.prepare(DataLoader(dataset, batch_size=4))
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            if weft_instead:
                trained, optimizer = prepare(accelerator, model, optimizer)
            else:
                trained, optimizer = accelerator.prepare(model, optimizer)
            scheduler = accelerator.prepare(scheduler)
            for x, labels in batches:
                with accelerator.accumulate(trained):
                    accelerator.backward(trained(x, labels)["loss"])
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
            return values(accelerator.unwrap_model(trained))
        finally:
            environment.forget_accelerate()


@on_workers(2)
def test_accelerate_trains_to_the_same_bits_as_its_ddp() -> None:
    pytest.importorskip("accelerate")
    assert_same(with_accelerate(True), with_accelerate(False))


def with_transformers(trainer_class: Any, tmp_path: Path) -> Parameters:
    from transformers import TrainingArguments

    dataset = [{"x": x, "labels": y} for x, y in samples()]
    with environment.of_torchrun(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            arguments = TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=4,
                num_train_epochs=2,
                learning_rate=1e-2,
                gradient_accumulation_steps=2,
                use_cpu=True,
                report_to=[],
                save_strategy="epoch",
                disable_tqdm=True,
                logging_strategy="no",
                ddp_backend="gloo",
                dataloader_pin_memory=False,
            )
            trainer = trainer_class(model=net(), args=arguments, train_dataset=dataset)
            trainer.train()
            return values(trainer.model)
        finally:
            environment.forget_accelerate()


@on_workers(2)
def test_a_hugging_face_trainer_trains_to_the_same_bits_as_its_ddp(tmp_path: Path) -> None:
    tasks.declare_missing_operators()
    transformers = pytest.importorskip("transformers")
    from weft.integrations.transformers import OverlapMixin

    class OverlappedTrainer(OverlapMixin, transformers.Trainer):  # type: ignore[misc,name-defined]
        overlap_options = {"exact_clipping": True}  # noqa: RUF012

    expected = with_transformers(transformers.Trainer, tmp_path / "ddp")
    assert_same(with_transformers(OverlappedTrainer, tmp_path / "weft"), expected)
