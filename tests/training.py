"""Small models and one training loop, run with DDP or with weft on the same batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import weft
from weft.overlap import Overlap, checks

Parameters = dict[str, torch.Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

# Small models need small buckets for several of them to be under way.
BUCKET_BYTES = 1024


class Tangle(nn.Module):
    """Everything that makes reading parameters and ordering gradients hard, in one small model.

    ``rare_ranks`` gives, for each step, the ranks on which ``rare`` takes part.
    """

    def __init__(self, rare_ranks: Callable[[int], list[int]] = lambda step: [0, 1] if step % 3 else []) -> None:
        super().__init__()
        width, words = 16, 24
        self.embedding = nn.Embedding(words, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.twice = nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 40), nn.GELU(), nn.Linear(40, width))
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.rare = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight
        self.rare_ranks = rare_ranks
        self.use_reentrant = False
        self.step = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = torch.tanh(self.twice(torch.relu(self.twice(x))))
        x = x + checkpoint(self.inner, x, use_reentrant=self.use_reentrant)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = x * self.scale + self.frozen(x)
        if dist.get_rank() in self.rare_ranks(self.step):
            x = x + self.rare(x)
        return self.head(x)

    def loss(self, step: int) -> torch.Tensor:
        tokens = torch.randint(0, 24, (3, 5), generator=batch_generator(step))
        self.step = step
        return F.cross_entropy(self(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


class Tower(nn.Module):
    """Plain layers of different widths: several buckets, cut in mid-parameter."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        widths = [7, 33, 20, 12, 3]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs, dtype=dtype), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, step: int) -> torch.Tensor:
        x = torch.randn(5, 7, generator=batch_generator(step), dtype=self.dtype)
        return self(x).square().mean() + self(x * 0.5).sum() * 0.1


def batch_generator(step: int) -> torch.Generator:
    """Other samples on every rank and in every step."""
    return torch.Generator().manual_seed(1000 * step + dist.get_rank())


def made(make: Callable[[], nn.Module]) -> Any:
    """A model with different values on every rank, so that code that forgets to broadcast rank 0's fails."""
    torch.manual_seed(7 + dist.get_rank())
    return make()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)


class SubclassedSGD(torch.optim.SGD):
    """A subclass may do anything in its step, so it gets the replicated update."""


def replicated_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return SubclassedSGD(model.parameters(), lr=0.05)


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=0.01)


class Several(list[torch.optim.Optimizer]):
    """Optimizers that are stepped and zeroed together."""

    def zero_grad(self) -> None:
        for optimizer in self:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self:
            optimizer.step()


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Decay for matrices only, another learning rate for the first parameter."""
    first, *rest = model.parameters()
    matrices = [p for p in rest if p.dim() > 1]
    others = [p for p in rest if p.dim() <= 1]
    return torch.optim.AdamW(
        [
            {"params": [first], "lr": 1e-3},
            {"params": others, "weight_decay": 0.0},
            {"params": matrices, "weight_decay": 0.2, "betas": (0.8, 0.95)},
        ],
        lr=3e-3,
    )


@dataclass
class Run:
    """A model under training, with DDP or with weft."""

    model: Any
    optimizer: torch.optim.Optimizer
    handle: Overlap | None = None
    ddp: DistributedDataParallel | None = None
    losses: list[float] = field(default_factory=list)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        if self.ddp is not None:
            return self.ddp.no_sync()
        assert self.handle is not None
        return self.handle.no_sync()

    def backward(self, step: int, scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss) -> torch.Tensor:
        """The loss of a batch; DDP wants to see the forward go through its wrapper."""
        loss = self.ddp(step) if self.ddp is not None else self.model.loss(step)
        scale(loss).backward()
        self.losses.append(loss.item())
        return loss

    def train(self, steps: int, first: int = 0, accumulate: int = 1, clip: str = "") -> Run:
        for step in range(first, first + steps):
            self.optimizer.zero_grad()
            for part in range(accumulate - 1):
                with self.no_sync():
                    self.backward(step * accumulate + part)
            self.backward(step * accumulate + accumulate - 1)
            self.clip(clip)
            self.optimizer.step()
        return self

    def clip(self, how: str) -> torch.Tensor | None:
        if how == "handle" and self.handle is not None:
            return self.handle.clip_grad_norm_(0.1)
        if how:
            return nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        return None

    def parameters(self) -> Parameters:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def state(self) -> Parameters:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


class _Loss(nn.Module):
    """DDP calls a module; ours is called for its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, step: int) -> torch.Tensor:
        loss: torch.Tensor = self.model.loss(step)
        return loss


