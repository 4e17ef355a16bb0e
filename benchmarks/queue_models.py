"""The models of ``weft bench queue``.  Pure, and quick to import: every start of a job waits for it.

They are layer profiles of real ones, scaled down together with the link: with ``SCALE`` times fewer bytes on a link
that is ``SCALE`` times slower than 10 Gb/s, a step takes as long as with the whole model on the whole link.  A global
batch takes the time that ``weft predict`` gives a device of 40 TFLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.profile_scenarios import MIN_ELEMENTS, joined
from weft.perf.fusion import default_bucket_bytes
from weft.perf.layer_profile import LayerProfile, known_profile

SCALE = 80
LINK_BITS_PER_S = 10e9 / SCALE
DEVICE_FLOPS_PER_S = 40e12
# A layer is a Python call and a sleep: neighbors are joined until this many are left.
MAX_LAYERS = 16
# The default, scaled like everything else, so that it fills as many buckets as with the whole model.
DDP_BUCKET_MB = 25.0 / SCALE


@dataclass(frozen=True, slots=True)
class QueueModel:
    """A layer profile with the global batch that all its jobs train with, whatever their number of workers."""

    profile: str
    global_batch: int
    min_workers: int = 1
    """Fewer devices do not have the memory for it."""

    @property
    def compute_s(self) -> float:
        """A step's forward and backward on one device."""
        return known_profile(self.profile).compute_s(self.global_batch, DEVICE_FLOPS_PER_S)


MODELS = {
    model.profile: model
    for model in (
        QueueModel("resnet50", 256),
        QueueModel("densenet201", 256),
        QueueModel("bert-base", 256, min_workers=2),
    )
}


def weft_bucket_bytes(name: str) -> int:
    """weft's default, scaled likewise: most jobs are over, or resized, before tuning would end."""
    return default_bucket_bytes(4 * known_profile(name).num_elements) // SCALE


@cache
def scaled_profile(name: str) -> LayerProfile:
    """With ``SCALE`` times fewer parameters in at most ``MAX_LAYERS`` layers."""
    whole = joined(known_profile(name), MAX_LAYERS)
    layers = (
        replace(layer, num_elements=max(MIN_ELEMENTS, round(layer.num_elements / SCALE))) for layer in whole.layers
    )
    return replace(whole, layers=tuple(layers))
