"""``weft bench``: measure weft against its peers on this machine."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)

Quick = Annotated[bool, typer.Option("--quick", help="the short version, under 5 minutes")]
Json = Annotated[bool, typer.Option("--json", help="rows as JSON on stdout")]


@app.callback()
def bench() -> None:
    """Measure weft against its peers on this machine.  Nothing else should run meanwhile."""


@app.command()
def overlap(
    quick: Quick = False,
    json_out: Json = False,
    model: Annotated[
        list[str] | None, typer.Option(help="only rows of this model (transformer, resnet, mlp, timed); repeatable")
    ] = None,
    ratio: Annotated[
        list[float] | None, typer.Option(help="only rows at this network/compute ratio (0.3 to 2); repeatable")
    ] = None,
) -> None:
    """Step times of DDP, FSDP2, DeAR and weft on a slow network (needs torch and root)."""
    importlib.import_module("weft.cli.bench_overlap").overlap(quick, json_out, model, ratio)


@app.command()
def crossover(
    quick: Quick = False,
    json_out: Json = False,
    only: Annotated[
        list[str] | None, typer.Option(help='only rows whose name begins so, e.g. "equal plain"; repeatable')
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="JSON file of a run that was stopped: measure the rows it lacks")
    ] = None,
) -> None:
    """Two jobs on the same hosts: one after the other, uncoordinated, taking turns (needs torch and root)."""
    importlib.import_module("weft.cli.bench_crossover").crossover(quick, json_out, only, resume)


@app.command()
def elastic(
    quick: Quick = False,
    json_out: Json = False,
    data: Annotated[
        Path | None,
        typer.Option(help="folder of the public traces [default: $WEFT_DATA, else ../shared/data]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="folder for table, JSON and picture [default: benchmarks/results if it is there]"),
    ] = None,
) -> None:
    """Every policy on the public workloads: completion times against the published ones, and speed."""
    from weft.cli.bench_elastic import run_elastic

    run_elastic(quick=quick, as_json=json_out, data=data, out=out)
