"""Measured tables in README and docs are those of the result files."""

from pathlib import Path

import pytest
from benchmarks.docs_tables import ROOT, TABLES, filled, names_in, origin, pages

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_number_in_a_table_of_the_docs_was_measured(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text, RESULTS), "out of date: run scripts/bench redraw"


def test_every_table_has_a_place_in_the_docs() -> None:
    found = [name for page in pages() for name in names_in(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(TABLES)


def test_an_old_table_is_replaced_and_the_text_around_it_kept() -> None:
    text = "before\n<!-- table:dashboard -->\n| old |\n<!-- /table -->\nafter\n"
    new = filled(text, RESULTS)
    assert new.startswith("before\n<!-- table:dashboard -->\n| cost of ")
    assert new.endswith(".\n<!-- /table -->\nafter\n")
    assert "old" not in new


def test_a_misspelled_table_is_an_error_and_not_an_empty_place() -> None:
    with pytest.raises(KeyError, match="dashbord"):
        filled("<!-- table:dashbord -->\n<!-- /table -->", RESULTS)


def test_rows_of_an_earlier_version_are_not_shown_as_measured_by_the_last_command() -> None:
    machine = {"cores": 2, "cpu": "x"}
    rows = [
        {"date": "2026-01-02 10:00 UTC", "commit": "new", "code": "2", "command": "bench a --only b"},
        {"date": "2026-01-01 10:00 UTC", "commit": "old", "code": "1", "command": "bench a"},
    ]
    document = {"date": "2026-01-02", "commit": "new", "command": "bench a --only b", "machine": machine, "rows": rows}
    assert origin([document]) == (
        "`bench a`: 2026-01-01, commit old, 2 cores (x); `bench a --only b`: 2026-01-02, commit new, 2 cores (x)."
    )
