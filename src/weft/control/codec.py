"""Events and states as plain JSON values, for the journal.

Every record carries the version of this format.  Reading is strict: a record with an unknown field, without a required
one, or with a value of the wrong type was not written by us, and guessing what it means would change what happened.
Values equal to their defaults are left out, so that a field can be added without a new version.  Records of versions 1
and 2 are read as well; ``_upgraded_event`` and ``_upgraded_job`` convert them.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from weft.control.job_table import JobTable
from weft.control.state import Job, State
from weft.core import events
from weft.core.cluster import Cluster
from weft.core.events import Event
from weft.core.step_report import Progress
from weft.errors import UsageError, WeftError

VERSION: Final = 3

_EVENT_TYPES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in typing.get_args(events.Event)}


class CodecError(WeftError):
    """A record of the journal cannot be read: it was written by another version of weft, or is damaged."""


def event_to_json(event: Event) -> dict[str, Any]:
    """A dictionary that ``json.dumps`` accepts.

    >>> event_to_json(events.NodeFailed(at_s=2.0, node=1))
    {'v': 3, 'event': 'NodeFailed', 'at_s': 2.0, 'node': 1}
    """
    kind: type = type(event)
    return {"v": VERSION, "event": kind.__name__, **_form(kind).write(event)}


def event_from_json(record: object) -> Event:
    """The event that :func:`event_to_json` wrote."""
    fields, version = _versioned(record, "event")
    name = fields.pop("event", None)
    fields = _upgraded_event(name, fields, version)
    kind = _EVENT_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CodecError(f"there is no event {name!r}: expected one of {', '.join(sorted(_EVENT_TYPES))}")
    event: Event = _form(kind).read(fields)
    return event


def state_to_json(state: State) -> dict[str, Any]:
    """The whole state, jobs in order of submission."""
    return {
        "v": VERSION,
        "cluster": _form(Cluster).write(state.cluster),
        "jobs": [_form(Job).write(job) for job in state.jobs.values()],
        "now_s": _write_float(state.now_s),
        "num_events": state.num_events,
    }


def state_from_json(record: object) -> State:
    """The state that :func:`state_to_json` wrote."""
    fields, version = _versioned(record, "state")
    if fields.keys() != {"cluster", "jobs", "now_s", "num_events"} or not isinstance(fields["jobs"], list):
        raise CodecError(f"a state with {sorted(fields)}: expected cluster, a list of jobs, now_s, and num_events")
    jobs = [_upgraded_job(job, version) for job in fields["jobs"]]
    return State(
        _form(Cluster).read(fields["cluster"]),
        JobTable(map(_form(Job).read, jobs)),
        _read_float(fields["now_s"]),
        _read_int(fields["num_events"]),
    )


def _versioned(record: object, what: str) -> tuple[dict[str, Any], int]:
    """The record without its version, and its version."""
    if not isinstance(record, dict):
        raise CodecError(f"the {what} is {_shown(record)}: expected an object with a version")
    fields = dict(record)
    version = fields.pop("v", None)
    if type(version) is not int or not 1 <= version <= VERSION:
        raise CodecError(
            f"the {what} has version {version!r} of the format, but this weft reads 1 to {VERSION}: use the weft that "
            "wrote it, or a newer one"
        )
    return fields, version


def _upgraded_event(name: object, fields: dict[str, Any], version: int) -> dict[str, Any]:
    """The fields of an event as they are written now."""
    if version < 2 and name == "JobSubmitted":
        fields = _with_id(fields)
    if version < 3 and name == "ProgressReported":
        fields = _with_progress(fields)
    return fields


def _upgraded_job(job: object, version: int) -> object:
    """A job as it is written now."""
    if version < 2:
        job = _with_id(job)
    if version < 3:
        fields = _with_progress({"step": 0, **_object(job)})
        submitted_s = fields.pop("submitted_s", 0.0)  # the same as the spec's, unless the clock was set back
        job = {**fields, "spec": {**_object(fields.get("spec")), "submitted_s": submitted_s}}
    return job


def _with_id(job: object) -> dict[str, Any]:
    """In version 1, a job's id was called ``name``, and its name ``title``."""
    fields = _renamed(job, "title", "name")
    if "spec" in fields:
        fields["spec"] = _renamed(fields["spec"], "name", "id")
    return fields


