"""Memory that the workers of one host share, and the counters that tell them what is in it.

Each worker has anonymous files in memory (memfd), which its neighbors open through /proc.  They have no name, need no
/dev/shm, and disappear with the last process that has them open, no matter how it ends.

    page      one per worker: counters, and a list of its stretches; opened by all neighbors at startup
    stretch   memory that an exchange sends from and receives into; opened by neighbors when they first need it

[Note: counters]  Every counter belongs to one bucket, has one writer, and only grows: it counts how often the worker
has done something to the bucket.  A waiting worker compares it with how often it has done the same itself.  A worker
that is late, or a round ahead, is therefore never misread, and no counter is ever reset.  Waiting sleeps in the kernel
(futex.py) and checks a few times a second whether the neighbor is still alive.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import secrets
import select
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from weft.errors import OverlapError
from weft.overlap.layout import MAX_MESSAGES
from weft.overlap.transport.futex import fence, sleep_while, wake

_NUM_SLOTS = 64
_SLOT_WORDS = 4
_NONCE_WORDS = 4
_GAVE_UP = _NONCE_WORDS
_FIRST_SLOT = 16
_FIRST_COUNTER = 1024
_CHECK_EVERY_S = 0.2
_SHORT_NAP_S = 1e-4
_LONG_NAP_S = 1e-3
_LOW = (1 << 32) - 1


class Done(enum.IntEnum):
    """What counters count."""

    CONTRIBUTED = 0  # its gradients of a bucket are complete
    ADDED = 1  # it no longer reads its neighbors' gradients for its sums, and has opened all their memory
    UPDATED = 2  # its own shard has its new values
    TAKEN = 3  # it has copied all new values: those of the next step may arrive


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where neighbors find a worker's page."""

    pid: int
    descriptor: int
    nonce: bytes


class Stretch(mmap.mmap):
    """Shared memory of this worker, and its neighbors' stretches with the same number."""

    number: int
    start: int
    neighbors: dict[int, Stretch]
    # Tensors in neighbors' stretches, by rank, offset, type, and shape: steps ask for the same ones again and again.
    views: dict[tuple[int, int, torch.dtype, torch.Size], torch.Tensor]

    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


class _Page:
    """A worker's counters: ours to write, or a neighbor's to read."""

    def __init__(self, descriptor: int, num_words: int) -> None:
        self.map = Stretch(descriptor, num_words * 4)
        self.words = memoryview(self.map).cast("I")
        self.address = self.map.address()


