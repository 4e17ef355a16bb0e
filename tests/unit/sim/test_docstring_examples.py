"""An example in a docstring is the first thing people try: those of the simulator, policies, and tables are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import weft.elastic
import weft.perf
import weft.sim

PACKAGES = (weft.sim, weft.elastic, weft.perf)
MODULES = ["weft.cli.render"] + [
    info.name for package in PACKAGES for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_the_documented_results(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
