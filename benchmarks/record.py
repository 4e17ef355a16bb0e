"""One current result per benchmark: NAME.json for programs, NAME.md for people, NAME.png to look at.

Date, machine, commit, and command are inside the files, not in their names, so that a link to a result stays valid.
Benchmarks that take long keep their rows one by one (:class:`RowRecord`): each row has its own date and commit, and an
interrupted run resumes where it stopped.  A result is of one version of the code: its first row replaces all rows of
another one.

[Note: the code that was measured]  A commit that only adds results, or shows them differently, must not make them look
out of date.  What counts is the content of every Python file of weft, and of the benchmarks that do not merely plan or
show (``code_id``); the commit is for people.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import weft
from weft.cli import render
from weft.errors import InputError, WeftError
from weft.version import __version__

CHECKOUT_FOLDER = Path("benchmarks") / "results"
ELSEWHERE = Path("weft-bench")
QUICK = "quick"
# Benchmark files that change no measurement: they divide the time, or make tables and figures of what is there.
ONLY_SHOW = ("all_command.py", "parts.py", "redraw.py", "docs_tables.py", "layer_summary.py", "figures.py")
ONLY_SHOW_ENDINGS = ("_plot.py", "_results.py", "_figure.py", "brief_tables.py", "pictures.py")
Row = dict[str, Any]


def results_folder(out: Path | None, *, quick: bool = False) -> Path:
    """Where results go: as named, else the checkout's folder, else ``./weft-bench``.  Quick ones are separate."""
    if out is None:
        out = CHECKOUT_FOLDER if CHECKOUT_FOLDER.is_dir() else ELSEWHERE
    elif not out.is_dir():
        raise InputError("--out: this folder does not exist: create it", file=str(out))
    folder = out / QUICK if quick else out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def machine() -> dict[str, Any]:
    """What a reader needs to judge a timing, without host names or addresses."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "weft": __version__,
    }


def without_own_paths(text: str) -> str:
    """For results that are published: where things are on this machine is nobody's business.

    >>> without_own_paths(f"{sys.executable} failed")
    'python failed'
    """
    for path, name in ((sys.executable, "python"), (sys.prefix, "VENV"), (str(Path(__file__).parents[1]), "WEFT")):
        text = text.replace(path, name)
    return text


def provenance(command: str) -> dict[str, str]:
    """When, from which code, and how something was measured."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"date": date, "commit": commit(), "code": code_id(), "command": command}


@cache
def code_id() -> str:
    """The same for the same Python files, whatever the commit; see the note above."""
    digest = hashlib.sha256()
    for path, name in sorted(measured_code().items(), key=lambda item: item[1]):
        digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def measured_code() -> dict[Path, str]:
    """The files that a measurement may depend on, with their names in the package."""
    ours, weft_folder = Path(__file__).parent, Path(weft.__file__).parent
    own = [path for path in ours.rglob("*.py") if not (path.name in ONLY_SHOW or path.name.endswith(ONLY_SHOW_ENDINGS))]
    found = {path: f"weft/{path.relative_to(weft_folder)}" for path in weft_folder.rglob("*.py")}
    return found | {path: f"benchmarks/{path.relative_to(ours)}" for path in own}


