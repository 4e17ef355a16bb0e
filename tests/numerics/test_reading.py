"""Every read of a parameter sees the new value, no matter how it is read."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from training import Parameters, Run, batch_generator, same_as_ddp
from workers import on_workers


class Words(nn.Module):
    """LSTM passes its weights as a list; the embedding's weight is read without calling the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(F.embedding(tokens, self.embedding.weight))
        return F.linear(self.out(x), self.embedding.weight)

    def loss(self, step: int) -> torch.Tensor:
        tokens = torch.randint(0, 11, (3, 5), generator=batch_generator(step))
        return F.cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("eager", [False, True])
@on_workers(2)
def test_parameters_read_in_unusual_ways_train_as_with_ddp(eager: bool) -> None:
    same_as_ddp(lambda run: run.train(8), Words, eager=eager, bucket_bytes=512)


READERS: dict[str, Callable[[nn.Module, list[nn.Parameter]], list[torch.Tensor]]] = {
    "a list of parameters": lambda model, kept: [p.detach().clone() for p in kept],
    "data": lambda model, kept: [p.data.clone() for p in kept],
    "arithmetic": lambda model, kept: [0.9 * p + 0.0 for p in kept],
    "foreach": lambda model, kept: list(torch._foreach_mul(kept, 1.0)),
    "state_dict": lambda model, kept: [v.clone() for v in model.state_dict().values()],
    "deepcopy": lambda model, kept: list(copy.deepcopy(model).parameters()),
    "deepcopied parameter": lambda model, kept: [copy.deepcopy(p) for p in kept],
    "pickle": lambda model, kept: [pickle.loads(pickle.dumps(p)) for p in kept],  # noqa: S301
    "torch.save": lambda model, kept: _saved(model),
    "numpy": lambda model, kept: [torch.from_numpy(p.detach().numpy().copy()) for p in kept],
    "to": lambda model, kept: [v.clone() for v in model.to("cpu").state_dict().values()],
    "vector": lambda model, kept: [nn.utils.parameters_to_vector(kept)],
    "functional_call": lambda model, kept: [
        torch.func.functional_call(model, dict(model.named_parameters()), torch.ones(1, 7))
    ],
    "tolist": lambda model, kept: [torch.tensor(p.tolist()) for p in kept],
    "indexing": lambda model, kept: [p[0].clone() for p in kept],
    "swapped operands": lambda model, kept: [torch.zeros(()) + p for p in kept],
    "in place from": lambda model, kept: [torch.zeros(p.shape).copy_(p) for p in kept],
    "lerp": lambda model, kept: [torch.zeros(p.shape).lerp_(p.detach(), 0.5) for p in kept],
}


def _saved(model: nn.Module) -> list[torch.Tensor]:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return list(torch.load(file).values())


@pytest.mark.parametrize("eager", [False, True])
@on_workers(2)
def test_reading_a_parameter_right_after_step_gives_the_new_value(eager: bool) -> None:
    def loop(run: Run) -> Parameters:
        kept = list(run.model.parameters())
        found = {}
        for step, (name, read) in enumerate(READERS.items()):
            run.train(1, first=step)
            for number, value in enumerate(read(run.model, kept)):
                found[f"{name} {number}"] = value.detach().clone()
        return found

    same_as_ddp(loop, eager=eager)


class Encoder(nn.Module):
    """In evaluation, one fused kernel for the whole layer, with other rounding than the layer in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)
        return output

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(3, 5, 16, generator=batch_generator(step))).square().mean()


@on_workers(2)
def test_evaluation_right_after_step_uses_the_kernels_it_uses_with_ddp() -> None:
    def loop(run: Run) -> Parameters:
        found = {}
        for step in range(4):
            run.train(1, first=step)
            run.model.eval()
            with torch.no_grad():
                for batch in range(2):
                    x = torch.randn(3, 5, 16, generator=batch_generator(100 + batch))
                    found[f"{step} {batch}"] = run.model(x)
            run.model.train()
        return found

    same_as_ddp(loop, Encoder)
