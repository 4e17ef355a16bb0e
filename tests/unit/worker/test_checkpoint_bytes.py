"""Bytes of a checkpoint damaged at random: it is skipped or refused, or what comes back is exactly what was saved."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.worker.test_checkpoint import make_model, newest, save

from weft.errors import CheckpointError
from weft.worker.checkpoint_folder import verify
from weft.worker.checkpointing import load_checkpoint
from weft.worker.shards import register

NEWEST = "step-000000000002"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.nn.Module]]:
    """Two checkpoints, and the models in them."""
    folder = tmp_path_factory.mktemp("saved")
    models = {"step-000000000001": make_model(), NEWEST: make_model()}
    for step, model in enumerate(models.values(), 1):
        save(folder, step, model)
    return folder, models


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    file=st.sampled_from(["rank-00000.pt", "replicated.pt", "manifest.json", "manifest.json"]),
    kind=st.sampled_from(["flip", "flip", "zero", "cut", "grow", "empty"]),
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(1, 255),
)
def test_a_damaged_checkpoint_never_loads_as_something_else(
    saved: tuple[Path, dict[str, torch.nn.Module]], file: str, kind: str, place: float, value: int
) -> None:
    original, models = saved
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "checkpoints")
        shutil.copytree(original, folder)
        data = bytearray((folder / NEWEST / file).read_bytes())
        at = int(place * len(data))
        if kind == "flip":
            data[at] ^= value
        elif kind == "zero":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        elif kind == "cut":
            del data[at:]
        elif kind == "grow":
            data[at:at] = bytes([value]) * 10
        else:
            data.clear()
        (folder / NEWEST / file).write_bytes(data)
        try:
            found = newest(folder, [])
        except CheckpointError:
            return
        assert found is not None
        other = make_model()
        manifest = load_checkpoint(found, register({"model": other}))
        assert manifest == verify(original / found.name)
        expected = models[found.name].parameters()
        assert all(torch.equal(a, b) for a, b in zip(expected, other.parameters(), strict=True))
