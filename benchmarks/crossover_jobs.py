"""The jobs of a pair: one small transformer, whose gradients are communicated in three ways.

    single      no communication at all: a job of one worker, and the measure of a step's compute
    plain       one all-reduce of all gradients when backward is over, as users write it by hand
    ddp         DistributedDataParallel with its defaults
    overlap     weft.overlap with a fixed bucket size, so that a cell need not wait for the tuning

Behind a lease the same jobs call ``weft.crossover(model)``; ``weft.overlap`` needs no call.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import weft
from benchmarks.crossover_scenarios import JobSize
from benchmarks.models import SEED, LanguageModel, numbered_batches, token_batch
from weft.process.turns import TURNS

NUM_BATCHES = 4
OVERLAP_BUCKET_BYTES = 2 << 20
LENGTH = 64
VOCABULARY = 2048

# (what, from, until) in seconds of the machine's monotonic clock
Span = tuple[str, float, float]


class Job:
    """One worker of one job.  This base class: no communication."""

    def __init__(self, size: JobSize, rank: int) -> None:
        torch.manual_seed(SEED)
        self.net = LanguageModel(VOCABULARY, size.width, size.num_layers, num_heads=8, length=LENGTH)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-4)
        self.module: nn.Module = self.net
        make_batch = token_batch(VOCABULARY, size.num_sequences, LENGTH)
        self.batches = numbered_batches(make_batch, rank, NUM_BATCHES)
        self.losses: list[float] = []
        self.spans: list[Span] = []
        self.prepare()

    def prepare(self) -> None:
        weft.crossover(self.net)

    def step(self) -> None:
        tokens, targets = self.batches[len(self.losses) % NUM_BATCHES]
        waited_s, began_s = TURNS.turn_wait_s, time.monotonic()
        loss = F.cross_entropy(self.module(tokens), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        waited_s = self._note_compute(waited_s, began_s)
        began_s = time.monotonic()
        self.average()
        self.spans.append(("network", began_s, time.monotonic()))
        began_s = time.monotonic()
        self.optimizer.step()
        self.zero_grad()
        self._note_compute(waited_s, began_s)
        self.losses.append(float(loss.detach()))

    def average(self) -> None:
        """Make the gradients those of all workers."""

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Nothing is in flight on return; the job may continue."""

    def close(self) -> None:
        """Nothing is in flight on return, and the job is over."""

    def _note_compute(self, waited_before_s: float, began_s: float) -> float:
        """A phase begins with the wait for the turn, if there is one."""
        turn_s = TURNS.turn_wait_s - waited_before_s
        self.spans.append(("turn", began_s, began_s + turn_s))
        self.spans.append(("compute", began_s + turn_s, time.monotonic()))
        return TURNS.turn_wait_s


class PlainJob(Job):
    """Compute, then communicate; gradients lie in one piece of memory, so that one all-reduce does."""

    def prepare(self) -> None:
        super().prepare()
        parameters = list(self.net.parameters())
        self._flat = torch.zeros(sum(p.numel() for p in parameters))
        for p, part in zip(parameters, torch.split(self._flat, [p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)

    def average(self) -> None:
        dist.all_reduce(self._flat)
        self._flat /= dist.get_world_size()

    def zero_grad(self) -> None:
        self._flat.zero_()


class DdpJob(Job):
    """Communication under backward; the rest of it when backward is over."""

    def prepare(self) -> None:
        self.module = weft.crossover(DistributedDataParallel(self.net))


class OverlapJob(Job):
    """Communication under backward and the next forward."""

    def prepare(self) -> None:
        self.handle = weft.overlap(self.net, self.optimizer, bucket_bytes=OVERLAP_BUCKET_BYTES)

    def settle(self) -> None:
        self.handle.flush()

    def close(self) -> None:
        self.handle.detach()


JOBS: dict[str, Callable[[JobSize, int], Job]] = {
    "single": Job,
    "plain": PlainJob,
    "ddp": DdpJob,
    "overlap": OverlapJob,
}
