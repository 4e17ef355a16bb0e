"""Devices are never assigned twice, and jobs are not moved without a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cluster import Cluster
from weft.elastic.placement import Unit, place
from weft.errors import UsageError


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Cluster, list[list[Unit]]]:
    """A cluster and several allocations, one after the other; failed nodes included."""
    cluster = Cluster(tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))))
    failed = draw(st.sets(st.integers(0, cluster.num_nodes - 1), max_size=cluster.num_nodes - 1))
    cluster = cluster.without(failed)
    allocations = []
    for _ in range(draw(st.integers(1, 4))):
        left = cluster.num_devices
        units = []
        for index in range(draw(st.integers(0, 6))):
            workers = draw(st.integers(1, 8))
            if workers <= left:
                names = (f"j{index}", f"guest{index}") if draw(st.booleans()) else (f"j{index}",)
                units.append(Unit(names, workers))
                left -= workers
        allocations.append(units)
    return cluster, allocations


@settings(max_examples=300, deadline=None)
@given(case=rounds())
def test_no_device_is_given_to_two_units_or_taken_from_a_failed_node(
    case: tuple[Cluster, list[list[Unit]]],
) -> None:
    cluster, allocations = case
    current: dict[str, tuple[int, ...]] = {}
    for units in allocations:
        placed = place(cluster, units, current)
        used = [device for unit in units for device in placed[unit.names[0]]]
        assert len(used) == len(set(used))
        assert not {cluster.node_of(device) for device in used} & cluster.failed_nodes
        for unit in units:
            assert len({placed[name] for name in unit.names}) == 1
            assert len(placed[unit.names[0]]) == unit.workers
        current = placed


def test_jobs_that_keep_their_size_stay_where_they_are() -> None:
    cluster = Cluster.uniform(4, 4)
    first = place(cluster, [Unit(("a",), 8), Unit(("b",), 2), Unit(("c",), 1)], {})
    second = place(cluster, [Unit(("a",), 8), Unit(("b",), 2), Unit(("c",), 4)], first)
    assert (second["a"], second["b"]) == (first["a"], first["b"])
    assert len(cluster.shape(second["c"])) == 1


def test_one_small_job_moves_so_that_another_fits_one_node() -> None:
    cluster = Cluster.uniform(2, 4)
    current = {"a": (0, 1), "b": (4, 5)}
    placed = place(cluster, [Unit(("a",), 2), Unit(("b",), 2), Unit(("c",), 4)], current)
    assert len(cluster.shape(placed["c"])) == 1
    assert sum(placed[name] == current[name] for name in current) == 1


def test_repacking_fits_every_job_into_one_node_when_moving_one_is_not_enough() -> None:
    cluster = Cluster.uniform(3, 4)
    current = {"a": (0, 1), "b": (2,), "c": (4, 5), "d": (6,), "e": (8, 9), "f": (10,)}
    units = [Unit((name,), len(devices)) for name, devices in current.items()] + [Unit(("g",), 3)]
    placed = place(cluster, units, current)
    assert all(len(cluster.shape(placed[unit.names[0]])) == 1 for unit in units)


def test_a_guest_moves_in_with_its_host_and_the_host_stays() -> None:
    cluster = Cluster.uniform(2, 2)
    placed = place(cluster, [Unit(("guest", "host"), 2)], {"host": (2, 3)})
    assert placed == {"guest": (2, 3), "host": (2, 3)}


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(UsageError, match="5 workers for 4 devices"):
        place(Cluster.uniform(1, 4), [Unit(("a",), 5)], {})
