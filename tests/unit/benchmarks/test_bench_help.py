"""``weft bench --help``: the command line does not import the benchmarks, so nothing else ties its words to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks import (
    all_command,
    crossover_scenarios,
    overlap_scenarios,
    profile_scenarios,
    queue_command,
    queue_plan,
)
from benchmarks.overlap_scenarios import Scenario
from benchmarks.parts import PARTS

from weft.cli import load
from weft.cli.completion import subcommands

ROOT = Path(__file__).parents[3]
BENCHMARKS = subcommands("bench")


def shown(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The help text of a benchmark, in one line."""
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        load("bench")([name, "--help"], "weft bench")
    return capsys.readouterr().out


def option(flag: str, text: str) -> tuple[str, str]:
    """What an option's help says, and its default."""
    found = re.search(rf"^  {flag}\b.*?\n?\s{{2,}}(.*) \(default: (.*)\)$", text, re.MULTILINE)
    assert found is not None, flag
    return found[1], found[2]


def names(text: str) -> set[str]:
    """The list in parentheses."""
    found = re.search(r"\(([a-z_, ]+)", text)
    assert found is not None, text
    return set(found[1].split(", "))


def all_of(scenarios: Sequence[Scenario], what: str) -> set[str]:
    return {getattr(scenario, what) for scenario in scenarios}


@pytest.mark.parametrize(
    ("name", "default"),
    [
        (
            "overlap",
            f"{overlap_scenarios.FULL_MINUTES:g}; with --quick {overlap_scenarios.QUICK_MINUTES:g}, "
            f"with --profiles {profile_scenarios.FULL_MINUTES:g}",
        ),
        ("crossover", f"{crossover_scenarios.FULL_MINUTES:g}; with --quick {crossover_scenarios.QUICK_MINUTES:g}"),
        ("queue", "none"),
        ("all", f"{all_command.FULL_MINUTES:g}; with --quick {all_command.QUICK_MINUTES:g}"),
    ],
)
def test_the_limit_that_a_run_has_by_default_is_the_one_in_its_help(
    name: str, default: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert option("--minutes", shown(name, capsys, monkeypatch))[1] == default


@pytest.mark.parametrize("name", BENCHMARKS)
def test_no_help_text_states_a_time_that_nothing_checks(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [line for line in shown(name, capsys, monkeypatch).splitlines() if not line.startswith("  --")]
    assert [line for line in texts if re.search(r"\d+ minutes", line)] == []


def test_the_names_that_overlap_takes_are_in_its_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown("overlap", capsys, monkeypatch)
    full = [*overlap_scenarios.full_run(), *overlap_scenarios.quick_run()]
    assert names(option("--model", text)[0]) == all_of(full, "model")
    assert names(option("--only", text)[0]) == all_of(full, "part")
    low, high = re.findall(r"[\d.]+", option("--ratio", text)[0])
    ratios = [scenario.ratio for scenario in full]
    assert (float(low), float(high)) == (min(ratios), max(ratios))
    num_hosts = {scenario.num_hosts for scenario in profile_scenarios.profiles_run()}
    assert f"on {min(num_hosts)} to {max(num_hosts)} hosts" in option("--profiles", text)[0]


def test_what_the_queue_runs_by_default_is_in_its_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown("queue", capsys, monkeypatch)
    first, *others = map(str, queue_command.HOSTS)
    assert option("--hosts", text)[1] == f"{' and '.join([first, *others])}; with --quick {first}"
    assert option("--rounds", text)[1] == f"{queue_command.ROUNDS}; with --quick 1"
    assert ", ".join(queue_plan.CONTENDERS) in " ".join(text.split())


def test_the_example_of_a_row_name_is_the_start_of_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r'"(.*)"', option("--only", shown("crossover", capsys, monkeypatch))[0])
    assert found is not None
    assert any(row.key.startswith(found[1]) for row in crossover_scenarios.full_run())


def test_the_manual_states_the_same_limits_as_the_benchmarks() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    limits = (
        f"{overlap_scenarios.FULL_MINUTES:g} (overlap; {profile_scenarios.FULL_MINUTES:g} with `--profiles`), "
        f"{crossover_scenarios.FULL_MINUTES:g} (crossover), "
        f"{all_command.FULL_MINUTES:g} (all; {all_command.QUICK_MINUTES:g} with `--quick`)"
    )
    assert f"| `--minutes N` | {limits} |" in page


@pytest.mark.parametrize(
    ("page", "sentence", "minutes"),
    [
        ("docs/overlap.md", r"A full run takes about (\d+) minutes", overlap_scenarios.FULL_MINUTES),
        ("docs/crossover.md", r"A full run takes about (\d+) minutes", crossover_scenarios.FULL_MINUTES),
        ("docs/scale.md", r"takes about (\d+) minutes", PARTS["scale"].minutes),
        ("CONTRIBUTING.md", r"simulated nodes; takes about (\d+) minutes", PARTS["scale"].minutes),
        ("CONTRIBUTING.md", r"in Chromium; takes about (\d+) minutes", PARTS["dashboard"].minutes),
        ("CONTRIBUTING.md", r"planned for (\d+) minutes", all_command.FULL_MINUTES),
        ("docs/results.md", r"in about (\d+) minutes", all_command.FULL_MINUTES),
    ],
)
def test_a_page_says_how_long_a_benchmark_takes_as_its_plan_does(page: str, sentence: str, minutes: float) -> None:
    text = " ".join((ROOT / page).read_text().split())
    found = re.findall(sentence, text)
    assert found
    assert [stated for stated in found if abs(float(stated) - minutes) >= 1] == []