class HostMemory:
    """This worker's page and stretches, and its neighbors'."""

    def __init__(self, rank: int, num_workers: int) -> None:
        self.rank = rank
        self.neighbors: tuple[int, ...] = ()
        self.timeout_s = 0.0
        self._num_workers = num_workers
        self._num_words = _FIRST_COUNTER + (len(Done) + num_workers) * MAX_MESSAGES
        self._stretches: list[weakref.ref[Stretch]] = []
        self._num_allocated = 0
        self._pids: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        self._is_closed = False
        self._descriptor = _make_file(self._num_words * 4)
        self._own = _Page(self._descriptor, self._num_words)
        self._pages = {rank: self._own}
        self._nonce = secrets.token_bytes(_NONCE_WORDS * 4)
        self._own.map[: len(self._nonce)] = self._nonce

    @property
    def address(self) -> PageAddress:
        return PageAddress(os.getpid(), self._descriptor, self._nonce)

    def meet(self, neighbors: Iterable[tuple[int, PageAddress]], timeout_s: float) -> None:
        """Open the neighbors' pages; raises OSError if that is not possible."""
        self.timeout_s = timeout_s
        for rank, address in neighbors:
            self._pids[rank] = address.pid
            if rank != self.rank:
                page = None
                with _opened(address.pid, address.descriptor) as descriptor, suppress(ValueError):  # a smaller file
                    page = _Page(descriptor, self._num_words)
                if page is None or page.map[: len(address.nonce)] != address.nonce:  # another PID namespace
                    raise OSError(f"process {address.pid} is not worker {rank}")
                self._pages[rank] = page
                with suppress(OSError, AttributeError):  # without it, a neighbor's death is noticed only at the timeout
                    self._processes[rank] = os.pidfd_open(address.pid)
        self.neighbors = tuple(sorted(self._pages))

    def close(self) -> None:
        self._is_closed = True
        for process in self._processes.values():
            os.close(process)
        self._processes.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # ---- stretches

    def allocate(self, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Every neighbor allocates the same sizes in the same order."""
        num_bytes = max(num_elements * dtype.itemsize, mmap.PAGESIZE)
        descriptor = _make_file(num_bytes)
        stretch = Stretch(descriptor, num_bytes)
        stretch.number = self._num_allocated
        stretch.start = stretch.address()
        stretch.neighbors, stretch.views = {}, {}
        weakref.finalize(stretch, os.close, descriptor)
        self._stretches = [*(known for known in self._stretches if known() is not None), weakref.ref(stretch)]
        slot = self._slot(stretch.number)
        self._own.words[slot + 1 : slot + _SLOT_WORDS] = _words(descriptor, num_bytes & _LOW, num_bytes >> 32)
        fence()
        self._num_allocated += 1
        self._own.words[slot] = self._num_allocated
        return torch.frombuffer(stretch, dtype=dtype, count=num_elements)

    def of_neighbor(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A neighbor's counterpart of our ``tensor`` (contiguous): same stretch, same offset."""
        if rank == self.rank:
            return tensor
        stretch, offset = self._found(tensor)
        key = (rank, offset, tensor.dtype, tensor.shape)
        view = stretch.views.get(key)
        if view is None:
            theirs = stretch.neighbors.get(rank) or self._open(stretch, rank)
            line = torch.frombuffer(theirs, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            view = stretch.views[key] = line.view(tensor.shape)
        return view

    def open_neighbors(self, tensor: torch.Tensor) -> None:
        """Keep the neighbors' counterparts of ``tensor`` readable, even if they free them."""
        stretch, _ = self._found(tensor)
        for rank in self.neighbors:
            if rank != self.rank and rank not in stretch.neighbors:
                self._open(stretch, rank)

    def _found(self, tensor: torch.Tensor) -> tuple[Stretch, int]:
        address = tensor.data_ptr()
        for known in self._stretches:
            stretch = known()
            if stretch is not None and 0 <= address - stretch.start < len(stretch):
                return stretch, address - stretch.start
        raise OverlapError("memory that is not shared was given to a transport that shares it: please report this")

    def _open(self, stretch: Stretch, rank: int) -> Stretch:
        found, descriptor, low, high = self._pages[rank].words[self._slot(stretch.number) :][:_SLOT_WORDS]
        if found != stretch.number + 1:
            raise OverlapError(f"workers {self.rank} and {rank} do not share the same memory: please report this")
        try:
            with _opened(self._pids[rank], descriptor) as opened:
                theirs = stretch.neighbors[rank] = Stretch(opened, high << 32 | low)
        except (OSError, ValueError) as error:
            raise OverlapError(
                f"worker {self.rank} cannot open memory of worker {rank} on the same host ({error}): that worker has "
                "ended, or this one has too many open files; look for the first error in the logs of the workers on "
                "that host"
            ) from error
        return theirs

    def _slot(self, number: int) -> int:
        return _FIRST_SLOT + number % _NUM_SLOTS * _SLOT_WORDS

    # ---- counters

    def count(self, done: Done, index: int) -> int:
        """How often this worker has done it."""
        return self._own.words[_counter(done, index)]

    def has_done(self, rank: int, done: Done, index: int, count: int) -> bool:
        return self._pages[rank].words[_counter(done, index)] >= count

    def tell(self, done: Done, index: int) -> None:
        """Count one more time that this worker has done it."""
        fence()
        word = _counter(done, index)
        self._own.words[word] += 1
        wake(self._own.address + 4 * word)

    def give_up(self) -> None:
        """Release the neighbors that wait for us."""
        if not self._is_closed:
            self._own.words[_GAVE_UP] = 1

    def await_all(self, done: Done, index: int, count: int, what: str) -> None:
        """Wait until every neighbor has done it ``count`` times; ``what`` completes "was waiting for worker 1 to"."""
        word = _counter(done, index)
        for rank in self.neighbors:
            page = self._pages[rank]

            def sleep(waited_s: float, page: _Page = page) -> None:
                value = page.words[word]
                if value < count:
                    sleep_while(page.address + 4 * word, value, _CHECK_EVERY_S)

            self._await(rank, lambda page=page: page.words[word] >= count, sleep, what)  # type: ignore[misc]
        fence()

    def arrival_of(self, index: int, row: int) -> torch.Tensor:
        """Where the message arrives that says that a row's new values are in our memory."""
        word = self._arrival(index, row)
        return torch.frombuffer(self._own.map, dtype=torch.int32, count=1, offset=4 * word)

    def await_arrival(self, rank: int, index: int, row: int, count: int) -> None:
        """Wait until ``rank`` has the new values of ``row``, by polling: network threads wake no other process."""
        words, word = self._pages[rank].words, self._arrival(index, row)

        def nap(waited_s: float) -> None:
            time.sleep(_SHORT_NAP_S if waited_s < 10 * _LONG_NAP_S else _LONG_NAP_S)

        self._await(rank, lambda: words[word] >= count, nap, "send parameters")
        fence()

    def _await(self, rank: int, is_done: Callable[[], bool], sleep: Callable[[float], None], what: str) -> None:
        began = looked = time.monotonic()
        while not is_done():
            now = time.monotonic()
            if now - looked > _CHECK_EVERY_S:
                looked = now
                if not is_done():
                    self._check(rank, now - began, what)
            sleep(now - began)

    def _check(self, rank: int, waited_s: float, what: str) -> None:
        reason = ""
        if self._is_closed:
            reason = "this worker is shutting down"
        elif waited_s > self.timeout_s:
            reason = f"nothing arrived within the process group's timeout of {self.timeout_s:g} s"
        elif self._pages[rank].words[_GAVE_UP]:
            reason = "it has failed"
        elif self._has_ended(rank):
            reason = "its process has ended"
        if reason:
            raise OverlapError(
                f"worker {self.rank} was waiting for worker {rank} on the same host to {what}, but {reason}: look for "
                "the first error in the logs of the workers on that host"
            )

    def _has_ended(self, rank: int) -> bool:
        if rank not in self._processes:
            return False
        poll = select.poll()
        poll.register(self._processes[rank], select.POLLIN)
        return bool(poll.poll(0))

    def _arrival(self, index: int, row: int) -> int:
        return _FIRST_COUNTER + len(Done) * MAX_MESSAGES + index * self._num_workers + row


def _counter(done: Done, index: int) -> int:
    return _FIRST_COUNTER + done * MAX_MESSAGES + index


def _make_file(num_bytes: int) -> int:
    descriptor = os.memfd_create("weft", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def _words(*values: int) -> memoryview:
    return memoryview((ctypes.c_uint32 * len(values))(*values)).cast("B").cast("I")


@contextmanager
def _opened(pid: int, descriptor: int) -> Iterator[int]:
    """A neighbor's file, open only while it is being mapped."""
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)
