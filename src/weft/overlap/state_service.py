"""Serves optimizer state to other workers on request, so that one worker alone can write an ordinary checkpoint.

``if rank == 0: torch.save(optimizer.state_dict(), ...)`` is how people save.  With sharded state, rank 0 has only its
part, and a collective inside ``state_dict()`` would hang forever.  So each worker has a sleeping thread that answers
requests for its state of step k.

[Note: why the answer is consistent]  A worker that asks after step k has not sent a gradient of step k+1 yet, so no
worker can have updated anything beyond step k: an answering worker waits until its own step k is done, and then has
exactly that state, even if it is already in step k+1, waiting for the asker's gradients.  If the request comes between
backward and step, other workers may be ahead; then it is an error.  Loading and other replacements also count as
changes, but workers make them at different times: the replaced parts are kept to answer workers that are behind, until
a step has every worker's gradient.

[Note: no deadlocks]  All workers may ask at the same time, each after a different number of changes.  So the thread
waits only for requests: one that cannot be answered yet is postponed until the state has caught up, and an answer
counts as in flight until the asker confirms it.  Before state moves to another plan, all workers meet: one that is
still asking, perhaps in an optimizer hook of the user's, would wait for answers while the others wait for its state.

[Note: leaving]  Rank 0 often writes the last checkpoint when the other workers have reached the end of the script.  So
a worker that ends without an error stays until all others are leaving, too, or are gone, or the process group's timeout
has passed.

[Note: dropped models]  The thread does not keep the service alive.  When a model is gone and nothing else refers to its
service, the service says goodbye to the other workers, and each thread ends when all others have said goodbye.  Nothing
else can end it: once launched, a receive from any worker cannot be canceled.
"""

from __future__ import annotations

import atexit
import datetime
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.state_runs import StateRun, decode, encode
from weft.overlap.transport.groups import end_group, is_open, timeout_of
from weft.process.native_threads import NativeThread

_ASK, _SIZE, _DATA, _MOVED_SIZE, _MOVED_DATA, _BYE = 1, 2, 3, 4, 5, 6
_FOREVER = datetime.timedelta(days=3650)
_AHEAD, _GONE = -1, -2
_EVERYTHING = -1
_STOP, _THANKS = -1, -2
_LEAVING, _DROPPED = 1.0, 2.0
_MAX_GOODBYE_S = 60.0
# A thread that is ending takes milliseconds; one that waits for a lost worker never ends (it is a NativeThread).
_MAX_ENDING_S = 1.0

# Threads that may still run, in order of creation, which is the same on all workers of a group.
_ANSWERING: dict[threading.Thread, weakref.ref[StateService]] = {}


