"""YAML job files, read without trusting them.

    quotas: {alice: 8}          # optional: most GPUs of a user
    jobs:
      - name: resnet
        submitted_s: 0
        steps: 1000
        step_times_s: {1: 0.50, 2: 0.27, 4: 0.15}

Read by :mod:`weft.core.plain_yaml`, which trusts nothing; every value is a scalar or a flat mapping.  The rows that
come out are those of the CSV reader, each value with its line.
"""

from __future__ import annotations

import yaml

from weft.core.plain_yaml import compose, line_of, mapping, scalar
from weft.errors import InputError
from weft.sim.readers.queue import OPTIONAL, REQUIRED
from weft.sim.readers.tables import Row

BY_SIZE = ("step_times_s", "exposed_s")


def yaml_rows(text: str, file: str) -> tuple[list[Row], dict[str, int]]:
    """The jobs as rows, and the quotas by user."""
    document = compose(text, file, when_too_large="use CSV for long queues")
    if document is None:
        raise InputError("the file is empty: expected `jobs:` with a list", file=file, line=1)
    top = mapping(document, file, ("jobs", "quotas"), "the file")
    jobs = top.get("jobs")
    if not isinstance(jobs, yaml.SequenceNode):
        raise InputError("expected `jobs:` with a list of jobs", file=file, line=line_of(jobs or document))
    return [_row(node, file) for node in jobs.value], _quotas(top.get("quotas"), file)


def _row(node: yaml.Node, file: str) -> Row:
    values = mapping(node, file, (*REQUIRED, *OPTIONAL), "a job")
    line = line_of(node)
    for name in REQUIRED:
        if name not in values:
            raise InputError(f"the job has no {name!r}: add it", file=file, line=line)
    lines = {name: line_of(value) for name, value in values.items()}
    return Row({name: _cell(name, value, file) for name, value in values.items()}, file, line, lines)


def _cell(name: str, node: yaml.Node, file: str) -> str:
    if name in BY_SIZE and isinstance(node, yaml.MappingNode):
        pairs = mapping(node, file, None, name)
        return " ".join(f"{size}:{scalar(value, file, name)}" for size, value in pairs.items())
    return scalar(node, file, name)


def _quotas(node: yaml.Node | None, file: str) -> dict[str, int]:
    if node is None:
        return {}
    quotas = {}
    for user, value in mapping(node, file, None, "quotas").items():
        quotas[user] = Row({"quota": scalar(value, file, "quotas")}, file, line_of(value)).count("quota", at_least=0)
    return quotas
