"""Simulated streams, events, and memory: every access is checked for happens-before with vector clocks.

Each stream has a clock that counts its operations, and for every other stream the last operation it is known to run
after.  An event carries its stream's clock; waiting for it takes the maximum of both.  Two accesses to the same bytes,
at least one of them a write, must be ordered that way; else a :class:`Hazard` is noted, with where both came from.

The host is a clock too: whatever it has waited for happened before anything it queues afterwards.  All threads of the
process share that clock, so a missing lock between two threads is not found here.

Clocks also carry the time: an operation begins when its stream has done everything before it, and takes ``takes_ns`` of
virtual time.  Queueing takes none, so a test can have instant launches and a slow device.

[Note: freed memory]  The caching allocator immediately returns freed memory to the stream that allocated it.  So when
memory is freed, everything that other streams do with it must be ordered before what its own stream does next, unless
``record_stream`` said otherwise.
"""

from __future__ import annotations

import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Clock = dict[str, int]
Range = tuple[int, int]

TIME = "nanoseconds"  # in a clock, next to the streams

_MAX_RUNS = 64
_MAX_FRAMES = 14


@dataclass(frozen=True)
class Access:
    """One operation's use of some bytes."""

    stream: str
    tick: int
    writes: bool
    what: str
    stack: traceback.StackSummary

    def told(self) -> str:
        kind = "write" if self.writes else "read"
        return f"{kind} by {self.what} on stream {self.stream}\n" + "".join(self.stack.format())


@dataclass(frozen=True)
class Hazard:
    """Two accesses that nothing orders, or memory that was freed while a stream still uses it."""

    kind: str
    earlier: Access
    later: Access | None

    def __str__(self) -> str:
        later = "" if self.later is None else "\nand " + self.later.told()
        return f"{self.kind}:\n{self.earlier.told()}{later}"


@dataclass
class Memory:
    """An allocation, and the accesses to it that can still matter."""

    begin: int
    end: int
    stream: str
    reference: StorageWeakRef
    uses: list[tuple[int, int, Access]] = field(default_factory=list)
    kept_for: set[str] = field(default_factory=set)


