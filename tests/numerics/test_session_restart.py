"""Stopping and resuming, with the same or a different number of workers, loses and repeats nothing."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from session_training import Job, Outcome, Stop, losses, samples_by_epoch, start

from weft.core.worker_environment import STOPPED_EXIT_CODE


def in_pieces(job: Job, sizes: list[int], seed: int) -> list[Outcome]:
    """Start on each number of workers in turn; all but the last are stopped at a random step of a random worker."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    done = 0
    for num_workers in sizes[:-1]:
        stop = Stop(chance.randrange(num_workers), done + chance.randrange(1, 4))
        outcomes.append(start(job, num_workers, stop))
        assert outcomes[-1].exit_codes == [STOPPED_EXIT_CODE] * num_workers
        done = outcomes[-1].steps[-1]["step"] + 1
    outcomes.append(start(job, sizes[-1]))
    assert outcomes[-1].exit_codes == [0] * sizes[-1]
    return outcomes


def folder(base: Path, name: str) -> str:
    return str(base / name)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_every_sample_once_and_the_same_loss_on_2_then_1_then_2_then_4_workers(tmp_path: Path, optimizer: str) -> None:
    (whole,) = in_pieces(Job(folder(tmp_path, "whole"), optimizer, scaler=True), [2], seed=0)
    pieces = in_pieces(Job(folder(tmp_path, "pieces"), optimizer, scaler=True), [2, 1, 2, 4], seed=len(optimizer))
    everything = Counter(range(103))
    assert samples_by_epoch(pieces) == {0: everything, 1: everything, 2: everything}
    assert [s["step"] for o in pieces for s in o.steps] == list(range(18))
    assert losses(pieces) == pytest.approx(losses([whole]), rel=1e-5)
    assert [s["lr"] for o in pieces for s in o.steps] == [s["lr"] for s in whole.steps]


@pytest.mark.parametrize(("optimizer", "wrap"), [("adamw", "overlap"), ("sgd", "overlap"), ("adamw", "ddp")])
def test_every_kind_of_state_survives_on_2_then_1_then_2_then_4_workers(
    tmp_path: Path, optimizer: str, wrap: str
) -> None:
    job = Job(str(tmp_path), optimizer, wrap, batch_norm=True, scaler=True, num_samples=111)
    if wrap == "overlap":
        pieces = in_pieces(job, [2, 1, 2, 4], seed=11)
    else:  # in the first step: without overlap later stops are seen within a second, and this job takes less
        pieces = [start(job, 2, Stop(1, 0)), start(job, 1, Stop(0, 8)), start(job, 2, Stop(0, 9)), start(job, 4)]
    for before, after in pairwise(pieces):
        assert after.begin == before.end
        assert all(after.end[kind] != after.begin[kind] for kind in after.begin), "some state never changes here"
    everything = Counter(range(111))
    assert samples_by_epoch(pieces) == {0: everything, 1: everything, 2: everything}


def test_worker_0_can_save_the_optimizer_itself_after_the_others_are_done(tmp_path: Path) -> None:
    (whole,) = in_pieces(Job(str(tmp_path), epochs=1, first_is_late=True), [2], seed=0)
    assert whole.end["optimizer"] != whole.begin["optimizer"]


