"""A small training script as a function, and real worker processes to run it in, stopped at a chosen (rank, step).

Processes come from a fork server that has torch imported, so that a test can restart a job many times.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hang_limit import HANG_S

from weft.engines.rendezvous import ReservedPort

_CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo is loaded by the first optimizer: seconds, if every process did it itself.
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "weft.worker", "weft.overlap", "torch._dynamo"])


@dataclass(frozen=True)
class Job:
    """What is trained; the same for every start of it."""

    folder: str
    optimizer: str = "adamw"
    wrap: str = "overlap"
    batch_norm: bool = False
    dropout: float = 0.0
    scaler: bool = False
    num_samples: int = 103
    batch_size: int = 20
    per_worker: bool = False
    epochs: int = 3
    iterable: bool = False
    loader_processes: int = 0
    accumulate: int = 1
    no_sync: bool = True
    first_is_late: bool = False
    batch_rule: str | None = None
    batch_range: str = ""
    chosen_batch: str = ""


@dataclass(frozen=True)
class Stop:
    """SIGTERM to one worker in one step."""

    rank: int
    step: int


@dataclass(frozen=True)
class Outcome:
    exit_codes: list[int]
    steps: list[dict[str, Any]]
    digest: str
    # Fingerprints of everything that a checkpoint keeps, by kind: after resuming, and at the end.
    begin: dict[str, str]
    end: dict[str, str]


def start(job: Job, num_workers: int, stop: Stop | None = None) -> Outcome:
    """Run the job on this many workers until it ends or is stopped."""
    results = Path(job.folder, "results")
    results.mkdir(parents=True, exist_ok=True)
    with ReservedPort() as reserved:
        workers = [
            _CONTEXT.Process(
                target=_worker, args=(job, rank, num_workers, reserved.port, stop, str(results / f"{rank}.json"))
            )
            for rank in range(num_workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(HANG_S)
    hung = [rank for rank, worker in enumerate(workers) if worker.exitcode is None]
    for worker in workers:
        worker.kill()
        worker.join()
    assert not hung, f"workers {hung} did not end within {HANG_S} s"
    codes = [int(worker.exitcode) for worker in workers if worker.exitcode is not None]
    told = [json.loads((results / f"{rank}.json").read_text()) for rank in range(num_workers)]
    assert len({t["digest"] for t in told}) == 1, "workers end with different parameters"
    steps = [_joined([t["steps"][k] for t in told]) for k in range(len(told[0]["steps"]))]
    assert all(t["begin"] == told[0]["begin"] for t in told), "workers begin in different states"
    return Outcome(codes, steps, told[0]["digest"], told[0]["begin"], told[0]["end"])


def samples_by_epoch(outcomes: list[Outcome]) -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = {}
    for outcome in outcomes:
        for step in outcome.steps:
            found.setdefault(step["epoch"], Counter()).update(step["samples"])
    return found


def losses(outcomes: list[Outcome]) -> list[float]:
    return [step["loss"] for outcome in outcomes for step in outcome.steps]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """All workers' part of one step: the loss of the global batch."""
    assert len({(p["step"], p["epoch"]) for p in parts}) == 1
    return {
        "step": parts[0]["step"],
        "epoch": parts[0]["epoch"],
        "lr": parts[0]["lr"],
        "loss": sum(p["loss"] * p["weight"] for p in parts if p["weight"]),
        "samples": [s for p in parts for s in (p["samples"] if p["weight"] else [])],
        "noise": [p["noise"] for p in parts],
    }


def _worker(job: Job, rank: int, num_workers: int, port: int, stop: Stop | None, result: str) -> None:
    warnings.simplefilter("error")
    multiprocessing.set_start_method("fork", force=True)  # what a script started by hand has, for its loader processes
    sys.stderr = open(os.devnull, "w") if num_workers == 1 else sys.stderr  # noqa: SIM115
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(num_workers),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(num_workers),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WEFT_CHECKPOINT_DIR=str(Path(job.folder, "checkpoints")),
        WEFT_START_TIMEOUT_S=str(HANG_S),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    if job.batch_range:
        os.environ["WEFT_BATCH_RANGE"] = job.batch_range
    if job.chosen_batch:
        os.environ["WEFT_BATCH_SIZE"] = job.chosen_batch
    import torch

    torch.set_num_threads(1)
    told: dict[str, Any] = {"steps": [], "digest": "", "begin": {}, "end": {}}
    try:
        _train(job, rank, stop, told)
    finally:
        Path(result).write_text(json.dumps(told))


