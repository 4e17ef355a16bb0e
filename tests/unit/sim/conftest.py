"""Where the public traces are, for tests that skip without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.elastic.comparison import find_data


@pytest.fixture(scope="session")
def public_data() -> Path:
    folder = find_data(None)
    if folder is None:
        pytest.skip("the public traces are not here (WEFT_DATA)")
    return folder
