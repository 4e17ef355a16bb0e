"""Training with the CUDA path's own code on CPU tensors: NCCL's collectives over gloo, everything recorded.

    with recorded() as record:
        run = with_weft(record.made(Tower))
        run.train(5)
    record.check()

A collective reads and writes on its communicator's own stream, after what was queued on the calling stream; ``wait()``
orders only the stream that is current at that time, as in ProcessGroupNCCL.  The values really come from the other
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from recorder import Clock, Hazard, Recorder
from recording_device import RecordingDevice, Watch, host_reads_seen
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from training import made
from weft.overlap import attach
from weft.overlap.transport import nccl


class RecordedWork:
    """A collective in flight.  Its memory is kept until it has been waited for."""

    def __init__(self, recorder: Recorder, clock: Clock, tensors: list[torch.Tensor], over_at_once: bool) -> None:
        self._recorder, self._clock = recorder, clock
        self._stash: list[torch.Tensor] = tensors
        self._over = over_at_once

    def wait(self) -> None:
        self._recorder.order(self._recorder.stream, self._clock)
        self._stash = []

    def is_completed(self) -> bool:
        if self._over:
            self._recorder.host_learns(self._clock)
        return self._recorder.host_knows(self._clock)


class RecordedCollectives:
    """Replaces ``dist`` in transport/nccl.py."""

    ReduceOp = dist.ReduceOp
    ProcessGroup = dist.ProcessGroup
    get_rank = staticmethod(dist.get_rank)
    get_world_size = staticmethod(dist.get_world_size)

    def __init__(self, recorder: Recorder, over_at_once: bool) -> None:
        self._recorder, self._over = recorder, over_at_once

    def reduce_scatter_tensor(
        self, out: torch.Tensor, rows: torch.Tensor, op: Any, *, group: Any, async_op: bool
    ) -> RecordedWork:
        def perform() -> None:
            total = rows.clone()
            dist.all_reduce(total, op, group=group)
            out.copy_(total.view(dist.get_world_size(group), -1)[dist.get_rank(group)])

        return self._launch("reduce-scatter", group, [rows], [out], perform)

    def all_gather_into_tensor(
        self, out: torch.Tensor, own: torch.Tensor, *, group: Any, async_op: bool
    ) -> RecordedWork:
        def perform() -> None:
            parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, own.clone(), group=group)
            out.copy_(torch.cat([part.reshape(-1) for part in parts]).view_as(out))

        return self._launch("all-gather", group, [own], [out], perform)

    def all_reduce(self, values: torch.Tensor, op: Any, *, group: Any, async_op: bool) -> RecordedWork:
        def perform() -> None:
            dist.all_reduce(values, op, group=group)

        return self._launch("all-reduce", group, [values], [values], perform)

    def broadcast(self, values: torch.Tensor, *, group_src: int, group: Any, async_op: bool) -> RecordedWork:
        is_source = dist.get_rank(group) == group_src

        def perform() -> None:
            dist.broadcast(values, group_src=group_src, group=group)

        return self._launch("broadcast", group, [values] if is_source else [], [] if is_source else [values], perform)

    def _launch(
        self,
        name: str,
        group: Any,
        reads: list[torch.Tensor],
        writes: list[torch.Tensor],
        perform: Callable[[], None],
    ) -> RecordedWork:
        recorder = self._recorder
        carrier = f"nccl {group.group_name}"
        for tensor in (*reads, *writes):
            recorder.adopt(tensor)
        recorder.order(carrier, recorder.clock_of(recorder.stream))
        recorder.use(name, reads, writes, stream=carrier)
        with _disable_current_modes():
            perform()
        return RecordedWork(recorder, recorder.clock_of(carrier), [*reads, *writes], self._over)


class Record:
    """What a test gets."""

    def __init__(self, recorder: Recorder, device: RecordingDevice) -> None:
        self.recorder, self.device = recorder, device

    def made(self, make: Callable[[], nn.Module]) -> Any:
        """A model in device memory."""
        model = made(make)
        for tensor in (*model.parameters(), *model.buffers()):
            self.recorder.adopt(tensor.detach())
        return model

    @property
    def hazards(self) -> list[Hazard]:
        return self.recorder.hazards

    def check(self) -> None:
        found = self.recorder.hazards
        assert not found, f"{len(found)} unordered accesses, the first of them:\n\n" + "\n\n".join(map(str, found[:2]))


@contextmanager
def recorded(over_at_once: bool = False) -> Iterator[Record]:
    """Inside, ``weft.overlap`` treats CPU models as CUDA models.

    ``over_at_once``: collectives report completion immediately, instead of only after the host has waited for them.
    """
    recorder = Recorder()
    device = RecordingDevice(recorder)

    def transport_for(group: dist.ProcessGroup, *_: Any) -> nccl.NcclTransport:
        ranks = dist.get_process_group_ranks(group)
        groups = [dist.new_group(ranks, backend="gloo") for _ in range(2)]
        return nccl.NcclTransport(groups[0], groups[1], device)

    with (
        mock.patch.object(attach, "transport_for", transport_for),
        mock.patch.object(nccl, "dist", RecordedCollectives(recorder, over_at_once)),
        host_reads_seen(recorder),
        Watch(recorder),
    ):
        yield Record(recorder, device)
