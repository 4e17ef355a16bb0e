"""Why a job has its workers, or waits: a code with the facts behind it, and the one place that turns them into text.

The code is the name of the class.  A fact is something that was measured, declared, configured, or decided; estimates
based on a guess are left out.  So are facts that change all the time (free devices, the remaining time), since a reason
is shown until the next one.  ``weft explain`` adds what is known when it is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.core.plural import plural

_MAX_NAME = 40


@dataclass(frozen=True, slots=True)
class Queued:
    """It was submitted, and no decision has been made since."""


@dataclass(frozen=True, slots=True)
class Resources:
    """It waits: fewer devices are free than its smallest size needs."""

    needs: int


@dataclass(frozen=True, slots=True)
class ClusterTooSmall:
    """It waits: fewer devices are in service than its smallest size needs."""

    needs: int
    in_service: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """It waits at the head of the queue: free devices are reserved for it until these jobs end."""

    needs: int
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldBack:
    """It waits: it would delay a job that was submitted before it and has a reservation."""

    head: str


@dataclass(frozen=True, slots=True)
class UnknownLength:
    """It is held back, but would not be if it were known to end in time."""

    head: str


@dataclass(frozen=True, slots=True)
class Priority:
    """It waits: jobs with a higher priority leave too few devices."""

    needs: int


@dataclass(frozen=True, slots=True)
class Quota:
    """Its user's quota leaves too few devices for it, or for more workers."""

    user: str
    workers: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """It waits: another attempt has not left its devices yet."""

    workers: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """It gave up workers to jobs that got more in the same decision."""

    by: tuple[str, ...]
    gave_up: int
    workers: int


@dataclass(frozen=True, slots=True)
class Exploring:
    """It runs at a size that has not been measured yet; larger sizes are tried after that."""

    workers: int
    larger: int
    hold_s: float
    """Minimum time between resizes."""


@dataclass(frozen=True, slots=True)
class NoReport:
    """Its workers have not reported a step."""

    workers: int


@dataclass(frozen=True, slots=True)
class NotResizable:
    """It cannot resume after a stop."""

    workers: int


@dataclass(frozen=True, slots=True)
class AsRequested:
    """It has the one size it asked for."""

    workers: int


@dataclass(frozen=True, slots=True)
class AtMaximum:
    """It has the largest size that its owner allows or that fits on the cluster."""

    workers: int
    max_workers: int
    in_service: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    """It could grow, but too few devices are free."""

    workers: int
    larger: int


@dataclass(frozen=True, slots=True)
class NoFaster:
    """The next larger size was measured and is no faster."""

    workers: int
    larger: int
    step_s: float = field(compare=False)
    larger_step_s: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """It was restarted a moment ago."""

    workers: int
    hold_s: float


@dataclass(frozen=True, slots=True)
class SharedWith:
    """It uses the same devices as another job."""

    partner: str
    workers: int
    fills: bool = False
    is_filled: bool = False
    gain: float | None = field(default=None, compare=False)
    """Predicted from measured steps: work done, compared with running one after the other."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """None of the other reasons applies: the policy prefers it this way."""

    policy: str
    workers: int


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """The policy failed, on this job or on all of them."""

    policy: str
    error: str
    has_devices: bool
    on_this_job: bool


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Its workers cannot be started, watched, or stopped; ``what`` says why."""

    what: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node it ran on failed."""

    node: str


@dataclass(frozen=True, slots=True)
class Restarting:
    """Its workers failed or vanished; it will be started again."""

    what: str


@dataclass(frozen=True, slots=True)
class ControllerDown:
    """It was stopped with the controller."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody canceled it."""

    what: str


