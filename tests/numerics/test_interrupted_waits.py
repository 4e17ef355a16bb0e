"""Ctrl-C while a worker waits for another one: it can catch the exception and train on with the right values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from training import Run, Tower, adamw, assert_same, made, with_weft
from workers import on_workers

STEPS = 4


class Interrupted:
    """A message whose wait is interrupted once, before it arrives or right after."""

    def __init__(self, work: Any, *, is_late: bool) -> None:
        self._work = work
        self._is_late = is_late
        self._is_over = False

    def wait(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._is_late:
                self._work.wait()
            raise KeyboardInterrupt
        if not self._is_late:
            self._work.wait()


def train_through_interrupts(run: Run, is_late: bool) -> None:
    """Worker 2 sends its new values only after worker 0 has been interrupted, while it waited for worker 1's."""
    assert run.handle is not None
    store = dist.distributed_c10d._get_default_store()
    run.train(1)  # the first step is followed by collectives of its own
    for step in range(1, STEPS):
        run.optimizer.zero_grad()
        run.backward(step)
        if dist.get_rank() == 2:
            store.wait([f"interrupted {step}"])
        run.optimizer.step()
        if dist.get_rank() == 0:
            works = run.handle.schedule.buckets[-1].exchange.gather_works  # the first layers' are waited for first
            works[0] = Interrupted(works[0], is_late=is_late)
            with pytest.raises(KeyboardInterrupt):
                run.handle.flush()
            store.set(f"interrupted {step}", "")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("hosts", [(0, 1, 2), (0, 1, 1)], ids=str)
@on_workers(3)
def test_a_worker_interrupted_while_values_arrive_reads_them_afterwards(hosts: Sequence[int], is_late: bool) -> None:
    with patch.dict(os.environ, WEFT_HOST=f"host-{hosts[dist.get_rank()]}"):
        expected = with_weft(made(Tower), adamw, enabled=False).train(STEPS)
        found = with_weft(made(Tower), adamw)
    train_through_interrupts(found, is_late)
    assert_same(found.state(), expected.state())
