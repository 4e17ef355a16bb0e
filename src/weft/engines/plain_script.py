"""Whether a job's script can be stopped and resumed: a look at its text, before it has ever run.

A script that never mentions weft has no session, so it cannot resume, and its number of workers is fixed once it has
started.  The look may be wrong (a session in a module that the script imports): then the job's own reports correct it.
"""

from __future__ import annotations

import re
from pathlib import Path

from weft.core.job import Launch

_MAX_READ_BYTES = 1_000_000
_MENTIONS_WEFT = re.compile(rb"\bweft\b|WEFT_")
_RUNS_A_MODULE = "-m"


def is_plain_script(launch: Launch) -> bool:
    """Whether the command runs a Python file that does not mention weft; False where that cannot be told."""
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
