"""Streams, events, and memory of the device that computes.

All ordering between streams in ``overlap/`` goes through this interface.  On the CPU there is nothing to order: callers
check ``has_streams`` first.  Tests substitute a device that runs on CPU tensors, records every access, and reports
those that no event orders (tests/streams).

[Note: streams]  A GPU runs the work of one stream in order; only events order two streams.  A NCCL collective runs on
its own stream, behind the work queued on the stream it was called from, and ``work.wait()`` orders only the stream that
is current at that moment.  So:

- Each stream that uses the result of a collective waits for it (:class:`Arrival`), not just one.
- Gradients of one bucket may be written on several streams; the one that launches the bucket joins the others first.
- Memory allocated on one stream and used on another is reported to the allocator (``keep``) before it is freed.
- The host never waits for the device in a step.  It copies values (:meth:`Device.read_later`) and reads them once they
  have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch


class Timestamp(Protocol):
    """The time at which a stream reaches a point, like a CUDA event with timing."""

    def query(self) -> bool:
        """Whether it has been reached.  Never waits."""

    def synchronize(self) -> None:
        """Make the host wait for it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to a later one; both must have been reached."""


class Device(Protocol):
    """What the schedules need from a device.  Streams are hashable; events are opaque."""

    has_streams: bool

    def current_stream(self) -> Any: ...

    def on_own_stream(self) -> AbstractContextManager[Any]:
        """Makes a stream current that only this interface uses, for a thread other than the training loop's."""

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]: ...

    def record(self) -> Any:
        """An event behind everything queued on the current stream."""

    def wait(self, event: Any) -> None:
        """Later work on the current stream runs after ``event``.  The host does not wait."""

    def join(self, stream: Any) -> None:
        """Later work on the current stream runs after everything queued on ``stream`` so far."""

    def keep(self, tensor: torch.Tensor) -> None:
        """The current stream uses memory that may have been allocated on another one."""

    def read_later(self, tensor: torch.Tensor) -> Callable[[], list[float]]:
        """Start copying to the host, behind the work queued on the current stream.

        Returns a function that returns the elements, and waits for the copy if necessary.
        """

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, behind the work queued on the current stream; on the CPU, the tensor itself."""

    def synchronize(self) -> None:
        """Make the host wait until the device is idle."""

    def capturing(self) -> bool:
        """Whether work queued now goes into a CUDA graph instead of running."""

    def timestamp(self) -> Timestamp:
        """The moment at which the current stream has done everything queued on it."""


class HostDevice:
    """The CPU, where every call is complete when it returns."""

    has_streams = False

    def current_stream(self) -> Any:
        return None

    def on_own_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def record(self) -> Any: ...
    def wait(self, event: Any) -> None: ...
    def join(self, stream: Any) -> None: ...
    def keep(self, tensor: torch.Tensor) -> None: ...
    def synchronize(self) -> None: ...

    def read_later(self, tensor: torch.Tensor) -> Callable[[], list[float]]:
        return tensor.tolist

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def capturing(self) -> bool:
        return False

    def timestamp(self) -> Timestamp:
        raise NotImplementedError("the host's own clock is used on the CPU")


class CudaDevice:
    """One GPU, through torch.cuda.  It has not been run on a GPU yet; tests/streams runs its callers."""

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

    def read_later(self, tensor: torch.Tensor) -> Callable[[], list[float]]:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        pinned.copy_(tensor, non_blocking=True)
        copied = self.record()

        def values() -> list[float]:
            copied.synchronize()
            return pinned.tolist()

        return values

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


class Arrival:
    """The result of a collective: each stream that uses it waits once."""

    def __init__(self, device: Device, work: Any) -> None:
        self._device = device
        self._work = work
        self._waiting: set[Any] = set()

    def order(self) -> None:
        """Make the current stream wait for the collective.  The host does not wait."""
        stream = self._device.current_stream()
        if stream not in self._waiting:
            self._work.wait()
            self._waiting.add(stream)

    def ended(self) -> bool:
        """Whether the collective has ended, so that no stream has to wait for it.  Never blocks."""
        # Querying an event would break a graph capture.
        return not self._device.capturing() and bool(self._work.is_completed())


class Written:
    """What the current stream has just written; other streams wait for it as for an :class:`Arrival`."""

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
    return make_cuda_device(device) if device.type == "cuda" else CPU
