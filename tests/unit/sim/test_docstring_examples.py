"""An example in a docstring is the first thing people try: those of the simulator and the tables are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import weft.sim

MODULES = [info.name for info in pkgutil.walk_packages(weft.sim.__path__, "weft.sim.")] + ["weft.cli.render"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_the_documented_results(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
