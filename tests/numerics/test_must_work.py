"""What users do in training loops besides forward, backward, and step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import weft
from training import (
    Parameters,
    Run,
    Tangle,
    Tower,
    adamw,
    assert_close,
    assert_equal_states,
    assert_same,
    batch_generator,
    made,
    same_as_ddp,
    sgd,
    with_ddp,
    with_weft,
)
from workers import gathered, on_workers

ELEMENT_WISE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "sgd plain": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", ELEMENT_WISE)
@on_workers(2)
def test_every_element_wise_optimizer_gets_ddp_numbers_and_state(name: str) -> None:
    def make() -> nn.Module:
        # torch's fused SGD itself fails when some parameters have momentum and others not yet.
        return Tangle(rare_ranks=lambda step: [0, 1] if step == 1 or name == "sgd fused" else [])

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return ELEMENT_WISE[name](model.parameters())

    expected = with_ddp(made(make), optimizer).train(6)
    found = with_weft(made(make), optimizer).train(6)
    assert_same(found.state(), expected.state())
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


class Lamb(torch.optim.Optimizer):
    """Like LAMB: each parameter's step is scaled by norms over the whole of it."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (group["lr"] * p.norm() / (p.grad.norm() + 1e-6)))


class Adam2(torch.optim.Adam):
    """A subclass may do anything in its step."""


REPLICATED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters()),
    "muon": lambda m: torch.optim.Muon(list(m.parameters()), lr=0.01),
    "lamb-like": lambda m: Lamb(m.parameters()),
    "subclass": lambda m: Adam2(m.parameters()),
}


class Matrices(nn.Module):
    """For Muon, which takes matrices only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 9, bias=False), nn.Tanh(), nn.Linear(9, 5, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(4, 7, generator=batch_generator(step))).square().mean()


@pytest.mark.parametrize("name", REPLICATED)
@on_workers(2)
def test_optimizers_that_are_not_element_wise_get_ddp_numbers(name: str) -> None:
    make = Matrices if name == "muon" else Tangle

    def loop(run: Run) -> None:
        run.train(4)
        run.train(3, first=4, accumulate=2)
        run.train(2, first=7, clip="handle")

    same_as_ddp(loop, make, REPLICATED[name])


@on_workers(2)
def test_lbfgs_with_a_closure_trains_as_with_ddp() -> None:
    def loop(run: Run) -> None:
        for step in range(4):

            def closure(step: int = step) -> torch.Tensor:
                run.optimizer.zero_grad()
                return run.backward(step)

            run.optimizer.step(closure)

    # Line search decides by the loss, which differs between ranks: without one all ranks take the same steps.
    same_as_ddp(loop, optimizer=lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3))


@on_workers(2)
def test_step_with_a_closure_applies_its_gradients_and_returns_its_loss() -> None:
    def loop(run: Run) -> Parameters:
        losses = []
        for step in range(4):

            def closure(step: int = step) -> torch.Tensor:
                run.optimizer.zero_grad()
                return run.backward(step)

            losses.append(run.optimizer.step(closure))
        return {"losses": torch.stack(losses).detach()}

    same_as_ddp(loop)


@pytest.mark.parametrize("fused", [False, True])
@on_workers(2)
def test_an_infinite_gradient_on_one_worker_skips_the_step_on_all(fused: bool) -> None:
    def loop(run: Run) -> Parameters:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        scales = []
        for step in range(6):
            run.optimizer.zero_grad()
            bad = step == 2 and dist.get_rank() == 1
            run.backward(step, lambda loss, bad=bad: scaler.scale(loss) * (float("inf") if bad else 1.0))
            if step % 2 == 0:
                scaler.unscale_(run.optimizer)
            scaler.step(run.optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales[2] < scales[1]
        run.train(2, first=6)  # without the scaler: no trace of it may be left
        return {"scales": torch.tensor(scales)}

    same_as_ddp(loop, Tangle, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=fused))


@on_workers(2)
def test_gradients_sent_in_half_precision_train_almost_like_ddp() -> None:
    expected = with_ddp(made(Tower), sgd).train(20)
    found = with_weft(made(Tower), sgd, comm_dtype=torch.bfloat16).train(20)
    assert_close(found.parameters(), expected.parameters(), tolerance=2e-2)
    states = gathered(found.parameters())
    assert_same(states[0], states[1])


class Mixed(nn.Module):
    """Three dtypes; the order of gradients is not the reverse of the order of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(6, 50)
        self.high = nn.Linear(6, 4, dtype=torch.float64)
        self.low = nn.Linear(50, 5, dtype=torch.bfloat16)
        self.last = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.low(torch.tanh(self.middle(x)).bfloat16()).float().sum()
        return self.last(self.high(x.double())).float().tanh().sum() * wide

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(4, 6, generator=batch_generator(step)))


