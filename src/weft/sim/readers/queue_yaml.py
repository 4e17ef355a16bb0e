"""YAML job files, read without trusting them.

    quotas: {alice: 8}          # optional: most GPUs of a user
    jobs:
      - name: resnet
        submitted_s: 0
        steps: 1000
        step_times_s: {1: 0.50, 2: 0.27, 4: 0.15}

Only the safe loader, a size cap, no anchors or aliases, no key twice, no key unknown, every value a scalar
or a flat mapping.  The rows that come out are those of the CSV reader, each value with its line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import yaml

from weft.errors import InputError
from weft.sim.readers.queue import OPTIONAL, REQUIRED
from weft.sim.readers.tables import Row, unknown_name

MAX_YAML_BYTES = 1024 * 1024
MAX_DEPTH = 8
BY_SIZE = ("step_times_s", "exposed_s")


class _PlainLoader(yaml.SafeLoader):
    """Composes nodes only; refuses what could make a small file huge."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refusal("anchors and aliases are not allowed", event)
        if self.depth >= MAX_DEPTH:
            raise _refusal("nested too deeply", event)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Refused(Exception):
    """Well-formed YAML that we do not read all the same."""

    def __init__(self, problem: str, line: int) -> None:
        self.line = line
        super().__init__(problem)


def _refusal(problem: str, event: yaml.Event) -> _Refused:
    return _Refused(problem, event.start_mark.line + 1 if event.start_mark else 1)


def yaml_rows(text: str, file: str) -> tuple[list[Row], dict[str, int]]:
    """The jobs as rows, and the quotas by user."""
    if len(text.encode()) > MAX_YAML_BYTES:
        raise InputError(f"larger than {MAX_YAML_BYTES // 1024} KiB: use CSV for long queues", file=file)
    try:
        document = _compose(text)
    except _Refused as error:
        raise InputError(f"{error}: write the values out", file=file, line=error.line) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(f"not a job file, {error.problem}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise InputError(f"not YAML ({error})", file=file) from None
    if document is None:
        raise InputError("the file is empty: expected `jobs:` with a list", file=file, line=1)
    top = _mapping(document, file, ("jobs", "quotas"), "the file")
    jobs = top.get("jobs")
    if not isinstance(jobs, yaml.SequenceNode):
        line = (jobs or document).start_mark.line + 1
        raise InputError("expected `jobs:` with a list of jobs", file=file, line=line)
    return [_row(node, file) for node in jobs.value], _quotas(top.get("quotas"), file)


def _compose(text: str) -> yaml.Node | None:
    loader = _PlainLoader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _row(node: yaml.Node, file: str) -> Row:
    values = _mapping(node, file, (*REQUIRED, *OPTIONAL), "a job")
    line = node.start_mark.line + 1
    for name in REQUIRED:
        if name not in values:
            raise InputError(f"the job has no {name!r}: add it", file=file, line=line)
    lines = {name: value.start_mark.line + 1 for name, value in values.items()}
    return Row({name: _cell(name, value, file) for name, value in values.items()}, file, line, lines)


def _cell(name: str, node: yaml.Node, file: str) -> str:
    if name in BY_SIZE and isinstance(node, yaml.MappingNode):
        pairs = _mapping(node, file, None, name)
        return " ".join(f"{size}:{_scalar(value, file, name)}" for size, value in pairs.items())
    return _scalar(node, file, name)


def _scalar(node: yaml.Node, file: str, name: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        line = node.start_mark.line + 1
        raise InputError(f"{name} is a {_kind(node)}: expected a single value", file=file, line=line)
    if node.tag == "tag:yaml.org,2002:null":
        return ""
    return str(node.value).strip()


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "mapping" if isinstance(node, yaml.MappingNode) else "single value"


def _mapping(node: yaml.Node, file: str, known: Collection[str] | None, what: str) -> Mapping[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise InputError(f"{what} is a {_kind(node)}: expected keys with values", file=file, line=line)
    values: dict[str, yaml.Node] = {}
    for key_node, value in node.value:
        line = key_node.start_mark.line + 1
        key = _scalar(key_node, file, f"a key of {what}")
        if key in values:
            raise InputError(f"the key {key!r} is there twice in {what}: remove one", file=file, line=line)
        if known is not None and key not in known:
            raise InputError(unknown_name(f"key of {what} called", key, known), file=file, line=line)
        values[key] = value
    return values


def _quotas(node: yaml.Node | None, file: str) -> dict[str, int]:
    if node is None:
        return {}
    quotas = {}
    for user, value in _mapping(node, file, None, "quotas").items():
        line = value.start_mark.line + 1
        quotas[user] = Row({"quota": _scalar(value, file, "quotas")}, file, line).count("quota", at_least=0)
    return quotas
