"""Several optimizers on one model, and parameters in none of them: DDP's numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from training import (
    Run,
    Several,
    Tangle,
    Tower,
    adamw,
    assert_close,
    assert_differ,
    assert_equal_states,
    assert_same,
    left_as_it_was,
    made,
    same_as_ddp,
    with_ddp,
    with_weft,
)
from weft.errors import OverlapError
from weft.worker.shards import capture_own, capture_replicated, register, restore
from workers import gathered, on_workers


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() == 2]


def others(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() != 2]


def muon_and_adamw(model: nn.Module) -> Any:
    return Several(
        [torch.optim.Muon(matrices(model), lr=0.01), torch.optim.AdamW(others(model), lr=3e-3, weight_decay=0.1)]
    )


def sgd_and_adam(model: nn.Module) -> Any:
    first, *rest = model.parameters()
    return Several([torch.optim.SGD(rest, lr=0.05, momentum=0.9), torch.optim.Adam([first], lr=3e-3)])


def three(model: nn.Module) -> Any:
    first, *rest = others(model)
    return Several(
        [
            torch.optim.Adam([first], lr=3e-3),
            torch.optim.Muon(matrices(model), lr=0.01),
            torch.optim.SGD(rest, lr=0.05, momentum=0.9),
        ]
    )


RECIPES = {make.__name__: make for make in (muon_and_adamw, sgd_and_adam, three)}


@pytest.mark.parametrize("make", [Tower, Tangle])
@pytest.mark.parametrize("recipe", sorted(RECIPES))
@on_workers(2)
def test_several_optimizers_get_ddp_numbers_and_state_bit_for_bit(recipe: str, make: Any) -> None:
    expected, found = with_ddp(made(make), RECIPES[recipe]), with_weft(made(make), RECIPES[recipe])
    for run in (expected, found):
        run.train(5)
        run.train(3, first=5, accumulate=2)
    assert_same(found.state(), expected.state())
    for mine, theirs in zip(found.optimizer, expected.optimizer, strict=True):
        assert_equal_states(mine.state_dict(), theirs.state_dict())


@on_workers(2)
def test_two_optimizers_stay_ddps_while_one_of_them_is_tuned() -> None:
    same_as_ddp(lambda run: run.train(45), Tower, muon_and_adamw, tune=True)


@on_workers(2)
def test_two_element_wise_optimizers_can_be_eager() -> None:
    same_as_ddp(lambda run: run.train(8), Tower, sgd_and_adam, eager=True)


@pytest.mark.parametrize("clip", ["torch", "handle"])
@pytest.mark.parametrize("recipe", sorted(RECIPES))
@on_workers(2)
def test_gradients_of_all_optimizers_are_clipped_together(recipe: str, clip: str) -> None:
    expected, found = with_ddp(made(Tower), RECIPES[recipe]), with_weft(made(Tower), RECIPES[recipe])
    unclipped = with_ddp(made(Tower), RECIPES[recipe]).train(4).state()
    for run in (expected, found):
        run.train(4, clip=clip)
    assert_close(found.state(), expected.state())
    assert_differ(found.state(), unclipped)
    norms = []
    for run in (expected, found):
        run.backward(9)
        norms.append(run.clip(clip))
    torch.testing.assert_close(norms[1], norms[0])


def _first_every_second_time(run: Run) -> Run:
    """The first optimizer's gradients add up over two passes; the second one's are used each time."""
    first, second = run.optimizer
    for step in range(7):
        run.backward(step)
        second.step()
        second.zero_grad()
        if step % 2:
            first.step()
            first.zero_grad()
    return run


@on_workers(2)
def test_a_replicated_optimizer_stepped_every_second_time_has_ddp_bits() -> None:
    same_as_ddp(_first_every_second_time, Tower, muon_and_adamw)


@on_workers(2)
def test_a_sharded_optimizer_stepped_every_second_time_follows_ddp_to_rounding() -> None:
    expected, found = (_first_every_second_time(make(made(Tower), sgd_and_adam)) for make in (with_ddp, with_weft))
    assert_close(found.state(), expected.state())


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@on_workers(2)
def test_one_scaler_skips_both_optimizers_on_every_worker(recipe: str) -> None:
    def loop(run: Run) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        for step in range(6):
            broken = step == 2 and dist.get_rank() == 1
            run.backward(step, lambda loss, broken=broken: scaler.scale(loss * float("inf") if broken else loss))
            for optimizer in run.optimizer:
                scaler.step(optimizer)
            scaler.update()
            run.optimizer.zero_grad()

    same_as_ddp(loop, Tower, RECIPES[recipe])


class Orphaned(Several):
    """Some parameters are in no optimizer; the script updates them by hand."""

    by_hand: list[nn.Parameter]

    def step(self) -> None:
        super().step()
        with torch.no_grad():
            for parameter in self.by_hand:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.1)
                    parameter.grad = None


def orphaned(model: nn.Module) -> Any:
    rest = [p for name, p in model.named_parameters() if not name.endswith("bias") and p.requires_grad]
    made = Orphaned([torch.optim.AdamW(rest, lr=3e-3)])
    made.by_hand = [p for name, p in model.named_parameters() if name.endswith("bias") and p.requires_grad]
    return made


@pytest.mark.parametrize("make", [Tower, Tangle])
@on_workers(2)
def test_gradients_of_parameters_in_no_optimizer_are_averaged_as_ddp_does(make: Any) -> None:
    def loop(run: Run) -> dict[str, torch.Tensor]:
        run.train(4)
        run.train(2, first=4, accumulate=2)
        run.backward(9)
        return {n: p.grad.clone() for n, p in run.model.named_parameters() if n.endswith("bias") and p.grad is not None}

    same_as_ddp(loop, make, orphaned)


@on_workers(2)
def test_gradients_that_are_never_zeroed_add_up_as_with_ddp() -> None:
    def loop(run: Run) -> dict[str, torch.Tensor]:
        run.train(4)  # zeroes only those of its optimizer
        return {n: p.grad.clone() for n, p in run.model.named_parameters() if n.endswith("bias")}

    def left_alone(model: nn.Module) -> Any:
        return orphaned(model)[0]

    same_as_ddp(loop, Tower, left_alone)


@on_workers(2)
def test_a_worker_without_a_backward_takes_part_in_all_optimizers() -> None:
    found, reference = with_weft(made(Tower), three), with_weft(made(Tower), three, enabled=False)
    for run in (found, reference):
        for step in range(4):
            if step != 2 or dist.get_rank() == 0:
                run.backward(step)
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert_same(found.state(), reference.state())
    assert_same(*gathered(found.parameters()))


@on_workers(2)
def test_states_are_loaded_into_each_optimizer() -> None:
    expected, found = with_ddp(made(Tower), three).train(3), with_weft(made(Tower), three).train(3)
    saved = [optimizer.state_dict() for optimizer in found.optimizer]
    resumed = with_weft(made(Tower), three)
    resumed.model.load_state_dict(found.state())
    for optimizer, state in zip(resumed.optimizer, saved, strict=True):
        optimizer.load_state_dict(state)
    assert_same(resumed.train(3, first=3).state(), expected.train(3, first=3).state())


@on_workers(2)
def test_after_detach_all_optimizers_are_plain_optimizers(tmp_path: Any) -> None:
    run = with_weft(made(Tower), three).train(3)
    assert run.handle is not None
    with run.handle.trace(tmp_path / f"{dist.get_rank()}.json"):
        run.train(1, first=3)
    assert run.handle.report().num_steps == 4
    gradient = made(Tower)
    run.backward(9)
    for parameter in run.model.parameters():
        assert run.handle.full_gradient(parameter).shape == parameter.shape
    run.optimizer.zero_grad()
    run.handle.detach()
    expected = with_ddp(gradient, three).train(4)
    run.ddp = with_ddp(run.model, three).ddp
    assert_same(run.train(2, first=4).state(), expected.train(2, first=4).state())


def in_two(model: nn.Module) -> Any:
    return [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(matrices(model))]


def nothing_to_train(model: nn.Module) -> Any:
    unused = next(model.parameters()).requires_grad_(False)
    return [torch.optim.SGD(list(model.parameters())[1:], lr=0.1), torch.optim.Adam([unused])]


REFUSALS: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "in_two": (in_two, "is in two optimizers, 0 and 1"),
    "nothing": (nothing_to_train, r"optimizer 1 \(Adam\) has no parameter that requires a gradient"),
    "empty": (lambda model: [], "list of optimizers given to weft.overlap is empty"),
    "no_optimizer": (lambda model: [adamw(model), 3], "is a int, expected"),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
@on_workers(2)
def test_optimizers_that_do_not_fit_are_refused(case: str) -> None:
    model = made(Tower)
    make, message = REFUSALS[case]
    optimizers = make(model)
    with (
        left_as_it_was(model, optimizers[0] if optimizers else adamw(model)),
        pytest.raises(OverlapError, match=message),
    ):
        weft.overlap(model, optimizers)


@on_workers(2)
def test_a_session_checkpoint_keeps_the_state_of_every_optimizer() -> None:
    def registered(run: Run) -> Any:
        return register({"model": run.model, **{f"optimizer_{k}": o for k, o in enumerate(run.optimizer)}})

    run, resumed = with_weft(made(Tower), three).train(3), with_weft(made(Tower), three)
    parts = list(gathered(capture_own(registered(run), dist.get_rank(), 2)))
    replicated = gathered(capture_replicated(registered(run)))[0]
    restore(registered(resumed), parts, replicated)
    assert_same(resumed.train(3, first=3).state(), run.train(3, first=3).state())
