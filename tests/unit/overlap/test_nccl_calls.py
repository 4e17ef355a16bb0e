"""NCCL cannot run everywhere, but the order of its collectives can be tested anywhere, and that they never block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timed_model import TimedModel

from weft.overlap.device import HostDevice
from weft.overlap.transport import nccl
from weft.overlap.transport.nccl import NcclTransport
from weft.perf.link import Link

LINK = Link(alpha_s=0.0, beta_s_per_byte=1e-3, launch_s=0.0)


class StreamOrdered:
    """Like a NCCL work: ``wait()`` orders the stream behind it; everything else would stop the host."""

    def __init__(self, log: list[tuple[str, Any]], what: str) -> None:
        self._log, self._what = log, what

    def wait(self) -> None:
        self._log.append(("wait", self._what))

    def is_completed(self) -> bool:
        return False


class OneStream(HostDevice):
    """A device on which everything is queued on one stream."""

    has_streams = True

    def current_stream(self) -> str:
        return "main"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []

    def reduce_scatter(out: torch.Tensor, into: torch.Tensor, op: Any, group: str, async_op: bool) -> StreamOrdered:
        assert async_op
        assert into.numel() == 2 * out.numel()
        assert out.data_ptr() == into.data_ptr()  # rank 0's row: in place
        calls.append((group, out.numel()))
        out.mul_(2)
        return StreamOrdered(calls, "reduce")

    def all_gather(out: torch.Tensor, own: torch.Tensor, group: str, async_op: bool) -> StreamOrdered:
        assert async_op
        assert out.numel() == 2 * own.numel()
        calls.append((group, out.data_ptr()))
        return StreamOrdered(calls, "gather")

    def blocks(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise AssertionError(f"{name} blocks the host")

        return call

    monkeypatch.setattr(nccl.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(nccl.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(nccl.dist, "reduce_scatter_tensor", reduce_scatter)
    monkeypatch.setattr(nccl.dist, "all_gather_into_tensor", all_gather)
    for name in ("all_reduce", "barrier", "broadcast", "all_gather"):
        monkeypatch.setattr(nccl.dist, name, blocks(name))
    for name in ("item", "tolist", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, blocks(name))
    monkeypatch.setattr(torch.cuda, "synchronize", blocks("synchronize"))
    return calls


def nccl_model(**options: Any) -> TimedModel:
    reduce_group: Any = "reduce group"
    gather_group: Any = "gather group"
    return TimedModel(LINK, transport=NcclTransport(reduce_group, gather_group, OneStream()), num_layers=4, **options)


@pytest.mark.parametrize("eager", [False, True])
def test_collectives_are_issued_in_one_order_on_a_group_each(log: list[tuple[str, Any]], eager: bool) -> None:
    model = nccl_model(eager=eager)
    regions = [bucket.exchange.region.data_ptr() for bucket in model.schedule.buckets]
    for _ in range(3):
        log.clear()
        loss = model.forward()
        assert [what for what in log if what[0] != "wait"] == []
        loss.backward()
        assert [group for group, _ in log if group != "wait"] == 4 * ["reduce group"]
        model.step()
        gathers = [address for group, address in log if group == "gather group"]
        assert gathers == regions[::-1]  # first layers first, decided by nothing that differs between workers
        assert sum(group == "reduce group" for group, _ in log) == 4


def test_the_host_never_waits_in_a_step(log: list[tuple[str, Any]]) -> None:
    """Only streams wait: the fixture fails anything that would block the host."""
    model = nccl_model()
    model.train(3)
    model.schedule.flush()
    assert log.count(("wait", "reduce")) == 3 * 4
    assert log.count(("wait", "gather")) == 3 * 4
