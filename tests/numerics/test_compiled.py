"""torch.compile: the numbers of compiled DDP, no compilation after the first steps, and gathers that stay hidden.

Both sides are compiled in the same way: DDP wraps a compiled model, or one with compiled blocks.  ``optimize_ddp`` is
off, because it would cut DDP's graphs, and only DDP's, at its bucket borders, and another graph may round differently.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import weft
from training import Parameters, Run, adamw, assert_same, batch_generator, made, with_ddp, with_weft
from weft.overlap.bucket import Phase
from workers import on_workers

WARM_UP_STEPS = 2


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 24)
        self.outer = nn.Linear(24, width)
        self.checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointed:
            inner: torch.Tensor = checkpoint(lambda y: torch.tanh(self.inner(y)), self.norm(x), use_reentrant=False)
        else:
            inner = torch.tanh(self.inner(self.norm(x)))
        return x + self.outer(inner)


class Stack(nn.Module):
    """Blocks between layers that are not compiled separately, with BatchNorm's buffers at the end."""

    def __init__(self, tied: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(7, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)
        self.call: Callable[[torch.Tensor], torch.Tensor] | None = None
        if tied:
            self.blocks[2].inner.weight = self.blocks[0].inner.weight
        for block in self.blocks:
            block.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))

    def loss(self, step: int) -> torch.Tensor:
        x = torch.randn(5, 7, generator=batch_generator(step))
        return (self if self.call is None else self.call)(x).square().mean()


def _compile(model: Stack, form: str, **options: Any) -> None:
    if form == "blocks":
        for block in model.blocks:
            block.compile(**options)
    elif form == "wrapped blocks":
        for number, block in enumerate(model.blocks):
            model.blocks[number] = torch.compile(block, **options)
    elif form == "forward of blocks":
        for block in model.blocks:
            block.forward = torch.compile(block.forward, **options)
    elif form == "model":
        model.compile(**options)
    elif form == "blocks in model":
        _compile(model, "blocks", **options)
        model.compile(**options)
    elif form == "wrapped model":
        model.__dict__["call"] = torch.compile(model, **options)
    elif form == "function":
        model.__dict__["call"] = torch.compile(lambda x: model(x) * 1.0, **options)
    elif form == "function of parts":

        def through(x: torch.Tensor) -> torch.Tensor:
            return model.last(model.norm(model.blocks[0](model.first(x))))

        model.__dict__["call"] = torch.compile(through, **options)
    else:
        raise ValueError(form)


FORMS = ["blocks", "wrapped blocks", "forward of blocks", "model", "blocks in model", "wrapped model"]


@contextmanager
def _no_compilation() -> Iterator[None]:
    before = counters["stats"]["unique_graphs"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    assert counters["stats"]["unique_graphs"] == before > 0


def _forget_compiled() -> None:
    torch._dynamo.reset()
    counters.clear()
    warnings.filterwarnings("ignore", module=r"torch\.")  # the compiler's own warnings


def _plain_names(state: Parameters) -> Parameters:
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}


def _expected(form: str, steps: int, make: Callable[[], Stack], options: dict[str, Any]) -> Run:
    model = made(make)
    _compile(model, form, **options)
    with torch._dynamo.config.patch(optimize_ddp=False):
        return with_ddp(model, adamw).train(steps)


def _same_as_compiled_ddp(
    form: str,
    *,
    backend: str = "aot_eager",
    late: bool = False,
    make: Callable[[], Stack] = Stack,
    fullgraph: bool = False,
    **settings: Any,
) -> Run:
    _forget_compiled()
    options = {"backend": backend, "fullgraph": fullgraph}
    steps = WARM_UP_STEPS + 6
    expected = _expected(form, steps, make, options)
    _forget_compiled()
    model = made(make)
    if not late:
        _compile(model, form, **options)
    found = with_weft(model, adamw, **settings)
    if late:
        _compile(model, form, **options)
    found.train(WARM_UP_STEPS)
    with _no_compilation():
        found.train(steps - WARM_UP_STEPS, first=WARM_UP_STEPS)
    assert found.losses == expected.losses
    assert_same(_plain_names(found.state()), _plain_names(expected.state()))
    return found


@on_workers(2)
def test_blocks_compiled_by_inductor_train_as_with_compiled_ddp() -> None:
    _same_as_compiled_ddp("blocks", backend="inductor", fullgraph=True)


@pytest.mark.compat
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("form", FORMS)
@on_workers(2)
def test_every_form_compiled_by_inductor_trains_as_with_compiled_ddp(form: str, late: bool) -> None:
    _same_as_compiled_ddp(form, backend="inductor", late=late)


@pytest.mark.compat
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("what", ["tied", "checkpointed"])
@on_workers(2)
def test_tied_and_checkpointed_blocks_compiled_by_inductor_train_as_with_compiled_ddp(what: str, eager: bool) -> None:
    _same_as_compiled_ddp("blocks", backend="inductor", make=lambda: Stack(**{what: True}), eager=eager)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("form", FORMS)
@on_workers(2)
def test_a_model_compiled_before_or_after_overlap_is_compiled_once(form: str, late: bool) -> None:
    _same_as_compiled_ddp(form, late=late, fullgraph=True)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("what", ["tied", "checkpointed"])
@on_workers(2)
def test_tied_weights_and_checkpointing_in_compiled_blocks_train_as_with_compiled_ddp(what: str, eager: bool) -> None:
    _same_as_compiled_ddp("blocks", make=lambda: Stack(**{what: True}), eager=eager)


