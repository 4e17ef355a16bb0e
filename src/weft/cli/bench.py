"""``weft bench``: compare weft with its peers on this machine.

[Note: benchmarks stay in the repository]  ``overlap`` and ``crossover`` build network namespaces as root, compare with
reimplementations of other systems, and write their tables into the repository: 5,000 lines that no training machine
needs.  They are not part of the installed package; from a wheel these two commands say where to find them.
"""

from __future__ import annotations

import shlex
import sys
from importlib import import_module, util
from pathlib import Path
from typing import Annotated, Any

from weft.cli.verb import Group, Json
from weft.core.command_line import Option
from weft.errors import MissingToolError

Quick = Annotated[bool, Option("the short version, under 5 minutes")]


def overlap(
    quick: Quick = False,
    model: Annotated[
        list[str] | None, Option("only rows of this model (transformer, resnet, mlp, timed); repeatable", "all")
    ] = None,
    profiles: Annotated[bool, Option("popular models (see weft predict), compute emulated, on 2 to 8 hosts")] = False,
    ratio: Annotated[
        list[float] | None, Option("only rows with this network/compute ratio, 0.3 to 2; repeatable", "all")
    ] = None,
    as_json: Json = False,
) -> None:
    """Step times of DDP, FSDP2, DeAR, and weft on a slow network.

    Needs a checkout of the repository, torch, root, and iproute2. Run nothing else meanwhile. Results go to
    benchmarks/results as JSON, Markdown, and PNG. The full run takes about 100 minutes; --model and --ratio select
    a part of it.
    """
    _from_checkout("overlap_command").overlap(
        _command(), quick=quick, as_json=as_json, models=model, ratios=ratio, profiles=profiles
    )


def crossover(
    quick: Quick = False,
    only: Annotated[
        list[str] | None, Option('only rows whose name starts with this, such as "equal plain"; repeatable', "all")
    ] = None,
    resume: Annotated[Path | None, Option("JSON file of an interrupted run: measure the missing rows", "none")] = None,
    as_json: Json = False,
) -> None:
    """Step times of two jobs on the same hosts: one after the other, uncoordinated, taking turns.

    Needs a checkout of the repository, torch, root, and iproute2. Run nothing else meanwhile. Results go to
    benchmarks/results after every row.
    """
    _from_checkout("crossover_command").crossover(_command(), quick=quick, as_json=as_json, only=only, resume=resume)


def elastic(
    quick: Quick = False,
    data: Annotated[Path | None, Option("folder of the public traces", "$WEFT_DATA, else ../shared/data")] = None,
    out: Annotated[
        Path | None, Option("folder for the table, JSON, and figure", "benchmarks/results, if it exists")
    ] = None,
    as_json: Json = False,
) -> None:
    """Completion times and decision speed of every policy on the public workloads, next to the published ones."""
    from weft.cli.bench_elastic import run_elastic

    run_elastic(quick=quick, as_json=as_json, data=data, out=out)


def _from_checkout(name: str) -> Any:
    """A module of the repository's ``benchmarks`` package, found next to ``src/`` without changing ``sys.path``."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if "benchmarks" not in sys.modules:
        if not (folder / f"{name}.py").is_file():
            raise MissingToolError(
                "this benchmark is not part of the installed package: clone the repository and run `scripts/bench` in "
                "it, for example `scripts/bench overlap --quick`"
            )
        spec = util.spec_from_file_location("benchmarks", folder / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["benchmarks"] = package = util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"benchmarks.{name}")


def _command() -> str:
    """What the user typed, without the machine's paths."""
    return shlex.join(["weft", "bench", *sys.argv[sys.argv.index("bench") + 1 :]] if "bench" in sys.argv else sys.argv)


bench = Group("Compare weft with its peers on this machine. Run nothing else meanwhile.", overlap, crossover, elastic)
