"""The job file: one job in YAML.

    name: resnet
    command: [python, train.py, --lr, 0.1]
    workers: 1:4

Values are taken as they are written (``--lr 0.10`` stays ``0.10``, ``no`` is a word unless yes or no is asked for).
The published schema is made from the same table of keys: :func:`job_schema`, ``docs/job.schema.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from weft.core.job import Launch
from weft.core.plain_yaml import compose, items, line_of, mapping, scalar
from weft.core.submission import (
    MAX_NAME_BYTES,
    MAX_RESTARTS,
    MAX_TOTAL_STEPS,
    MAX_WEIGHT,
    MAX_WORKERS,
    Submission,
    worker_range,
)
from weft.errors import InputError, UsageError

MAX_JOB_FILE_BYTES = 256 * 1024
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_YES, _NO = ("yes", "true"), ("no", "false")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file: how its value is read, and how the schema describes it."""

    read: Callable[[yaml.Node, str, str], Any]
    schema: dict[str, Any]
    about: str


def _text(node: yaml.Node, file: str, name: str) -> str:
    return scalar(node, file, name)


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
    """Unlike other values kept to the last blank: ``""`` and ``" x"`` are words."""
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


KEYS: dict[str, Key] = {
    "name": Key(_text, {"type": "string"}, "What you call it; the script's name if left out."),
    "command": Key(
        _words,
        {"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1},
        "The command as a list of words. No shell reads it: no $VARIABLES, no pipes.",
    ),
    "cwd": Key(_text, {"type": "string"}, "Folder to run in, from the folder of this file; that folder if left out."),
    "environment": Key(
        _environment,
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        "Environment variables, beside those the controller itself runs with.",
    ),
    "workers": Key(
        _range,
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+(:[0-9]+)?$"}]},
        "How many workers: 2, or from 1 to 4 as 1:4. 1 if left out.",
    ),
    "requested_workers": Key(
        _whole,
        {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS},
        "The size it gets under a policy that never resizes; the largest if left out.",
    ),
    "sizes": Key(
        _sizes,
        {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS}},
        "Worker counts it can run with, such as [1, 2, 4]; all of the range if left out.",
    ),
    "total_steps": Key(
        _whole,
        {"type": "integer", "minimum": 1, "maximum": MAX_TOTAL_STEPS},
        "Training steps until it is done; a script with weft.session() says so itself.",
    ),
    "weight": Key(
        _number,
        {"type": "number", "minimum": 1 / MAX_WEIGHT, "maximum": MAX_WEIGHT},
        "How much it counts against other jobs; 1 if left out.",
    ),
    "priority": Key(_whole, {"type": "integer"}, "Jobs of a higher priority are served first; 0 if left out."),
    "max_restarts": Key(
        _whole,
        {"type": "integer", "minimum": 0, "maximum": MAX_RESTARTS},
        "How often it is started again after it failed by itself; 0 if left out.",
    ),
    "may_share": Key(
        _yes_or_no,
        {"anyOf": [{"type": "boolean"}, {"enum": ["yes", "no"]}]},
        "Whether it may take turns with another job on its devices; yes if left out.",
    ),
    "user": Key(_text, {"type": "string"}, "Whose quota it counts against; who submits it if left out."),
}


def read_job_file(path: Path, *, user: str = "") -> Submission:
    """The job in ``path``; a relative ``cwd`` starts from the folder the file is in."""
    return parse_job(_read_text(path), str(path), folder=path.absolute().parent, user=user)


def parse_job(text: str, file: str, *, folder: Path, user: str = "") -> Submission:
    """The job in ``text``; complaints name ``file`` and a line."""
    document = compose(text, file, when_too_large="a job file has a few lines")
    if document is None:
        raise InputError("the file is empty: expected at least `command:`", file=file, line=1)
    nodes = mapping(document, file, KEYS, "a job")
    if "command" not in nodes:
        raise InputError("the job has no 'command': add one such as [python, train.py]", file=file, line=1)
    values = {name: KEYS[name].read(node, file, name) for name, node in nodes.items()}
    low, high = values.get("workers", (1, 1))
    command = values["command"]
    try:
        return Submission(
            Launch(
                command,
                str((folder / values.get("cwd", "")).absolute()),
                values.get("environment", {}),
                values.get("max_restarts", 0),
            ),
            name=values.get("name") or name_of(command),
            min_workers=low,
            max_workers=high,
            requested_workers=values.get("requested_workers"),
            sizes=values.get("sizes", ()),
            user=values.get("user") or user,
            weight=values.get("weight", 1.0),
            priority=values.get("priority", 0),
            may_share=values.get("may_share", True),
            total_steps=values.get("total_steps"),
        )
    except UsageError as error:
        raise InputError(str(error), file=file) from None


def name_of(command: tuple[str, ...]) -> str:
    """A name for who gave none: the script, else the program.

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
        "properties": {name: {"description": key.about, **key.schema} for name, key in KEYS.items()},
    }


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JOB_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise InputError(f"cannot be read, {reason}: check the path", file=str(path)) from None
    if len(data) > MAX_JOB_FILE_BYTES:
        raise InputError(
            f"larger than {MAX_JOB_FILE_BYTES // 1024} KiB: a job file has a few lines",
            file=str(path),
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not a UTF-8 text file (byte {error.start})", file=str(path)) from None
