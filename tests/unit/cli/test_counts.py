"""A number with a few zeros too many gives an error message, not a machine out of memory."""

from __future__ import annotations

import pytest

from weft.cli import load
from weft.core.cluster import MAX_DEVICES, Cluster
from weft.core.submission import MAX_WORKERS
from weft.engines.local import LocalEngine
from weft.errors import EngineError, UsageError

HUGE = ("100000000", "9" * 20, "9" * 5000)


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("argument", ["synthetic:none:2 --gpus {}", "synthetic:none:{} --gpus 4"])
def test_too_large_a_simulation_is_refused_before_it_is_built(argument: str, number: str) -> None:
    with pytest.raises(UsageError):
        load("sim")([*argument.format(number).split(), "--policy", "fifo"], "weft sim")


def test_a_controller_of_too_many_devices_is_refused(tmp_path: object) -> None:
    with pytest.raises(EngineError, match=f"1 to {MAX_WORKERS}"):
        LocalEngine(tmp_path, num_devices=100_000_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", HUGE)
def test_up_names_the_largest_number_of_devices(number: str) -> None:
    with pytest.raises(UsageError, match="devices"):
        load("up")(["--devices", number], "weft up")


def test_a_cluster_of_the_documented_size_can_be_made() -> None:
    assert Cluster.uniform(MAX_DEVICES // 8, 8).num_devices == MAX_DEVICES
    with pytest.raises(UsageError, match=f"at most {MAX_DEVICES}"):
        Cluster((MAX_DEVICES + 1,))
