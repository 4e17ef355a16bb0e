"""Hosts, jobs and their network on virtual time around real arbiters: every schedule is exact and repeatable."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.crossover.arbiter import Arbiter
from weft.crossover.lease_events import Asked, Event, Grant, Joined, Left, Ordered, Overrule, Recall, Released, Ticked
from weft.crossover.phases import Role, TurnLimits


@dataclass(frozen=True)
class Job:
    name: str
    turn_s: float
    gap_s: float
    num_turns: int = 10
    role: Role = Role.FAIR
    weight: float = 1.0
    border_s: float | None = None
    """Time between two borders; ``None`` for a job without any."""
    starts_s: float = 0.0
    dies_in_turn: int | None = None
    stopped: tuple[int, float] | None = None
    """In which turn it is stopped by a signal, and for how long."""


@dataclass
class Piece:
    """A stretch of computing under one token."""

    job: str
    turn: int
    token: int
    begin_s: float
    end_s: float
    is_fenced_from_s: float = float("inf")
    """When its token stopped being good, though it computed on."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(time_s, self.now_s), next(self._count), do))

    def run(self, until_s: float = 1e6) -> None:
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, do = heapq.heappop(self._due)
            do()


class Worker:
    """One member: computes, gives back at borders when asked, waits for the network."""

    def __init__(self, key: int, job: Job, host: Host, network: Network) -> None:
        self.key, self.job, self.host, self.network = key, job, host, network
        self.turn = 0
        self.left_s = 0.0
        self.token = 0
        self.is_computing = False
        self.is_waiting = False
        self.is_done = False
        self.longest_wait_s = 0.0
        self.asked_s = 0.0
        self.piece: Piece | None = None

    def begin(self) -> None:
        """Wants to compute its next turn."""
        self.left_s = self.job.turn_s
        if self.job.stopped is not None and self.job.stopped[0] == self.turn:
            self.left_s += self.job.stopped[1]
        if self.host.good_token(self.key):
            self.start(self.host.arbiter.token)
        else:
            self.ask()

    def ask(self) -> None:
        self.is_waiting = True
        self.asked_s = self.host.clock.now_s
        self.host.tell(Asked(self.host.clock.now_s, self.key, self.turn + self.host.drift))

    def start(self, token: int) -> None:
        now_s = self.host.clock.now_s
        if self.is_waiting:
            self.longest_wait_s = max(self.longest_wait_s, now_s - self.asked_s)
        self.is_waiting, self.is_computing, self.token = False, True, token
        self.piece = Piece(self.job.name, self.turn, token, now_s, now_s)
        self.host.pieces.append(self.piece)
        self._go_on()

    def _go_on(self) -> None:
        is_stopped = self.job.stopped is not None and self.job.stopped[0] == self.turn
        step_s = self.left_s if self.job.border_s is None or is_stopped else min(self.left_s, self.job.border_s)
        self.host.clock.at(self.host.clock.now_s + step_s, lambda: self._border(step_s))

    def _border(self, step_s: float) -> None:
        now_s, host = self.host.clock.now_s, self.host
        assert self.piece is not None
        self.piece.end_s = now_s
        self.left_s -= step_s
        if self.job.dies_in_turn == self.turn:
            self.is_computing, self.is_done = False, True
            self.network.dead.add(self.job.name)
            host.tell(Left(now_s, self.key))
            return
        if self.left_s > 1e-9:
            if host.good_token(self.key) and host.arbiter.is_asked_back:
                self.is_computing = False
                host.tell(Released(now_s, self.key, self.token, self.turn + host.drift, is_asked_back=True))
                self.ask()
            elif not host.good_token(self.key):  # overruled while it computed
                self.is_computing = False
                self.ask()
            else:
                self._go_on()
            return
        self.is_computing = False
        self.turn += 1
        if host.arbiter.waiting():
            host.tell(Released(now_s, self.key, self.token, self.turn + host.drift))
        if self.turn >= self.job.num_turns:
            self.is_done = True
            host.tell(Left(now_s, self.key))
        self.network.arrived(self)


