"""A small convolutional network learns to classify four patterns, on any number of workers.

    python examples/image_classification.py                          # alone
    weft run --workers 2 examples/image_classification.py            # two workers, same loss curve
    torchrun --nproc-per-node 2 examples/image_classification.py     # the same under torchrun

Stop it with Ctrl-C and start it again with a different number of workers: it resumes where it stopped.
The images are drawn here (stripes, checks, discs with noise), so nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import weft
from weft.worker import Session, SessionLoader

SIZE = 16
PATTERNS = ("vertical stripes", "horizontal stripes", "checks", "disc")


class Patterns(Dataset[tuple[torch.Tensor, int]]):
    """Image ``i`` is always the same: it depends only on ``seed + i``."""

    def __init__(self, num_images: int, seed: int = 0) -> None:
        self.num_images = num_images
        self.seed = seed

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        random = torch.Generator().manual_seed(self.seed + index)
        label = index % len(PATTERNS)
        shift_x, shift_y, width, contrast = torch.rand(4, generator=random).tolist()
        y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        pitch = math.pi / (2.0 + 2.0 * width)
        vertical = torch.sin(pitch * x + 6.3 * shift_x)
        horizontal = torch.sin(pitch * y + 6.3 * shift_y)
        center_x, center_y = SIZE / 2 + 4 * (shift_x - 0.5), SIZE / 2 + 4 * (shift_y - 0.5)
        disc = 3.0 + 3.0 * width - torch.hypot(x - center_x, y - center_y)
        clean = (vertical, horizontal, vertical * horizontal, disc.clamp(-1, 1))[label]
        noise = torch.randn(SIZE, SIZE, generator=random)
        return ((0.5 + contrast) * clean + 0.5 * noise).unsqueeze(0), label


class Net(nn.Sequential):
    """Two convolutions, one linear layer, about 20,000 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (SIZE // 4) ** 2, len(PATTERNS)),
        )


@torch.no_grad()
def accuracy(run: Session, model: nn.Module, data: SessionLoader) -> float:
    """The fraction of new images that is classified correctly; every worker looks at its part of them."""
    model.eval()
    correct, total = 0, 0
    for images, labels in data:
        guesses = model(images.to(run.device)).argmax(1)
        correct += int((guesses == labels.to(run.device)).sum())
        total += len(labels)
    model.train()
    correct_everywhere, total_everywhere = run.sum(correct, total)
    return correct_everywhere / total_everywhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size, over all workers")
    options = parser.parse_args()

    with weft.session() as run:
        model = Net().to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        weft.overlap(model, optimizer)
        data = run.loader(Patterns(options.images), batch_size=options.batch_size)
        new = run.loader(Patterns(512, seed=1_000_000), batch_size=256, shuffle=False)
        run.resume(model=model, optimizer=optimizer, data=data)
        for images, labels in run.steps(data, epochs=options.epochs):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if run.rank == 0 and run.step % 20 == 0:
                print(f"step {run.step}: loss {loss.item():.3f}")
            if run.ends_epoch:
                correct = accuracy(run, model, new)
                if run.rank == 0:
                    print(f"epoch {run.epoch}: {correct:.1%} of 512 new images classified correctly")


if __name__ == "__main__":
    main()