class StateService:
    """Sends and answers requests, on its own gloo group.

    Waits for another worker are limited by the group's timeout; the thread waits for requests without a limit.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._timeout = timeout_of(group)
        self._rank = dist.get_rank(group)
        num_workers = dist.get_world_size(group)
        self._others = [worker for worker in range(num_workers) if worker != self._rank]
        backend: Any = group._get_backend(torch.device("cpu"))
        self._send_to = backend.send
        self._recv_from = backend.recv
        self._export: Callable[[], list[StateRun] | None] = lambda: None
        self._num_changes = 0
        self._is_stepping = False
        # For each replacement since the last step, the replaced runs, by parameter.
        self._replaced: list[dict[int, list[StateRun]]] = []
        self._lock = threading.RLock()
        self._waiting: list[tuple[int, int, int]] = []
        self._in_flight: dict[int, list[Any]] = {}
        goodbyes: list[Any] = []
        self._thread = NativeThread(
            _answer, args=(weakref.ref(self), backend, num_workers - 1, goodbyes), name="weft-state"
        )
        for ended in [thread for thread, service in _ANSWERING.items() if not (thread.is_alive() or service())]:
            del _ANSWERING[ended]
        _ANSWERING[self._thread] = weakref.ref(self)
        self._drop = weakref.finalize(self, _say_goodbye, backend, self._others, goodbyes)
        self._drop.atexit = False
        self._thread.start()

    def answer_with(self, export: Callable[[], list[StateRun] | None]) -> None:
        """Answer with ``export()`` from now on; it returns None once the model is gone."""
        self._export = export

    @contextmanager
    def moving(self) -> Iterator[None]:
        """The state moves inside; no request is answered meanwhile.  All workers have met: [Note: no deadlocks]."""
        with self._lock:
            yield

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A step changes the state.  Every worker has sent a gradient for it, so none may ask for older states.

        It waits for other workers, so it must not hold the lock: one that asks nevertheless is refused immediately.
        """
        with self._lock:
            self._replaced.clear()
            self._is_stepping = True
        try:
            yield
        except BaseException:
            with self._lock:
                self._is_stepping = False  # a failed step is over: state can be read again
            raise
        with self._lock:
            self._has_changed()

    @contextmanager
    def replacing(self, old: dict[int, list[StateRun]]) -> Iterator[None]:
        """The state is replaced inside, for example by loading; ``old`` are the replaced runs, never changed later."""
        with self._lock:
            yield
            self._replaced.append(old)
            self._has_changed()

    def _has_changed(self) -> None:
        self._is_stepping = False
        self._num_changes += 1
        self._answer_pending()

    def fetch(self, parameter: int | None = None) -> list[StateRun]:
        """The other workers' runs (of one parameter), after exactly the changes this worker has made."""
        for other in self._others:
            question = torch.tensor([self._num_changes, _EVERYTHING if parameter is None else parameter])
            self._send(other, _ASK, question)
        runs: list[StateRun] = []
        sizes: dict[int, int] = {}
        for other in self._others:
            size = int(self._recv(other, _SIZE, torch.zeros(1, dtype=torch.int64)).item())
            sizes[other] = size
            if size >= 0:
                runs += decode(self._recv(other, _DATA, torch.empty(size, dtype=torch.uint8)))
            self._send(other, _ASK, torch.tensor([_THANKS, 0]))
        for other, size in sizes.items():
            if size == _AHEAD:
                raise OverlapError(
                    f"optimizer state was requested between backward() and step(), and worker {other} has already "
                    "begun its step: call state_dict() after step() (or before backward())"
                )
            if size == _GONE:
                raise OverlapError(
                    f"worker {other} has dropped its model, and with it its part of the optimizer's state: keep both "
                    "on every worker until the last state_dict(), or call detach() on every worker first"
                )
        return runs

    def exchange(self, outgoing: Sequence[Sequence[StateRun]]) -> list[StateRun]:
        """Send every worker its runs, and receive ours.  Collective; for a change of plan."""
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
            work.wait(self._timeout)
        return runs

    def close(self) -> None:
        """Close connections and threads, after :meth:`leave` has returned on every worker."""
        del self._send_to, self._recv_from
        end_group(self._group)
        del self._group

    def leave(self) -> None:
        """At the end of overlapping: answer until the other workers leave, too, or are gone."""
        self._drop.detach()
        _ANSWERING.pop(self._thread, None)
        said = [torch.zeros(1) for _ in self._others]
        limit_s = self._timeout.total_seconds()
        try:
            # One receive per worker: unlike recv_anysource, it fails if that worker is gone.
            waits = [self._recv_from([word], other, _BYE) for word, other in zip(said, self._others, strict=True)]
            byes = [self._send_to([torch.tensor([_LEAVING])], other, _BYE) for other in self._others]
            stops = [self._send_to([torch.tensor([_STOP, 0])], other, _ASK) for other in self._others]
            for wait, word, bye in zip(waits, said, byes, strict=True):
                wait.wait(self._timeout)
                if word.item() == _LEAVING:  # one that has dropped its model receives no goodbye
                    bye.wait(self._timeout)
            for stop in stops:
                stop.wait(self._timeout)
        except RuntimeError:
            # A worker is gone, which may have ended the thread, too; or the group was destroyed here, which ends it.
            limit_s = _MAX_ENDING_S if is_open(self._group) else min(limit_s, _MAX_GOODBYE_S)
        self._thread.join(limit_s)

    def asked(self, other: int, num_changes: int, parameter: int) -> None:
        """A message from another worker; called by the thread."""
        with self._lock:
            if num_changes == _THANKS:
                self._in_flight.pop(other, None)
            else:
                self._waiting.append((other, num_changes, parameter))
                self._answer_pending()

    def _answer_pending(self) -> None:
        """Answer requests whose state has been reached; the lock is held."""
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            other, num_changes, parameter = question
            if num_changes > self._num_changes:
                self._waiting.append(question)
                continue
            runs, refusal = self._runs_after(num_changes, parameter)
            message = encode(runs)
            with suppress(RuntimeError):  # the asker is gone
                works = [self._send_to([torch.tensor([refusal or message.numel()])], other, _SIZE)]
                if not refusal:
                    works.append(self._send_to([message], other, _DATA))
                self._in_flight[other] = works

    def _runs_after(self, num_changes: int, parameter: int) -> tuple[list[StateRun], int]:
        """The state after ``num_changes`` changes, or a reason why not."""
        undo = self._num_changes - num_changes
        if self._is_stepping or undo > len(self._replaced):
            return [], _AHEAD
        exported = self._export()
        if exported is None:
            return [], _GONE
        held: dict[int, list[StateRun]] = {}
        for run in exported:
            held.setdefault(run.parameter, []).append(run)
        for old in reversed(self._replaced[len(self._replaced) - undo :]):
            held.update(old)
        return [run for n, of in held.items() for run in of if parameter in (_EVERYTHING, n)], 0

    def _send(self, other: int, tag: int, message: torch.Tensor) -> None:
        self._send_to([message], other, tag).wait(self._timeout)

    def _recv(self, other: int, tag: int, into: torch.Tensor) -> torch.Tensor:
        try:
            self._recv_from([into], other, tag).wait(self._timeout)
        except RuntimeError as error:
            raise OverlapError(
                f"worker {other} has a part of the optimizer's state and does not answer ({error}): it has ended or "
                "failed; look for the first error in its log"
            ) from error
        return into