class Late(Mixed):
    """The dtype that is ready first is the one that stands first in the model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.last(self.high(x.double())).float().tanh().sum()
        return self.middle(x).tanh().sum() * wide + self.low(self.middle(x).bfloat16()).float().sum().sin()


@pytest.mark.parametrize("make", [Mixed, Late])
@on_workers(2)
def test_parameters_of_several_dtypes_train_as_with_ddp(make: type) -> None:
    same_as_ddp(lambda run: run.train(8), make, bucket_bytes=128)
    same_as_ddp(lambda run: run.train(8), make, tune=True)


class Pictures(nn.Module):
    """channels_last convolutions, BatchNorm, a scalar and an empty parameter, a mask and a counter as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3))
        self.to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(6, 4).t())
        self.gain = nn.Parameter(torch.ones(()))
        self.nothing = nn.Parameter(torch.zeros(0))
        self.register_buffer("mask", torch.rand(6) < 0.5)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolutions(x.contiguous(memory_format=torch.channels_last)).mean((2, 3)) * self.mask
        y = F.linear(y, self.transposed) * self.gain
        if self.training:
            self.count += 1
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)  # a new tensor under the old name
        return (y - self.mean).square().mean() + self.nothing.sum()

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(3, 3, 7, 7, generator=batch_generator(step)))


@on_workers(2)
def test_channels_last_and_odd_parameters_and_buffers_train_as_with_ddp() -> None:
    def loop(run: Run) -> None:
        run.train(6)
        run.model.eval()
        with torch.no_grad():  # DDP shares buffers when a forward begins
            (run.ddp(99) if run.ddp else run.model.loss(99)).item()

    found = same_as_ddp(loop, Pictures)
    assert found.model.convolutions[0].weight.is_contiguous(memory_format=torch.channels_last)
    buffers = gathered({name: buffer.clone() for name, buffer in found.model.named_buffers()})
    assert_same(buffers[0], buffers[1])


class Normed(nn.Module):
    """BatchNorm between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


@on_workers(2)
def test_buffers_do_not_wait_behind_the_gathers() -> None:
    model = made(Normed)
    optimizer = sgd(model)
    handle = weft.overlap(model, optimizer, tune=False)
    transport = handle.schedule.transport
    sent: list[str] = []
    for name in ("broadcast", "launch_gather"):
        original = getattr(transport, name)
        setattr(transport, name, lambda *args, name=name, original=original: (sent.append(name), original(*args))[1])
    for _ in range(3):
        sent.clear()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        assert "launch_gather" in sent
        assert sent.index("broadcast") < sent.index("launch_gather"), sent
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
@on_workers(2)
def test_buffers_changed_in_a_closure_are_those_of_rank_0(kind: str) -> None:
    """SGD's update is sharded, that of LBFGS replicated."""
    model = made(Normed)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    weft.overlap(model, optimizer, tune=False)
    torch.manual_seed(dist.get_rank())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    own = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        model.eval()(torch.zeros(4, 8))  # finishes what is in flight, and changes nothing
    assert_same(gathered(own)[0], dict(model.named_buffers()))


def _interrupted_backward(run: Run, step: int) -> None:
    def interrupt(gradient: torch.Tensor) -> None:
        raise KeyboardInterrupt

    hook = run.model.layers[2].weight.register_hook(interrupt)
    run.optimizer.zero_grad()
    with pytest.raises(KeyboardInterrupt):
        run.backward(step)
    hook.remove()


