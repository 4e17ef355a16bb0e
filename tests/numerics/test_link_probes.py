"""How much is sent to measure the link before training goes on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import patch

import torch

from training import Tower, made, with_weft
from weft.overlap import link_probes
from workers import gathered, on_workers


def measured_at(seconds_per_byte: float, burst_bytes: int = 0, stalls: Sequence[int] = ()) -> tuple[int, float]:
    """The bytes sent to measure such a link on this worker's clock, and what was found.

    ``burst_bytes``: what the link lets pass at once after a pause; ``stalls``: the probes that take a second longer.
    """
    run = with_weft(made(Tower))
    assert run.handle is not None
    transport = run.handle.schedule.transport
    now_s, num_bytes, finish = 0.0, 0, transport.finish_reduce
    numbers = itertools.count()

    def finish_slowly(exchange):
        nonlocal now_s, num_bytes
        num_bytes += exchange.reduce_bytes
        now_s += 1e-4 + seconds_per_byte * max(0, exchange.reduce_bytes - burst_bytes)
        now_s += next(numbers) in stalls
        return finish(exchange)

    clock = SimpleNamespace(perf_counter=lambda: now_s)
    with patch.object(transport, "finish_reduce", finish_slowly), patch.object(link_probes, "time", clock):
        link = link_probes.measure_link(transport, torch.device("cpu"))
    run.handle.detach()
    return num_bytes, link.beta_s_per_byte


@on_workers(2)
def test_a_slow_link_is_measured_with_fewer_bytes_on_all_workers_alike() -> None:
    on_this_worker = 64e-9 if torch.distributed.get_rank() else 1e-9  # 125 Mb/s, as only one of the two sees it
    num_bytes, found = measured_at(on_this_worker)
    assert len(set(gathered((num_bytes, found)))) == 1
    assert num_bytes < 4 << 20
    assert num_bytes > 1 << 20


@on_workers(2)
def test_a_fast_link_is_measured_up_to_the_largest_size() -> None:
    num_bytes, found = measured_at(0.8e-9)  # 10 Gb/s
    assert num_bytes > 16 << 20
    assert abs(found / 0.8e-9 - 1) < 0.01


@on_workers(2)
def test_a_link_that_lets_bursts_pass_does_not_appear_faster_than_it_is() -> None:
    for seconds_per_byte in (60e-9, 20e-9):  # 133 and 400 Mb/s
        _, found = measured_at(seconds_per_byte, burst_bytes=128 << 10)
        assert abs(found / seconds_per_byte - 1) < 0.01


@on_workers(2)
def test_a_probe_that_stalls_does_not_make_a_link_appear_a_hundred_times_slower() -> None:
    for probe in range(12):
        _, found = measured_at(20e-9, stalls=[probe])
        assert abs(found / 20e-9 - 1) < 0.01
