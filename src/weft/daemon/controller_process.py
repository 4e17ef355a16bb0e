"""The controller as a process: builds everything and serves it, or raises an error that says why it cannot.

This is what `weft up` starts.  SIGTERM and SIGINT shut down the controller; its workers keep running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator

import psutil
import uvicorn

from weft.core.duration import parse_duration_s
from weft.core.engine import Engine, SharesOnNodes
from weft.crossover.gpu import has_mps
from weft.crossover.phases import TurnLimits
from weft.daemon.connections import raise_open_files, server_config
from weft.daemon.faults import Repeats
from weft.daemon.home import Home, Record
from weft.daemon.listeners import Reserve, keep_reachable, listen_local, listen_unix
from weft.daemon.options import ControllerOptions
from weft.daemon.otel_traces import JobTraces, otlp_exporter
from weft.daemon.scheduling import SchedulingOptions
from weft.daemon.service import Controller
from weft.elastic.registry import policy_named
from weft.engines.worker_launch import visible_gpus
from weft.errors import EngineError, UsageError
from weft.store import Journal
from weft.version import __version__

_CLOSE_CONNECTIONS_S = 2

_log = logging.getLogger(__name__)


def serve(home: Home, options: ControllerOptions) -> int:
    """Run the controller of this home until it is told to shut down; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repeats())
    home.prepare()
    why_unshared = _why_unshared(options)
    scheduling = SchedulingOptions(
        policy=options.policy,
        hold_s=options.hold_s,
        crossover=not why_unshared,
        handover_s=TurnLimits().handover_s,
        why_unshared=why_unshared,
        quotas=options.quotas,
    )
    policy_named(options.policy)  # reject an unknown name before opening anything
    traces = JobTraces(otlp_exporter()) if options.otel else None
    num_files = raise_open_files()
    with home.locked(), contextlib.ExitStack() as closing:
        token = home.token()
        reserve = closing.enter_context(Reserve())
        local = closing.enter_context(listen_local(options.port, reserve))
        port: int = local.getsockname()[1]
        unix = closing.enter_context(listen_unix(home.api_socket, reserve))
        closing.callback(home.api_socket.unlink, missing_ok=True)
        controller = _controller(home, options, scheduling, traces)
        controller.start()
        controller.ready.wait()
        if controller.failure is not None:
            raise EngineError(
                f"the controller cannot run (workers keep running): {controller.failure!r}; see {home.log_file}"
            )
        record = Record(os.getpid(), controller.now_s(), str(home.api_socket), port, __version__)
        home.write_record(record)
        closing.callback(home.record_file.unlink, missing_ok=True)
        _log.info("controller %s, policy %s, in %s, %s", __version__, controller.policy_name, home.root, record.url)
        try:
            server = _server(controller, token, port, num_files)
            upkeep = keep_reachable(home, record, reserve, server.add, controller.rebind_channel)
            asyncio.run(_run(controller, server, [unix, local], upkeep))
        finally:
            controller.shutdown()
            controller.join()
    return 0 if controller.failure is None else 1


def _controller(
    home: Home, options: ControllerOptions, scheduling: SchedulingOptions, traces: JobTraces | None
) -> Controller:
    """Opens the journal first: if it is unreadable, nothing is started.  If a later step fails, closes everything."""
    with contextlib.ExitStack() as opened:
        journal = opened.enter_context(Journal(home.journal_file, accept_loss=options.accept_loss))
        engine = _engine(home, options)
        opened.callback(engine.close)
        controller = Controller(
            home,
            journal,
            engine,
            scheduling,
            paranoid=options.paranoid,
            accept_loss=options.accept_loss,
            keep_s=None if options.keep is None else parse_duration_s(options.keep, "--keep"),
            traces=traces,
            free_bytes=engine.free_bytes if isinstance(engine, SharesOnNodes) else _free_bytes,
        )
        opened.pop_all()
    return controller


def _why_unshared(options: ControllerOptions) -> str:
    """Why devices are not shared; empty if they are."""
    if options.no_share:
        return "devices are not shared: the controller was started with --no-share"
    if options.engine == "ray":
        return ""  # each node knows whether its devices can be shared
    if visible_gpus(os.environ) and not has_mps(os.environ):
        return "devices are not shared: two jobs on a GPU need NVIDIA MPS, which is not running"
    return ""


def _free_bytes() -> int | None:
    """Free memory of this host.  Free GPU memory is unknown."""
    return int(psutil.virtual_memory().available)


def _engine(home: Home, options: ControllerOptions) -> Engine:
    if not options.grace_s > 0:
        raise UsageError(f"--grace-s is {options.grace_s}: expected a positive number of seconds")
    if options.engine == "ray":
        return _ray_engine(home, options)
    if options.address is not None or options.insecure_ray or {options.checkpoints, options.code} != {"shared"}:
        raise UsageError("--address, --insecure-ray, --checkpoints, and --code are for a Ray cluster: add --engine ray")
    if any((home.root / "ray" / "engine" / "orders").glob("*@*.json")):
        raise UsageError(
            f"jobs of {home.root} are still running on a Ray cluster: start the controller with --engine ray, as "
            "before; to use this machine instead, stop them first with `weft down --jobs`"
        )
    from weft.engines.local import LocalEngine

    return LocalEngine(home.root, num_devices=options.devices, warm=not options.cold, grace_s=options.grace_s)


def _ray_engine(home: Home, options: ControllerOptions) -> Engine:
    if options.devices is not None:
        raise UsageError("--devices is for this machine: `ray start --num-cpus` or --num-gpus sets a node's devices")
    from weft.engines.ray import RayEngine

    return RayEngine(
        home.root,
        address=options.address or "auto",
        insecure=options.insecure_ray,
        relay=options.checkpoints == "relay",
        ship=options.code == "ship",
        warm=not options.cold,
        grace_s=options.grace_s,
    )


def _server(controller: Controller, token: str, port: int, num_files: int) -> _Server:
    from weft.daemon.api.app import make_app

    app = make_app(controller, token, port=port)
    return _Server(server_config(app, num_files=num_files, timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S))


async def _run(
    controller: Controller, server: _Server, sockets: list[socket.socket], upkeep: Coroutine[None, None, None]
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, controller.shutdown)
    keeping_up = asyncio.create_task(upkeep)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    await asyncio.gather(serving, _end_with(controller, server))
    keeping_up.cancel()


async def _end_with(controller: Controller, server: uvicorn.Server) -> None:
    """The server exits when the loop has ended, whether or not it was told to."""
    await asyncio.to_thread(controller.finished.wait)
    server.should_exit = True


class _Server(uvicorn.Server):
    """Leaves signal handling to us: uvicorn would exit immediately, while jobs may still be stopping."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def add(self, listener: socket.socket) -> None:
        """Serve one more socket."""
        config = self.config

        def protocol(_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=_loop
            )
            return made

        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(protocol, sock=listener, backlog=config.backlog))
