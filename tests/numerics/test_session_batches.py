"""A batch size that changes between attempts loses and repeats no sample, and the learning rate follows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from session_training import Job, Stop, samples_by_epoch, start

from weft.core.worker_environment import STOPPED_EXIT_CODE


@pytest.mark.parametrize("wrap", ["overlap", "ddp"])
def test_every_sample_once_per_epoch_however_the_batch_changes(tmp_path: Path, wrap: str) -> None:
    job = Job(str(tmp_path), "sgd", wrap, batch_rule="linear", batch_range="8:40")
    first = start(replace(job, chosen_batch=""), 2, Stop(1, 0))  # the script's own, 20
    second = start(replace(job, chosen_batch="8"), 1, Stop(0, first.steps[-1]["step"] + 2))
    last = start(replace(job, chosen_batch="36"), 2)
    assert [first.exit_codes, second.exit_codes, last.exit_codes] == [
        [STOPPED_EXIT_CODE] * 2,
        [STOPPED_EXIT_CODE],
        [0, 0],
    ]
    everything = Counter(range(103))
    assert samples_by_epoch([first, second, last]) == {0: everything, 1: everything, 2: everything}
    assert [len(outcome.steps[0]["samples"]) for outcome in (first, second, last)] == [20, 8, 36]
    assert [step["step"] for outcome in (first, second, last) for step in outcome.steps] == list(
        range(last.steps[-1]["step"] + 1)
    )


@pytest.mark.parametrize(("rule", "factor"), [("linear", 2.0), ("sqrt", 2.0**0.5), ("none", 1.0)])
def test_the_learning_rate_follows_the_named_rule_and_goes_back_with_the_batch(
    tmp_path: Path, rule: str, factor: float
) -> None:
    plain = start(Job(str(tmp_path / "plain"), "sgd"), 1)
    job = Job(str(tmp_path / "ranged"), "sgd", batch_rule=rule)
    larger = start(replace(job, batch_range="8:40", chosen_batch="40"), 1, Stop(0, 1))
    back = start(job, 1)  # by hand, without a range: the script's own batch
    rates = [step["lr"] for step in (*larger.steps, *back.steps)]
    factors = [rate / own["lr"] for rate, own in zip(rates, plain.steps, strict=False)]
    num_larger = len(larger.steps)
    assert factors[:num_larger] == pytest.approx([factor] * num_larger)
    assert factors[num_larger:] == pytest.approx([1.0] * (len(factors) - num_larger))


def test_a_range_never_touches_a_job_that_has_none(tmp_path: Path) -> None:
    plain = start(Job(str(tmp_path / "plain")), 2)
    ruled = start(Job(str(tmp_path / "ruled"), batch_rule="linear"), 2)
    assert ruled.digest == plain.digest
