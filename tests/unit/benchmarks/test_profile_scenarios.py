"""Popular models scaled down: their proportions stay."""

from __future__ import annotations

import json

import pytest
from benchmarks.overlap_scenarios import full_run, scenario_from_json
from benchmarks.profile_scenarios import COMPUTE_S, MAX_LAYERS, NUM_PARAMETERS, joined, predicted_ms, profiles_run

from weft.perf.layer_profile import PROFILES, known_profile


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
        assert timed.num_parameters == pytest.approx(NUM_PARAMETERS, rel=1e-3)
        assert sum(f + b for _, f, b in timed.layers) == pytest.approx(COMPUTE_S, rel=1e-3)
        assert scenario_from_json(json.loads(json.dumps(scenario.as_json()))) == scenario


def test_a_row_of_a_profile_carries_its_prediction() -> None:
    [shared] = [s for s in profiles_run() if s.model == "resnet50" and s.workers_per_host == 4]
    predicted = predicted_ms(shared, 200e6)
    assert predicted["alone"] == pytest.approx(COMPUTE_S * 1e3, rel=1e-3)
    assert predicted["alone"] < predicted["weft"] < predicted["ddp"]


def test_other_rows_have_no_prediction() -> None:
    assert all(predicted_ms(scenario, 1e9) == {} for scenario in full_run())
