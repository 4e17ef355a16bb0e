"""The policies by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from weft.elastic.balanced import Balanced
from weft.elastic.marginal import Afs, Doubling, Optimus
from weft.elastic.optimal import Exact
from weft.elastic.policy import BasePolicy
from weft.elastic.queues import Equal, Fifo, Srtf, Tiresias
from weft.elastic.rules import Rules
from weft.errors import UsageError

POLICIES: dict[str, Callable[[Rules | None], BasePolicy]] = {
    policy.name: policy for policy in (Balanced, Doubling, Exact, Optimus, Afs, Srtf, Tiresias, Fifo, Equal)
}
"""Name -> class; the first is the default."""


def policy_named(name: str, rules: Rules | None = None) -> BasePolicy:
    """A new policy object; an unknown name raises an error that suggests the nearest one."""
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no policy {name!r}: {hint}the policies are {', '.join(POLICIES)}")
    return POLICIES[name](rules)
