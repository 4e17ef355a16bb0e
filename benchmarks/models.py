"""What is trained in the benchmarks: four real models on the CPU, a timed one, and a tiny one for tests.

All data is synthetic and the same for a given (model, rank, index), so that two contenders see the same
batches and their losses can be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.overlap_scenarios import Timed
from benchmarks.timed_device import TimedModel
from weft.errors import UsageError

SEED = 20
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """How to make one model, its data and its optimizer."""

    name: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], Batch]
    criterion: Callable[[Tensor, Tensor], Tensor]
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    # The modules FSDP2 wraps one by one, as its tutorial does for transformer blocks.
    blocks: Callable[[nn.Module], list[nn.Module]]

    def model(self) -> nn.Module:
        """A fresh copy; every copy on every rank starts from the same numbers."""
        torch.manual_seed(SEED)
        return self.build()

    def batches(self, rank: int, num_batches: int) -> list[Batch]:
        """This rank's batches, to be used in turn."""
        return numbered_batches(self.make_batch, rank, num_batches)


def numbered_batches(make_batch: Callable[[torch.Generator], Batch], rank: int, num_batches: int) -> list[Batch]:
    """Batches that depend only on the rank and their number."""
    return [make_batch(torch.Generator().manual_seed(SEED + 7919 * rank + index)) for index in range(num_batches)]


class Block(nn.Module):
    """Pre-norm transformer block with causal attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + torch.as_tensor(self.down(F.gelu(self.up(self.norm_2(x)))))


class LanguageModel(nn.Module):
    """GPT-like; untied output layer."""

    def __init__(self, vocabulary: int, width: int, num_layers: int, num_heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.flatten(0, 1)


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(num_out)
        self.conv_2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(num_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_2(self.conv_2(F.relu(self.norm_1(self.conv_1(x)))))
        return F.relu(y + self.shortcut(x))


def _resnet() -> nn.Sequential:
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    body = [Residual(num_in, num_out, 2 if num_out > num_in else 1) for num_in, num_out in pairwise(widths)]
    stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def _mlp(num_in: int, width: int, num_hidden: int, num_out: int) -> nn.Sequential:
    sizes = [num_in, *[width] * num_hidden]
    hidden = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(*hidden, nn.Linear(width, num_out))


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def _children(model: nn.Module) -> list[nn.Module]:
    return [child for child in model.children() if any(True for _ in child.parameters())]


def _module_list(name: str) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda model: list(model.get_submodule(name).children())


def token_batch(vocabulary: int, num_sequences: int, length: int) -> Callable[[torch.Generator], Batch]:
    def make(generator: torch.Generator) -> Batch:
        tokens = torch.randint(0, vocabulary, (num_sequences, length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    return make


def _class_batch(shape: tuple[int, ...], num_classes: int) -> Callable[[torch.Generator], Batch]:
    def make(generator: torch.Generator) -> Batch:
        return torch.randn(shape, generator=generator), torch.randint(0, num_classes, shape[:1], generator=generator)

    return make


def _timed_batch(generator: torch.Generator) -> Batch:
    return torch.randn(8, generator=generator), torch.randn(8, generator=generator)


_REAL = {
    # Letters, not words: every layer but the blocks is small, as it is next to the blocks of a large model.
    "transformer": Workload(
        "transformer",
        lambda: LanguageModel(vocabulary=256, width=512, num_layers=8, num_heads=8, length=96),
        token_batch(vocabulary=256, num_sequences=4, length=96),
        F.cross_entropy,
        _adamw,
        _module_list("blocks"),
    ),
    "resnet": Workload("resnet", _resnet, _class_batch((4, 3, 32, 32), 100), F.cross_entropy, _sgd, _children),
    "mlp": Workload(
        "mlp",
        lambda: _mlp(1024, 1792, 4, 512),
        _class_batch((320, 1024), 512),
        F.cross_entropy,
        _sgd,
        _children,
    ),
    "tiny": Workload("tiny", lambda: _mlp(32, 64, 3, 8), _class_batch((16, 32), 8), F.cross_entropy, _adamw, _children),
}


def find_workload(name: str, timed: Timed | None = None) -> Workload:
    """The workload of that name; with ``timed``, layers of that size that only take time."""
    if name == "timed" or timed is not None:
        if timed is None:
            raise UsageError("the timed model was requested without a size: give parameters, layers, and compute time")
        layers = timed.each_layer()
        return Workload(name, lambda: TimedModel(layers), _timed_batch, F.mse_loss, _sgd, _module_list("layers"))
    if name not in _REAL:
        raise UsageError(f"there is no benchmark model {name!r}: expected timed or one of {', '.join(_REAL)}")
    return _REAL[name]
