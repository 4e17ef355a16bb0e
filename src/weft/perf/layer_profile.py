"""Layer profiles: a model's sizes and shares of compute time, without the model.

Five popular models come with weft (made by ``benchmarks/layer_profiles.py``); any other one is taken from a trace of
its own training (:func:`profile_of_trace`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import median
from typing import Any

from weft.core.chrome_trace import Span
from weft.errors import UsageError
from weft.perf.step_profile import ParameterTiming, StepProfile
from weft.perf.timeline import summarize

PROFILES = ("resnet50", "densenet201", "inception-v4", "bert-base", "bert-large")
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One module with parameters, in the order of a forward."""

    name: str
    num_elements: int
    forward_share: float
    backward_share: float


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """A model's layers, and what one sample costs."""

    name: str
    source: str
    forward_flops_per_sample: float
    backward_flops_per_sample: float
    layers: tuple[Layer, ...]

    @property
    def num_elements(self) -> int:
        return sum(layer.num_elements for layer in self.layers)

    @property
    def forward_share(self) -> float:
        """Forward's share of forward and backward together."""
        total = self.forward_flops_per_sample + self.backward_flops_per_sample
        return self.forward_flops_per_sample / total

    def compute_s(self, batch: int, flops_per_s: float) -> float:
        """Forward and backward of ``batch`` samples on a device that sustains ``flops_per_s``."""
        return batch * (self.forward_flops_per_sample + self.backward_flops_per_sample) / flops_per_s

    def step(self, compute_s: float) -> StepProfile:
        """A step without communication whose forward and backward take ``compute_s`` together."""
        forward_s = compute_s * self.forward_share
        backward_s = compute_s - forward_s
        timings: list[ParameterTiming] = []
        read_s, after_s = 0.0, backward_s
        for layer in self.layers:
            # Backward runs from the last layer to the first: a gradient is ready when its layer is done.
            timings.append(ParameterTiming(layer.num_elements, after_s, read_s))
            read_s += layer.forward_share * forward_s
            after_s = max(0.0, after_s - layer.backward_share * backward_s)
        return StepProfile(tuple(reversed(timings)), forward_s, backward_s, 0.0, ELEMENT_BYTES)


def known_profile(name: str) -> LayerProfile:
    """One of ``PROFILES``."""
    return profile_from_json(json.loads(files("weft.perf").joinpath("profiles", f"{name}.json").read_text()))


def profile_from_json(data: dict[str, Any]) -> LayerProfile:
    """What ``benchmarks/layer_profiles.py`` has written."""
    return LayerProfile(
        data["name"],
        data["source"],
        data["forward_flops_per_sample"],
        data["backward_flops_per_sample"],
        tuple(Layer(*row) for row in data["layers"]),
    )


def profile_of_trace(spans: Sequence[Span]) -> StepProfile:
    """A step as a trace of ``handle.trace`` shows it, without its communication.

    A trace shows buckets, not layers: a bucket counts as one parameter, whose gradient is ready when its reduction is
    launched.  The trace does not say when forward reads it; forward is assumed to go through the buckets in the
    opposite order, at the same pace.
    """
    summaries = summarize(spans)
    if not summaries:
        raise UsageError(
            "this trace has no forward: record one using `with handle.trace(path):` around some training steps"
        )
    first = summaries[0]
    own = [span for span in spans if span.process == first.worker]
    backwards = sorted((s for s in own if s.name == "backward"), key=lambda s: s.start_s)
    ready: dict[str, list[float]] = {}
    sizes: dict[str, float] = {}
    for span in own:
        kind, _, number = span.name.partition(" ")
        launched_s = span.start_s - _number(span, "queued_s")
        begun = [backward for backward in backwards if backward.start_s <= launched_s]
        if kind == "reduce-scatter" and begun:
            ready.setdefault(number, []).append(launched_s - begun[-1].start_s)
            sizes[number] = _number(span, "bucket_bytes")
    buckets = sorted((median(times), sizes[number]) for number, times in ready.items() if sizes[number] > 0)
    if not buckets or not math.isfinite(first.backward_s) or first.backward_s <= 0:
        raise UsageError(
            "this trace shows no reduce-scatter under a backward with its bucket's size: record it on at least two "
            "workers, with this version of weft, using `with handle.trace(path):` around some training steps"
        )
    timings = [
        ParameterTiming(
            max(1, round(size / ELEMENT_BYTES)),
            min(at, first.backward_s),
            first.forward_s * (1 - min(at / first.backward_s, 1.0)),
        )
        for at, size in buckets
    ]
    return StepProfile(tuple(timings), first.forward_s, first.backward_s, 0.0, ELEMENT_BYTES)


def _number(span: Span, name: str) -> float:
    value = span.args.get(name, 0.0)
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0
