"""RNN modules: cuDNN wants their weights in one piece of memory, and scripts ask for it in every forward."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import weft
from training import Run, adamw, assert_same, batch_generator, made, same_as_ddp, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from weft.overlap import rnn_weights
from workers import on_workers


class Speech(nn.Module):
    """An LSTM and a GRU; as many scripts do, forward first has their weights put into one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(14, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.lstm.flatten_parameters()
        self.gru.flatten_parameters()
        return self.head(self.gru(self.lstm(x)[0])[0][:, -1])

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(4, 6, 5, generator=batch_generator(step))).square().mean()


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@on_workers(2)
def test_recurrent_models_that_flatten_in_forward_give_ddp_bits(optimizer: Any) -> None:
    same_as_ddp(lambda run: run.train(5), Speech, optimizer)


def pieces(module: nn.Module) -> int:
    return len({parameter.untyped_storage().data_ptr() for parameter in module.parameters()})


@contextmanager
def like_cudnn() -> Iterator[None]:
    """``flatten_parameters()`` does on the CPU what it does on a GPU: the weights move into one new buffer."""

    def flatten_parameters(module: nn.RNNBase) -> None:
        weights = list(module.parameters())
        buffer = torch.cat([weight.detach().flatten() for weight in weights])
        for weight, values in zip(weights, buffer.split([weight.numel() for weight in weights]), strict=True):
            weight.data = values.view_as(weight)

    with (
        mock.patch.object(nn.RNNBase, "flatten_parameters", flatten_parameters),
        mock.patch.object(rnn_weights, "is_flattened", return_value=True),
    ):
        yield


@on_workers(2)
def test_flattening_leaves_the_weights_where_gathers_write_them() -> None:
    with like_cudnn():
        expected, found = with_ddp(made(Speech), adamw), with_weft(made(Speech), adamw)
        assert pieces(expected.model.lstm) == 1
        for run in (expected, found):
            run.train(4)
        assert_same(found.state(), expected.state())
        assert pieces(found.model.lstm) > 1
        twin = copy.deepcopy(found.model)
        twin.loss(9)  # not overlapped: flattens as usual
        assert pieces(twin.lstm) == 1
        assert found.handle is not None
        found.handle.detach()
        assert pieces(found.model.lstm) == pieces(found.model.gru) == 1
        again = Run(found.model, found.optimizer, handle=weft.overlap(found.model, found.optimizer))
        for run in (expected, again):
            run.train(3, first=4)
        assert_same(again.state(), expected.state())


@on_workers(2)
def test_without_weft_flattening_moves_the_weights() -> None:
    """What the tests above are worth: the fake moves memory as cuDNN does."""
    with like_cudnn(), mock.patch.object(rnn_weights, "is_flattened", return_value=False):
        run = with_weft(made(Speech), sgd)
        with pytest.raises(OverlapError, match=r"lstm\.\w+ was replaced"):
            run.train(1)


@on_workers(2)
def test_a_refused_recurrent_model_gets_its_contiguous_weights_back() -> None:
    with like_cudnn():
        model = made(Speech)
        optimizer = sgd(model)
        optimizer.defaults["lr"] = -1.0  # refused when parts are made for the shards: the weights have moved by then
        with pytest.raises(OverlapError, match="learning rate"):
            weft.overlap(model, optimizer)
        assert pieces(model.lstm) == pieces(model.gru) == 1
        assert "flatten_parameters" not in vars(model.lstm)


@on_workers(2)
def test_the_cost_is_reported_once_and_only_where_there_is_one() -> None:
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("weft.overlap").addHandler(handler)
    try:
        with_weft(made(Speech), sgd).train(2)
        assert told == []
        with like_cudnn():
            with_weft(made(Speech), sgd).train(2)
        assert len(told) == 1
        assert "2 RNN module(s)" in told[0]
        assert "flatten_parameters() does nothing until detach()" in told[0]
    finally:
        logging.getLogger("weft.overlap").removeHandler(handler)
