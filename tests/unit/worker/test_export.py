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
from weft.errors import InputError
from weft.worker.export import export


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


def test_the_command_writes_the_file_and_says_what_is_in_it(trained: tuple[nn.Module, Path], tmp_path: Path) -> None:
    out = tmp_path / "model.pt"
    command = [sys.executable, "-m", "weft", "checkpoint", "export", str(trained[1]), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 2
    assert torch.load(out, weights_only=True).keys() == trained[0].state_dict().keys()


@pytest.mark.parametrize("out", ["nowhere/model.pt", "nowhere/model.safetensors", "."])
def test_a_file_that_cannot_be_written_gives_one_line_and_no_traceback(
    trained: tuple[nn.Module, Path], tmp_path: Path, out: str
) -> None:
    command = [sys.executable, "-m", "weft", "checkpoint", "export", str(trained[1]), "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"weft: {out}: --out: ")
    with pytest.raises(OSError):
        export(trained[1], tmp_path / "nowhere" / "model.pt")


def test_the_command_reports_a_refusal_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft", "checkpoint", "export", str(tmp_path), "--out", str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"{tmp_path} holds no checkpoint" in done.stderr
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_the_exported_file_loads_into_the_model_without_weft(
    trained: tuple[nn.Module, Path], name: str, tmp_path: Path
) -> None:
    model, folder = trained
    out = tmp_path / name
    assert export(folder, out)["step"] == 2
    if name.endswith(".pt"):
        state = torch.load(out, weights_only=True)
    else:
        state = pytest.importorskip("safetensors.torch").load_file(out)
    twin = TiedNet()
    twin.load_state_dict(state)
    for key, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[key], value), key


def test_a_model_that_is_not_there_is_refused_with_the_names_that_are(
    trained: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"holds no model 'teacher' \(it has model\)"):
        export(trained[1], tmp_path / "model.pt", "teacher")
    assert not (tmp_path / "model.pt").exists()
