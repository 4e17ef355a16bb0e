"""A reader must find every word of ours in the glossary, with one meaning."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
WORDS = [
    word
    for first_column in re.findall(r"^\| (.*?) \|", GLOSSARY, re.MULTILINE)
    for bold in re.findall(r"\*\*(.+?)\*\*", first_column)
    for word in bold.split(", ")
]
USED = [
    *("job", "worker", "device", "node", "attempt", "checkpoint", "resize", "restart", "session", "controller"),
    *("dashboard", "keeper", "zygote", "gang", "pool", "policy", "decision", "reason", "crossover", "pair", "turn"),
    *("gap", "border", "filler", "lease", "bucket", "plan", "shard", "gather", "round"),
]


def test_no_word_has_two_meanings() -> None:
    assert [word for word, count in Counter(WORDS).items() if count > 1] == []


def test_every_word_for_a_concept_is_defined() -> None:
    assert [word for word in USED if word not in WORDS] == []
