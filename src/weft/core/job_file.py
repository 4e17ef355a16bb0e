"""The job file: one job in YAML.

    name: resnet
    command: [python, train.py, --lr, 0.1]
    workers: 1:4

Values are kept as written (``--lr 0.10`` stays ``0.10``, and ``no`` is a word except where yes or no is expected).
The published schema is generated from the same table of keys: :func:`job_schema`, ``docs/job.schema.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from weft.core.plain_yaml import compose, items, line_of, mapping, scalar
from weft.core.submission import FIELDS, MAX_NAME_BYTES, WORKERS, Submission, worker_range
from weft.errors import InputError, UsageError

MAX_JOB_FILE_BYTES = 256 * 1024
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_YES, _NO = ("yes", "true"), ("no", "false")


def _whole(node: yaml.Node, file: str, name: str) -> int:
    text = scalar(node, file, name)
    if not _WHOLE.fullmatch(text):
        raise InputError(f"{name} is {text!r}: expected a whole number", file=file, line=line_of(node))
    return int(text)


def _number(node: yaml.Node, file: str, name: str) -> float:
    text = scalar(node, file, name)
    if not _NUMBER.fullmatch(text):
        raise InputError(f"{name} is {text!r}: expected a number such as 1.5", file=file, line=line_of(node))
    return float(text)


def _yes_or_no(node: yaml.Node, file: str, name: str) -> bool:
    text = scalar(node, file, name).lower()
    if text not in _YES + _NO:
        raise InputError(f"{name} is {text!r}: expected yes or no", file=file, line=line_of(node))
    return text in _YES


def _words(node: yaml.Node, file: str, name: str) -> tuple[str, ...]:
    if isinstance(node, yaml.ScalarNode):
        message = f"{name} is a line of text: expected a list of words such as [python, train.py] (no shell is used)"
        raise InputError(message, file=file, line=line_of(node))
    return tuple(_word(item, file, f"a word of {name}") for item in items(node, file, name))


def _word(node: yaml.Node, file: str, name: str) -> str:
    """Unlike other values, keeps surrounding blanks: ``""`` and ``" x"`` are words."""
    scalar(node, file, name)
    return str(node.value)


def _sizes(node: yaml.Node, file: str, name: str) -> tuple[int, ...]:
    return tuple(_whole(item, file, name) for item in items(node, file, name))


def _range(node: yaml.Node, file: str, name: str) -> tuple[int, int]:
    try:
        return worker_range(scalar(node, file, name))
    except UsageError as error:
        raise InputError(str(error), file=file, line=line_of(node)) from None


def _environment(node: yaml.Node, file: str, name: str) -> dict[str, str]:
    return {key: _word(value, file, key) for key, value in mapping(node, file, None, name).items()}


_SCALAR = {"type": ["string", "number", "boolean"]}
_KINDS: dict[Any, tuple[Callable[[yaml.Node, str, str], Any], dict[str, Any]]] = {
    str: (scalar, {"type": "string"}),
    int: (_whole, {"type": "integer"}),
    int | None: (_whole, {"type": "integer"}),
    float: (_number, {"type": "number"}),
    bool: (_yes_or_no, {"anyOf": [{"type": "boolean"}, {"enum": ["yes", "no"]}]}),
    tuple[str, ...]: (_words, {"type": "array", "items": _SCALAR, "minItems": 1}),
    tuple[int, ...]: (_sizes, {"type": "array", "items": {"type": "integer"}}),
    Mapping[str, str]: (_environment, {"type": "object", "additionalProperties": _SCALAR}),
}
"""How a value of each kind is read, and how the schema describes it."""

_WORKERS_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+(:[0-9]+)?$"}]}
KEYS = tuple(dict.fromkeys("workers" if key in ("min_workers", "max_workers") else key for key in FIELDS))


def read_job_file(path: Path, *, user: str = "") -> Submission:
    """The job in ``path``; a relative ``cwd`` is relative to the file's folder."""
    return parse_job(_read_text(path), str(path), folder=path.absolute().parent, user=user)


def parse_job(text: str, file: str, *, folder: Path, user: str = "") -> Submission:
    """The job in ``text``; errors name ``file`` and a line."""
    document = compose(text, file, when_too_large="a job file has a few lines")
    if document is None:
        raise InputError("the file is empty: expected at least `command:`", file=file, line=1)
    nodes = mapping(document, file, KEYS, "a job")
    if "command" not in nodes:
        raise InputError("the job has no 'command': add one such as [python, train.py]", file=file, line=1)
    readers = {key: _range if key == "workers" else _KINDS[FIELDS[key].kind][0] for key in nodes}
    values: dict[str, Any] = {key: readers[key](node, file, key) for key, node in nodes.items()}
    if "workers" in values:
        values["min_workers"], values["max_workers"] = values.pop("workers")
    values["name"] = values.get("name") or name_of(values["command"])
    values["user"] = values.get("user") or user
    values["cwd"] = str((folder / values.get("cwd", "")).absolute())
    try:
        return Submission.from_document(values)
    except UsageError as error:
        raise InputError(str(error), file=file) from None


def name_of(command: tuple[str, ...]) -> str:
    """The default name of a job: its script, or else its program.

    >>> name_of(("python", "-u", "jobs/train.py", "--lr", "0.1")), name_of(("/bin/true",))
    ('train.py', 'true')
    """
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0] if command else "")
    return script.rsplit("/", 1)[-1].encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


def job_schema() -> dict[str, Any]:
    """JSON schema of the file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "weft job file",
        "description": "One job for `weft submit FILE`.",
        "type": "object",
        "required": ["command"],
        "additionalProperties": False,
        "properties": {key: _key_schema(key) for key in KEYS},
    }


def _key_schema(key: str) -> dict[str, Any]:
    option = WORKERS if key == "workers" else FIELDS[key].option
    schema = dict(_WORKERS_SCHEMA if key == "workers" else _KINDS[FIELDS[key].kind][1])
    bounds = {"minimum": option.min, "maximum": option.max}
    bounds = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    if "items" in schema:
        schema["items"] = schema["items"] | bounds
    else:
        schema |= bounds
    default = f" (default: {option.default})" if option.default else ""
    return {"description": f"{option.help[0].upper()}{option.help[1:]}{default}.", **schema}


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JOB_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise InputError(f"cannot be read, {reason}: check the path", file=str(path)) from None
    if len(data) > MAX_JOB_FILE_BYTES:
        raise InputError(f"larger than {MAX_JOB_FILE_BYTES // 1024} KiB: a job file has a few lines", file=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not a UTF-8 text file (byte {error.start})", file=str(path)) from None
