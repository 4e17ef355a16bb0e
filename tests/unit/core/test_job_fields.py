"""A job's fields are declared once, in Submission and Launch: a list without one of them would lose what a user set."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_type_hints

from weft.cli.submit import submit
from weft.core.job import JobSpec, Launch
from weft.core.job_file import KEYS, job_schema, parse_job
from weft.core.submission import FIELDS, Submission
from weft.daemon.api.schemas import JobRequest

EVERY = Submission(
    Launch(("python", "train.py"), "/tmp", {"A": "1"}, max_restarts=3, batch="256:2048"),
    name="resnet",
    min_workers=2,
    max_workers=8,
    requested_workers=4,
    sizes=(2, 4, 8),
    user="ana",
    weight=2.5,
    priority=-7,
    may_share=False,
    total_steps=100,
)
"""With every field set to something other than its default."""


def test_every_field_survives_every_path_to_the_controller() -> None:
    document = EVERY.document()
    assert [key for key, one in FIELDS.items() if one.of(EVERY) == one.default] == []
    assert Submission.from_document(document) == EVERY
    assert JobRequest.model_validate_json(json.dumps(document)).submission() == EVERY
    by_key = {key: document[key] for key in KEYS if key != "workers"} | {"workers": "2:8"}
    assert parse_job(json.dumps(by_key), "job.yaml", folder=Path("/")) == EVERY


def test_every_list_of_fields_is_the_declared_one() -> None:
    assert list(EVERY.document()) == list(FIELDS) == list(JobRequest.model_fields)
    by_file = set(FIELDS) - {"min_workers", "max_workers"} | {"workers"}
    assert set(KEYS) == set(job_schema()["properties"]) == by_file
    assert [field.name for field in fields(JobSpec) if field.name not in FIELDS] == ["id", "submitted_s"]
    hints = get_type_hints(submit, include_extras=True)
    for key in ("name", "weight", "priority", "total_steps", "max_restarts", "batch", "cwd"):
        assert hints[key].__metadata__ == (FIELDS[key].option,), f"the option for {key} describes something else"


def test_a_field_left_out_has_one_default_everywhere() -> None:
    least = {"command": ["true"], "cwd": "/"}
    assert [key for key, one in FIELDS.items() if one.default is MISSING] == list(least)
    expected = Submission(Launch(("true",), "/"))
    assert JobRequest.model_validate(least).submission() == Submission.from_document(least) == expected
    assert parse_job("{command: [true], name: x}", "job.yaml", folder=Path("/")).document() == (
        expected.document() | {"name": "x"}
    )
    spec = expected.spec("j1", submitted_s=0.0)
    assert spec == JobSpec("j1", submitted_s=0.0)
