"""``weft bench overlap --profiles``: popular models with real communication and emulated compute.  Pure; no torch.

A model's layer profile (sizes and shares of compute) is scaled down to ``NUM_PARAMETERS``, and the link with it: bytes
and rate change by the same factor, so the network takes as long as it would with the whole model on a link that much
faster.  Compute is slept through.  Every row says what ``weft predict``'s model says about it.
"""

from __future__ import annotations

from benchmarks.overlap_scenarios import Effort, Scenario, Timed
from weft.perf.layer_profile import PROFILES, Layer, LayerProfile, known_profile
from weft.perf.prediction import TargetCluster, predict

NUM_PARAMETERS = 5_000_000
COMPUTE_S = 1.2
# A layer is a Python call and a sleep: neighbors are joined until this many are left.
MAX_LAYERS = 32
SHAPES = ((2, 1), (4, 1), (8, 1), (2, 2), (2, 4))
# Not weft_eager: it tunes itself for another 60 steps, two minutes of each row.
CONTENDERS = ("alone", "ddp", "ddp_best", "fsdp2", "dear", "weft")
MIN_ELEMENTS = 8
# DeAR with the buckets that the prediction gives it.
EFFORT = Effort(round_budget_s=80.0, dear_sweep_mb=(25.0,))


def profiles_run(effort: Effort | None = None) -> list[Scenario]:
    """Five models on 2, 4 and 8 hosts, and on 2 hosts of 2 and 4 workers."""
    return [
        Scenario(name, hosts, 1.0, CONTENDERS, effort or EFFORT, timed_like(name), workers)
        for name in PROFILES
        for hosts, workers in SHAPES
    ]


def timed_like(name: str) -> Timed:
    """The timed model with that profile's layers."""
    profile = joined(known_profile(name), MAX_LAYERS)
    factor = profile.num_elements / NUM_PARAMETERS
    forward_s = COMPUTE_S * profile.forward_share
    layers = tuple(
        (
            max(MIN_ELEMENTS, round(layer.num_elements / factor)),
            layer.forward_share * forward_s,
            layer.backward_share * (COMPUTE_S - forward_s),
        )
        for layer in profile.layers
    )
    return Timed(sum(size for size, _, _ in layers), len(layers), COMPUTE_S, layers)


def joined(profile: LayerProfile, max_layers: int) -> LayerProfile:
    """Consecutive layers as one, of about equal size in bytes and time together."""
    total = profile.num_elements
    weights = [layer.num_elements / total + layer.forward_share + layer.backward_share for layer in profile.layers]
    groups: list[list[Layer]] = [[] for _ in range(max_layers)]
    passed = 0.0
    for layer, weight in zip(profile.layers, weights, strict=True):
        groups[min(int(passed / 3 * max_layers), max_layers - 1)].append(layer)
        passed += weight
    layers = tuple(
        Layer(
            group[0].name,
            sum(layer.num_elements for layer in group),
            sum(layer.forward_share for layer in group),
            sum(layer.backward_share for layer in group),
        )
        for group in groups
        if group
    )
    flops = (profile.forward_flops_per_sample, profile.backward_flops_per_sample)
    return LayerProfile(profile.name, profile.source, *flops, layers)


def predicted_ms(scenario: Scenario, rate_bits_per_s: float) -> dict[str, float]:
    """What the step model says about a row of ``profiles_run``, by contender."""
    timed = scenario.timed
    if timed is None or not timed.layers:
        return {}
    forward_s = sum(forward for _, forward, _ in timed.layers)
    backward_s = timed.compute_s - forward_s
    layers = tuple(Layer("", size, f / forward_s, b / backward_s) for size, f, b in timed.layers)
    step = LayerProfile(scenario.model, "", forward_s, backward_s, layers).step(timed.compute_s)
    num_workers = scenario.num_hosts * scenario.workers_per_host
    rows = predict(step, TargetCluster(num_workers, scenario.workers_per_host, rate_bits_per_s))
    return {row.contender: round(row.step_s * 1e3, 2) for row in rows}
