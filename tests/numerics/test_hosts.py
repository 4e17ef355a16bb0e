"""Several workers per host: two levels of traffic give the same bits as overlap switched off, whatever the layout."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from training import (
    Run,
    Tangle,
    Tower,
    adamw,
    assert_differ,
    assert_equal_states,
    assert_same,
    grouped,
    made,
    replicated_sgd,
    sgd,
    with_weft,
)
from weft.overlap.transport import Transport
from weft.overlap.transport.gloo import GlooTransport
from weft.overlap.transport.hosts import HostsTransport
from workers import gathered, on_workers

# The host of each rank; ranks of one host need not be consecutive.
LAYOUTS: dict[str, tuple[int, Sequence[int]]] = {
    "2x2": (4, (0, 0, 1, 1)),
    "2x2_interleaved": (4, (0, 1, 0, 1)),
    "1+3": (4, (0, 1, 1, 1)),
}
STEPS = 5


@contextmanager
def on_hosts(hosts: Sequence[int]) -> Iterator[None]:
    """Make this machine look like several."""
    with patch.dict(os.environ, WEFT_HOST=f"host-{hosts[dist.get_rank()]}"):
        yield


def transport_of(run: Run) -> Transport:
    assert run.handle is not None
    return run.handle.schedule.transport


def trained(
    hosts: Sequence[int],
    make: Callable[[], nn.Module],
    optimizer: Any,
    loop: Callable[[Run], Any] | None = None,
    carrier: type = HostsTransport,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Values after a few steps, the same on every worker."""
    with on_hosts(hosts):
        run = with_weft(made(make), optimizer, **options)
        assert type(transport_of(run)) is carrier
        (loop or (lambda run: run.train(STEPS)))(run)
        found = run.state()
        own = gathered([value.double().sum().item() for value in run.parameters().values()])
        run.handle.detach()
    assert all(other == own[0] for other in own), "workers have different parameters"
    return found


def some_tangle() -> Tangle:
    """`rare` is used by some workers in some steps and by no worker in others."""
    return Tangle(lambda step: [[1], [0, 3], []][step % 3])


