"""Hostile input for hypothesis, and how many examples of it to try.

@BUDGETS
def test_nothing_breaks(num_examples: int) -> None:
    @looking(num_examples)
    @given(data=hostile_json)
    def fuzz(data: bytes) -> None: ...
    fuzz()
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG_MODE_S = 3600
BUDGETS = pytest.mark.parametrize(
    "num_examples", [150, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(LONG_MODE_S)])]
)


def looking(num_examples: int) -> settings:
    """The short mode tries the same examples every time, the long one others."""
    return settings(
        max_examples=num_examples,
        derandomize=num_examples < 1000,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


HOSTILE_NUMBERS: list[Any] = [
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, -(10**400)),
    *(0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
]
HOSTILE_TEXTS = [
    *("", "x", "\0", "\n", "\r\n", "\x1b[2J", "\u202e", "\ud800", "é", "0", "-1", "1:4", "nan", "9" * 400, "9" * 5000),
    *("$(id)", "'; DROP TABLE jobs; --", "../../etc/passwd", "%00", "x" * 600, "x" * 70_000),
]
hostile_scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from(HOSTILE_NUMBERS), st.sampled_from(HOSTILE_TEXTS), st.text(max_size=20)
)
hostile_values = st.recursive(
    hostile_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
# JSON that is broken, too deep, or too long for a number.
hostile_json = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"",
            b"{",
            b"null",
            b"NaN",
            b"[" * 60_000,
            b'{"a":' * 10_000,
            b"9" * 5000,
            b'"\\ud800"',
            b"\xff\xfe",
            b"{}" * 9,
        ]
    ),
)


def hostile_messages(like: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Messages that look like a good one, with some of its values replaced, removed or added to."""
    changes = st.dictionaries(st.sampled_from([*like, "x", "__class__"]), hostile_values, max_size=4)
    removed = st.sets(st.sampled_from(list(like)), max_size=2)
    changed = st.builds(
        lambda new, gone: json.dumps({k: v for k, v in {**like, **new}.items() if k not in gone}).encode(),
        changes,
        removed,
    )
    return st.one_of(changed, hostile_json)
