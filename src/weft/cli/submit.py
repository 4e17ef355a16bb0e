"""``weft submit``: submit a job, as a file or as a command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Any

from weft.cli import render
from weft.cli.verb import Json, Verb, connect
from weft.core.command_line import Argument, Option, Tail
from weft.core.job import Launch
from weft.core.nearest_name import nearest_name
from weft.core.plural import plural
from weft.core.script_options import MARK, script_options
from weft.core.submission import FIELDS, WORKERS, Submission, this_user, worker_range
from weft.engines.plain_script import check_batch_range, is_plain_script
from weft.errors import InputError, UsageError

JOB_FILES = (".yaml", ".yml")
_INTERPRETERS = {".py": "python", ".sh": "bash"}
_PROGRAMS = ("python", "python3", "bash", "torchrun", "accelerate")


def begins_a_command(word: str) -> bool:
    """Whether this word is a script or a program rather than a job file."""
    is_script = word.endswith(tuple(_INTERPRETERS)) and os.path.isfile(word)
    return is_script or shutil.which(word) is not None or _meant_program(word) is not None


def _meant_program(word: str) -> str | None:
    """The interpreter that a mistyped word probably means."""
    if os.path.exists(word) or "/" in word or word.endswith(JOB_FILES):
        return None
    return nearest_name(word, _PROGRAMS)


def submit(
    file: Annotated[str | None, Argument("FILE", "a job file, unless a command follows")] = None,
    command: Annotated[list[str] | None, Tail("COMMAND [ARGS]...", begins=begins_a_command)] = None,
    workers: Annotated[str | None, WORKERS] = None,
    name: Annotated[str | None, FIELDS["name"].option] = None,
    weight: Annotated[float | None, FIELDS["weight"].option] = None,
    priority: Annotated[int | None, FIELDS["priority"].option] = None,
    total_steps: Annotated[int | None, FIELDS["total_steps"].option] = None,
    max_restarts: Annotated[int | None, FIELDS["max_restarts"].option] = None,
    batch: Annotated[str | None, FIELDS["batch"].option] = None,
    env: Annotated[
        list[str] | None, Option("environment variable for the job; repeatable", "none", metavar="NAME=VALUE")
    ] = None,
    cwd: Annotated[Path | None, FIELDS["cwd"].option] = None,
    dry_run: Annotated[bool, Option("show the job and the workers it would get now; submit nothing")] = False,
    schema: Annotated[bool, Option("print the JSON schema of job files")] = False,
    as_json: Json = False,
) -> None:
    """Submit a job and print its id: `weft submit job.yaml`, or `weft submit -- python train.py --lr 0.1`.

    Options go before the command and override the job file, and the script's own options: lines such as
    `#WEFT --workers 1:4` before its first line of code. `--` may be left out before a script or a program. A script
    that is not executable is run with `python`. The id is printed once the job is on disk.
    """
    if schema:
        if file is not None or command is not None:
            raise UsageError("--schema only prints the JSON schema of job files: leave out the job")
        from weft.core.job_file import job_schema

        render.print_json(job_schema())
        return
    job = _described(file, command)
    job = _changed(job, **_of_script(job.launch)) if command else job
    job = _changed(
        job,
        workers=workers,
        name=name,
        weight=weight,
        priority=priority,
        total_steps=total_steps,
        max_restarts=max_restarts,
        batch=batch,
        env=env or [],
        cwd=cwd,
    )
    if not os.path.isdir(job.launch.cwd):
        raise UsageError(f"the job's folder {job.launch.cwd!r} does not exist: create it, or choose another with --cwd")
    check_batch_range(job.launch)
    if dry_run:
        _show_outlook(job, as_json=as_json)
        return
    job_id = connect().submit(job)
    if job.min_workers < job.max_workers and is_plain_script(job.launch):
        render.note(
            f"the script does not use weft.session, so the number of workers ({job.min_workers} to {job.max_workers}) "
            "is chosen when the job starts and is fixed from then on"
        )
    if as_json:
        render.print_json({"id": job_id, "name": job.name})
    else:
        print(job_id)


def _described(file: str | None, command: list[str] | None) -> Submission:
    user = this_user()
    if file is not None and command is not None:
        raise UsageError(f"got both a job file ({file}) and a command: expected only one of them")
    if command is not None:
        if not command:
            raise UsageError("there is no command after `--`: expected one, such as `-- python train.py`")
        from weft.core.job_file import name_of

        if shutil.which(command[0]) is None and (meant := _meant_program(command[0])):
            raise UsageError(f"there is no program {command[0]!r}: did you mean {meant!r}?")
        argv = _runnable(command)
        return Submission(Launch(argv, _here()), name=name_of(argv), user=user)
    if file is None:
        raise UsageError("nothing to submit: expected `weft submit job.yaml` or `weft submit -- python train.py`")
    if file.endswith(tuple(_INTERPRETERS)) and not os.path.exists(file):
        near = nearest_name(file, [name for name in os.listdir() if name.endswith(tuple(_INTERPRETERS))])
        hint = f"did you mean {near!r}?" if near else f"give its path, from {_here()}"
        raise UsageError(f"there is no script {file!r}: {hint}")
    if not file.endswith(JOB_FILES) and not os.path.exists(file):
        raise UsageError(f"there is no job file {file!r}: put `--` before a command, as in `weft submit -- {file} ...`")
    from weft.core.job_file import read_job_file

    return read_job_file(Path(file), user=user)


def _runnable(command: list[str]) -> tuple[str, ...]:
    """The command, with an interpreter in front of a script that is not executable."""
    script = command[0]
    interpreter = _INTERPRETERS.get(Path(script).suffix)
    is_script = interpreter is not None and os.path.isfile(script) and not os.access(script, os.X_OK)
    return (str(interpreter), *command) if is_script else tuple(command)


_IN_SCRIPTS = ("workers", "name", "weight", "priority", "total_steps", "max_restarts", "batch", "env", "cwd")


def _of_script(launch: Launch) -> dict[str, Any]:
    """The options in the script's own ``#WEFT`` lines; later lines override earlier ones."""
    name = next((word for word in launch.argv[:_MAX_PROGRAM_WORDS] if word.endswith((".py", ".sh"))), None)
    values: dict[str, Any] = {"workers": None, "env": [], "cwd": None}
    if name is None:
        return values
    path = Path(launch.cwd, name)
    verb = Verb(submit)
    for line, words in script_options(path):
        try:
            parsed = verb.parse(words, MARK, settings={})
        except UsageError as error:
            message = str(error).removesuffix(f" (see `{MARK} --help`)")
            raise InputError(f"{MARK}: {message}", file=name, line=line) from None
        if parsed["file"] or parsed["command"] or any(parsed[one] for one in ("dry_run", "schema", "as_json")):
            flags = ", ".join("--" + one.replace("_", "-") for one in _IN_SCRIPTS)
            raise InputError(f"{MARK}: expected only {flags}", file=name, line=line)
        values["env"] = [*values["env"], *(parsed.pop("env") or [])]
        values |= {one: parsed[one] for one in _IN_SCRIPTS if one != "env" and parsed[one] is not None}
    return values


