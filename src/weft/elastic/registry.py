"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.nearest_name import unknown_name
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
    """A new policy object; an unknown name raises an error that suggests the nearest one or lists all."""
    if name not in POLICIES:
        raise UsageError(unknown_name("policy", name, POLICIES))
    return POLICIES[name](rules)
