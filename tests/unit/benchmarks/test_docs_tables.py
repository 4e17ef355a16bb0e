"""Measured tables in README and docs are those of the result files."""

from pathlib import Path

import pytest
from benchmarks.docs_tables import ROOT, TABLES, filled, names_in, pages

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