class Network:
    """A job's exchange begins when its last worker has computed, and ends on all hosts at once."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.workers: dict[str, list[Worker]] = {}
        self.dead: set[str] = set()

    def arrived(self, worker: Worker) -> None:
        peers = self.workers[worker.job.name]
        if worker.job.name in self.dead or any(peer.turn < worker.turn for peer in peers):
            return
        if all(not peer.is_done for peer in peers):
            for peer in peers:
                self.clock.at(self.clock.now_s + peer.job.gap_s + peer.host.lag_s, peer.begin)


@dataclass
class Host:
    clock: Clock
    limits: TurnLimits = field(default_factory=TurnLimits)
    is_lead: bool = False
    lag_s: float = 0.0
    """How much later its workers get every message."""
    drift: int = 0
    """How many more turns its workers have counted than those of other hosts."""

    def __post_init__(self) -> None:
        self.arbiter = Arbiter(self.limits, is_lead=self.is_lead)
        self.workers: dict[int, Worker] = {}
        self.pieces: list[Piece] = []
        self.followers: list[Host] = []
        self.granted: list[tuple[str, int]] = []
        self._tick_due_s: float | None = None

    def good_token(self, key: int) -> bool:
        return self.arbiter.holder == key

    def add(self, job: Job, network: Network) -> Worker:
        worker = Worker(len(self.workers) + 1, job, self, network)
        self.workers[worker.key] = worker
        network.workers.setdefault(job.name, []).append(worker)

        def join() -> None:
            self.tell(Joined(self.clock.now_s, worker.key, job.name, job.role, job.weight))
            worker.begin()

        self.clock.at(job.starts_s + self.lag_s, join)
        return worker

    def tell(self, event: Event) -> None:
        for command in self.arbiter.handle(event):
            match command:
                case Grant(member=key, token=token):
                    worker = self.workers[key]
                    self.granted.append((worker.job.name, worker.turn))
                    worker.start(token)
                case Recall(member=key, token=token):
                    if not self.workers[key].is_computing:
                        self.tell(Released(self.clock.now_s, key, token, self.workers[key].turn + self.drift))
                case Overrule(member=key):
                    piece = self.workers[key].piece
                    assert piece is not None
                    piece.is_fenced_from_s = self.clock.now_s
        if self.arbiter.to_publish is not None:
            order, self.arbiter.to_publish = self.arbiter.to_publish, None
            for follower in self.followers:
                self.clock.at(self.clock.now_s + 0.0002, lambda f=follower: f.tell(Ordered(f.clock.now_s, order)))  # type: ignore[misc]
        wake_s = self.arbiter.wake_s()
        if wake_s is not None and self._tick_due_s is None:
            self._tick_due_s = wake_s
            self.clock.at(wake_s, self._tick)

    def _tick(self) -> None:
        self._tick_due_s = None
        if self.arbiter.wake_s() is not None:
            self.tell(Ticked(self.clock.now_s))


def run_host(*jobs: Job, limits: TurnLimits | None = None, until_s: float = 1e6) -> Host:
    """One host with these jobs, to the end."""
    clock = Clock()
    network = Network(clock)
    host = Host(clock, limits or TurnLimits())
    for job in jobs:
        host.add(job, network)
    clock.run(until_s)
    return host


def run_hosts(jobs: tuple[Job, ...], lags_s: tuple[float, ...], drift: int = 0) -> list[Host]:
    """Several hosts with a worker of every job on each; the first leads."""
    clock = Clock()
    network = Network(clock)
    hosts = [Host(clock, is_lead=i == 0, lag_s=lag_s, drift=i * drift) for i, lag_s in enumerate(lags_s)]
    hosts[0].followers = hosts[1:]
    for job in jobs:
        for host in hosts:
            host.add(job, network)
    clock.run()
    return hosts


def overlaps(host: Host) -> list[tuple[Piece, Piece]]:
    """Stretches in which two members computed with good tokens."""
    pieces = sorted(host.pieces, key=lambda piece: piece.begin_s)
    found = []
    for one, other in itertools.combinations(pieces, 2):
        end_s = min(one.end_s, one.is_fenced_from_s)
        if other.begin_s < end_s - 1e-9 and min(other.end_s, other.is_fenced_from_s) > other.begin_s:
            found.append((one, other))
    return found


def held_s(host: Host, job: str, until_s: float) -> float:
    """Time the job computed before ``until_s``."""
    return sum(max(0.0, min(p.end_s, until_s) - p.begin_s) for p in host.pieces if p.job == job)