@on_workers(2)
def test_the_compiled_model_itself_may_be_given_to_overlap() -> None:
    _forget_compiled()
    options = {"backend": "aot_eager"}
    expected = _expected("wrapped model", 8, Stack, options)
    model = torch.compile(made(Stack), **options)
    optimizer = adamw(model)
    found = Run(model, optimizer, handle=weft.overlap(model, optimizer, bucket_bytes=1024))
    model._orig_mod.__dict__["call"] = model
    found.train(WARM_UP_STEPS)
    with _no_compilation():
        found.train(6, first=WARM_UP_STEPS)
    assert_same(_plain_names(found.state()), _plain_names(expected.state()))


@on_workers(2)
def test_a_compiled_function_that_calls_the_model_trains_the_same() -> None:
    _same_as_compiled_ddp("function")


@on_workers(2)
def test_a_compiled_function_that_reads_parts_of_the_model_ends_up_without_recompiling() -> None:
    _forget_compiled()
    options = {"backend": "aot_eager"}
    expected = _expected("function of parts", 12, Stack, options)
    _forget_compiled()
    model = made(Stack)
    _compile(model, "function of parts", **options)
    found = with_weft(model, adamw).train(6)
    with _no_compilation():
        found.train(6, first=6)
    assert_same(found.parameters(), expected.parameters())


@on_workers(2)
def test_a_fullgraph_function_that_calls_the_model_is_refused_with_a_reason() -> None:
    _forget_compiled()
    model = made(Stack)
    _compile(model, "function", backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile the model or its blocks"):
        with_weft(model, adamw).train(1)


@on_workers(2)
def test_gathers_of_later_blocks_are_still_in_flight_when_the_first_compiled_block_runs() -> None:
    _forget_compiled()
    model = made(Stack)
    _compile(model, "blocks", backend="aot_eager", fullgraph=True)
    found = with_weft(model, adamw)
    assert isinstance(found.handle, weft.overlap.Overlap)
    schedule = found.handle.schedule
    number = {id(parameter): n for n, parameter in enumerate(schedule.parameters)}
    seen: list[list[int]] = []

    def waits(block: nn.Module) -> bool:
        buckets = [bucket for p in block.parameters() for bucket in schedule.round.buckets_of[number[id(p)]]]
        return any(bucket.phase is Phase.GATHERING for bucket in buckets)

    def look(*_: Any) -> None:
        seen.append([k for k, block in enumerate(model.blocks) if waits(block)])

    model.first.register_forward_hook(look)
    for block in model.blocks:
        # Right before the block computes: it has waited for its own parameters and for no others.
        block.register_forward_pre_hook(torch._dynamo.disable(look))
    found.train(3)
    assert seen[-4:] == [[0, 1, 2], [1, 2], [2], []]


@on_workers(2)
def test_buckets_of_later_blocks_are_sent_before_backward_reaches_the_first_block() -> None:
    _forget_compiled()
    model = made(Stack)
    _compile(model, "blocks", backend="aot_eager", fullgraph=True)
    found = with_weft(model, adamw)
    launched: list[int] = []
    assert found.handle is not None
    schedule = found.handle.schedule

    def look(*_: Any) -> None:
        launched.append(schedule.round.num_launched)

    model.blocks[0].register_forward_hook(
        torch._dynamo.disable(lambda module, args, output: output.register_hook(look) and None)
    )
    found.train(3)
    assert 0 < launched[-1] < len(schedule.buckets)


@pytest.mark.parametrize("form", ["blocks", "model"])
@on_workers(2)
def test_evaluation_and_state_dicts_in_between_read_new_values(form: str) -> None:
    def loop(run: Run) -> list[torch.Tensor]:
        outputs = []
        x = torch.linspace(-1, 1, 21).reshape(3, 7)
        for step in range(6):
            run.train(1, first=step)
            outputs.append(run.model.state_dict()["last.weight"].clone())
            run.model.eval()
            with torch.no_grad():
                outputs.append(run.model(x))
            run.model.train()
            if step == 3:
                assert run.optimizer.state_dict()["state"]
        return outputs

    _forget_compiled()
    options = {"backend": "aot_eager"}

    def compiled() -> Stack:
        model: Stack = made(Stack)
        model.norm = nn.Identity()  # DDP's running averages differ between workers until its next forward
        _compile(model, form, **options)
        return model

    with torch._dynamo.config.patch(optimize_ddp=False):
        expected = loop(with_ddp(compiled(), adamw))
    found = loop(with_weft(compiled(), adamw))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@on_workers(2)
def test_detach_takes_all_hooks_off_compiled_blocks_and_dynamo() -> None:
    _forget_compiled()
    listeners = list(torch._dynamo.callback.callback_handler.start_callbacks)
    model = made(Stack)
    _compile(model, "blocks", backend="aot_eager")
    found = with_weft(model, adamw).train(2)
    assert found.handle is not None
    found.handle.detach()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch._dynamo.callback.callback_handler.start_callbacks == listeners
    found.backward(3)
    found.optimizer.step()


@on_workers(2)
def test_dynamo_reset_while_training_loses_nothing() -> None:
    _forget_compiled()
    options = {"backend": "aot_eager"}
    expected = _expected("blocks", 8, Stack, options)
    model = made(Stack)
    _compile(model, "blocks", **options)
    found = with_weft(model, adamw).train(4)
    torch._dynamo.reset()
    found.train(4, first=4)
    assert_same(found.state(), expected.state())
