"""Passes logged metrics on to TensorBoard or W&B.  Imports neither: it uses the writer that the script created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from weft.errors import UsageError


@runtime_checkable
class ScalarWriter(Protocol):
    """Like TensorBoard's ``SummaryWriter``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


@runtime_checkable
class RunWriter(Protocol):
    """Like a W&B run."""

    def log(self, data: dict[str, float], *, step: int) -> Any: ...


def write_metrics(writer: object, metrics: Mapping[str, Any], step: int) -> None:
    """Write each value; reading one from a GPU waits for it."""
    # A loss that was not detached is fine here, but torch would warn about it at every step.
    values = {name: float(value.detach() if hasattr(value, "detach") else value) for name, value in metrics.items()}
    if isinstance(writer, ScalarWriter):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    elif isinstance(writer, RunWriter):
        writer.log(values, step=step)
    else:
        raise UsageError(
            f"run.log(to=...) was given a {type(writer).__name__}: expected a TensorBoard SummaryWriter (add_scalar) "
            "or a W&B run (log)"
        )