def _answer(service_of: weakref.ref[StateService], backend: Any, num_others: int, goodbyes: list[Any]) -> None:
    """The thread: until all others have left.  See [Note: dropped models]."""
    num_stopped = 0
    while num_stopped < num_others:
        message = torch.zeros(2, dtype=torch.int64)
        try:
            work = backend.recv_anysource([message], _ASK)
            work.wait(_FOREVER)
        except RuntimeError:
            break  # the group is gone
        other, (num_changes, parameter) = work._source_rank(), message.tolist()
        service = service_of()
        if num_changes == _STOP:
            num_stopped += 1
        elif service is not None:
            service.asked(other, num_changes, parameter)
        elif num_changes != _THANKS:
            with suppress(RuntimeError):  # the asker is gone
                goodbyes.append(backend.send([torch.tensor([_GONE])], other, _SIZE))
        del service  # not kept while waiting


def _say_goodbye(backend: Any, others: Sequence[int], sent: list[Any]) -> None:
    """What :meth:`StateService.leave` sends, without waiting; the messages in flight are kept in ``sent``."""
    with suppress(RuntimeError):  # a worker is gone
        for other in others:
            sent.append(backend.send([torch.tensor([_DROPPED])], other, _BYE))
            sent.append(backend.send([torch.tensor([_STOP, 0])], other, _ASK))


def _leave_all() -> None:
    """At exit: see [Note: leaving], and [Note: exit] in native_threads.py about threads that do not end here.

    A worker that ends with an error does not stay, so that its supervisor notices immediately.
    """
    if hasattr(sys, "last_type"):
        return
    for thread, service_of in reversed(list(_ANSWERING.items())):
        service = service_of()
        if service is not None:
            service.leave()
        else:
            thread.join(_MAX_GOODBYE_S)


atexit.register(_leave_all)


class StateChanges:
    """Counts changes of an optimizer's sharded state: what was read before a change is outdated."""

    def __init__(self, service: StateService | None) -> None:
        self.service = service
        # Of the whole state, and of single parameters' state.
        self.num_changes = 0
        self.num_writes: Counter[int] = Counter()
        # No parameter has state yet; DCP then wants to see the state after a first step.
        self.is_empty = True
        self.shows_initial = False

    def stamp(self, number: int) -> tuple[int, int]:
        return self.num_changes, self.num_writes[number]

    @contextmanager
    def stepping(self) -> Iterator[None]:
        with self.service.stepping() if self.service else nullcontext():
            yield
        self.num_changes += 1
        self.is_empty = self.shows_initial = False