@on_workers(2)
def test_an_exception_during_backward_loses_only_that_step() -> None:
    expected = with_ddp(made(Tower), adamw).train(3).train(4, first=4)
    found = with_weft(made(Tower), adamw).train(3)
    _interrupted_backward(found, 3)
    found.train(4, first=4)
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_an_exception_in_an_eager_backward_says_that_a_checkpoint_is_needed_and_takes_it() -> None:
    expected = with_ddp(made(Tower), sgd).train(6)
    found = with_weft(made(Tower), sgd, eager=True).train(3)
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)  # worker 1 is completing the interrupted step; this one wants the state before it
    saved = copy.deepcopy((found.model.state_dict(), found.optimizer.state_dict()))
    _interrupted_backward(found, 3)
    if dist.get_rank() == 1:
        dist.send(torch.zeros(1), 0)
    with pytest.raises(weft.errors.OverlapError, match="load the last checkpoint"):
        found.backward(3)
    found.model.load_state_dict(saved[0])
    found.optimizer.load_state_dict(saved[1])
    found.train(3, first=3)
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_zeroing_gradients_in_place_trains_as_with_ddp() -> None:
    def loop(run: Run) -> None:
        for step in range(6):
            run.backward(step)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=False)

    # An unused parameter then has a gradient of zero, and decay and momentum still apply.
    same_as_ddp(loop, Tangle, sgd)


@on_workers(2)
def test_a_scripted_submodule_sees_new_values() -> None:
    def make() -> nn.Module:
        model = Tower()
        model.layers[2] = torch.jit.script(model.layers[2])
        return model

    with_script = with_weft(_quietly(make), adamw).train(6)
    assert_same(with_script.state(), with_ddp(made(Tower), adamw).train(6).state())


def _quietly(make: Callable[[], nn.Module]) -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and still in use
        return made(make)


@on_workers(2)
def test_loading_a_model_while_gathers_are_in_flight_trains_as_with_ddp() -> None:
    def loop(run: Run) -> None:
        run.train(2)
        saved = copy.deepcopy(run.model.state_dict())
        run.train(2, first=2)
        run.model.load_state_dict(saved)
        run.train(2, first=4)

    same_as_ddp(loop)


@on_workers(2)
def test_a_moving_average_updated_right_after_each_step_is_that_of_ddp() -> None:
    def loop(run: Run) -> Parameters:
        average = torch.optim.swa_utils.AveragedModel(
            run.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        for step in range(5):
            run.train(1, first=step)
            average.update_parameters(run.model)
        return {name: p.detach().clone() for name, p in average.named_parameters()}

    same_as_ddp(loop)


@on_workers(2)
def test_detached_models_keep_training_as_plain_models() -> None:
    found = with_weft(made(Tower), adamw).train(3)
    assert found.handle is not None
    found.handle.detach()
    alone = copy.deepcopy(found.model)
    optimizer = adamw(alone)
    optimizer.load_state_dict(copy.deepcopy(found.optimizer.state_dict()))
    for model, o in ((found.model, found.optimizer), (alone, optimizer)):
        for step in range(3):
            o.zero_grad()
            model.loss(step).backward()
            assert type(next(model.parameters()).grad) is torch.Tensor
            o.step()
    assert_same(found.state(), alone.state_dict())
    states = gathered(found.parameters())
    assert not torch.equal(states[0]["layers.0.weight"], states[1]["layers.0.weight"])
    assert all(type(p) is nn.Parameter for p in found.model.parameters())
    expected = with_ddp(made(Tower), adamw).train(3)
    again = with_weft(made(Tower), adamw).train(2)
    assert again.handle is not None
    again.handle.detach()
    again.handle = weft.overlap(again.model, again.optimizer, eager=True, bucket_bytes=512)
    again.train(1, first=2)
    assert_same(again.state(), expected.state())


@on_workers(2)
def test_detach_works_after_a_forward_without_backward() -> None:
    found = with_weft(made(Tower), adamw, eager=True).train(3)
    found.model.loss(3)
    assert found.handle is not None
    found.handle.detach()
    assert_same(found.state(), with_ddp(made(Tower), adamw).train(3).state())


@on_workers(2)
def test_full_gradients_are_the_averaged_ones() -> None:
    expected, found = with_ddp(made(Tangle), sgd), with_weft(made(Tangle), sgd)
    assert found.handle is not None
    for run in (expected, found):
        run.backward(1)
    for mine, theirs in zip(found.model.parameters(), expected.model.parameters(), strict=True):
        if mine.requires_grad:
            assert torch.equal(found.handle.full_gradient(mine), theirs.grad)
    for run in (expected, found):
        run.optimizer.step()
    assert_same(found.state(), expected.state())
