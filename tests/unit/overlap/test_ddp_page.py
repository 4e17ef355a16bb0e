"""The page for users coming from DDP covers the installed DDP, and the current weft."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

import weft
from weft.overlap import Overlap

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-ddp.md"


def rows(section: str) -> list[str]:
    """The names in the first column of a section's table."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)


def test_every_argument_of_ddp_has_a_row() -> None:
    arguments = list(inspect.signature(DistributedDataParallel.__init__).parameters)[1:]
    assert sorted(rows("Arguments")) == sorted(arguments)


def test_every_public_method_of_ddp_has_a_row() -> None:
    public = [name for name, value in vars(DistributedDataParallel).items() if inspect.isfunction(value)]
    properties = [n for n, v in vars(DistributedDataParallel).items() if isinstance(v, property)]
    arguments = inspect.signature(DistributedDataParallel.__init__).parameters
    names = [name for name in public + properties if not name.startswith("_") and name not in arguments]
    assert sorted(rows("Methods")) == sorted(names)


def test_everything_on_the_ddp_page_exists() -> None:
    text = PAGE.read_text()
    options = inspect.signature(weft.overlap.overlap).parameters
    for name in ("broadcast_buffers", "process_group", "bucket_bytes", "comm_dtype", "ignore"):
        assert f"`{name}" in text
        assert name in options
    for name in re.findall(r"handle\.(\w+)\(", text):
        assert hasattr(Overlap, name), name
    ours = list(inspect.signature(Overlap.join).parameters)
    assert ours == list(inspect.signature(DistributedDataParallel.join).parameters)
