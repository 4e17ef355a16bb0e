"""torch.distributed.checkpoint with an overlapped model saves and loads the same as with DDP."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from training import (
    Run,
    Tower,
    adafactor,
    adamw,
    assert_equal_states,
    assert_same,
    grouped,
    made,
    sgd,
    with_ddp,
    with_weft,
)
from workers import call_on_workers, on_workers


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)


OPTIMIZERS = {"sgd": sgd, "adamw": adamw, "fused": fused, "grouped": grouped, "adafactor": adafactor}
FORMATS = {
    "by name": StateDictOptions(),
    "full": StateDictOptions(full_state_dict=True),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
}


def run_with(kind: str, optimizer: str) -> Run:
    return (with_weft if kind == "weft" else with_ddp)(made(Tower), OPTIMIZERS[optimizer])


@functools.cache
def undisturbed(num_workers: int, optimizer: str) -> dict[str, Any]:
    """A run that never saved anything: what DDP gives, or with more workers weft itself."""
    kind = "ddp" if num_workers < 3 else "weft"
    found: dict[str, Any] = call_on_workers(num_workers, train, kind=kind, optimizer=optimizer)[0]
    return found


def train(kind: str, optimizer: str) -> dict[str, Any]:
    run = run_with(kind, optimizer).train(3)
    found = {"saved": run.state(), "state": copy.deepcopy(run.optimizer.state_dict())}
    return {**found, "later": run.train(4, first=3).state()}


def save(kind: str, optimizer: str, form: str, path: str) -> dict[str, Any]:
    """Train three steps, save, train four more; a save must not change anything.

    Without gradients, as after `step(); zero_grad()`: only then does DCP run its own step if the state looks empty.
    """
    run = run_with(kind, optimizer).train(3)
    run.optimizer.zero_grad()
    model, state = get_state_dict(run.model, run.optimizer, options=FORMATS[form])
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=path)
    found = {"saved": run.state(), "state": copy.deepcopy(run.optimizer.state_dict())}
    return {**found, "later": run.train(4, first=3).state()}


def load(kind: str, optimizer: str, form: str, path: str, steps: int = 0) -> dict[str, Any]:
    """Load into an optimizer that has, or has not, made a step."""
    run = run_with(kind, optimizer).train(steps, first=50)
    run.optimizer.zero_grad()
    model, state = get_state_dict(run.model, run.optimizer, options=FORMATS[form])
    whole = {"model": model, "optimizer": state}
    dcp.load(whole, checkpoint_id=path)
    set_state_dict(
        run.model,
        run.optimizer,
        model_state_dict=whole["model"],
        optim_state_dict=whole["optimizer"],
        options=FORMATS[form],
    )
    found = {"saved": run.state(), "state": copy.deepcopy(run.optimizer.state_dict())}
    return {**found, "later": run.train(4, first=3).state()}


def assert_undisturbed(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """A save that advanced the optimizer would write, and later load, the same wrong state everywhere."""
    assert_same(found["saved"], expected["saved"])
    assert_equal_states({**found["state"], "param_groups": []}, {**expected["state"], "param_groups": []})
    assert_same(found["later"], expected["later"])


CASES = [
    ("weft", 2, 2, "adamw", "by name"),
    ("weft", 2, 2, "sgd", "flat"),
    ("weft", 2, 1, "fused", "full"),
    ("weft", 1, 2, "grouped", "flat"),
    ("weft", 3, 2, "adamw", "flat"),
    ("weft", 2, 3, "sgd", "by name"),
    ("weft", 2, 2, "adafactor", "by name"),
    ("weft", 1, 1, "adamw", "by name"),
    ("weft", 3, 3, "grouped", "full"),
    ("weft", 1, 3, "fused", "by name"),
    ("weft", 3, 1, "sgd", "flat"),
    ("ddp", 2, 2, "grouped", "by name"),
    ("ddp", 2, 2, "fused", "flat"),
    ("ddp", 2, 1, "sgd", "full"),
    ("ddp", 1, 2, "adamw", "flat"),
    ("ddp", 2, 3, "adamw", "by name"),
    ("ddp", 1, 1, "fused", "by name"),
    ("ddp", 3, 3, "sgd", "flat"),
    ("ddp", 1, 3, "grouped", "full"),
    ("ddp", 3, 1, "adamw", "full"),
]


@pytest.mark.parametrize(("writer", "num_before", "num_after", "optimizer", "form"), CASES)
def test_ddp_and_weft_read_each_others_checkpoints(
    writer: str, num_before: int, num_after: int, optimizer: str, form: str, tmp_path: Path
) -> None:
    what = {"optimizer": optimizer, "form": form, "path": str(tmp_path / "checkpoint")}
    written = call_on_workers(num_before, save, kind=writer, **what)
    if writer == "weft":
        assert_undisturbed(written[0], undisturbed(num_before, optimizer))
    by_ddp = call_on_workers(num_after, load, kind="ddp", **what)
    by_weft = call_on_workers(num_after, load, kind="weft", steps=2, **what)
    for mine, theirs in zip(by_weft, by_ddp, strict=True):
        assert_same(mine["saved"], written[0]["saved"])
        assert_equal_states(mine["state"], theirs["state"])
        assert_equal_states({**mine["state"], "param_groups": []}, {**written[0]["state"], "param_groups": []})
        if num_after < 3:
            assert_same(mine["later"], theirs["later"])
    if num_before == num_after == 2:
        assert_same(by_weft[0]["later"], written[0]["later"])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adafactor"])
def test_a_checkpoint_is_loaded_into_an_optimizer_that_has_made_no_step(
    optimizer: str, form: str, tmp_path: Path
) -> None:
    what = {"optimizer": optimizer, "form": form, "path": str(tmp_path / "checkpoint")}
    written = call_on_workers(2, save, kind="weft", **what)
    assert_undisturbed(written[0], undisturbed(2, optimizer))
    for mine in call_on_workers(2, load, kind="weft", **what):
        assert_equal_states({**mine["state"], "param_groups": []}, {**written[0]["state"], "param_groups": []})
        assert_same(mine["later"], written[0]["later"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_workers(2)
def test_before_the_first_step_one_worker_alone_sees_the_state_ddp_would_show(
    optimizer: str,
) -> None:
    untouched, found = run_with("ddp", optimizer), run_with("weft", optimizer)
    shown = run_with("ddp", optimizer)
    if dist.get_rank() == 1:
        _, expected = get_state_dict(shown.model, shown.optimizer)
        _, state = get_state_dict(found.model, found.optimizer)
        assert state["state"].keys() == expected["state"].keys()
        for name, entries in expected["state"].items():
            assert state["state"][name].keys() == entries.keys()
            for key, value in entries.items():
                assert torch.equal(state["state"][name][key], value), (name, key)
        assert found.optimizer.state
    for run in (untouched, found):
        run.train(4)
    assert_same(found.state(), untouched.state())
    assert_equal_states(found.optimizer.state_dict(), untouched.optimizer.state_dict())


@on_workers(2)
def test_an_asynchronous_save_keeps_the_state_of_its_step(tmp_path: Path) -> None:
    expected, found = run_with("ddp", "adamw"), run_with("weft", "adamw")
    for run in (expected, found):
        run.train(3)
    before = found.optimizer.state_dict()
    model, state = get_state_dict(found.model, found.optimizer)
    future = dcp.async_save({"model": model, "optimizer": state}, checkpoint_id=str(tmp_path / "checkpoint"))
    found.train(2, first=3)
    future.result()
    model, state = get_state_dict(found.model, found.optimizer)
    whole = {"model": model, "optimizer": state}
    dcp.load(whole, checkpoint_id=str(tmp_path / "checkpoint"))
    set_state_dict(found.model, found.optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"])
    assert_same(found.state(), expected.state())
    assert_equal_states(found.optimizer.state_dict(), before)
    for run in (expected, found):
        run.train(2, first=3)
    assert_same(found.state(), expected.state())
