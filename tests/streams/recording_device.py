"""A device that runs on CPU tensors and tells a :class:`Recorder` everything: for tests of code written for CUDA.

``recorded()`` replaces CUDA with it.  Operations are seen by a dispatch mode.  A tensor belongs to the device if
it was made with ``device=...``, came out of an operation on such a tensor, or was adopted; others, such as the step
counter of Adam, belong to the host and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from recorder import TIME, Recorder
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from weft.overlap.gradient import ShardedGradient

_UNTOUCHED = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
_VIEWS_IN_DISGUISE = {"_unsafe_view", "_reshape_alias"}
_QUESTIONS = {"is_same_size", "sym_size", "sym_stride", "is_pinned"}


class RecordedEvent:
    """A point on a stream, and when the stream passed it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.clock = recorder.clock_of(recorder.stream)

    def query(self) -> bool:
        return self._recorder.host_knows(self.clock)

    def synchronize(self) -> None:
        self._recorder.host_waits_for(self.clock)

    def elapsed_time(self, later: RecordedEvent) -> float:
        assert self.query(), "asked for a time that is not known yet"
        assert later.query(), "asked for a time that is not known yet"
        return (later.clock.get(TIME, 0) - self.clock.get(TIME, 0)) * 1e-6


class RecordingDevice:
    """Implements :class:`weft.overlap.device.Device`."""

    has_streams = True

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.is_capturing = False

    def current_stream(self) -> Any:
        return self.recorder.stream

    def on_own_stream(self) -> AbstractContextManager[Any]:
        return self.recorder.on("state")

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return self.recorder.on(stream)

    def record(self) -> RecordedEvent:
        return RecordedEvent(self.recorder)

    def wait(self, event: RecordedEvent) -> None:
        assert not self.is_capturing, "a captured stream waits for an event of another one"
        self.recorder.order(self.recorder.stream, event.clock)

    def join(self, stream: str) -> None:
        self.recorder.order(self.recorder.stream, self.recorder.clock_of(stream))

    def keep(self, tensor: torch.Tensor) -> None:
        self.recorder.keep(tensor, self.recorder.stream)

    def read_later(self, tensor: torch.Tensor) -> Copied:
        self.recorder.use("copy to host", [tensor], [])
        with _disable_current_modes():
            return Copied(tensor.detach().clone(), self.record())

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.recorder.use("copy to host", [tensor], [])
        self.recorder.host_learns(self.recorder.clock_of(self.recorder.stream))
        with _disable_current_modes():
            return tensor.detach().clone()

    def synchronize(self) -> None:
        assert not self.is_capturing, "the host waits while a graph is captured"
        for stream in list(self.recorder._clocks):
            self.recorder.host_learns(self.recorder.clock_of(stream))

    def capturing(self) -> bool:
        return self.is_capturing

    def timestamp(self) -> RecordedEvent:
        return self.record()


class Copied:
    def __init__(self, values: torch.Tensor, event: RecordedEvent) -> None:
        self._values, self._event = values, event

    def __call__(self) -> list[float]:
        self._event.synchronize()
        with _disable_current_modes():
            return [float(value) for value in _PLAIN_TOLIST(self._values)]


class Watch(TorchDispatchMode):
    """Reports what every operation reads and writes."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, ShardedGradient) for kind in types):
            with self:  # record what it does inside, too
                return ShardedGradient.__torch_dispatch__(func, types, args, kwargs)
        name = func._schema.name.removeprefix("aten::")
        if func.namespace != "aten" or name in _QUESTIONS:
            return func(*args, **kwargs)
        arguments = list(_arguments(func, args, kwargs))
        reads = [t for t, is_write in arguments if not is_write and self._recorder.is_known(t)]
        writes = [t for t, is_write in arguments if is_write and self._recorder.is_known(t)]
        result = func(*args, **kwargs)
        returned = func._schema.returns
        is_view = name in _VIEWS_IN_DISGUISE or any(r.alias_info and not r.alias_info.is_write for r in returned)
        fresh = [] if is_view or any(r.alias_info for r in returned) else list(_tensors(result))
        on_device = bool(reads or writes) or (kwargs.get("device") is not None and fresh)
        if not on_device or is_view:
            return result
        for tensor in fresh:
            self._recorder.adopt(tensor)
        if name == "_local_scalar_dense":
            self._recorder.use(name, reads, [])
            self._recorder.host_waits_for(self._recorder.clock_of(self._recorder.stream))
        elif name not in _UNTOUCHED:
            self._recorder.use(name, reads, writes + fresh)
        return result


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, bool]]:
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(value):
            yield tensor, is_write


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)


_PLAIN_TOLIST = torch.Tensor.tolist


@contextmanager
def host_reads_seen(recorder: Recorder) -> Iterator[None]:
    """``tolist()`` bypasses the dispatcher: record it as a wait of the host."""

    def tolist(tensor: torch.Tensor) -> Any:
        if recorder.is_known(tensor) and not isinstance(tensor, ShardedGradient):
            recorder.use("tolist", [tensor], [])
            recorder.host_waits_for(recorder.clock_of(recorder.stream))
        return _PLAIN_TOLIST(tensor)

    torch.Tensor.tolist = tolist  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.tolist = _PLAIN_TOLIST  # type: ignore[method-assign]
