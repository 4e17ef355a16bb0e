"""Third-party models, optimizers, and trainers on two workers, compared with DDP on the same batches.

The full run (``scripts/bench compat``) writes what came out into docs/overlap.md; the short one (``scripts/test``)
checks that the table there is the one of these cases.
"""

from __future__ import annotations

import pytest
import torch
from tests.compat import cases, table, tasks

from training import Run, assert_close, assert_differ, assert_same, made, with_ddp, with_weft
from weft.errors import OverlapError
from workers import on_workers

NUM_BUCKETS = 10
# Rounding differences grow with every step of an adaptive optimizer.
TOLERANCE = 2e-3

SHORT = [name for name, case in cases.BY_NAME.items() if case.short]
DONE: dict[str, str] = {}


@pytest.mark.parametrize("name", SHORT)
@on_workers(2)
def test_selected_third_party_models_train_as_with_ddp(name: str) -> None:
    _train_both_ways(name)


@pytest.mark.compat
@pytest.mark.parametrize("name", cases.BY_NAME)
def test_every_third_party_model_trains_as_with_ddp(name: str) -> None:
    _on_workers(name=name)
    DONE[name] = cases.BY_NAME[name].outcome


@on_workers(2)
def _on_workers(name: str) -> None:
    _train_both_ways(name)


@pytest.mark.compat
def test_the_full_run_writes_the_table() -> None:
    if set(DONE) != set(cases.BY_NAME):
        pytest.skip(f"{len(DONE)} of {len(cases.BY_NAME)} cases were run and passed; the table needs all of them")
    table.write(cases.CASES)


def test_the_table_in_the_docs_matches_these_cases() -> None:
    assert table.rows_in_docs() == [(case.name, case.package, case.outcome) for case in cases.CASES], (
        "run `scripts/bench compat`: it writes the table when every case passes"
    )


def _train_both_ways(name: str) -> None:
    case = cases.BY_NAME[name]
    tasks.declare_missing_operators()
    tasks.quiet()
    if case.outcome == cases.REFUSED:
        with pytest.raises(OverlapError, match=case.message):
            case.loop(_with_weft(case))
        return
    expected = with_ddp(made(case.make), case.optimizer, **case.ddp_options)
    before = expected.parameters()
    wanted = case.loop(expected)
    assert_differ(expected.parameters(), before)
    found = _with_weft(case)
    got = case.loop(found)
    if case.outcome == cases.BIT_EQUAL:
        assert found.losses == expected.losses
        assert_same(found.state(), expected.state())
    else:
        assert torch.tensor(found.losses).allclose(torch.tensor(expected.losses), rtol=TOLERANCE)
        assert_close(found.state(), expected.state(), TOLERANCE)
    if wanted is not None:
        assert_same(got, wanted)


def _with_weft(case: cases.Case) -> Run:
    model = made(case.make)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    options = {} if case.options.get("tune") else {"bucket_bytes": max(1024, num_bytes // NUM_BUCKETS)}
    return with_weft(model, case.optimizer, **options, **case.options)
