"""Small models, each with something that makes overlapping hard, and one large enough to be timed."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Convolutions(nn.Module):
    """Buffers that follow rank 0, and weights in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.LazyLinear(10)
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self(torch.zeros(2, 3, 12, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y

    def loss(self, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        x = torch.randn(8, 3, 12, 12, generator=generator).to(device)
        return F.cross_entropy(self(x), torch.arange(8, device=device) % 10)


class Recurrent(nn.Module):
    """Weights that cuDNN wants contiguous, and a layer that is used only in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.rare = nn.Linear(32, 32)
        self.head = nn.Linear(32, 5)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        y = self.lstm(x)[0][:, -1]
        if self.num_calls % 3 == 0:
            y = y + self.rare(y)
        out: torch.Tensor = self.head(y)
        return out

    def loss(self, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        return torch.as_tensor(self(torch.randn(4, 6, 16, generator=generator).to(device)).square().mean())


class Transformer(nn.Module):
    """Tied embeddings and attention, with any number of layers."""

    def __init__(self, width: int = 64, num_layers: int = 2, batch: int = 4) -> None:
        super().__init__()
        self.batch = batch
        self.embedding = nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 512, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.embedding(tokens)))
        return logits

    def loss(self, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        tokens = torch.randint(0, 512, (self.batch, 32), generator=generator).to(device)
        return F.cross_entropy(self(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


Model = Convolutions | Recurrent | Transformer
MODELS: dict[str, Callable[[], Model]] = {
    "convolutions": Convolutions,
    "recurrent": Recurrent,
    "transformer": Transformer,
}
