"""How much is sent to measure the link before training goes on."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import torch

from training import Tower, made, with_weft
from weft.overlap import tuning
from workers import gathered, on_workers


def measured_at(seconds_per_byte: float) -> tuple[int, float]:
    """The bytes sent to measure such a link on this worker's clock, and what was found."""
    run = with_weft(made(Tower))
    assert run.handle is not None
    transport = run.handle.schedule.transport
    now_s, num_bytes, finish = 0.0, 0, transport.finish_reduce

    def finish_slowly(exchange):
        nonlocal now_s, num_bytes
        num_bytes += exchange.reduce_bytes
        now_s += 1e-4 + seconds_per_byte * exchange.reduce_bytes
        return finish(exchange)

    clock = SimpleNamespace(perf_counter=lambda: now_s)
    with patch.object(transport, "finish_reduce", finish_slowly), patch.object(tuning, "time", clock):
        link = tuning.measure_link(transport, torch.device("cpu"))
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
