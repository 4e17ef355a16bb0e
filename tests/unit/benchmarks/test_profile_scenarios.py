"""Popular models scaled down: their proportions stay."""

from __future__ import annotations

import json

import pytest
from benchmarks.overlap_bounds import StepShape
from benchmarks.overlap_scenarios import full_run, scenario_from_json
from benchmarks.profile_scenarios import MAX_LAYERS, PARAMETERS_PER_S, joined, predicted_ms, profiles_run

from weft.perf.layer_profile import PROFILES, known_profile

ALONE = StepShape(0.1, 0.2, 0.01, 0.01, 0.01, 4_000_000, 4_000)


@pytest.mark.parametrize("name", PROFILES)
def test_joined_layers_lose_no_bytes_and_no_time(name: str) -> None:
    profile = known_profile(name)
    found = joined(profile, MAX_LAYERS)
    assert 4 <= len(found.layers) <= MAX_LAYERS
    assert found.num_elements == profile.num_elements
    assert sum(layer.forward_share for layer in found.layers) == pytest.approx(1.0, abs=1e-4)


def test_every_model_runs_on_every_shape_scaled_by_one_factor() -> None:
    scenarios = profiles_run()
    assert len(scenarios) == 5 * len(PROFILES)
    for scenario in scenarios:
        timed = scenario.timed
        assert timed is not None
        assert timed.num_parameters == pytest.approx(PARAMETERS_PER_S * timed.compute_s, rel=1e-3)
        assert timed.bucket_scale * known_profile(scenario.model).num_elements == pytest.approx(
            timed.num_parameters, rel=1e-3
        )
        assert sum(f + b for _, f, b in timed.layers) == pytest.approx(timed.compute_s, rel=1e-3)
        assert scenario_from_json(json.loads(json.dumps(scenario.as_json()))) == scenario


def test_a_row_of_a_profile_carries_its_prediction() -> None:
    [shared] = [s for s in profiles_run() if s.model == "resnet50" and s.workers_per_host == 4]
    predicted = predicted_ms(shared, 200e6, ALONE, 1e-4)
    assert predicted["alone"] == pytest.approx(1e3 * ALONE.compute_s)
    assert predicted["alone"] < predicted["weft"] < predicted["ddp"]


def test_the_measured_latency_counts_for_every_hop_of_a_ring() -> None:
    [eight] = [s for s in profiles_run() if s.model == "bert-large" and s.num_hosts == 8]
    quick, slow = (predicted_ms(eight, 234e6, ALONE, latency_s) for latency_s in (0.0, 1e-3))
    assert slow["ddp"] - quick["ddp"] > 7 * (slow["weft"] - quick["weft"]) > 0


def test_every_layout_is_compared_with_ddp_fsdp2_and_dear() -> None:
    for scenario in profiles_run():
        assert {"alone", "ddp", "ddp_best", "fsdp2_async", "dear", "weft"} <= set(scenario.contenders)
        both = {"fsdp2", "fsdp2_async"} <= set(scenario.contenders)
        assert both == ((scenario.num_hosts, scenario.workers_per_host) == (2, 1))


def test_other_rows_have_no_prediction() -> None:
    assert all(predicted_ms(scenario, 1e9, ALONE, 0.0) == {} for scenario in full_run())
