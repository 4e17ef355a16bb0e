"""Reads YAML without trusting it.

Uses only the safe loader, with a size limit and without anchors, aliases, deep nesting, and duplicate or unknown keys.
Values stay text as written (``0.10``, ``no``, ``1:4``), and the caller decides what they mean.  Every error names the
file and line.
"""

from __future__ import annotations

from collections.abc import Collection

import yaml

from weft.core.nearest_name import unknown_name
from weft.errors import InputError

MAX_YAML_BYTES = 1024 * 1024
MAX_DEPTH = 8
_NULL_TAG = "tag:yaml.org,2002:null"


class _PlainLoader(yaml.SafeLoader):
    """Only composes nodes; rejects whatever could expand a small file into a huge one."""

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
    """Well-formed YAML that we reject."""

    def __init__(self, problem: str, line: int) -> None:
        self.line = line
        super().__init__(problem)


def _refusal(problem: str, event: yaml.Event) -> _Refused:
    return _Refused(problem, event.start_mark.line + 1 if event.start_mark else 1)


def compose(text: str, file: str, *, when_too_large: str) -> yaml.Node | None:
    """The only document in ``text``; ``None`` if it is empty."""
    if len(text.encode()) > MAX_YAML_BYTES:
        raise InputError(f"larger than {MAX_YAML_BYTES // 1024} KiB: {when_too_large}", file=file)
    loader = None
    try:
        loader = _PlainLoader(text)
        node: yaml.Node | None = loader.get_single_node()
        return node
    except _Refused as error:
        raise InputError(f"{error}: write the values out", file=file, line=error.line) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(f"not valid YAML: {error.problem}", file=file, line=line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = error.character
        escape = f"\\x{character:02x}" if character < 0x100 else f"\\u{character:04x}"
        message = f'the character U+{character:04X} is not allowed: remove it, or write it as "{escape}"'
        raise InputError(message, file=file, line=line) from None
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from None
    finally:
        if loader is not None:
            loader.dispose()


def line_of(node: yaml.Node) -> int:
    """The line on which a value starts, counted from 1."""
    line: int = node.start_mark.line
    return line + 1


def scalar(node: yaml.Node, file: str, name: str) -> str:
    """A single value as written; empty for nothing and for ``null``."""
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(f"{name} is a {_kind(node)}: expected a single value", file=file, line=line_of(node))
    return "" if node.tag == _NULL_TAG else str(node.value).strip()


def items(node: yaml.Node, file: str, name: str) -> list[yaml.Node]:
    """The values of a list."""
    if not isinstance(node, yaml.SequenceNode):
        message = f"{name} is a {_kind(node)}: expected a list such as [a, b]"
        raise InputError(message, file=file, line=line_of(node))
    return list(node.value)


def mapping(node: yaml.Node, file: str, known: Collection[str] | None, what: str) -> dict[str, yaml.Node]:
    """Keys and values; ``known`` = None accepts any key."""
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{what} is a {_kind(node)}: expected keys with values", file=file, line=line_of(node))
    values: dict[str, yaml.Node] = {}
    for key_node, value in node.value:
        key = scalar(key_node, file, f"a key of {what}")
        line = line_of(key_node)
        if key in values:
            raise InputError(f"the key {key!r} occurs twice in {what}: remove one", file=file, line=line)
        if known is not None and key not in known:
            raise InputError(unknown_name(f"key of {what} called", key, known), file=file, line=line)
        values[key] = value
    return values


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "mapping" if isinstance(node, yaml.MappingNode) else "single value"
