"""``weft checkpoint export``: what a session saved, as a file that needs no weft."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import TensorDataset

import weft


class TiedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(x)))


@pytest.fixture
def trained(tmp_path: Path) -> tuple[nn.Module, Path]:
    folder = tmp_path / "saved"
    with weft.session(checkpoint_dir=folder) as run:
        model = TiedNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = run.loader(TensorDataset(torch.arange(8) % 5), batch_size=4)
        run.resume(model=model, optimizer=optimizer, data=data)
        for (x,) in run.steps(data, epochs=1):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    return model, folder


def weft_export(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "checkpoint", "export", *args]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_the_exported_file_loads_into_the_model_without_weft(
    trained: tuple[nn.Module, Path], name: str, tmp_path: Path
) -> None:
    model, folder = trained
    out = tmp_path / name
    done = weft_export(str(folder), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 2
    if name.endswith(".pt"):
        state = torch.load(out, weights_only=True)
    else:
        state = pytest.importorskip("safetensors.torch").load_file(out)
    twin = TiedNet()
    twin.load_state_dict(state)
    for key, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[key], value), key


def test_a_folder_without_checkpoints_is_named(tmp_path: Path) -> None:
    done = weft_export(str(tmp_path), "--out", str(tmp_path / "model.pt"))
    assert done.returncode != 0
    assert f"{tmp_path} holds no checkpoint" in done.stderr
    assert not (tmp_path / "model.pt").exists()


def test_a_model_that_is_not_there_is_refused_with_the_names_that_are(
    trained: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    done = weft_export(str(trained[1]), "--model", "teacher", "--out", str(tmp_path / "model.pt"))
    assert "holds no model 'teacher' (it has model)" in done.stderr
