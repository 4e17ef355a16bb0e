"""Memory that is still being sent must not be written: workers would get different values and diverge."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.compat.tasks import declare_missing_operators
from torch import nn

from training import Run, Tower, assert_same, made, replicated_sgd, with_ddp, with_weft
from weft.overlap.transport import Exchange
from weft.overlap.transport.gloo import GlooTransport
from workers import gathered, on_workers

STEPS = 3


class LateSend:
    """A message that is sent only when it is waited for, as over a busy link; until then its memory is read."""

    def __init__(self, send: Callable[[], Any]) -> None:
        self._send = send

    def wait(self) -> None:
        self._send().wait()


def _send_late(run: Run) -> None:
    """Worker 0's gather messages stay in flight until worker 0 waits for them."""
    assert run.handle is not None
    transport = run.handle.parts[0].schedule.transport
    assert isinstance(transport, GlooTransport)
    if dist.get_rank() != 0:
        return

    send_to = transport.messages.send_to
    launch_gather, send = transport.launch_gather, send_to[1]

    def launch_late(exchange: Exchange, tag: int) -> None:
        send_to[1] = lambda *message: LateSend(partial(send, *message))
        launch_gather(exchange, tag)
        send_to[1] = send

    transport.launch_gather = launch_late  # type: ignore[method-assign]


def _assert_workers_agree_with_ddp(
    loop: Callable[[Run], Any], optimizer: Callable[[nn.Module], torch.optim.Optimizer], **options: Any
) -> None:
    expected, found = with_ddp(made(Tower), optimizer), with_weft(made(Tower), optimizer, **options)
    _send_late(found)
    loop(expected)
    loop(found)
    found.handle.parts[0].schedule.round.settle_sends()
    checksums = gathered([p.detach().double().sum().item() for p in found.model.parameters()])
    assert checksums[0] == checksums[1], "workers have different parameters"
    assert_same(found.state(), expected.state())


class LambLike(torch.optim.Optimizer):
    """Clips and decays p.grad in place, as LAMB, LARS, and MADGRAD do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.grad.div_(p.grad.norm().clamp_(min=1.0)).add_(p, alpha=0.1)
            p.sub_(p.grad, alpha=0.01)
            p.grad.zero_()


def _timm(name: str, **options: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        if find_spec("timm") is None:
            pytest.skip("timm is not installed")
        declare_missing_operators()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from timm import optim
        optimizer: torch.optim.Optimizer = getattr(optim, name)(model.parameters(), weight_decay=0.1, **options)
        return optimizer

    return make


IN_PLACE: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "written in the test": lambda m: LambLike(m.parameters()),
    "timm LAMB": _timm("Lamb", lr=0.01),
    "timm LARS": _timm("Lars", lr=0.01, momentum=0.9),
    "timm MADGRAD": _timm("MADGRAD", lr=0.01),
}


@pytest.mark.parametrize("name", IN_PLACE)
@on_workers(2)
def test_an_optimizer_that_changes_gradients_in_place_does_not_make_workers_diverge(name: str) -> None:
    _assert_workers_agree_with_ddp(lambda run: run.train(STEPS), IN_PLACE[name])


@on_workers(2)
def test_unscaling_gathered_gradients_does_not_make_workers_diverge() -> None:
    def loop(run: Run) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(STEPS):
            run.optimizer.zero_grad()
            run.backward(step, scaler.scale)
            scaler.step(run.optimizer)
            scaler.update()

    _assert_workers_agree_with_ddp(loop, replicated_sgd)


@torch.no_grad()
def _shrink(model: nn.Module) -> None:
    for p in model.parameters():
        p.mul_(0.9)


@torch.no_grad()
def _embedding_like(model: nn.Module) -> None:
    for p in model.parameters():
        p[:2] = 0.5


def _clip_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.clamp_(-0.01, 0.01)


@torch.no_grad()
def _foreach(model: nn.Module) -> None:
    torch._foreach_mul_(list(model.parameters()), 0.9)


@torch.no_grad()
def _out(model: nn.Module) -> None:
    for p in model.parameters():
        torch.mul(p, 0.9, out=p)


@torch.no_grad()
def _swap_with_average(model: nn.Module) -> None:
    for p in model.parameters():
        average = p.detach().clone().mul_(0.5)
        p.copy_(average)


def _load(model: nn.Module) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def _write_after_reading(model: nn.Module) -> None:
    model.loss(50)  # a forward has waited for the gathers, not for what is still being sent
    _shrink(model)


def _write_through_a_view(model: nn.Module) -> None:
    rows = [p.detach() for p in model.parameters()]
    for row in rows:
        row.view(-1)[::2].neg_()


def _reinitialize(model: nn.Module) -> None:
    for p in model.parameters():
        nn.init.constant_(p, 0.01)


WRITERS: dict[str, Callable[[nn.Module], None]] = {
    "in place": _shrink,
    "indexed": _embedding_like,
    "through data": _clip_data,
    "foreach": _foreach,
    "out=": _out,
    "an average swapped in": _swap_with_average,
    "load_state_dict": _load,
    "after a forward": _write_after_reading,
    "through a view": _write_through_a_view,
    "nn.init": _reinitialize,
}


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("name", WRITERS)
@on_workers(2)
def test_a_parameter_written_right_after_step_does_not_make_workers_diverge(name: str, enabled: bool) -> None:
    def loop(run: Run) -> None:
        for step in range(STEPS):
            run.train(1, first=step)
            WRITERS[name](run.model)

    _assert_workers_agree_with_ddp(loop, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), enabled=enabled)
