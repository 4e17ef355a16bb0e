"""Start the workers of each stage, collect their results, and write the report.

    python -m weft.worker.gpu_check DEVICE FOLDER

Prints one JSON object per line: ``{"progress": ...}`` while running, ``{"report": ...}`` at the end.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from weft.version import __version__

STAGES = {"exact": "the same numbers as DDP", "plans": "state dicts and changes of plan", "speed": "memory and speed"}
# Five minutes in total on GPUs. CPUs only test this program, on machines that may be busy.
STAGE_LIMIT_S = {"exact": 120.0, "plans": 80.0, "speed": 90.0}
CPU_LIMIT_S = 400.0
MAX_WORKERS = 8
NO_GPUS = 3
_MAX_ERROR_CHARACTERS = 4000
# How a worker without an error message ended.
_ENDED: dict[int, str] = {
    signal.SIGKILL: "killed: it ran out of time or memory",
    signal.SIGTERM: "stopped: another worker failed",
}


def main(kind: str, folder: Path) -> int:
    num_workers = min(torch.cuda.device_count(), MAX_WORKERS) if kind == "cuda" else 2
    if num_workers < 2:
        say(
            error=f"weft doctor --gpu needs at least 2 GPUs on this machine, but torch {torch.__version__} can use "
            f"{num_workers}"
        )
        return NO_GPUS
    rows: list[dict[str, Any]] = []
    began_s = time.monotonic()
    for number, (stage, words) in enumerate(STAGES.items()):
        say(progress=f"{number + 1} of {len(STAGES)}: {words}")
        rows += run_stage(stage, kind, num_workers)
    report = {
        "weft": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": _nccl() if kind == "cuda" else None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": kind,
        "gpus": [torch.cuda.get_device_name(n) for n in range(num_workers)] if kind == "cuda" else [],
        "num_workers": num_workers,
        "took_s": time.monotonic() - began_s,
        "ok": bool(rows) and all(row["ok"] for row in rows),
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.txt").write_text(in_words(report))
    say(report=report, json=str(path), text=str(folder / "report.txt"))
    return 0 if report["ok"] else 1


def run_stage(stage: str, kind: str, num_workers: int) -> list[dict[str, Any]]:
    """The result rows of one stage; a failed or hung worker adds a row that says so."""
    port = _free_port()
    shared = {"WORLD_SIZE": str(num_workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "weft.worker.gpu_check.worker", stage, kind],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_workers)
    ]
    errors: list[str] = [""] * num_workers
    streams = [worker.stderr for worker in workers]
    readers = [threading.Thread(target=_keep, args=(stream, errors, rank)) for rank, stream in enumerate(streams)]
    for reader in readers:
        reader.start()
    limit_s = STAGE_LIMIT_S[stage] if kind == "cuda" else CPU_LIMIT_S
    timer = threading.Timer(limit_s, _stop, args=(workers,))
    timer.start()
    rows = []
    try:
        for line in workers[0].stdout or ():
            rows.append(json.loads(line))
            say(progress=f"{rows[-1]['check']}: {rows[-1]['case']}: {rows[-1]['found']}")
        codes = _ends(workers)
    finally:
        timer.cancel()
        _stop(workers)
        for reader in readers:
            reader.join()
    for rank, code in enumerate(codes):
        if code:
            text = errors[rank] or _ENDED.get(-code, f"exit code {code}")
            rows.append({"check": stage, "case": f"worker {rank} failed", "ok": False, "found": text})
    return rows


def _stop(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        worker.kill()


def _ends(workers: list[subprocess.Popen[str]]) -> list[int]:
    """Exit codes; once a worker has failed, the others are stopped: they would wait for it forever."""
    codes = [worker.poll() for worker in workers]
    while any(code is None for code in codes):
        if any(codes):
            for worker in workers:
                worker.terminate()
        for worker in workers:
            try:
                worker.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        codes = [worker.poll() for worker in workers]
    return [code or 0 for code in codes]


def _keep(stream: Any, errors: list[str], rank: int) -> None:
    for line in stream:
        errors[rank] = (errors[rank] + line)[-_MAX_ERROR_CHARACTERS:]


def _nccl() -> str:
    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def in_words(report: dict[str, Any]) -> str:
    """The report as text."""
    devices = ", ".join(report["gpus"]) or "CPU (this only tests the program itself)"
    lines = [
        f"weft {report['weft']} on {report['num_workers']} workers: {devices}",
        f"torch {report['torch']}, CUDA {report['cuda']}, NCCL {report['nccl']}, {report['system']}",
        f"{'all checks passed' if report['ok'] else 'CHECKS FAILED'}, {report['took_s']:.0f} s",
        "",
    ]
    for row in report["rows"]:
        mark = "ok " if row["ok"] else "BAD"
        lines.append(f"{mark}  {row['check']:<13} {row['case']:<40} {row['found']}")
    return "\n".join(lines) + "\n"


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
