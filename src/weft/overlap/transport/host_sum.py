"""The order in which contributions are summed, defined once for every transport that sums them itself.

First each host's workers in rank order, then the hosts in the order of their lowest ranks; in a grid, its rows take the
place of hosts.  Every transport, plan, and timing gives the same bits, overlapped or not.  With direct messages and one
worker per host, or a single host, this is rank order.

Half-precision contributions are summed in single precision.  Between hosts, a host's sum travels in the contributions'
own dtype, so it is rounded to that dtype, on the owner's host too: which worker owns an element depends on the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.overlap.transport.host_layout import HostLayout

_HALF = (torch.bfloat16, torch.float16)


def total_of(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of one level; may overwrite the first row."""
    total = rows[0].float() if rows[0].dtype in _HALF else rows[0]
    for row in rows[1:]:
        total.add_(row)
    return total


def add_host(rows: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """The sum of one host's contributions in the dtype in which it is sent; the rows stay unchanged."""
    if len(rows) == 1 or out.dtype in _HALF:
        out.copy_(total_of([rows[0].float(), *rows[1:]]) if len(rows) > 1 else rows[0])
        return
    torch.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        out.add_(row)


def add_row(rows: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Like :func:`add_host`, but overwrites rows, and ``out`` may be one of them."""
    if out.dtype in _HALF:
        out.copy_(total_of(rows))
    else:
        torch.add(total_of(rows[:-1]), rows[-1], out=out)


def total_by_host(rows: Sequence[torch.Tensor], layout: HostLayout) -> torch.Tensor:
    """Both levels, where every worker's contribution is available; may overwrite rows."""
    if not layout.has_two_levels:
        return total_of(rows)
    sums = [total_of([rows[rank] for rank in ranks]).to(rows[0].dtype) for ranks in layout.hosts]
    return total_of(sums)
