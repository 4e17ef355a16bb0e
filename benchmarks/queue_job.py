"""A job of ``weft bench queue``: an ordinary training script whose layers take time instead of computing.

Parameters, gradients, checkpoints, and everything between workers are real.  The global batch, and with it the
training, is the same for any number of workers.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import weft
from benchmarks.queue_models import DDP_BUCKET_MB, MODELS, scaled_profile, weft_bucket_bytes
from benchmarks.shared_timed_device import SharedTimedDevice
from benchmarks.timed_device import TimedModel

NUM_FEATURES = 8
# Hosts of the testbed have a /tmp of their own, and one device.
DEVICE_LOCK = Path("/tmp/weft-timed-device")


class BatchModel(nn.Module):
    """The timed layers work on the batch's mean: their time, not their arithmetic, grows with the batch."""

    def __init__(self, layers: TimedModel) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.layers(batch.mean(dim=0))
        return result


def make_model(name: str, num_workers: int, device: SharedTimedDevice) -> BatchModel:
    """The scaled profile's layers, each taking its share of this worker's part of the batch."""
    profile = scaled_profile(name)
    compute_s = MODELS[name].compute_s / num_workers
    forward_s = compute_s * profile.forward_share
    layers = [
        (layer.num_elements, layer.forward_share * forward_s, layer.backward_share * (compute_s - forward_s))
        for layer in profile.layers
    ]
    return BatchModel(TimedModel(layers, device))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sync", choices=("ddp", "overlap"), required=True)
    parser.add_argument("--notes", type=Path, required=True, help="folder for what each worker has measured")
    options = parser.parse_args()
    device = SharedTimedDevice(DEVICE_LOCK)
    global_batch = MODELS[options.model].global_batch
    try:
        with weft.session(seed=0) as run:
            model = make_model(options.model, run.world_size, device)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
            module: nn.Module = model
            if options.sync == "overlap":
                weft.overlap(model, optimizer, bucket_bytes=weft_bucket_bytes(options.model))
            elif run.world_size > 1:
                module = weft.crossover(DistributedDataParallel(model, bucket_cap_mb=DDP_BUCKET_MB))
            draw = torch.Generator().manual_seed(1)
            samples = torch.randn(options.steps * global_batch, NUM_FEATURES, generator=draw)
            data = run.loader(TensorDataset(samples, 0.1 * samples), batch_size=global_batch)
            # As wrapped: three workers get unequal parts of a batch of 256, so the gradients are weighted.
            run.resume(model=module, optimizer=optimizer, data=data)
            for inputs, targets in run.steps(data, epochs=1):
                optimizer.zero_grad()
                loss = F.mse_loss(module(inputs), targets.mean(dim=0))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                run.log(loss=loss)
    finally:
        attempt = "-".join(os.environ.get(name, "0") for name in ("WEFT_JOB_ID", "WEFT_ATTEMPT", "RANK"))
        (options.notes / f"{attempt}.json").write_text(json.dumps({"busy_s": device.busy_s}))


if __name__ == "__main__":
    main()
