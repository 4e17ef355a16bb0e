"""The model behind ``weft predict``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.chrome_trace import Span
from weft.errors import UsageError
from weft.perf.layer_profile import PROFILES, known_profile, profile_of_trace
from weft.perf.prediction import Predicted, TargetCluster, predict

# Of the real models, in millions.
SIZES = {"resnet50": 25.6, "densenet201": 20.0, "inception-v4": 42.7, "bert-base": 109.5, "bert-large": 335.1}


def rows(cluster: TargetCluster, name: str = "resnet50", compute_s: float = 0.1) -> dict[str, Predicted]:
    return {row.contender: row for row in predict(known_profile(name).step(compute_s), cluster)}


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_have_the_real_models_sizes_and_whole_shares(name: str) -> None:
    profile = known_profile(name)
    assert round(profile.num_elements / 1e6, 1) == SIZES[name]
    assert sum(layer.forward_share for layer in profile.layers) == pytest.approx(1.0, abs=1e-4)
    assert sum(layer.backward_share for layer in profile.layers) == pytest.approx(1.0, abs=1e-4)
    assert 0.3 < profile.forward_share < 0.36  # backward repeats each product twice, but for the first layer


def test_gradients_come_last_layer_first_and_reads_first_layer_first() -> None:
    step = known_profile("bert-base").step(1.0)
    ready = [parameter.ready_s for parameter in step.parameters]
    read = [parameter.read_s for parameter in step.parameters]
    assert ready == sorted(ready)
    assert read == sorted(read, reverse=True)
    assert step.forward_s + step.backward_s == pytest.approx(1.0)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(PROFILES),
    st.sampled_from([(2, 1), (4, 2), (8, 4), (64, 1), (64, 4)]),
    st.sampled_from([1e8, 1e9, 1e10, 1e11]),
)
def test_nobody_beats_the_bound_or_computing_alone(name: str, shape: tuple[int, int], rate: float) -> None:
    found = rows(TargetCluster(*shape, link_bits_per_s=rate), name)
    alone = found["alone"].step_s
    for row in found.values():
        assert row.step_s >= row.bound_s * (1 - 1e-9)
        assert row.step_s >= alone * (1 - 1e-9)
    assert found["ddp_best"].step_s <= found["ddp"].step_s
    assert found["weft"].step_s <= found["dear"].step_s * 1.002


def test_workers_that_share_a_host_share_its_link_only_between_hosts() -> None:
    spread = rows(TargetCluster(8, 1, 1e9))
    shared = rows(TargetCluster(8, 4, 1e9))
    assert shared["weft"].bound_s < spread["weft"].bound_s
    assert shared["ddp"].bound_s == spread["ddp"].bound_s
    alone = rows(TargetCluster(8, 8, 1e9))
    assert alone["weft"].exposed_s < 1e-3


@pytest.mark.parametrize(
    "bad", [(0, 1, 1e9), (6, 4, 1e9), (4, 0, 1e9), (4, 1, 0.0), (4, 1, float("nan")), (9999, 1, 1e9)]
)
def test_a_cluster_that_cannot_be_is_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(UsageError, match="expected"):
        TargetCluster(*bad)


def _trace() -> list[Span]:
    spans = []
    for step in range(3):
        start = step * 1.0
        spans += [
            Span("worker 0", "compute", "forward", start, 0.3),
            Span("worker 0", "compute", "backward", start + 0.3, 0.6),
            Span("worker 0", "compute", "update", start + 0.9, 0.1),
        ]
        for bucket, (at, size) in enumerate([(0.2, 4_000_000), (0.6, 8_000_000)]):
            args = {"bytes": size // 2, "bucket_bytes": size, "queued_s": 0.05}
            begin = start + 0.3 + at + 0.05
            spans.append(Span("worker 0", "communication", f"reduce-scatter {bucket}", begin, 0.1, args))
    return spans


def test_a_trace_gives_the_buckets_with_the_time_they_were_ready() -> None:
    step = profile_of_trace(_trace())
    assert [parameter.num_elements for parameter in step.parameters] == [1_000_000, 2_000_000]
    assert [round(parameter.ready_s, 6) for parameter in step.parameters] == [0.2, 0.6]
    assert step.forward_s == pytest.approx(0.3)


@pytest.mark.parametrize("kept", [(), ("forward",), ("forward", "backward", "update")])
def test_a_trace_without_what_is_needed_is_refused(kept: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"handle\.trace"):
        profile_of_trace([span for span in _trace() if span.name in kept])
