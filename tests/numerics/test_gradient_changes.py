"""Changes to p.grad between backward() and step() count as with DDP, bit for bit, or are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from training import Run, Tangle, Tower, adamw, made, same_as_ddp, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from workers import on_workers

Change = Callable[[list[nn.Parameter]], Any]


def _noise(p: torch.Tensor, seed: int = 3) -> torch.Tensor:
    return torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(seed + p.numel()))


def _each(change: Callable[[Any], Any]) -> Change:
    def apply(parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            if p.grad is not None:
                change(p)

    return apply


def _add_in_place(p: Any) -> None:
    p.grad += 0.01 * p.detach()


def _assign(p: Any) -> None:
    p.grad = _noise(p)


def _assign_other_strides(p: Any) -> None:
    if p.dim() == 2:
        p.grad = _noise(p.t()).t()


def _take_away(p: Any) -> None:
    if p.dim() == 1:
        p.grad = None


def _take_away_for_a_moment(p: Any) -> None:
    kept, p.grad = p.grad, None
    p.grad = kept


def _add_outside_no_grad(p: Any) -> None:
    p.grad.add_(0.01 * p)


def _noise_like(p: Any) -> None:
    torch.manual_seed(p.numel())
    p.grad.add_(torch.randn_like(p.grad), alpha=0.01)


CHANGES: dict[str, Change] = {
    "weight decay": _each(lambda p: p.grad.add_(p.detach(), alpha=0.1)),
    "weight decay, with a graph": _each(_add_outside_no_grad),
    "+=": _each(_add_in_place),
    "data": _each(lambda p: p.grad.data.add_(p.data)),
    "add a number": _each(lambda p: p.grad.add_(0.01)),
    "sub": _each(lambda p: p.grad.sub_(_noise(p), alpha=0.5)),
    "mul by a number": _each(lambda p: p.grad.mul_(0.3)),
    "mul by a mask": _each(lambda p: p.grad.mul_(_noise(p) > 0)),
    "mul by a row": _each(lambda p: p.grad.mul_(_noise(p)[:1])),
    "mul by itself": _each(lambda p: p.grad.mul_(p.grad)),
    "div by a number": _each(lambda p: p.grad.div_(3)),
    "div by a tensor": _each(lambda p: p.grad.div_(_noise(p).abs() + 1)),
    "div by a scalar tensor": _each(lambda p: p.grad.div_(torch.tensor(3.0))),
    "clamp": _each(lambda p: p.grad.data.clamp_(-1e-3, 1e-3)),
    "clip_grad_value_": lambda ps: nn.utils.clip_grad_value_(ps, 1e-3),
    "clip_grad_value_, one by one": lambda ps: nn.utils.clip_grad_value_(ps, 1e-3, foreach=False),
    "masked_fill": _each(lambda p: p.grad.masked_fill_(_noise(p) > 0, 0.0)),
    "copy": _each(lambda p: p.grad.copy_(_noise(p))),
    "fill": _each(lambda p: p.grad.fill_(0.1)),
    "zero": _each(lambda p: p.grad.zero_()),
    "neg": _each(lambda p: p.grad.neg_()),
    "sign": _each(lambda p: p.grad.sign_()),
    "nan_to_num": _each(lambda p: p.grad.nan_to_num_()),
    "addcmul": _each(lambda p: p.grad.addcmul_(_noise(p), p.detach(), value=0.1)),
    "addcdiv": _each(lambda p: p.grad.addcdiv_(_noise(p), _noise(p).abs() + 1, value=0.1)),
    "lerp": _each(lambda p: p.grad.lerp_(p.detach(), 0.1)),
    "noise like the gradient": _each(_noise_like),
    "foreach add": lambda ps: torch._foreach_add_([p.grad for p in ps], [p.detach() for p in ps], alpha=0.1),
    "foreach mul": lambda ps: torch._foreach_mul_([p.grad for p in ps], 0.3),
    "foreach mul, numbers": lambda ps: torch._foreach_mul_([p.grad for p in ps], [0.1 + k for k in range(len(ps))]),
    "foreach mul, tensors": lambda ps: torch._foreach_mul_([p.grad for p in ps], [_noise(p) for p in ps]),
    "foreach div": lambda ps: torch._foreach_div_([p.grad for p in ps], 3.0),
    "foreach clamp": lambda ps: torch._foreach_clamp_max_([p.grad for p in ps], 1e-3),
    "assign": _each(_assign),
    "assign with other strides": _each(_assign_other_strides),
    "None": _each(_take_away),
    "None for a moment": _each(_take_away_for_a_moment),
    "None for all": lambda ps: [setattr(p, "grad", None) for p in ps],
}


def _assert_counted(expected: Run, found: Run, name: str) -> None:
    wrong = [key for key, value in expected.state().items() if not torch.equal(found.state()[key], value)]
    assert not wrong, f"{name}: {wrong}"


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@on_workers(2)
def test_changes_between_backward_and_step_count_as_with_ddp(optimizer: Any) -> None:
    expected, found = with_ddp(made(Tower), optimizer), with_weft(made(Tower), optimizer)
    for step, (name, change) in enumerate(CHANGES.items()):
        for run in (expected, found):
            run.optimizer.zero_grad()
            run.backward(step)
            change(list(run.model.parameters()))
            run.optimizer.step()
        _assert_counted(expected, found, name)


SOME = ["weight decay", "div by a number", "clip_grad_value_", "assign", "None", "zero"]
WAYS = ["scaler", "accumulation", "accumulation without no_sync", "unused parameters", "float64"]


@pytest.mark.parametrize("way", WAYS)
@on_workers(2)
def test_changes_count_with_everything_else_that_happens_to_gradients(way: str) -> None:
    def make() -> nn.Module:
        return Tangle() if way == "unused parameters" else Tower(torch.float64 if way == "float64" else torch.float32)

    expected, found = with_ddp(made(make), sgd), with_weft(made(make), sgd)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=way == "scaler")
    # That a parameter is unused is known only when all gradients have arrived, so its p.grad is not None.
    for step, name in enumerate(n for n in SOME * 2 if way != "unused parameters" or n != "assign"):
        for run in (expected, found):
            parameters = [p for p in run.model.parameters() if p.requires_grad]
            run.optimizer.zero_grad()
            if way == "accumulation":
                with run.no_sync():
                    run.backward(100 + step)
            if way == "accumulation without no_sync":
                run.backward(100 + step)
                CHANGES[name](parameters)
            run.backward(step, scaler.scale)
            scaler.unscale_(run.optimizer)
            CHANGES[name](parameters)
            scaler.step(run.optimizer)
            scaler.update()
        _assert_counted(expected, found, name)


@on_workers(2)
def test_a_gradient_given_to_an_unused_parameter_counts() -> None:
    def loop(run: Run) -> None:
        for step in range(4):
            run.optimizer.zero_grad()
            run.backward(3 * (step // 2))  # no worker uses run.model.rare
            if step % 2 == 0:
                run.model.rare.weight.grad = _noise(run.model.rare.weight)
            run.optimizer.step()

    same_as_ddp(loop, Tangle, sgd)


@on_workers(2)
def test_zeroed_before_step_means_no_update() -> None:
    def loop(run: Run) -> None:
        for step in range(4):
            run.backward(step)
            if step % 2:
                run.optimizer.zero_grad()
            run.optimizer.step()
            run.optimizer.zero_grad()

    same_as_ddp(loop, optimizer=adamw)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda p: p.grad * 2,
    "item": lambda p: p.grad.item(),
    "cpu": lambda p: p.grad.double(),
    "numpy": lambda p: p.grad.numpy(),
    "tolist": lambda p: p.grad.tolist(),
    "clone": lambda p: p.grad.clone(),
    "deepcopy": lambda p: copy.deepcopy(p.grad),
    "pickle": lambda p: pickle.dumps(p.grad),
    "indexing": lambda p: p.grad[0],
    "setitem": lambda p: p.grad.__setitem__(0, 0.0),
    "view": lambda p: p.grad.view(-1),
    "isfinite": lambda p: torch.isfinite(p.grad),
    "rowwise norm": lambda p: p.grad.norm(dim=0, keepdim=True),
    "norm in another dtype": lambda p: torch.linalg.vector_norm(p.grad, dtype=torch.float64),
    "random": lambda p: p.grad.normal_(),
    "exp": lambda p: p.grad.exp_(),
    "out=": lambda p: torch.mul(p.detach(), 2, out=p.grad),
    "data_ptr": lambda p: p.grad.data_ptr(),
    "stack": lambda p: torch.stack([p.grad]),
}


def _answered(name: str, answer: Any) -> None:
    raise AssertionError(f"{name} was answered with {answer!r}")


@on_workers(2)
def test_unanswerable_gradient_reads_are_refused_and_training_continues() -> None:
    def loop(run: Run) -> None:
        for step in range(2):
            run.optimizer.zero_grad()
            run.backward(step)
            if run.handle is not None:
                for name, use in REFUSED.items():
                    for p in list(run.model.parameters())[:2]:
                        with pytest.raises(OverlapError, match="full_gradient"):
                            _answered(name, use(p))
            run.optimizer.step()

    same_as_ddp(loop)


@on_workers(2)
def test_gradients_of_another_parameter_are_refused() -> None:
    run = with_weft(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    first, second = run.model[0].weight, run.model[1].weight
    run.model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(OverlapError, match="another gradient"):
        first.grad.add_(second.grad)
    own, first.grad = first.grad, second.grad
    with pytest.raises(OverlapError, match="assigning a ShardedGradient"):
        run.optimizer.step()
    first.grad = own
    run.optimizer.step()


@pytest.mark.parametrize("name", ["weight decay", "clip_grad_value_", "assign", "None", "zero"])
@on_workers(2)
def test_changes_are_refused_while_eager(name: str) -> None:
    run = with_weft(made(Tower), sgd, eager=True)
    run.train(3)
    run.optimizer.zero_grad()
    run.backward(3)
    with pytest.raises(OverlapError, match="eager=False"):  # noqa: PT012 - at once, or where it would count
        CHANGES[name](list(run.model.parameters()))
        run.optimizer.step()


@on_workers(2)
def test_gradients_that_were_never_averaged_are_not_used_silently() -> None:
    run = with_weft(made(Tower), sgd)
    run.backward(0)
    with run.no_sync():
        run.backward(1)
    for use in (run.optimizer.step, lambda: run.clip("torch"), lambda: next(run.model.parameters()).grad.mul_(2)):
        with pytest.raises(OverlapError, match="never averaged"):
            use()
    run.backward(2)
    run.optimizer.step()


@on_workers(2)
def test_a_hook_that_changes_gradients_during_backward_is_refused() -> None:
    run = with_weft(made(Tower), sgd)
    parameter = next(run.model.parameters())

    def hook(p: Any) -> None:
        p.grad.add_(1.0)

    parameter.register_post_accumulate_grad_hook(hook)
    run.backward(0)
    with pytest.raises(OverlapError, match="a hook added"):
        run.optimizer.step()


@on_workers(2)
def test_replacing_a_gradient_inside_join_is_refused() -> None:
    run = with_weft(made(Tower), sgd)
    assert run.handle is not None
    parameter = next(run.model.parameters())
    with run.handle.join():
        run.backward(0)
        kept, parameter.grad = parameter.grad, _noise(parameter)
        with pytest.raises(OverlapError, match="copy_"):
            run.optimizer.step()
        parameter.grad = kept
        run.optimizer.step()
