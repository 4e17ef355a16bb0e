"""Where the public traces are, for tests that skip without them."""

from __future__ import annotations

import pytest

from weft.sim.studies.comparison import find_data

DATA = find_data(None)
needs_data = pytest.mark.skipif(DATA is None, reason="the public traces are not here (WEFT_DATA)")
