"""A wrong environment is named before anything hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import UsageError
from weft.worker.environment import read_environment


def test_a_script_started_by_hand_is_worker_0_of_1() -> None:
    environment = read_environment({})
    assert (environment.rank, environment.world_size) == (0, 1)
    assert environment.checkpoint_dir is None


def test_names_of_weft_are_read() -> None:
    environment = read_environment({"WEFT_CHECKPOINT_DIR": "a/b", "WEFT_ATTEMPT": "3", "WEFT_CHECKPOINT_EVERY_S": "5"})
    assert environment.checkpoint_dir == Path("a/b")
    assert (environment.attempt, environment.checkpoint_every_s) == (3, 5.0)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "0 <= RANK < WORLD_SIZE"),
        ({"RANK": "x"}, "expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2 without MASTER_ADDR and MASTER_PORT"),
        ({"WEFT_CHECKPOINT_EVERY_S": "-1"}, "expected a number of seconds"),
        ({"WEFT_CHECKPOINT_EVERY_S": "nan"}, "expected a number of seconds"),
    ],
)
def test_a_wrong_value_is_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_environment(environ)
