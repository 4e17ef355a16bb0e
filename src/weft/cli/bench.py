"""``weft bench``: compare weft with its peers on this machine.

[Note: where the benchmarks are]  In the repository's ``benchmarks`` folder, not in ``src``: they build network
namespaces as root and compare with reimplementations of other systems, which no other part of weft may depend on.  A
wheel carries the same folder inside the package, so that ``weft bench`` also runs where weft was installed with pip.
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

PACKAGE = Path(__file__).resolve().parents[1]
# In a checkout next to src/; in a wheel inside the package.
PLACES = (PACKAGE.parents[1] / "benchmarks", PACKAGE / "bundled" / "benchmarks")

Quick = Annotated[bool, Option("the short version, at most 5 minutes on a quiet machine")]
Out = Annotated[Path | None, Option("folder for the results", "benchmarks/results in a checkout, else ./weft-bench")]
# The defaults are constants of the benchmarks, which no command line loads: a test compares them.
FEWER = "run fewer rounds and rows, to finish in about N minutes"
OverlapMinutes = Annotated[
    float | None, Option(FEWER, "30; with --quick 4.5, with --profiles 28", metavar="N", min=0.1)
]
CrossoverMinutes = Annotated[float | None, Option(FEWER, "13.5; with --quick 4.5", metavar="N", min=0.1)]
AllMinutes = Annotated[float | None, Option(FEWER, "90; with --quick 5", metavar="N", min=0.1)]
Fresh = Annotated[bool, Option("measure everything again, even what this version has already measured")]


def overlap(
    quick: Quick = False,
    model: Annotated[
        list[str] | None,
        Option("only rows of this model (transformer, resnet, mlp, timed); repeatable", "all"),
    ] = None,
    profiles: Annotated[bool, Option("the models of weft predict instead, compute emulated, on 2 to 8 hosts")] = False,
    ratio: Annotated[
        list[float] | None, Option("only rows with this network/compute ratio, 0.3 to 2; repeatable", "all")
    ] = None,
    only: Annotated[list[str] | None, Option("only this part of the run (models, hosts); repeatable", "all")] = None,
    hosts: Annotated[list[int] | None, Option("only rows with this number of hosts; repeatable", "all")] = None,
    minutes: OverlapMinutes = None,
    fresh: Fresh = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Step times of DDP, FSDP2, DeAR, and weft on a slow network.

    Needs torch, root, and iproute2. Run nothing else at the same time. Without --quick, every row is saved: start it
    again to continue where it stopped. --model, --ratio, --only, and --hosts select rows.
    """
    _benchmark("overlap_command").overlap(
        _command(),
        quick=quick,
        as_json=as_json,
        models=model,
        ratios=ratio,
        parts=only,
        hosts=hosts,
        profiles=profiles,
        out=out,
        minutes=minutes,
        fresh=fresh,
    )


def crossover(
    quick: Quick = False,
    only: Annotated[
        list[str] | None, Option('only rows whose name starts with this, such as "equal plain"; repeatable', "all")
    ] = None,
    minutes: CrossoverMinutes = None,
    fresh: Fresh = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Step times of two jobs on the same hosts: one after the other, uncoordinated, taking turns.

    Needs torch, root, and iproute2. Run nothing else at the same time. Without --quick, every row is saved: start it
    again to continue where it stopped.
    """
    _benchmark("crossover_command").crossover(
        _command(), quick=quick, as_json=as_json, only=only, out=out, minutes=minutes, fresh=fresh
    )


def elastic(
    quick: Quick = False,
    data: Annotated[
        Path | None, Option("folder of the public traces", "$WEFT_DATA, else ../shared/data if it exists")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Completion times and decision speed of every policy on the public workloads, next to the published ones."""
    _benchmark("elastic_command").elastic(_command(), quick=quick, as_json=as_json, data=data, out=out)


def queue(
    quick: Quick = False,
    hosts: Annotated[
        list[int] | None, Option("number of hosts; repeatable", "2 and 4; with --quick 2", min=2, max=16)
    ] = None,
    rounds: Annotated[
        int | None, Option("rounds; each runs every contender once", "3; with --quick 1", min=1, max=100)
    ] = None,
    contender: Annotated[
        list[str] | None,
        Option("only this contender; repeatable", "all; with --quick fifo_ddp and elastic_overlap_crossover"),
    ] = None,
    minutes: Annotated[
        float | None, Option("start no new run of the queue after N minutes", "none", metavar="N", min=0.1)
    ] = None,
    fresh: Fresh = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Completion times of one queue of jobs on a Ray cluster, with each layer of weft added in turn.

    Needs torch, Ray, root, and iproute2. Run nothing else at the same time. Without --quick, every run of the queue is
    saved: start it again to continue where it stopped. Contenders: fifo_ddp, elastic_ddp, elastic_overlap,
    elastic_overlap_crossover.
    """
    _benchmark("queue_command").queue(
        _command(),
        quick=quick,
        as_json=as_json,
        hosts=hosts,
        rounds=rounds,
        contenders=contender,
        out=out,
        minutes=minutes,
        fresh=fresh,
    )


def all(
    quick: Quick = False,
    only: Annotated[str, Option("benchmarks to run, such as overlap,elastic", "all", metavar="NAME[,NAME...]")] = "",
    minutes: AllMinutes = None,
    fresh: Fresh = False,
    dry_run: Annotated[bool, Option("print the plan and stop")] = False,
    out: Out = None,
) -> None:
    """Every benchmark, one after the other: all tables, JSON files, and figures.

    Prints the plan first, with the benchmarks it has no time for, and the remaining time after each benchmark. Keeps
    results that were measured on the same code, so an interrupted run continues where it stopped.
    """
    _benchmark("all_command").run_all(quick=quick, only=only, minutes=minutes, fresh=fresh, dry_run=dry_run, out=out)


def _benchmark(name: str) -> Any:
    """A module of the ``benchmarks`` package, found without changing ``sys.path``."""
    if "benchmarks" not in sys.modules:
        folder = next((place for place in PLACES if (place / f"{name}.py").is_file()), None)
        if folder is None:
            raise MissingToolError(
                "this installation of weft has no benchmarks: clone the repository and run `scripts/bench` in it, for "
                "example `scripts/bench overlap --quick`"
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


bench = Group(
    "Compare weft with its peers on this machine. Run nothing else at the same time.",
    overlap,
    crossover,
    elastic,
    queue,
    all,
)
