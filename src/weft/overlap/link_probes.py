"""Measures the link between two training steps: a few reduce-scatters, timed within a budget.

A link is never judged by a single probe: one that loses a packet at its end takes 0.2 s longer (a TCP timeout).
"""

from __future__ import annotations

import statistics
import time

import torch

from weft.overlap.exchange_memory import ExchangeMemory, ExchangeShape
from weft.overlap.layout import FIRST_PROBE
from weft.overlap.transport.base import NUM_SIGNALS, Transport
from weft.perf.link import Link, fit_link

# Bytes on the wire of each worker with which the link is measured, and how often.
_PROBE_BYTES = (16 << 10, 256 << 10, 1 << 20, 4 << 20)
_NUM_PROBES = 3
# No more probes after this time, but at least two of the third size: on a slow link, the rest would take longer than
# the steps of a short job.
_PROBE_BUDGET_S = 0.1
_LAST_SIZE_NEEDED = 2


def measure_link(transport: Transport, device: torch.device) -> Link:
    """Time a few reduce-scatters; the same result on every worker.  Collective."""
    samples, launches = _probe_link(transport, device)
    link = fit_link(samples, launch_s=statistics.median_low(launches))
    agreed = torch.tensor([link.alpha_s, link.beta_s_per_byte * 1e9, link.launch_s], dtype=torch.float64, device=device)
    transport.broadcast(agreed).wait()
    alpha, nanoseconds_per_byte, launch = agreed.tolist()
    return Link(alpha, nanoseconds_per_byte * 1e-9, launch)


def _probe_link(transport: Transport, device: torch.device) -> tuple[list[tuple[float, float]], list[float]]:
    """Several sizes, smallest first, within a budget: (bytes, seconds) of each, and the seconds each launch took."""
    samples: list[tuple[float, float]] = []
    launches: list[float] = []
    memory = ExchangeMemory(transport)
    spent_s = 0.0
    for number, num_bytes in enumerate(_PROBE_BYTES):
        shard = num_bytes // 4 // (transport.num_workers - 1)
        shape = ExchangeShape(shard, shard + NUM_SIGNALS, torch.float32)
        region = torch.zeros(transport.num_workers * shard, device=device)
        memory.clear([(shape, region)])
        exchange = memory.make(FIRST_PROBE + number, shape, region)
        exchange.send.zero_()
        for repeat in range(_NUM_PROBES + 1):
            transport.open_reduce(exchange, repeat)
            _slowest_s(transport, device, 0.0)  # workers start together
            transport.device.synchronize()
            began = time.perf_counter()
            transport.launch_reduce(exchange, repeat)
            launches.append(time.perf_counter() - began)
            transport.finish_reduce(exchange)
            transport.settle_sends(exchange)
            transport.device.synchronize()
            took_s = _slowest_s(transport, device, time.perf_counter() - began)
            spent_s += took_s
            is_large = number >= _LAST_SIZE_NEEDED
            if not repeat and not is_large:  # it warms up connections
                continue
            samples.append((exchange.reduce_bytes, took_s))
            if repeat and is_large and spent_s > _PROBE_BUDGET_S:
                return samples, launches
    return samples, launches


def _slowest_s(transport: Transport, device: torch.device, seconds: float) -> float:
    """The slowest worker's time, which is the collective's.

    All workers know it, so that they agree on when to stop: one that stopped alone would leave the others waiting.
    """
    slowest = torch.tensor([seconds], dtype=torch.float64, device=device)
    return float(transport.all_reduce(slowest, maximum=True).item())