def _train(job: Job, rank: int, stop: Stop | None, told: dict[str, Any]) -> None:
    import torch
    import torch.nn.functional as functional
    from torch import nn

    import weft

    with weft.session() as run:
        middle: list[nn.Module] = [nn.BatchNorm1d(24)] if job.batch_norm else []
        middle += [nn.Tanh(), nn.Dropout(job.dropout)]
        model: nn.Module = nn.Sequential(nn.Linear(6, 24), *middle, nn.Linear(24, 3))
        optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(model.parameters(), lr=0.01)
            if job.optimizer == "adamw"
            else torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        )
        between: Callable[[], AbstractContextManager[Any]] = nullcontext
        if job.wrap == "overlap":
            between = weft.overlap(model, optimizer, tune=False).no_sync
        elif job.wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
            between = model.no_sync
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
        scaler = torch.amp.GradScaler("cpu", enabled=job.scaler, init_scale=256.0, growth_interval=3)
        dataset = Stream(job.num_samples) if job.iterable else Samples(job.num_samples, job.loader_processes > 0)
        size = {"batch_size_per_worker" if job.per_worker else "batch_size": job.batch_size}
        data = run.loader(dataset, num_workers=job.loader_processes, batch_rule=job.batch_rule, **size)
        run.resume(model=model, optimizer=optimizer, data=data, scheduler=scheduler, scaler=scaler)
        told["begin"] = _states(model, optimizer, scheduler, scaler)
        for x, y, samples in run.steps(data, epochs=job.epochs):
            whole = (run.step + 1) % job.accumulate == 0
            with between() if job.no_sync and not whole else nullcontext():
                loss = functional.cross_entropy(model(x), y)
                scaler.scale(loss / job.accumulate).backward()
            if whole:
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()
            run.log(loss=loss)
            told["steps"].append(
                {
                    "step": run.step,
                    "epoch": data.epoch,
                    "loss": loss.item(),
                    "lr": optimizer.param_groups[0]["lr"],
                    "weight": run.share.weight,
                    "samples": samples.tolist(),
                    "noise": [float(torch.rand(())), random.random()],
                }
            )
            if stop == Stop(rank, run.step):
                os.kill(os.getpid(), signal.SIGTERM)
        if job.first_is_late and rank == 0:
            time.sleep(0.5)  # enough time for the others to leave, if they were going to
        told["end"] = _states(model, optimizer, scheduler, scaler)
        told["digest"] = told["end"]["parameters"]


def _states(model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> dict[str, str]:
    """A fingerprint of each kind of state.  Only rank 0's buffers are right until the next forward."""
    inner = getattr(model, "module", model)
    return {
        "parameters": _digest({name: value.detach() for name, value in inner.named_parameters()}),
        "buffers": _digest(dict(inner.named_buffers())),
        "optimizer": _digest(optimizer.state_dict()),
        "scheduler": _digest(scheduler.state_dict()),
        "scaler": _digest(scaler.state_dict()),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256("".join(_words(value)).encode()).hexdigest()


def _words(value: Any) -> Iterator[str]:
    """Every number in a nest of containers, to the last bit, whatever order they were filled in."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield f"{key}:"
            yield from _words(value[key])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)
    else:
        yield repr(value.tolist() if hasattr(value, "tolist") else value)


def _sample(index: int, noise: float) -> tuple[Any, int, int]:
    import torch

    generator = torch.Generator().manual_seed(index)
    x = torch.randn(6, generator=generator)
    return x + noise, int(x[:3].sum() > 0) + int(x[3:].sum() > 0), index


class Samples:
    """A map-style dataset; augments at random when asked to."""

    def __init__(self, num_samples: int, augment: bool) -> None:
        self._num_samples = num_samples
        self._augment = augment

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        import torch

        return _sample(index, float(torch.rand(())) * 0.1 if self._augment else 0.0)


class Stream:
    """The same samples as a stream."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __iter__(self) -> Any:
        return (_sample(index, 0.0) for index in range(self._num_samples))
