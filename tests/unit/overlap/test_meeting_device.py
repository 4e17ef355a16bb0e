"""Workers that compare their models meet on one backend, also when one of them refused before it knew its device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.overlap.checks import meeting_device


class Group:
    def __init__(self, kinds: list[str]) -> None:
        self._device_types = [torch.device(kind) for kind in kinds]


@pytest.mark.parametrize("kinds", [["cpu"], ["cpu", "cuda"], ["cuda"]])
def test_a_refusal_does_not_hang_the_workers_that_agree(kinds: list[str]) -> None:
    group: Any = Group(kinds)
    agreed = meeting_device(group, torch.device("cuda", 1))
    refused = meeting_device(group, torch.device("cpu"))
    assert agreed.type == refused.type
    assert agreed.type in kinds
