"""Saves benchmark results as JSON and Markdown, with date, machine, and command."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.version import __version__

DEFAULT_FOLDER = Path("benchmarks") / "results"


def record_folder(out: Path | None) -> Path | None:
    """Where to save results: the given folder, or the repository's, or nowhere."""
    if out is None:
        return DEFAULT_FOLDER if DEFAULT_FOLDER.is_dir() else None
    if not out.is_dir():
        raise InputError("--out: this folder does not exist: create it", file=str(out))
    return out


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


def keep_record(folder: Path, name: str, command: str, document: Mapping[str, Any], tables: str) -> tuple[Path, Path]:
    """Write ``name.json`` and ``name.md``, each atomically."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = {"command": command, "date": date, "machine": machine()}
    machine_text = ", ".join(f"{key} {value}" for key, value in about["machine"].items())  # type: ignore[attr-defined]
    json_path, text_path = folder / f"{name}.json", folder / f"{name}.md"
    write_whole(json_path, json.dumps({**about, **document}, indent=1, allow_nan=False) + "\n")
    write_whole(text_path, f"# {name}\n\n`{command}`, {date}, on {machine_text}\n\n{tables}")
    return json_path, text_path


def markdown_table(heads: Sequence[str], body: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table.

    >>> markdown_table(["job", "s"], [["a", 1.5]])
    ['| job | s |', '|---|---|', '| a | 1.5 |']
    """
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(map(str, cells)) + " |" for cells in body]


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
