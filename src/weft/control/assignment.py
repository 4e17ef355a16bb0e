"""From how many workers to which devices: the last step of a decision, the same live and in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.control.state import State
from weft.core.events import DevicesAssigned
from weft.core.snapshot import Allocation
from weft.elastic.placement import Unit, place

_NO_REASONS: Mapping[str, str] = MappingProxyType({})


def assignment(
    state: State, allocation: Allocation, at_s: float, reasons: Mapping[str, str] = _NO_REASONS
) -> DevicesAssigned | None:
    """The event that puts ``allocation`` into force; None if every job has that already, or is on its way there.

    Jobs stay where they are, or where they are going, as far as possible.  Cancelled jobs get nothing, whatever the
    allocation says: the devices they still hold are given to others, who wait until they are gone.
    """
    active = state.jobs.active
    workers, fillers = allocation.workers, allocation.fillers
    partners = _partners(state, allocation) if allocation.pairs else {}
    units: list[Unit] = []
    current: dict[str, tuple[int, ...]] = {}
    is_news = False
    for name, job in active.items():
        if job.is_cancelled:
            continue
        size, wanted, partner = workers.get(name, 0), job.wanted, partners.get(name)
        if (
            len(wanted) != size
            or partner != job.wanted_partner
            or (partner is not None and job.wanted_fills != (name in fillers))
        ):
            is_news = True
        if wanted:
            current[name] = wanted
        if not size:
            continue
        if partner is None:
            units.append(Unit((name,), size))
        elif job.number < active[partner].number:
            units.append(Unit((name, partner), size))
    if not is_news:
        return None
    return DevicesAssigned(at_s, place(state.cluster, units, current), partners, fillers, reasons)


def _partners(state: State, allocation: Allocation) -> dict[str, str]:
    """Pairs of which both are still there; of a pair that has lost one, the other has the devices to itself."""
    active = state.jobs.active
    there = {name for pair in allocation.pairs for name in pair if name in active and not active[name].is_cancelled}
    return {name: other for name, other in allocation.partners().items() if name in there and other in there}
