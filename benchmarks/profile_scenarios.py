"""``weft bench overlap --profiles``: popular models with real communication and emulated compute.  Pure; no torch.

A model's layer profile (sizes and shares of compute) is scaled down to ``PARAMETERS_PER_S`` for each second of compute,
and the link and the default buckets of DDP and DeAR with it: bytes and rate change by the same factor, so the network
takes as long as it would with the whole model on a link that much faster.  Compute is emulated by
sleeping.  Every row carries what ``weft predict``'s model says about it, given the row's measured compute time and
latency, as a user would give it those of their cluster.

[Note: how long]  weft tunes itself for 55 to 58 steps and is timed after that, so a row takes as long as its steps.
Short ones would measure the shaper, which lets 128 KB pass at once, and with eight workers the cores.  Layouts come in
order of value, for a run with a limit.

[Note: who is compared]  Every layout has DDP, DeAR, and asynchronous FSDP2; synchronous FSDP2, which was slower in
every row on two hosts, is only measured there.  The 90 minutes of `scripts/bench all` have room for all 25 rows with
these peers because of what is left for a second run: the second and third round of the queue, the rows of
`weft bench overlap` whose ratio is not 1, and more rounds of the others.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.overlap_bounds import StepShape
from benchmarks.overlap_scenarios import Effort, Scenario, Timed
from weft.perf.layer_profile import PROFILES, Layer, LayerProfile, known_profile
from weft.perf.prediction import TargetCluster, predict

FULL_MINUTES = 28.0
# 134 Mb/s between two hosts where the network takes as long as compute.
PARAMETERS_PER_S = 4_200_000
# A layer is a Python call and a sleep: neighbors are joined until this many are left.
MAX_LAYERS = 24
SHAPES = ((2, 1), (2, 2), (4, 1), (2, 4), (8, 1))
# Not weft_eager, which tunes itself for another 60 steps; weft's plan for DDP is compared in `weft bench overlap`.
CONTENDERS = ("alone", "ddp", "ddp_best", "fsdp2_async", "dear", "weft")
MIN_ELEMENTS = 8
DEFAULT_MB = 25.0
EFFORT = Effort(round_budget_s=20.0, max_rounds=6, ddp_sweep_mb=(0.5, 1.0))


def profiles_run() -> list[Scenario]:
    """Five models on 2, 4 and 8 hosts, and on 2 hosts of 2 and 4 workers."""
    found = []
    for hosts, workers in SHAPES:
        for name in PROFILES:
            timed = timed_like(name, compute_s_on(hosts * workers))
            # DeAR with the buckets that the prediction gives it.
            own = replace(EFFORT, dear_sweep_mb=(DEFAULT_MB * timed.bucket_scale,))
            contenders = (*CONTENDERS, "fsdp2") if (hosts, workers) == SHAPES[0] else CONTENDERS
            found.append(Scenario(name, hosts, 1.0, contenders, own, timed, workers, part="profiles"))
    return found


def compute_s_on(num_workers: int) -> float:
    """Compute of one step: longer where more workers share the cores."""
    return 0.25 if num_workers <= 4 else 0.35


def timed_like(name: str, compute_s: float) -> Timed:
    """The timed model with that profile's layers."""
    profile = joined(known_profile(name), MAX_LAYERS)
    scale = PARAMETERS_PER_S * compute_s / profile.num_elements
    forward_s = compute_s * profile.forward_share
    layers = tuple(
        (
            max(MIN_ELEMENTS, round(layer.num_elements * scale)),
            layer.forward_share * forward_s,
            layer.backward_share * (compute_s - forward_s),
        )
        for layer in profile.layers
    )
    return Timed(sum(size for size, _, _ in layers), len(layers), compute_s, layers, scale)


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
    return replace(profile, layers=layers)


def predicted_ms(scenario: Scenario, rate_bits_per_s: float, shape: StepShape, latency_s: float) -> dict[str, float]:
    """What the step model says about a row of ``profiles_run``, by contender.

    ``shape``: a step alone, as measured in the row; ``latency_s``: from one worker to the next, likewise.
    """
    timed = scenario.timed
    if timed is None or not timed.layers:
        return {}
    forward_s = sum(forward for _, forward, _ in timed.layers)
    backward_s = timed.compute_s - forward_s
    layers = tuple(Layer("", size, f / forward_s, b / backward_s) for size, f, b in timed.layers)
    profile = LayerProfile(scenario.model, "", shape.forward_s, shape.backward_s, layers)
    step = replace(
        profile.step(shape.forward_s + shape.backward_s),
        update_s_per_element=shape.update_s / timed.num_parameters,
    )
    num_workers = scenario.num_hosts * scenario.workers_per_host
    cluster = TargetCluster(num_workers, scenario.workers_per_host, rate_bits_per_s, latency_s)
    rows = predict(step, cluster, bucket_scale=timed.bucket_scale)
    return {row.contender: round(row.step_s * 1e3, 2) for row in rows}