@dataclass(frozen=True, slots=True)
class Completed:
    """It succeeded."""

    what: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed for good."""

    what: str


_Waiting = Resources | ClusterTooSmall | Reserved | HeldBack | UnknownLength | Priority
_Running = Exploring | NoReport | NotResizable | AsRequested | AtMaximum | NoRoom | NoFaster | Hold
Reason = (
    _Waiting
    | _Running
    | Queued
    | Quota
    | Assigned
    | Preempted
    | SharedWith
    | PolicyChoice
    | PolicyFailed
    | HeldUp
    | NodeLost
    | Restarting
    | ControllerDown
    | Cancelled
    | Completed
    | Failed
)


def code_of(reason: Reason) -> str:
    """The short code, as in ``weft status --json``.

    >>> code_of(Resources(needs=2))
    'Resources'
    """
    return type(reason).__name__


def in_words(reason: Reason, name_of: Callable[[str], str] = str) -> str:
    """The reason as a sentence; ``name_of`` returns the name of another job by its id.

    >>> in_words(Reserved(2, ("k3v9x2qa",)), {"k3v9x2qa": "resnet"}.__getitem__)
    'waits for 2 devices; resnet must end first'
    """

    def named(job_id: str) -> str:
        return short_name(name_of(job_id))

    if isinstance(reason, _Waiting):
        return _waiting(reason, named)
    if isinstance(reason, _Running):
        return f"{plural(reason.workers, 'worker')}{_running(reason)}"
    match reason:
        case SharedWith():
            return _shared(reason, named)
        case Preempted(by, gave_up, workers):
            to = " and ".join(map(named, by)) if len(by) <= 2 else f"{len(by)} other jobs"
            has = f"{plural(workers, 'worker')}; " if workers else ""
            return f"{has}gave up {gave_up if workers else plural(gave_up, 'worker')} to {to}"
        case Assigned(workers):
            return f"waits to start with {plural(workers, 'worker')} until the previous workers have exited"
        case Quota(user, workers):
            has = f"{plural(workers, 'worker')}; " if workers else ""
            return f"{has}the quota of {user or 'this user'} leaves too few devices"
        case PolicyChoice(policy, workers):
            return (
                f"{plural(workers, 'worker')}, chosen by policy {policy}"
                if workers
                else f"waits: policy {policy} prefers other jobs"
            )
        case PolicyFailed():
            return _policy_failed(reason)
        case NodeLost(node):
            return f"node {node} was lost"
        case Queued():
            return "waits for its first decision"
        case ControllerDown():
            return "stopped with the controller; resumes when the controller is started again"
        case Completed(what):
            return what or "completed"
        case HeldUp(what) | Restarting(what) | Cancelled(what) | Failed(what):
            return what


def short_name(name: str) -> str:
    """The name of a job as it appears in a sentence about another one."""
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _waiting(reason: _Waiting, named: Callable[[str], str]) -> str:
    match reason:
        case Resources(needs):
            return f"waits for {plural(needs, 'device')}"
        case ClusterTooSmall(needs, in_service):
            verb = "is" if in_service == 1 else "are"
            return f"waits for {plural(needs, 'device')}, but only {in_service} {verb} in service"
        case Reserved(needs, after):
            ends = " and ".join(map(named, after)) if len(after) <= 2 else f"{len(after)} running jobs"
            return f"waits for {plural(needs, 'device')}; {ends} must end first"
        case HeldBack(head):
            return f"waits so that it does not delay {named(head)}, which came first"
        case UnknownLength(head):
            return f"waits so that it does not delay {named(head)}; how long it would take is unknown"
        case Priority(needs):
            return f"waits for {plural(needs, 'device')}; jobs with a higher priority come first"


def _running(reason: _Running) -> str:
    match reason:
        case Exploring(_, larger, hold_s):
            at_least = f" for at least {hold_s:g} s" if hold_s else ""
            return f"{at_least} to measure its speed, then up to {larger}"
        case NoReport():
            return "; no step reported yet"
        case NotResizable():
            return "; cannot be resized, since it cannot resume after a stop"
        case AsRequested():
            return ", as requested"
        case AtMaximum(workers, max_workers, in_service):
            fits = plural(in_service, "device")
            return ", the most it can use" if workers == max_workers else f", the most that fit on {fits}"
        case NoRoom(_, larger):
            return f"; too few devices are free for {larger}"
        case NoFaster(_, larger, step_s, larger_step_s):
            return f": a step took {_step(step_s)}, and {_step(larger_step_s)} with {larger} workers"
        case Hold(_, hold_s):
            return f"; restarted less than {hold_s:g} s ago"


def _step(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _shared(reason: SharedWith, named: Callable[[str], str]) -> str:
    partner, on = named(reason.partner), f"on {plural(reason.workers, 'device')}"
    if reason.fills:
        how = f"runs in the gaps of {partner} {on}"
    elif reason.is_filled:
        how = f"shares with {partner} {on}, which runs in its gaps"
    else:
        how = f"takes turns with {partner} {on}"
    if reason.gain is None:
        return how
    return f"{how}, expected to do {reason.gain:.2f}x the work of running one after the other"


def _policy_failed(reason: PolicyFailed) -> str:
    if not reason.on_this_job:
        waits = "" if reason.has_devices else "waits; "
        return f"{waits}decided without policy {reason.policy}, which failed ({reason.error})"
    stays = "keeps the devices it has" if reason.has_devices else "waits"
    return f"{stays}: policy {reason.policy} fails on this job ({reason.error})"
