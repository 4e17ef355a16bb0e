"""What training loops do between ``backward()`` and the next forward; each runs with DDP and with weft alike."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.integrations import environment
from torch.optim import swa_utils

from training import BUCKET_BYTES, Run
from weft.integrations.accelerate import prepare
from weft.overlap.handle import handle_of

STEPS = 4


def plain(run: Run) -> None:
    run.train(STEPS)


def accumulated(run: Run) -> None:
    run.train(STEPS, accumulate=2)


def accumulated_in_sync(run: Run) -> None:
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.backward(2 * step)
        run.backward(2 * step + 1)
        run.optimizer.step()


def changed_gradients(run: Run) -> None:
    """Weight decay by hand, added to the gradients."""
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.backward(step)
        for parameter in run.model.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(0.01 * parameter.detach())
        run.optimizer.step()


def clipped(run: Run) -> None:
    run.train(STEPS, clip="torch")


def scaled(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.backward(step, scaler.scale)
        scaler.unscale_(run.optimizer)
        scaler.step(run.optimizer)
        scaler.update()


def edited(run: Run) -> None:
    """Weight decay by hand, in place, between ``step()`` and the next forward."""
    for step in range(STEPS):
        run.train(1, first=step)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.99)


def scheduled(run: Run) -> None:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, max_lr=1e-2, total_steps=STEPS + 1)
    for step in range(STEPS):
        run.train(1, first=step)
        scheduler.step()


def uneven(run: Run) -> None:
    """One worker has a batch more than the other."""
    joined = run.ddp.join() if run.ddp is not None else run.handle.join()  # type: ignore[union-attr]
    with joined:
        run.train(STEPS + dist.get_rank())


def averaged(run: Run) -> dict[str, torch.Tensor]:
    """An exponential moving average of the weights, evaluated in between."""
    average = swa_utils.AveragedModel(run.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    for step in range(STEPS):
        run.train(1, first=step)
        average.update_parameters(run.model)
        average.eval()
        with torch.no_grad():
            average(step)
    return {name: value.detach().clone() for name, value in average.module.named_parameters()}


def swa(run: Run) -> dict[str, torch.Tensor]:
    average = swa_utils.AveragedModel(run.model)
    scheduler = swa_utils.SWALR(run.optimizer, swa_lr=1e-3, anneal_epochs=2)
    for step in range(STEPS):
        run.train(1, first=step)
        average.update_parameters(run.model)
        scheduler.step()
    return {name: value.detach().clone() for name, value in average.module.named_parameters()}


def evaluated(run: Run) -> None:
    for step in range(STEPS):
        run.train(1, first=step)
        run.model.eval()
        with torch.no_grad():
            (run.ddp or run.model)(step)
        run.model.train()


def resumed_by_dcp(run: Run) -> None:
    """``torch.distributed.checkpoint`` saves and loads both."""
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    run.train(2)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    try:
        model, optimizer = get_state_dict(run.model, run.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder[0])
        run.train(1, first=2)
        model, optimizer = get_state_dict(run.model, run.optimizer)
        loaded = {"model": model, "optimizer": optimizer}
        dcp.load(loaded, checkpoint_id=folder[0])
        set_state_dict(run.model, run.optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        run.train(2, first=3)
    finally:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder[0])


def resumed(run: Run) -> None:
    """Ordinary checkpoints: both state dicts saved, changed, loaded again."""
    run.train(2)
    model = {name: value.clone() for name, value in run.model.state_dict().items()}
    optimizer = copy.deepcopy(run.optimizer.state_dict())
    run.train(1, first=2)
    run.model.load_state_dict(model)
    run.optimizer.load_state_dict(optimizer)
    run.train(2, first=3)


def accelerated(run: Run) -> None:
    """weft's side runs under accelerate's Accelerator, the other is plain DDP."""
    if run.ddp is not None:
        return run.train(STEPS, accumulate=2) and None
    from accelerate import Accelerator

    with environment.of_torchrun():
        try:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            assert run.handle is not None
            run.handle.detach()
            model, optimizer = prepare(accelerator, run.model, run.optimizer, bucket_bytes=BUCKET_BYTES)
            run.handle = handle_of(model)
            for step in range(2 * STEPS):
                with accelerator.accumulate(model):
                    loss = model(step)
                    accelerator.backward(2 * loss)  # accelerate divides by the number of passes
                    run.losses.append(loss.item())
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            run.model.__dict__.pop("no_sync", None)
            environment.forget_accelerate()


def safetensors(run: Run) -> dict[str, torch.Tensor]:
    """``save_model`` of the whole model and of a part, read back."""
    import tempfile

    from safetensors.torch import load_file, save_model

    run.train(STEPS)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.safetensors"))
        save_model(run.model, path)
        return load_file(path)


def resized_embeddings(run: Run) -> None:
    run.train(1)
    net: Any = run.model.net
    net.resize_token_embeddings(64)
    run.train(2, first=1)