class Recorder:
    """All streams and all memory of one process."""

    def __init__(self, default_stream: str = "main") -> None:
        self.hazards: list[Hazard] = []
        self.host_waits: list[traceback.StackSummary] = []
        self.takes_ns: Callable[[str], int] = lambda what: 1000
        self._default = default_stream
        self._clocks: dict[str, Clock] = {}
        self._host: Clock = {}
        self._begins: list[int] = []
        self._memory: dict[int, Memory] = {}
        self._local = threading.local()
        self._lock = threading.RLock()

    # ---- streams

    @property
    def stream(self) -> str:
        return getattr(self._local, "stream", self._default)

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before = self.stream
        self._local.stream = stream
        try:
            yield
        finally:
            self._local.stream = before

    def switch(self, stream: str) -> None:
        self._local.stream = stream

    def clock_of(self, stream: str) -> Clock:
        with self._lock:
            return dict(self._clocks.get(stream, {}))

    def order(self, stream: str, clock: Clock) -> None:
        """Operations queued on ``stream`` from now on run after everything in ``clock``."""
        with self._lock:
            _take_later(self._clocks.setdefault(stream, {}), clock)

    def host_learns(self, clock: Clock) -> None:
        with self._lock:
            _take_later(self._host, clock)

    def host_waits_for(self, clock: Clock) -> None:
        with self._lock:
            self.host_waits.append(_stack())
            self.host_learns(clock)

    def host_knows(self, clock: Clock) -> bool:
        return all(self._host.get(stream, 0) >= tick for stream, tick in clock.items())

    # ---- memory

    def is_known(self, tensor: torch.Tensor) -> bool:
        with self._lock:
            return tensor.numel() == 0 or self._find(tensor.data_ptr()) is not None

    def adopt(self, tensor: torch.Tensor) -> None:
        """Treat this memory as the device's from now on."""
        with self._lock:
            if tensor.numel():
                self._memory_of(tensor)

    def keep(self, tensor: torch.Tensor, stream: str) -> None:
        with self._lock:
            self._memory_of(tensor).kept_for.add(stream)

    def use(self, what: str, reads: list[torch.Tensor], writes: list[torch.Tensor], stream: str | None = None) -> None:
        """One operation on ``stream`` (the current one when not given)."""
        with self._lock:
            self._sweep()
            stream = stream or self.stream
            clock = self._clocks.setdefault(stream, {})
            _take_later(clock, self._host)
            clock[stream] = clock.get(stream, 0) + 1
            clock[TIME] = clock.get(TIME, 0) + self.takes_ns(what)
            stack = _stack()
            for tensors, is_write in ((reads, False), (writes, True)):
                access = Access(stream, clock[stream], is_write, what, stack)
                for tensor in tensors:
                    if tensor.numel():
                        self._touch(self._memory_of(tensor), tensor, access, clock)

    def _touch(self, memory: Memory, tensor: torch.Tensor, access: Access, clock: Clock) -> None:
        for begin, end in runs_of(tensor):
            left: list[tuple[int, int, Access]] = []
            for low, high, earlier in memory.uses:
                if high <= begin or end <= low:
                    left.append((low, high, earlier))
                    continue
                ordered = clock.get(earlier.stream, 0) >= earlier.tick
                if not ordered and (earlier.writes or access.writes):
                    self.hazards.append(Hazard("nothing orders", earlier, access))
                if access.writes or (ordered and not earlier.writes and earlier.stream == access.stream):
                    # The new access replaces the old one where they overlap.
                    left += [(a, b, earlier) for a, b in ((low, begin), (end, high)) if a < b]
                else:
                    left.append((low, high, earlier))
            memory.uses = [*left, (begin, end, access)]

    def _memory_of(self, tensor: torch.Tensor) -> Memory:
        found = self._find(tensor.data_ptr())
        if found is None:
            self._sweep()  # the previous allocation at this address is gone
            storage = tensor.untyped_storage()
            begin = storage.data_ptr()
            found = Memory(begin, begin + storage.nbytes(), self.stream, StorageWeakRef(storage))
            self._memory[begin] = found
            self._begins.insert(bisect_right(self._begins, begin), begin)
        return found

    def _find(self, address: int) -> Memory | None:
        place = bisect_right(self._begins, address)
        if not place:
            return None
        memory = self._memory[self._begins[place - 1]]
        return memory if address < memory.end and not memory.reference.expired() else None

    def _sweep(self) -> None:
        """Check memory that was freed since the last operation; see [Note: freed memory]."""
        for begin in [begin for begin, memory in self._memory.items() if memory.reference.expired()]:
            memory = self._memory.pop(begin)
            self._begins.remove(begin)
            clock = self._clocks.setdefault(memory.stream, {})
            _take_later(clock, self._host)
            for _, _, access in memory.uses:
                if clock.get(access.stream, 0) < access.tick and access.stream not in memory.kept_for:
                    self.hazards.append(Hazard(f"freed to stream {memory.stream} while used", access, None))


def runs_of(tensor: torch.Tensor) -> list[Range]:
    """The bytes a tensor covers, as a few runs; one run around all of them if there are too many."""
    size = tensor.element_size()
    base = tensor.data_ptr()
    dims = sorted(
        ((stride, count) for stride, count in zip(tensor.stride(), tensor.shape, strict=True) if count > 1),
        key=lambda dim: dim[0],
    )
    length = 1
    while dims and dims[0][0] == length:
        length *= dims.pop(0)[1]
    num_runs = 1
    for _, count in dims:
        num_runs *= count
    if num_runs > _MAX_RUNS:
        reach = length + sum(stride * (count - 1) for stride, count in dims)
        return [(base, base + reach * size)]
    starts = [0]
    for stride, count in dims:
        starts = [start + k * stride for k in range(count) for start in starts]
    return [(base + start * size, base + (start + length) * size) for start in sorted(set(starts))]


def _take_later(mine: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        if mine.get(stream, 0) < tick:
            mine[stream] = tick


def _stack() -> traceback.StackSummary:
    frames = (f for f in traceback.walk_stack(None) if "/torch/" not in f[0].f_code.co_filename)
    kept = [f for f in frames if "/tests/streams/re" not in f[0].f_code.co_filename][:_MAX_FRAMES]
    return traceback.StackSummary.extract(iter(kept[::-1]), lookup_lines=False)
