"""Hugging Face Accelerate: ``model, optimizer = prepare(accelerator, model, optimizer)``.

Accelerate's own ``prepare`` would wrap the model in DDP.  Everything else (loaders, schedulers, ``accumulate``,
``backward``, ``save_state``) stays Accelerate's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import weft


def prepare(
    accelerator: Any, model: nn.Module, optimizer: torch.optim.Optimizer, **overlap: Any
) -> tuple[nn.Module, Any]:
    """What ``accelerator.prepare(model, optimizer)`` returns, with ``weft.overlap`` in place of DDP.

    Args:
        overlap: options of :func:`weft.overlap`, such as ``exact_clipping=True``.

    >>> model, optimizer = prepare(accelerator, model, optimizer)               # doctest: +SKIP
    >>> loader, scheduler = accelerator.prepare(loader, scheduler)              # doctest: +SKIP
    """
    model = accelerator.prepare_model(model, evaluation_mode=True)  # moves the parameters, so overlap comes after it
    attach(model, optimizer, **overlap)
    return model, accelerator.prepare_optimizer(optimizer, device_placement=False)


def attach(model: nn.Module, optimizer: torch.optim.Optimizer, **overlap: Any) -> None:
    """Overlap a model that Accelerate has placed; ``accelerator.accumulate`` finds ``no_sync`` where DDP has it."""
    model.no_sync = weft.overlap(model, optimizer, **overlap).no_sync  # type: ignore[assignment]