def two_backwards(run: Run) -> Run:
    """Four steps, each with the gradients of two backward passes, without no_sync()."""
    for step in range(4):
        run.optimizer.zero_grad()
        run.backward(2 * step)
        run.backward(2 * step + 1)
        run.optimizer.step()
    return run


def with_ddp(model: nn.Module, make_optimizer: MakeOptimizer = sgd, **options: Any) -> Run:
    ddp = DistributedDataParallel(_Loss(model), find_unused_parameters=True, **options)
    return Run(model, make_optimizer(model), ddp=ddp)


def with_weft(model: nn.Module, make_optimizer: MakeOptimizer = sgd, **options: Any) -> Run:
    if not options.get("tune"):
        options.setdefault("bucket_bytes", BUCKET_BYTES)
    optimizer = make_optimizer(model)
    return Run(model, optimizer, handle=weft.overlap(model, optimizer, **options))


def assert_same(found: Parameters, expected: Parameters) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    wrong = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not wrong, f"{len(wrong)} of {len(expected)} differ: " + ", ".join(
        f"{name} by {(found[name].double() - expected[name].double()).abs().max():.3g}" for name in wrong[:6]
    )


def assert_equal_states(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Two optimizer state dicts, bit for bit."""
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        assert found["state"][number].keys() == state.keys()
        for key, value in state.items():
            mine = found["state"][number][key]
            assert type(mine) is type(value), (number, key)
            if isinstance(value, torch.Tensor):
                assert (mine.dtype, mine.shape, mine.stride()) == (value.dtype, value.shape, value.stride()), key
                assert torch.equal(mine, value), (number, key)
            else:
                assert mine == value, (number, key)


def same_as_ddp(
    loop: Callable[[Run], Any], make: Callable[[], nn.Module] = Tower, optimizer: MakeOptimizer = adamw, **options: Any
) -> Run:
    """``loop`` gives the same numbers, and returns the same things, with DDP and with weft."""
    expected, found = with_ddp(made(make), optimizer), with_weft(made(make), optimizer, **options)
    wanted, got = loop(expected), loop(found)
    assert_same(found.state(), expected.state())
    if isinstance(wanted, dict):
        assert_same(got, wanted)
    return found


def assert_close(found: Parameters, expected: Parameters, tolerance: float = 1e-5) -> None:
    """To rounding."""
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_differ(one: Parameters, other: Parameters) -> None:
    """A comparison is worth something only where there was something to get wrong."""
    assert any(not torch.equal(one[name], other[name]) for name in one)


@contextlib.contextmanager
def left_as_it_was(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A refusal changes nothing: same objects, memory, values, classes, hooks, options and state; nothing is open."""

    def shape_of_things() -> list[Any]:
        found: list[Any] = [
            (
                name,
                id(p),
                p.data_ptr(),
                type(p),
                p.requires_grad,
                p.grad is None,
                len(p._post_accumulate_grad_hooks or ()),
            )
            for name, p in model.named_parameters()
        ]
        hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
        steps = [len(value) for name, value in vars(optimizer).items() if name.endswith("_hooks")]
        state = [type(optimizer.state), dict(optimizer.state)] if hasattr(optimizer, "state") else []
        groups = dist.distributed_c10d._world.pg_map if dist.is_initialized() else []
        held = [len(groups), [checks.is_taken(p) for p in model.parameters()]]
        return [*found, hooks, steps, state, held, [id(p) for g in optimizer.param_groups for p in g["params"]]]

    before, values = shape_of_things(), [p.detach().clone() for p in model.parameters()]
    threads = set(threading.enumerate())  # those of earlier tests' models may end meanwhile
    yield
    assert shape_of_things() == before
    assert not set(threading.enumerate()) - threads
    assert all(torch.equal(a, b) for a, b in zip(values, model.parameters(), strict=True))
