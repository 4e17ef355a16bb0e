"""What a collective costs on this link, measured once with a few of our own."""

from __future__ import annotations

import time

import torch

from weft.overlap.exchange_memory import ExchangeMemory, ExchangeShape
from weft.overlap.layout import FIRST_PROBE
from weft.overlap.transport.base import NUM_SIGNALS, Transport
from weft.perf.link import Link, fit_link

# On the wire, of each worker.
_SIZES_BYTES = (16 << 10, 256 << 10, 1 << 20, 4 << 20)
_REPEATS = 3


def measure_link(transport: Transport, device: torch.device) -> Link:
    """Time reduce-scatters of several sizes; the same result on every worker.  Collective."""
    samples: list[tuple[float, float]] = []
    launches: list[float] = []
    memory = ExchangeMemory(transport)
    for number, num_bytes in enumerate(_SIZES_BYTES):
        shard = num_bytes // 4 // (transport.num_workers - 1)
        shape = ExchangeShape(shard, shard + NUM_SIGNALS, torch.float32)
        region = torch.zeros(transport.num_workers * shard, device=device)
        memory.clear([(shape, region)])
        exchange = memory.make(FIRST_PROBE + number, shape, region)
        exchange.send.zero_()
        for repeat in range(_REPEATS + 1):
            transport.open_reduce(exchange, repeat)
            transport.all_reduce(torch.zeros(1, device=device))
            transport.device.synchronize()
            began = time.perf_counter()
            transport.launch_reduce(exchange, repeat)
            launches.append(time.perf_counter() - began)
            transport.finish_reduce(exchange)
            transport.settle_sends(exchange)
            transport.device.synchronize()
            if repeat:  # the first one warms connections up
                samples.append((exchange.reduce_bytes, time.perf_counter() - began))
    link = fit_link(samples, launch_s=sorted(launches)[len(launches) // 2])
    agreed = torch.tensor([link.alpha_s, link.beta_s_per_byte * 1e9, link.launch_s], dtype=torch.float64, device=device)
    transport.broadcast(agreed).wait()
    alpha, nanoseconds_per_byte, launch = agreed.tolist()
    return Link(alpha, nanoseconds_per_byte * 1e-9, launch)
