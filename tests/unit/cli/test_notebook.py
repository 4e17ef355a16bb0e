"""From a notebook: one import, a command as it would be typed, and a table that no name can break out of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_controller import FakeController, served

from weft.client import Client
from weft.control.state import JobState
from weft.errors import UsageError


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    made = FakeController()
    monkeypatch.chdir(tmp_path)
    with served(made, tmp_path / "home"):
        yield made


def test_a_command_is_submitted_as_it_would_be_typed(controller: FakeController, tmp_path: Path) -> None:
    client = Client(tmp_path / "home")
    job_id = client.submit_command("python train.py --note 'two words'", workers="1:4", name="net", total_steps=9)
    job = controller.by_id[job_id]
    assert job.launch is not None
    assert job.launch.argv == ("python", "train.py", "--note", "two words")
    assert job.launch.cwd == str(tmp_path)
    assert (job.spec.min_workers, job.spec.max_workers, job.name) == (1, 4, "net")
    assert job.spec.user
    with pytest.raises(UsageError, match="did you mean 'total_steps'"):
        client.submit_command(["true"], totalsteps=3)


def test_a_job_is_named_as_on_the_command_line(controller: FakeController, tmp_path: Path) -> None:
    client = Client(tmp_path / "home")
    job = controller.add(name="resnet50", state=JobState.RUNNING, devices=(0,), attempt=1)
    done = controller.add(name="bert", state=JobState.COMPLETED, finished_s=9.0)
    controller.output[job.id, 1, "out"] = b"hello\n"
    prefix = next(job.id[:n] for n in range(1, 9) if not done.id.startswith(job.id[:n]))
    for word in (job.id, prefix, "resnet50"):
        assert client.job(word)["id"] == job.id
        assert client.change(word, weight=2.0)["id"] == job.id
        assert client.explain(word) == client.explain(job.id)
        assert client.history(word) == client.history(job.id)
        assert b"".join(client.logs(word)) == b"hello\n"
        assert client.whatif({"jobs": {word: {"weight": 2.0}}})
        assert client.wait([word, "bert"], timeout_s=0)[0]["id"] == job.id
    assert client.ids(["bert", "resnet50", job.id]) == [done.id, job.id]
    assert client.cancel("resnet50")["id"] == job.id
    with pytest.raises(UsageError, match="there is no job 'resnet51': did you mean 'resnet50'"):
        client.job("resnet51")


def test_jobs_are_a_list_and_a_table_in_which_names_are_only_text(controller: FakeController, tmp_path: Path) -> None:
    controller.add(name="<script>alert(1)</script>", reason="<b>&", reason_code="Resources")
    controller.add(name="\u202e" * 60)
    client = Client(tmp_path / "home")
    jobs = client.jobs()
    assert jobs == list(jobs)
    for html in (jobs._repr_html_(), client.job_details()._repr_html_(), client._repr_html_()):  # type: ignore[attr-defined]
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "<script" not in html
        assert "Resources: &lt;b&gt;&amp;" in html
        assert html.count("<tr>") == 3
