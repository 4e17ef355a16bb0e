"""Other workers' optimizer state on request, so that one worker alone can write an ordinary checkpoint.

``if rank == 0: torch.save(optimizer.state_dict(), ...)`` is how people save.  With sharded state rank 0 has only
its part, and a collective inside ``state_dict()`` would hang that line for ever.  So each worker has one sleeping
thread that answers "give me your state of step k".

[Note: why the answer is consistent]  A worker that asks after step k has not contributed a gradient of step k+1
yet, so nobody can have updated anything beyond step k: whoever answers waits until its own step k is done, and
is then exactly there.  Asked between backward and step, others may be ahead: then they say so and it is an error.
They may be in step k+1 already, waiting for the asker's gradients; nobody is kept from answering while it waits so.

[Note: leaving]  The last checkpoint is often written by rank 0 while the others have reached the end of the script.
A worker that ends without an error therefore stays until all others are leaving too, or are gone.
"""

from __future__ import annotations

import atexit
import datetime
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.state import StateRun, decode, encode

_ASK, _SIZE, _DATA, _MOVED_SIZE, _MOVED_DATA, _BYE = 1, 2, 3, 4, 5, 6
_NEVER = datetime.timedelta(days=3650)
_AHEAD = -1
_STOP = -1
_LINGER = datetime.timedelta(seconds=120)


class StateService:
    """Answers and asks, on a gloo group of its own."""

    def __init__(self, group: dist.ProcessGroup, export: Callable[[], list[StateRun]]) -> None:
        self._rank = dist.get_rank(group)
        num_workers = dist.get_world_size(group)
        self._others = [worker for worker in range(num_workers) if worker != self._rank]
        backend: Any = group._get_backend(torch.device("cpu"))
        self._send_to = backend.send
        self._recv_from = backend.recv
        self._recv_any = backend.recv_anysource
        self._export = export
        self._steps_done = 0
        self._num_stopped = 0
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._answer, name="weft-state", daemon=True)
        self._thread.start()
        # The service itself, not through the handle: its thread must have ended before the interpreter does, for a
        # thread that wakes up in gloo while the interpreter goes down takes the process with it.
        atexit.register(self.leave)

    @staticmethod
    def group(ranks: list[int]) -> dist.ProcessGroup:
        """A group whose waits never time out: nobody may ask for hours.  Collective."""
        group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo", timeout=_NEVER)
        return group

    @contextmanager
    def changing(self, step_done: bool = False) -> Iterator[None]:
        """While the state changes nobody is answered.  A step, or loading, makes it another state."""
        with self._changed:
            yield
            self._steps_done += step_done
            self._changed.notify_all()

    def fetch(self) -> list[StateRun]:
        """The other workers' runs, of exactly the step this worker has done."""
        for other in self._others:
            self._send(other, _ASK, torch.tensor([self._steps_done]))
        runs: list[StateRun] = []
        for other in self._others:
            size = int(self._recv(other, _SIZE, torch.zeros(1, dtype=torch.int64)).item())
            if size == _AHEAD:
                raise OverlapError(
                    f"optimizer.state_dict() was called between backward() and step(), and worker {other} has already "
                    "done its step: call it after step() (or before backward())"
                )
            runs += decode(self._recv(other, _DATA, torch.empty(size, dtype=torch.uint8)))
        return runs

    def exchange(self, outgoing: Sequence[Sequence[StateRun]]) -> list[StateRun]:
        """Give every worker its runs, get ours.  Collective; for a change of plan."""
        works = []
        for other in self._others:
            message = encode(outgoing[other])
            works.append(self._send_to([torch.tensor([message.numel()])], other, _MOVED_SIZE))
            works.append(self._send_to([message], other, _MOVED_DATA))
        runs = list(outgoing[self._rank])
        for other in self._others:
            size = int(self._recv(other, _MOVED_SIZE, torch.zeros(1, dtype=torch.int64)).item())
            runs += decode(self._recv(other, _MOVED_DATA, torch.empty(size, dtype=torch.uint8)))
        for work in works:
            work.wait()
        return runs

    def leave(self) -> None:
        """At the end of the script, or of overlapping: answer until the others leave too, or are gone.

        A worker that ends with an error does not stay: whoever watches it must learn of it at once.
        """
        atexit.unregister(self.leave)
        if hasattr(sys, "last_type"):
            return
        try:
            # From each by name: only such a wait ends when the other is gone without a word.
            waits = [self._recv_from([torch.zeros(1)], other, _BYE) for other in self._others]
            for other in self._others:
                self._send(other, _BYE, torch.zeros(1))
            for wait in waits:
                wait.wait(_LINGER)
            for other in self._others:
                self._send(other, _ASK, torch.tensor([_STOP]))
        except RuntimeError:
            return  # somebody has gone or failed: there is nobody to stay for
        self._thread.join(_LINGER.total_seconds())

    def _answer(self) -> None:
        while self._num_stopped < len(self._others):
            asked = torch.zeros(1, dtype=torch.int64)
            try:
                work = self._recv_any([asked], _ASK)
                work.wait()
            except RuntimeError:
                return  # the group is gone, and with it everybody who could ask
            try:
                self._reply(work._source_rank(), int(asked.item()))
            except RuntimeError:
                continue  # who asked has gone and needs no answer

    def _reply(self, other: int, step: int) -> None:
        if step == _STOP:
            self._num_stopped += 1
            return
        with self._changed:
            self._changed.wait_for(lambda: self._steps_done >= step)
            message = encode(self._export()) if self._steps_done == step else None
        self._send(other, _SIZE, torch.tensor([_AHEAD if message is None else message.numel()]))
        if message is not None:
            self._send(other, _DATA, message)

    def _send(self, other: int, tag: int, message: torch.Tensor) -> None:
        self._send_to([message], other, tag).wait()

    def _recv(self, other: int, tag: int, into: torch.Tensor) -> torch.Tensor:
        try:
            self._recv_from([into], other, tag).wait()
        except RuntimeError as error:
            raise OverlapError(
                f"worker {other} has the rest of the optimizer's state and does not answer ({error}): it has ended or "
                "failed; look for the first error in its log"
            ) from error
        return into
