"""The model behind ``weft predict``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.chrome_trace import Span
from weft.errors import UsageError
from weft.perf.layer_profile import PROFILES, known_profile, profile_of_trace
from weft.perf.link import Link
from weft.perf.one_ahead import one_ahead
from weft.perf.prediction import (
    Predicted,
    TargetCluster,
    ddp_cuts,
    dear_cuts,
    predict,
)
from weft.perf.recurrence import StepModel
from weft.perf.schedule import bound_s
from weft.perf.step_profile import Mode, ParameterTiming, StepProfile

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


@pytest.mark.parametrize(("num_hosts", "measured_ms"), [(4, 665), (8, 679)])
def test_an_exchange_takes_about_as_long_as_in_the_design_note(num_hosts: int, measured_ms: float) -> None:
    """docs/design/receive-window.md: 15 MB out of and into each host at 207 Mb/s, means of four runs."""
    link = TargetCluster(num_hosts, 1, 207e6).two_levels()
    assert 1e3 * link.seconds(15e6) == pytest.approx(measured_ms, rel=0.03)


def test_headers_take_their_share_of_every_link() -> None:
    """gloo's ring in the same test: 605 ms, where the bytes alone take 580."""
    for link in (TargetCluster(4, 1, 207e6).ring(), TargetCluster(2, 1, 207e6).two_levels()):
        assert 1e3 * link.seconds(15e6) == pytest.approx(606, rel=0.005)


def test_messages_share_a_link_only_where_they_are_direct() -> None:
    """A ring has one sender per receiver; no plan changes how messages share a link, so a bound leaves it out."""
    assert TargetCluster(16, 1, 1e9).two_levels() == TargetCluster(16, 1, 1e9).two_levels(ahead=0.0)
    found = rows(TargetCluster(8, 1, 1e9))
    equal = TargetCluster(8, 1, 1e9).two_levels(ahead=0.0)
    assert found["weft"].bound_s == bound_s(known_profile("resnet50").step(0.1), equal, 8, Mode.BARRIER)


@pytest.mark.parametrize(
    "bad", [(0, 1, 1e9), (6, 4, 1e9), (4, 0, 1e9), (4, 1, 0.0), (4, 1, float("nan")), (9999, 1, 1e9)]
)
def test_an_impossible_cluster_is_refused(bad: tuple[int, int, float]) -> None:
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


def _equal_layers(num_layers: int, num_elements: int, forward_s: float = 1.0) -> StepProfile:
    timings = tuple(
        ParameterTiming(num_elements, 2.0 * (i + 1) / num_layers, forward_s * (num_layers - 1 - i) / num_layers)
        for i in range(num_layers)
    )
    return StepProfile(timings, forward_s, 2.0, 0.0, 4)


def test_buckets_of_ddp_and_dear_end_where_parameters_do() -> None:
    """They cannot cut a parameter: buckets of 1 MB on layers of 0.8 MB are of 1.6 MB with DDP, of 0.8 with DeAR."""
    step = _equal_layers(10, 200_000)
    assert ddp_cuts(step, [1e6]) == (400_000, 800_000, 1_200_000, 1_600_000)
    assert dear_cuts(step, 1e6) == tuple(range(200_000, 2_000_000, 200_000))
    assert ddp_cuts(step, [0.5e6, 100e6]) == (200_000,)


def test_dear_leaves_the_link_idle_while_a_long_layer_without_many_bytes_runs() -> None:
    """As in image models: the first layer takes half of the forward, the last ones have the bytes."""
    late = [ParameterTiming(1_000_000, 0.01, 0.5 + 0.1 * place) for place in reversed(range(4))]
    step = StepProfile((*late, ParameterTiming(1_000, 1.0, 0.0)), 0.9, 1.0, 0.0, 4)
    model = StepModel(step, Link(0.0, 2 * 0.2 / 4e6), 2)  # 0.2 s a bucket
    cuts = dear_cuts(step, 1.0)
    at_once, ahead = model.course(cuts, Mode.BARRIER), one_ahead(model, cuts)
    # At once: 0.8 s of gathers begin with forward, and the last ends at 0.8 s + that of the first layer.
    assert at_once.step_s == pytest.approx(1.9, abs=1e-3)
    # One ahead: one of four gathers hides under the first layer, the others take twice as long as their layers.
    assert ahead.step_s == pytest.approx(1.0 + 0.5 + 3 * 0.2 + 0.1, abs=1e-3)
    assert ahead.exposed_s == pytest.approx(0.3, abs=1e-3)


def test_a_scaled_model_has_scaled_default_buckets() -> None:
    """A tenth of every layer on a tenth of the link's rate: the same step."""
    whole, tenth = _equal_layers(20, 2_000_000), _equal_layers(20, 200_000)
    cluster = TargetCluster(2, 1, 6e8, latency_s=0.0)
    small = TargetCluster(2, 1, 6e7, latency_s=0.0)
    expected = {row.contender: row for row in predict(whole, cluster)}
    found = {row.contender: row for row in predict(tenth, small, bucket_scale=0.1)}
    for name in ("alone", "ddp", "dear"):
        assert found[name].step_s == pytest.approx(expected[name].step_s)
        assert found[name].num_buckets == expected[name].num_buckets
