"""Prometheus must be able to read what a job reports, and must not drown in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fake_controller import FakeController
from weft.daemon.metrics import _SERIES, MAX_JOB_SERIES, job_series

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"


def scraped(controller: FakeController) -> dict[str, Any]:
    text = job_series(controller.jobs()).decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_a_running_job_has_series_with_any_name_and_numbers() -> None:
    controller = FakeController()
    name = 'a "name"\n\\{}' + "x" * 500
    job = controller.add(name=name, devices=(0, 1), step=7, step_s=0.25, exposed_s=0.1, loss=float("nan"))
    controller.add(name="waits")
    families = scraped(controller)
    assert {sample.labels["job"] for samples in families.values() for sample in samples if sample.labels} == {job.id}
    assert families["weft_job_step"][0].value == 7
    assert families["weft_job_step"][0].labels["name"] == name[:100]
    assert families["weft_job_step_seconds"][0].value == 0.25
    assert families["weft_job_loss"] == families["weft_job_steps"] == []


def test_a_script_that_reports_no_steps_has_no_series_about_them() -> None:
    controller = FakeController()
    controller.add(devices=(0,), step=0, step_s=0.0)
    families = scraped(controller)
    assert families["weft_job_workers"]
    assert families["weft_job_step"] == families["weft_job_step_seconds"] == families["weft_job_exposed_seconds"] == []


def test_the_number_of_series_is_bounded_and_says_what_is_left_out() -> None:
    controller = FakeController()
    for _ in range(MAX_JOB_SERIES + 5):
        controller.add(devices=(0,))
    families = scraped(controller)
    assert len(families["weft_job_workers"]) == MAX_JOB_SERIES
    assert families["weft_jobs_without_series"][0].value == 5


def test_the_grafana_dashboard_uses_only_series_that_exist() -> None:
    document = json.loads(DASHBOARD.read_text())
    source = (Path(__file__).parents[3] / "src" / "weft" / "daemon" / "metrics.py").read_text()
    known = {name for name, _, _ in _SERIES}
    expressions = [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]
    assert expressions
    for expression in expressions:
        names = {
            word for word in expression.replace("(", " ").replace("[", " ").replace("{", " ").split() if "weft_" in word
        }
        assert names
        for name in names:
            plain = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            assert plain in known or f'"{plain}"' in source, name
