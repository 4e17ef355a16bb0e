"""Streams, events and memory of the device that computes.

Everything in ``overlap/`` that has to be ordered between streams goes through this interface.  On the CPU there is
one stream, the program itself, and nothing to order: callers ask ``has_streams`` first.  Tests replace it by a device
that runs on CPU tensors, records every access, and reports those that no event orders (tests/streams).

[Note: streams]  A GPU runs what one stream was given in order; nothing orders two streams but events.  A NCCL
collective runs on a stream of its own, behind what was queued on the stream it was called from, and ``work.wait()``
orders only the stream that is current at that moment.  So:

- Whoever touches what a collective wrote waits for it once per stream (:class:`Arrival`), not once.
- Gradients of one bucket may be written on several streams; the one that launches the bucket joins the others first.
- Memory that one stream allocated and another one uses is reported to the allocator (``keep``) before it is freed.
- The host never waits for the device in a step.  What it wants to know it copies (:meth:`Device.read_later`) and
  reads when the copy is there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch


class HostCopy(Protocol):
    """A small tensor on its way to the host."""

    def values(self) -> list[float]:
        """Its elements; waits for the copy if it is still under way."""
        ...


class Timestamp(Protocol):
    """When a stream passed a point; not known before it has."""

    def query(self) -> bool:
        """Whether it has.  Never waits."""
        ...

    def synchronize(self) -> None:
        """The host waits until it has."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to a later one; both have been passed."""
        ...


class Device(Protocol):
    """What the schedules ask of a device.  Streams are compared and put into sets; events are opaque."""

    has_streams: bool

    def current_stream(self) -> Any: ...

    def on_own_stream(self) -> AbstractContextManager[Any]:
        """Inside, the current stream is one that only this interface uses, for a thread beside the training loop."""
        ...

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]: ...

    def record(self) -> Any:
        """An event behind everything that was queued on the current stream."""
        ...

    def wait(self, event: Any) -> None:
        """What is queued on the current stream from now on runs after ``event``.  The host does not wait."""
        ...

    def join(self, stream: Any) -> None:
        """What is queued on the current stream from now on runs after what ``stream`` was given so far."""
        ...

    def keep(self, tensor: torch.Tensor) -> None:
        """The current stream uses memory that may have been allocated on another one."""
        ...

    def read_later(self, tensor: torch.Tensor) -> HostCopy:
        """Start copying to the host, behind what is queued on the current stream."""
        ...

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, behind what is queued on the current stream; the tensor itself if it is there."""
        ...

    def synchronize(self) -> None:
        """The host waits until the device is idle."""
        ...

    def capturing(self) -> bool:
        """Whether what is queued now goes into a CUDA graph instead of running."""
        ...

    def timestamp(self) -> Timestamp:
        """The moment at which the current stream has done everything that was queued on it."""
        ...


class HostDevice:
    """The CPU: what is called is done on return."""

    has_streams = False

    def current_stream(self) -> Any:
        return None

    def on_own_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def record(self) -> Any:
        return None

    def wait(self, event: Any) -> None:
        pass

    def join(self, stream: Any) -> None:
        pass

    def keep(self, tensor: torch.Tensor) -> None:
        pass

    def read_later(self, tensor: torch.Tensor) -> HostCopy:
        return _OnHost(tensor)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def synchronize(self) -> None:
        pass

    def capturing(self) -> bool:
        return False

    def timestamp(self) -> Timestamp:
        raise NotImplementedError("the host's own clock is used on the CPU")


class CudaDevice:
    """One GPU, by torch.cuda.  Never run where it was written; tests/streams runs its callers."""

    has_streams = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: Any = None

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def on_own_stream(self) -> AbstractContextManager[Any]:
        if self._own is None:
            self._own = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._own)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def record(self) -> Any:
        return self.current_stream().record_event()

    def wait(self, event: Any) -> None:
        self.current_stream().wait_event(event)

    def join(self, stream: Any) -> None:
        current = self.current_stream()
        if stream != current:
            current.wait_stream(stream)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.current_stream())

    def read_later(self, tensor: torch.Tensor) -> HostCopy:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        pinned.copy_(tensor, non_blocking=True)
        return _OnTheWay(pinned, self.record())

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu")

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def timestamp(self) -> Timestamp:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.current_stream())
        return event


class _OnHost:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def values(self) -> list[float]:
        return [float(value) for value in self._tensor.tolist()]


class _OnTheWay(_OnHost):
    def __init__(self, pinned: torch.Tensor, copied: Any) -> None:
        super().__init__(pinned)
        self._copied = copied

    def values(self) -> list[float]:
        self._copied.synchronize()
        return super().values()


class Arrival:
    """What a collective wrote: each stream that touches it waits once."""

    def __init__(self, device: Device, work: Any) -> None:
        self._device = device
        self._work = work
        self._waiting: set[Any] = set()

    def order(self) -> None:
        """The current stream goes on after the collective.  The host does not wait."""
        stream = self._device.current_stream()
        if stream not in self._waiting:
            self._work.wait()
            self._waiting.add(stream)

    def ended(self) -> bool:
        """Whether the collective is over, so that no stream need wait any more.  Never blocks."""
        # To ask an event while a graph is captured would break the capture.
        return not self._device.capturing() and bool(self._work.is_completed())


class Written:
    """What the current stream has written just now, for other streams to wait for; used like an :class:`Arrival`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._event = device.record()
        self._waiting = {device.current_stream()}

    def order(self) -> None:
        stream = self._device.current_stream()
        if stream not in self._waiting:
            self._device.wait(self._event)
            self._waiting.add(stream)


CPU = HostDevice()

# Tests put a recording device here; see tests/streams.
make_cuda_device: Callable[[torch.device], Device] = CudaDevice


def device_of(device: torch.device) -> Device:
    """The interface to ``device``."""
    return make_cuda_device(device) if device.type == "cuda" else CPU
