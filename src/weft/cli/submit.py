"""``weft submit``: hand in a job, as a file or as a command."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from weft.cli import render
from weft.cli.verb import Argument, Json, Option, Verb, connect
from weft.core.job import Launch
from weft.core.submission import Submission, worker_range
from weft.errors import UsageError

SEPARATOR = "--"


def submit(
    command: tuple[str, ...] | None,
    file: Annotated[str | None, Argument("FILE", help="a job file; or nothing, and a command after --")] = None,
    workers: Annotated[str | None, Option(help="how many, like 2, or from 1 to 4 as 1:4 [default: 1]")] = None,
    name: Annotated[str | None, Option(help="what you call it [default: the script's name]")] = None,
    weight: Annotated[float | None, Option(help="how much it counts against others [default: 1]")] = None,
    priority: Annotated[int | None, Option(help="higher ones are served first [default: 0]")] = None,
    total_steps: Annotated[int | None, Option(help="steps to make, if the script does not say")] = None,
    max_restarts: Annotated[int | None, Option(help="start again after a failure, at most so often")] = None,
    env: Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="for the job; repeatable")] = None,
    cwd: Annotated[Path | None, Option(help="folder to run in [default: this one, or the file's]")] = None,
    dry_run: Annotated[bool, Option(help="only say what would be submitted, and given")] = False,
    schema: Annotated[bool, Option(help="print the JSON schema of job files")] = False,
    as_json: Json = False,
) -> None:
    """Hand in a job and print its id: `weft submit job.yaml`, or `weft submit -- python train.py --lr 0.1`.

    Options go before the `--` and win over the file. The id is printed when the job is on disk.
    """
    if schema:
        from weft.core.job_file import job_schema

        render.print_json(job_schema())
        return
    job = _changed(
        _described(file, command),
        workers=workers,
        name=name,
        weight=weight,
        priority=priority,
        total_steps=total_steps,
        max_restarts=max_restarts,
        env=env or [],
        cwd=cwd,
    )
    if not os.path.isdir(job.launch.cwd):
        raise UsageError(f"the job's folder {job.launch.cwd!r} is not there: make it, or give another with --cwd")
    if dry_run:
        _show_outlook(job, as_json=as_json)
        return
    job_id = connect().submit(job)
    if as_json:
        render.print_json({"id": job_id, "name": job.title})
    else:
        print(job_id)


def _described(file: str | None, command: tuple[str, ...] | None) -> Submission:
    user = _user()
    if file is not None and command is not None:
        raise UsageError(f"both a file ({file}) and a command were given: expected one of them")
    if command is not None:
        if not command:
            raise UsageError("there is nothing after `--`: expected a command like `-- python train.py`")
        from weft.core.job_file import title_of

        return Submission(Launch(command, _here()), title=title_of(command), user=user)
    if file is None:
        raise UsageError("nothing to submit: expected `weft submit job.yaml` or `weft submit -- python train.py`")
    if not file.endswith((".yaml", ".yml")) and not os.path.exists(file):
        raise UsageError(f"{file!r} is no job file: put `--` before a command, as in `weft submit -- {file} ...`")
    from weft.core.job_file import read_job_file

    return read_job_file(Path(file), user=user)


def _changed(
    job: Submission,
    *,
    workers: str | None,
    name: str | None,
    max_restarts: int | None,
    env: list[str],
    cwd: Path | None,
    **values: Any,
) -> Submission:
    """The job with what the command line says instead."""
    launch = job.launch
    if env:
        launch = replace(launch, environment={**launch.environment, **dict(map(_assignment, env))})
    if cwd is not None:
        launch = replace(launch, cwd=str(cwd.absolute()))
    if max_restarts is not None:
        launch = replace(launch, max_restarts=max_restarts)
    changes = {key: value for key, value in values.items() if value is not None}
    if name is not None:
        changes["title"] = name
    if workers is not None:
        changes["min_workers"], changes["max_workers"] = worker_range(workers)
        changes["requested_workers"], changes["sizes"] = None, ()
    return replace(job, launch=launch, **changes)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env {text}: expected NAME=VALUE")
    return name, value


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the folder you are in was deleted: go to another one, or give --cwd") from None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _show_outlook(job: Submission, *, as_json: bool) -> None:
    outlook = connect().outlook(job)
    if as_json:
        render.print_json({"job": job.document(), "outlook": outlook})
        return
    for key, value in job.document().items():
        if value not in (None, "", [], {}):
            print(f"{key + ':':<19}{_words(value)}")
    print(f"{'now it would get:':<19}{outlook['workers']} workers")
    print(f"{'because:':<19}{render.plain(outlook['reason'])}")


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(repr(word) if isinstance(word, str) else str(word) for word in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={text!r}" for name, text in value.items())
    return render.plain(str(value))


class _Submit(Verb):
    """Everything after ``--`` is the job's command, whatever it looks like; before it are our options."""

    def __call__(self, args: Sequence[str], prog_name: str, **given: Any) -> None:
        ours, command = args, None
        if SEPARATOR in args:
            cut = args.index(SEPARATOR)
            ours, command = args[:cut], tuple(args[cut + 1 :])
        super().__call__(ours, prog_name, command=command, **given)


app = _Submit(submit)
