"""Guesses from a script's text, before it has ever run, whether it can resume and whether it needs torch.

A script that never mentions weft has no session, so it cannot resume, and its number of workers is fixed once it has
started.  The guess may be wrong (a session in a module that the script imports); the job's own reports correct it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from weft.core.job import Launch
from weft.errors import UsageError

_MAX_READ_BYTES = 1_000_000
_MENTIONS_WEFT = re.compile(rb"\bweft\b|WEFT_")
_RUNS_A_MODULE = "-m"


def is_plain_script(launch: Launch) -> bool:
    """Whether the command runs a Python file that does not mention weft; False if unknown."""
    if _RUNS_A_MODULE in launch.argv:
        return False
    name = next((word for word in launch.argv if word.endswith(".py")), None)
    if name is None:
        return False
    try:
        with Path(launch.cwd, name).open("rb") as file:
            return not _MENTIONS_WEFT.search(file.read(_MAX_READ_BYTES))
    except OSError:
        return False


def check_batch_range(launch: Launch) -> None:
    """Refuse a range of batch sizes (``--batch``) for a script whose batch size nobody could set."""
    if launch.batch and is_plain_script(launch):
        raise UsageError(
            "--batch needs a script whose batch size can be set: expected weft.session with run.loader(dataset, "
            "batch_size=..., batch_rule=...); leave --batch out"
        )


def needs_no_torch(path: Path) -> bool:
    """Whether a Python file imports only the standard library; False if unknown."""
    try:
        with path.open("rb") as file:
            tree = ast.parse(file.read(_MAX_READ_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = ["." if node.level else str(node.module)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        if not {name.partition(".")[0] for name in names} <= _WITHOUT_TORCH:
            return False
    return True


_WITHOUT_TORCH = sys.stdlib_module_names - {"importlib", "runpy", "imp", "subprocess", "multiprocessing"}
"""Modules that neither import torch nor exist to import or start something else."""