def _with_progress(record: dict[str, Any]) -> dict[str, Any]:
    """Before version 3, what is now ``progress`` was spread over the record, and a job had a second ``submitted_s``."""
    if "progress" in record:
        raise CodecError(f"{_shown(record)}: version 2 of the format has no progress")
    names = _form(Progress).names & record.keys()
    others = {name: value for name, value in record.items() if name not in names}
    return {**others, "progress": {name: record[name] for name in names}}


def _renamed(record: object, old: str, new: str) -> dict[str, Any]:
    fields = dict(_object(record))
    if new in fields:
        raise CodecError(f"{_shown(record)}: version 1 of the format has no {new}")
    if old in fields:
        fields[new] = fields.pop(old)
    return fields


Read = Callable[[Any], Any]
Write = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    read: Read
    write: Write
    default: Any


@dataclass(frozen=True, slots=True)
class _Form:
    """How objects of one class are read and written; derived once from its annotations."""

    kind: type
    fields: tuple[_Field, ...]
    names: frozenset[str]
    required: frozenset[str]

    def write(self, value: Any) -> dict[str, Any]:
        record = {}
        for field in self.fields:
            item = getattr(value, field.name)
            if item != field.default:
                record[field.name] = field.write(item)
        return record

    def read(self, record: object) -> Any:
        if not isinstance(record, dict) or not self.required <= record.keys() <= self.names:
            raise CodecError(
                f"a {self.kind.__name__} written as {_shown(record)}: expected an object with "
                f"{', '.join(sorted(self.required))}, and optionally {', '.join(sorted(self.names - self.required))}"
            )
        values = {}
        for field in self.fields:
            if field.name in record:
                try:
                    values[field.name] = field.read(record[field.name])
                except CodecError as error:
                    raise CodecError(f"{field.name} of a {self.kind.__name__}: {error}") from None
        try:
            return self.kind(**values)
        except UsageError as error:
            raise CodecError(f"an invalid {self.kind.__name__}: {error}") from error


@cache
def _form(kind: type) -> _Form:
    hints = typing.get_type_hints(kind)
    fields, required = [], set()
    for field in dataclasses.fields(kind):
        read, write = _converters(hints[field.name])
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = field.default
            if default is dataclasses.MISSING:
                required.add(field.name)
        fields.append(_Field(field.name, read, write, default))
    return _Form(kind, tuple(fields), frozenset(field.name for field in fields), frozenset(required))


def _converters(hint: Any) -> tuple[Read, Write]:
    """How values of an annotated type are read and written."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType and len(inner) == 2 and inner[1] is type(None):
        read, write = _converters(inner[0])
        return (lambda x: None if x is None else read(x)), (lambda x: None if x is None else write(x))
    if origin is tuple and inner[1:] == (Ellipsis,):
        read, write = _converters(inner[0])
        return (lambda x: tuple(map(read, _list(x)))), (lambda x: list(map(write, x)))
    if origin is frozenset:
        read, write = _converters(inner[0])
        return (lambda x: frozenset(map(read, _list(x)))), (lambda x: sorted(map(write, x)))
    if origin is Mapping:
        read, write = _converters(inner[1])
        return (lambda x: {_read_str(k): read(v) for k, v in _object(x).items()}), (
            lambda x: {key: write(value) for key, value in x.items()}
        )
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_reader(hint), lambda x: x.value
    form = _form(hint)
    return form.read, form.write


def _exactly(kind: type, words: str) -> Read:
    """Reads values of this type; a bool is not an int."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise CodecError(f"{_shown(value)}: expected {words}")
        return value

    return read


def _read_float(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CodecError(f"{_shown(value)}: expected a finite number")
    return float(value)


def _write_float(value: float) -> float:
    if not math.isfinite(value):
        raise CodecError(f"{value} cannot be written: expected a finite number")
    return value


def _enum_reader(kind: type[enum.Enum]) -> Read:
    members = {member.value: member for member in kind}

    def read(value: Any) -> enum.Enum:
        member = members.get(value) if isinstance(value, str) else None
        if member is None:
            raise CodecError(f"{_shown(value)}: expected one of {', '.join(members)}")
        return member

    return read


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unchanged(value: Any) -> Any:
    return value


_read_int = _exactly(int, "a whole number")
_read_str = _exactly(str, "text")
_list = _exactly(list, "a list")
_object = _exactly(dict, "an object")
_PLAIN: Final[Mapping[Any, tuple[Read, Write]]] = {
    int: (_read_int, _unchanged),
    float: (_read_float, _write_float),
    str: (_read_str, _unchanged),
    bool: (_exactly(bool, "true or false"), _unchanged),
}
