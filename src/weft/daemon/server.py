"""The controller as a process: builds everything, serves it, and says clearly why it cannot.

Started by `weft up` as ``python -m weft.daemon HOME``.  SIGTERM and SIGINT end the controller; its workers go on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import uvicorn

from weft.core.engine import Engine
from weft.crossover.gpu import has_mps
from weft.crossover.phases import Limits
from weft.daemon.home import Home, Record
from weft.daemon.listeners import listen_local, listen_unix
from weft.daemon.scheduling import SchedulingOptions
from weft.daemon.service import Controller
from weft.elastic.registry import policy_named
from weft.engines.launch import visible_gpus
from weft.errors import UsageError, WeftError
from weft.store import Journal
from weft.version import __version__

DEFAULT_PORT = 8477
_LEAVE_CONNECTIONS_S = 2

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to end; the exit code says how it went."""
    options = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _serve(options)
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weft.daemon", description="The weft controller; see `weft up`.")
    parser.add_argument("home", type=Path)
    parser.add_argument("--engine", default="local", choices=("local",))
    parser.add_argument("--devices", type=int, default=None, help="default: every GPU, or every core")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="of 127.0.0.1; 0 takes any that is free")
    parser.add_argument("--hold-s", type=float, default=SchedulingOptions().hold_s)
    parser.add_argument("--grace-s", type=float, default=120.0, help="what workers have to save and leave")
    parser.add_argument("--cold", action="store_true", help="start workers without the warm pool")
    parser.add_argument("--no-share", action="store_true", help="never let two jobs take turns on a device")
    parser.add_argument("--paranoid", action="store_true", help="check all invariants after every event")
    return parser


def _serve(options: argparse.Namespace) -> int:
    home = Home(options.home.absolute())
    home.prepare()
    why_unshared = _why_unshared(options)
    scheduling = SchedulingOptions(
        policy=options.policy,
        hold_s=options.hold_s,
        crossover=not why_unshared,
        handover_s=Limits().handover_s,
        why_unshared=why_unshared,
    )
    policy_named(options.policy)  # a wrong name is said before anything is opened
    with home.locked(), contextlib.ExitStack() as closing:
        token = home.token()
        local = closing.enter_context(listen_local(options.port))
        port: int = local.getsockname()[1]
        unix = closing.enter_context(listen_unix(home.api_socket))
        closing.callback(home.api_socket.unlink, missing_ok=True)
        controller = _controller(home, options, scheduling)
        controller.start()
        record = Record(os.getpid(), controller.now_s(), str(home.api_socket), port, __version__)
        home.write_record(record)
        closing.callback(home.record_file.unlink, missing_ok=True)
        _log.info("controller %s, policy %s, in %s, %s", __version__, controller.policy_name, home.root, record.url)
        try:
            asyncio.run(_run(controller, token, port, [unix, local]))
        finally:
            controller.shutdown()
            controller.join()
    return 0 if controller.failure is None else 1


def _controller(home: Home, options: argparse.Namespace, scheduling: SchedulingOptions) -> Controller:
    """Journal first: where it cannot be read nothing is started; what was opened is closed if the rest fails."""
    with contextlib.ExitStack() as opened:
        journal = opened.enter_context(Journal.open(home.journal_file))
        engine = _engine(home, options)
        opened.callback(engine.close)
        controller = Controller(home, journal, engine, scheduling, paranoid=options.paranoid, free_bytes=_free_bytes)
        opened.pop_all()
    return controller


def _why_unshared(options: argparse.Namespace) -> str:
    """Why devices are not shared; nothing if they are."""
    if options.no_share:
        return "devices are not shared: the controller was started with --no-share"
    if visible_gpus(os.environ) and not has_mps(os.environ):
        return "devices are not shared: two jobs on a GPU need NVIDIA's MPS, which does not run"
    return ""


def _free_bytes() -> int | None:
    """Memory that is free here.  What is free on a GPU is not known: there only its host's memory is looked at."""
    return int(psutil.virtual_memory().available)


def _engine(home: Home, options: argparse.Namespace) -> Engine:
    if not options.grace_s > 0:
        raise UsageError(f"--grace-s is {options.grace_s}: expected a positive number of seconds")
    from weft.engines.local import LocalEngine

    return LocalEngine.open(home.root, num_devices=options.devices, warm=not options.cold, grace_s=options.grace_s)


async def _run(controller: Controller, token: str, port: int, sockets: list[socket.socket]) -> None:
    from weft.daemon.api.app import make_app

    config = uvicorn.Config(
        make_app(controller, token, port=port),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_LEAVE_CONNECTIONS_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, controller.shutdown)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    await asyncio.gather(serving, _end_with(controller, server))


async def _end_with(controller: Controller, server: uvicorn.Server) -> None:
    """The server ends when the loop has ended, as asked or not."""
    await asyncio.to_thread(controller.finished.wait)
    server.should_exit = True


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would end at once, while jobs may still be on their way out."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