def test_dropout_resumes_its_random_state_on_every_worker(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dropout": 0.5, "epochs": 2}
    (whole,) = in_pieces(Job(folder(tmp_path, "whole"), **options), [2], seed=0)
    pieces = in_pieces(Job(folder(tmp_path, "pieces"), **options), [2, 2, 2], seed=4)
    noise = [step["noise"] for piece in pieces for step in piece.steps]
    assert noise == [step["noise"] for step in whole.steps]
    assert all(first != second for first, second in noise), "workers draw the same numbers"
    assert pieces[-1].end == whole.end


@pytest.mark.parametrize("no_sync", [True, False])
@pytest.mark.parametrize(("wrap", "num_workers"), [("overlap", 2), ("overlap", 4), ("ddp", 2), ("ddp", 4)])
def test_accumulated_batches_are_weighted_alike_on_any_number_of_workers(
    tmp_path: Path, wrap: str, num_workers: int, no_sync: bool
) -> None:
    """Of 103 samples, 3 are left for the last batch, so one of 4 workers has none, also during accumulation."""
    options: dict[str, Any] = {"optimizer": "sgd", "accumulate": 5, "no_sync": no_sync}
    alone = in_pieces(Job(folder(tmp_path, "alone"), wrap="alone", **options), [1], seed=0)
    several = in_pieces(Job(folder(tmp_path, "several"), wrap=wrap, **options), [num_workers], seed=0)
    assert losses(several) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.parametrize("wrap", ["overlap", "ddp"])
def test_a_stop_during_accumulation_loses_no_batches(tmp_path: Path, wrap: str) -> None:
    options: dict[str, Any] = {"wrap": wrap, "accumulate": 4, "epochs": 2, "num_samples": 120}
    (whole,) = in_pieces(Job(folder(tmp_path, "whole"), **options), [2], seed=0)
    job = Job(folder(tmp_path, "pieces"), **options)
    pieces = [start(job, 2, Stop(1, 0)), start(job, 2)]
    assert pieces[0].exit_codes == [STOPPED_EXIT_CODE] * 2
    assert len(pieces[0].steps) % 4 == 0
    assert losses(pieces) == losses([whole])


@pytest.mark.parametrize(
    ("wrap", "num_workers", "options"),
    [
        ("overlap", 2, {"optimizer": "sgd", "batch_norm": True, "dropout": 0.3, "scaler": True, "num_samples": 105}),
        ("alone", 1, {"optimizer": "adamw", "batch_norm": True, "dropout": 0.3, "scaler": True}),
        ("overlap", 2, {"optimizer": "adamw", "batch_norm": True, "scaler": True, "num_samples": 105}),
        ("overlap", 2, {"optimizer": "adamw", "loader_processes": 2, "epochs": 2}),
    ],
)
def test_bit_for_bit_the_uninterrupted_run_on_the_same_number_of_workers(
    tmp_path: Path, wrap: str, num_workers: int, options: dict[str, Any]
) -> None:
    whole = in_pieces(Job(folder(tmp_path, "whole"), wrap=wrap, **options), [num_workers], seed=0)[0]
    pieces = in_pieces(Job(folder(tmp_path, "pieces"), wrap=wrap, **options), [num_workers] * 2, seed=3)
    assert losses(pieces) == losses([whole])
    assert pieces[-1].end == whole.end


def test_ddp_resumes_bit_for_bit_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"wrap": "ddp", "batch_norm": True, "dropout": 0.3, "num_samples": 105}
    (whole,) = in_pieces(Job(folder(tmp_path, "whole"), **options), [2], seed=0)
    job = Job(folder(tmp_path, "pieces"), **options)
    # In the first step: later stops are seen within a second, and this job takes less.
    pieces = [start(job, 2, Stop(1, 0)), start(job, 2)]
    assert [piece.exit_codes for piece in pieces] == [[STOPPED_EXIT_CODE] * 2, [0, 0]]
    assert losses(pieces) == losses([whole])
    assert pieces[-1].digest == whole.digest


def test_uneven_batches_under_ddp_are_weighted_as_on_one_worker(tmp_path: Path) -> None:
    alone = in_pieces(Job(folder(tmp_path, "alone"), wrap="alone", epochs=2, batch_size=21), [1], seed=0)
    two = in_pieces(Job(folder(tmp_path, "two"), wrap="ddp", epochs=2, batch_size=21), [2], seed=0)
    assert losses(two) == pytest.approx(losses(alone), rel=1e-5)


def test_a_stream_is_neither_lost_nor_repeated_when_workers_change(tmp_path: Path) -> None:
    job = Job(folder(tmp_path, "stream"), iterable=True, loader_processes=2, epochs=2)
    pieces = in_pieces(job, [2, 1, 2], seed=5)
    assert samples_by_epoch(pieces) == {0: Counter(range(103)), 1: Counter(range(103))}


def test_a_batch_per_worker_scales_the_learning_rate_and_still_sees_every_sample_once(tmp_path: Path) -> None:
    pieces = in_pieces(Job(folder(tmp_path, "scaled"), per_worker=True, batch_size=8, epochs=2), [2, 1], seed=1)
    assert samples_by_epoch(pieces) == {0: Counter(range(103)), 1: Counter(range(103))}
    two, one = pieces[0].steps[-1], pieces[1].steps[0]
    assert two["lr"] / one["lr"] == pytest.approx(2.0, rel=0.1)