@cache
def commit() -> str:
    """The commit, with ``+`` if tracked files differ from it; empty outside a checkout."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=10", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", "../src", ".", ":!results")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(("git", *args), cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass
class RowRecord:
    """The rows of one benchmark, written after every row so that an interruption loses nothing."""

    folder: Path
    name: str
    command: str
    asides: tuple[str, ...] = ()
    """Rows whose key starts with one of these words have other fields; they are a list of that name in the file."""
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, name: str, command: str, asides: tuple[str, ...] = ()) -> RowRecord:
        """A record with the rows that were saved before."""
        record = cls(folder, name, command, asides)
        if record.path("json").exists():
            document = read_document(record.path("json"))
            record.rows = [row for part in ("rows", *asides) for row in document.get(part, [])]
        return record

    def path(self, suffix: str) -> Path:
        return self.folder / f"{self.name}.{suffix}"

    def measured(self, key: str) -> Row | None:
        """The row of that name, if the current code has measured it."""
        return next((row for row in self.rows if row["key"] == key and row["code"] == code_id()), None)

    def put(self, key: str, row: Mapping[str, Any]) -> None:
        """Add a row, in place of one of the same name and of all that other code has measured."""
        others = [old for old in self.rows if old["key"] != key and old["code"] == code_id()]
        self.rows = [*others, {"key": key, **row, **provenance(self.command)}]

    def document(self) -> dict[str, Any]:
        parts: dict[str, list[Row]] = {"rows": [], **{aside: [] for aside in self.asides}}
        for row in self.rows:
            first = row["key"].partition(" ")[0]
            parts[first if first in self.asides else "rows"].append(row)
        return {
            **provenance(self.command),
            "machine": machine(),
            **parts,
            "failures": [without_own_paths(words) for words in self.failures],
        }

    def save(self, text: str) -> None:
        """Both files; ``text`` is what people read."""
        write_whole(self.path("json"), as_text(self.document()))
        write_whole(self.path("md"), text)

    def conclude(self, keys: Collection[str], *, resumes: bool) -> None:
        """Say how many of these rows are missing, and raise an error if some could not be measured.

        ``resumes``: whether the same command measures the others next time; a quick run begins again.
        """
        num_left = sum(self.measured(key) is None for key in keys) - len(self.failures)
        if num_left > 0:
            what_next = "run the command again" if resumes else "allow more --minutes"
            render.note(f"{num_left} of {len(keys)} rows did not fit into the time: {what_next}")
        if self.failures:
            raise WeftError(
                f"{len(self.failures)} of {len(keys)} rows could not be measured; the others are in "
                f"{self.path('json')}; first failure: {self.failures[0]}"
            )


def read_document(path: Path) -> dict[str, Any]:
    """A result file."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None
    except ValueError as error:
        raise InputError(f"is not JSON ({error}): delete it, and it is measured again", file=str(path)) from None
    return document


def keep_record(folder: Path, name: str, command: str, document: Mapping[str, Any], tables: str) -> dict[str, Any]:
    """Write ``name.json`` and ``name.md``, each atomically; the document with its provenance."""
    whole = {**provenance(command), "machine": machine(), **document}
    write_whole(folder / f"{name}.json", as_text(whole))
    write_whole(folder / f"{name}.md", page(name, whole, tables))
    return whole


def page(name: str, document: Mapping[str, Any], tables: str) -> str:
    """What people read of a result."""
    return f"# {name}\n\n{headline(document)}\n\n{tables.rstrip()}\n"


def headline(document: Mapping[str, Any]) -> str:
    """How, when, from which commit, and where a result was made."""
    about = document["machine"]
    commit_text = f"commit {document['commit']}, " if document.get("commit") else ""
    return (
        f"`{document['command']}`, {document['date']}, {commit_text}{about['cores']} cores ({about['cpu']}), "
        f"{about['system']}, Python {about['python']}."
    )


def sources(rows: Sequence[Row]) -> list[str]:
    """Lines on where rows of several runs come from; none if all are of one code.

    >>> sources([{"date": "2026-01-01 10:00 UTC", "commit": "a", "command": "c"}] * 2)
    []
    """
    runs = dict.fromkeys((row["date"][:10], row["commit"] or "unknown") for row in rows)
    if len({commit for _, commit in runs}) < 2:
        return []
    listed = "; ".join(f"{date}, commit {commit}" for date, commit in runs)
    return ["", f"Rows of several versions of the code (a row's own date and commit are in the JSON file): {listed}."]


def markdown_table(heads: Sequence[str], body: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table, without the columns in which no row has anything.

    >>> markdown_table(["job", "s", "MB"], [["a", 1.5, "-"]])
    ['| job | s |', '|---|---|', '| a | 1.5 |']
    """
    rows = [[str(cell) for cell in cells] for cells in body]
    shown = [place for place in range(len(heads)) if not rows or any(cells[place] != "-" for cells in rows)]
    lines = [[heads[place] for place in shown], *([cells[place] for place in shown] for cells in rows)]
    head, *others = ("| " + " | ".join(cells) + " |" for cells in lines)
    return [head, "|" + "---|" * len(shown), *others]


def as_text(document: Mapping[str, Any]) -> str:
    """JSON with one row per line, so that a new measurement is a small diff."""
    rows = document.get("rows")
    if not isinstance(rows, list):
        return json.dumps(document, indent=1, allow_nan=False) + "\n"
    lines = ",\n  ".join(json.dumps(row, allow_nan=False) for row in rows)
    head = json.dumps({**document, "rows": []}, indent=1, allow_nan=False)
    return head.replace('"rows": []', f'"rows": [\n  {lines}\n ]' if rows else '"rows": []', 1) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