def _same_as_without_overlap(hosts: Sequence[int]) -> None:
    expected = trained(hosts, some_tangle, adamw, enabled=False)
    assert_differ(expected, {name: value.clone() for name, value in made(some_tangle).state_dict().items()})
    assert_same(trained(hosts, some_tangle, adamw), expected)
    assert_same(trained(hosts, some_tangle, adamw, bucket_bytes=1 << 20), expected)
    assert_same(trained(hosts, some_tangle, adamw, eager=True, bucket_bytes=2048), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@on_workers(4)
def test_every_plan_and_layout_gives_the_bits_of_overlap_off(layout: str) -> None:
    _same_as_without_overlap(LAYOUTS[layout][1])


@on_workers(6)
def test_three_hosts_with_three_one_and_two_workers_give_the_bits_of_overlap_off() -> None:
    _same_as_without_overlap((0, 0, 0, 1, 2, 2))


@on_workers(8)
def test_two_hosts_with_four_workers_each_give_the_bits_of_overlap_off() -> None:
    hosts = (0, 0, 0, 0, 1, 1, 1, 1)
    assert_same(trained(hosts, Tower, adamw), trained(hosts, Tower, adamw, enabled=False, bucket_bytes=1 << 20))


def _accumulated(run: Run) -> None:
    run.train(STEPS, accumulate=2)


def _clipped(run: Run) -> None:
    run.train(STEPS, clip="torch")


def _scaled(run: Run) -> None:
    """The second step is skipped: its gradients were reduced and nothing is gathered."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.backward(step, lambda loss, step=step: scaler.scale(loss) * (float("inf") if step == 1 else 1.0))
        scaler.step(run.optimizer)
        scaler.update()


def _with_gradients_kept(run: Run) -> None:
    for step in range(STEPS):
        run.backward(step)
        if step % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()


def _with_values_read_and_written(run: Run) -> None:
    for step in range(STEPS):
        run.train(1, first=step)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.99)
        if dist.get_rank() == 3:  # one worker alone reads everything, without help from the others
            run.model.state_dict()
        dist.barrier()


def _with_a_round_dropped(run: Run) -> None:
    """Gradients that no step has used are dropped."""
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.backward(step)
        if step != 2:
            run.optimizer.step()


LOOPS: dict[str, tuple[Callable[[Run], None], Callable[[], nn.Module], Any, dict[str, Any]]] = {
    "accumulation": (_accumulated, some_tangle, adamw, {}),
    "exact_clipping": (_clipped, Tower, grouped, {"exact_clipping": True}),
    "GradScaler": (_scaled, some_tangle, sgd, {}),
    "gradients_not_zeroed": (_with_gradients_kept, Tower, adamw, {}),
    "written_in_place": (_with_values_read_and_written, some_tangle, sgd, {}),
    "a_dropped_round": (_with_a_round_dropped, Tower, adamw, {}),
    "replicated": (lambda run: run.train(STEPS), Tower, replicated_sgd, {}),
    "bfloat16": (lambda run: run.train(STEPS), some_tangle, adamw, {"comm_dtype": torch.bfloat16}),
    "double": (lambda run: run.train(STEPS), lambda: Tower(torch.float64), adamw, {}),
}


@pytest.mark.parametrize("name", LOOPS)
@on_workers(4)
def test_every_allowed_training_loop_works_on_hosts_with_several_workers(name: str) -> None:
    loop, make, optimizer, options = LOOPS[name]
    hosts = LAYOUTS["1+3"][1]
    expected = trained(hosts, make, optimizer, loop, enabled=False, **options)
    assert_same(trained(hosts, make, optimizer, loop, bucket_bytes=500, **options), expected)


def _no_shared_memory(*_: Any) -> int:
    raise PermissionError("not permitted here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@on_workers(4)
def test_without_shared_memory_direct_messages_give_the_same_bits(dtype: torch.dtype) -> None:
    hosts = LAYOUTS["2x2"][1]
    expected = trained(hosts, some_tangle, adamw, comm_dtype=dtype)
    # If one worker cannot, all of them fall back.
    denied = patch("os.memfd_create", _no_shared_memory) if dist.get_rank() == 2 else patch.dict(os.environ)
    with denied, patch("weft.overlap.transport.choice._log") as logger:
        found = trained(hosts, some_tangle, adamw, carrier=GlooTransport, comm_dtype=dtype)
    assert logger.warning.call_count == (1 if dist.get_rank() == 2 else 0)
    assert_same(found, expected)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@on_workers(4)
def test_a_worker_that_drops_its_model_leaves_its_neighbors_the_values_of_its_first_step(
    dtype: torch.dtype | None,
) -> None:
    with on_hosts(LAYOUTS["2x2"][1]):
        run = with_weft(made(Tower), sgd, comm_dtype=dtype)
    run.train(1)
    if dist.get_rank() == 1:
        dropped = run.parameters()
        run.handle.flush()
        run = None
        gc.collect()
    dist.barrier()  # only now do the others read
    found = dropped if run is None else run.parameters()
    own = gathered([value.double().sum().item() for value in found.values()])
    assert all(other == own[0] for other in own)


@on_workers(4)
def test_one_host_and_one_worker_per_host_stay_with_direct_messages() -> None:
    everywhere = trained((0, 1, 2, 3), Tower, sgd, carrier=GlooTransport)
    assert_same(trained((0, 0, 0, 0), Tower, sgd, carrier=GlooTransport), everywhere)


@on_workers(4)
def test_a_tuned_plan_gives_the_bits_of_overlap_off() -> None:
    hosts = LAYOUTS["2x2"][1]
    steps = 16
    expected = trained(hosts, Tower, adamw, lambda run: run.train(steps), enabled=False)
    assert_same(trained(hosts, Tower, adamw, lambda run: run.train(steps), tune=True, bucket_bytes=None), expected)


@on_workers(4)
def test_optimizer_state_saved_by_one_worker_is_whole() -> None:
    with on_hosts(LAYOUTS["2x2"][1]):
        run = with_weft(made(Tower), adamw).train(3)
        state = run.optimizer.state_dict() if dist.get_rank() == 1 else None
        dist.barrier()
        run.handle.detach()
    if state is not None:
        assert len(state["state"]) == len(list(run.model.parameters()))
        assert_equal_states(state, run.optimizer.state_dict())


@on_workers(4)
def test_workers_with_different_numbers_of_batches_share_hosts() -> None:
    """As with DDP's join, on both levels."""

    def loop(run: Run) -> None:
        with run.handle.join():
            run.train(2 + dist.get_rank())

    hosts = LAYOUTS["2x2"][1]
    expected = trained(hosts, Tower, sgd, loop, enabled=False)
    assert_same(trained(hosts, Tower, sgd, loop), expected)