_MAX_PROGRAM_WORDS = 8
"""The script is one of the first words, such as in ``env A=1 python -u train.py``."""


def _changed(job: Submission, workers: str | None, env: list[str], cwd: Path | None, **values: Any) -> Submission:
    """The job with these options applied."""
    document = job.document() | {key: value for key, value in values.items() if value is not None}
    document["environment"] = {**document["environment"], **dict(map(_assignment, env))}
    if cwd is not None:
        document["cwd"] = str(cwd.absolute())
    if workers is not None:
        document["min_workers"], document["max_workers"] = worker_range(workers)
        document["requested_workers"], document["sizes"] = None, ()
    return Submission.from_document(document)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env {text}: expected NAME=VALUE")
    return name, value


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was deleted: change to another one, or use --cwd") from None


def _show_outlook(job: Submission, *, as_json: bool) -> None:
    outlook = connect().outlook(job)
    if as_json:
        render.print_json({"job": job.document(), "outlook": outlook})
        return
    for key, value in job.document().items():
        if value not in (None, "", [], {}):
            render.print_text(f"{key + ':':<19}{_words(value)}", indent=19)
    print(f"{'would get now:':<19}{plural(outlook['workers'], 'worker')}")
    render.print_text(f"{'because:':<19}{render.plain(outlook['reason'])}", indent=19)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(repr(word) if isinstance(word, str) else str(word) for word in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={text!r}" for name, text in value.items())
    return render.plain(str(value))
