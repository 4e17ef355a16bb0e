"""``weft.session()``: one script for a single process, torchrun, ``weft run``, and the controller."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from weft.core.worker_environment import CHECKPOINT_EVERY_S, STOPPED_EXIT_CODE, STOPPED_UNSAVED_EXIT_CODE
from weft.errors import SessionError, UsageError
from weft.overlap.handle import handle_of
from weft.process.turns import TURNS
from weft.worker.batch_rule import ruled_batch
from weft.worker.channel import Channel
from weft.worker.checkpoint_folder import CheckpointFolder
from weft.worker.checkpointing import Checkpointing
from weft.worker.data import SessionLoader
from weft.worker.environment import read_environment
from weft.worker.joining import choose_device, choose_num_threads, join, peers_of_running_group
from weft.worker.metric_writers import write_metrics
from weft.worker.peers import Peers
from weft.worker.reports import ProgressBar, Reporter
from weft.worker.rng import seed_everything
from weft.worker.sampling import LoaderPlace, Share
from weft.worker.scaling import RateScaling
from weft.worker.stepper import End, LoopState, Stepper
from weft.worker.stopping import StopRequest
from weft.worker.watchdog import NoWatchdog, Watchdog, start_watchdog


class Session:
    """What the script holds as ``run``; see :func:`weft.session`."""

    def __init__(
        self,
        *,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every_s: float | None = None,
        keep_checkpoints: int = 3,
        seed: int = 0,
    ) -> None:
        if keep_checkpoints < 1:
            raise UsageError(f"keep_checkpoints is {keep_checkpoints}, expected at least 1")
        self._environment = read_environment(os.environ)
        # The environment overrides the script.
        every_s = self._environment.checkpoint_every_s
        if checkpoint_every_s is not None and CHECKPOINT_EVERY_S not in os.environ:
            every_s = checkpoint_every_s
        folder = CheckpointFolder(
            self._environment.checkpoint_dir or Path(checkpoint_dir or _default_folder()),
            keep_checkpoints,
            host=self._environment.checkpoint_host or 0,
            keeper=0 if self._environment.checkpoint_host is None else self._environment.first_rank_here,
        )
        self._checkpointing = Checkpointing(folder, every_s=every_s)
        self.seed = seed
        self._loop_state = LoopState()
        self._peers: Peers | None = None
        self._device = torch.device("cpu")
        self._owns_group = False
        self._channel = Channel(self._environment.channel) if self._environment.channel else None
        self._stop_request = StopRequest(self._channel, self._environment.stop_file)
        self._scaling: RateScaling | None = None
        self._reporter: Reporter | None = None
        self._watchdog: Watchdog | NoWatchdog = NoWatchdog()

    def __enter__(self) -> Session:
        environment = self._environment
        self._stop_request.install()
        try:
            self._device = choose_device(environment)
            num_threads = choose_num_threads(environment)
            if num_threads is not None:
                torch.set_num_threads(num_threads)
            if dist.is_initialized():
                self._peers = peers_of_running_group()
            else:
                self._owns_group = True
                self._peers = join(environment, self._device)
            bar = ProgressBar.for_worker(self.rank, sys.stderr)
            self._reporter = Reporter(environment, self._peers, self._channel, bar)
            self._watchdog = start_watchdog(self.rank, self.world_size, environment.stall_s)
            seed_everything(self.seed)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._checkpointing.finish()
                self._await_others()
        finally:
            self._close()
        if error is None and self.stopped:
            saved = self._checkpointing.saved_step == self.step
            raise SystemExit(STOPPED_EXIT_CODE if saved else STOPPED_UNSAVED_EXIT_CODE)

    def _await_others(self) -> None:
        """Wait for all workers: one may still ask for another's part of the optimizer state."""
        self._watchdog.pause()
        if self._owns_group and self._peers is not None:
            try:
                self._peers.all_gather(None)
            except SessionError:
                return  # that worker reports its own failure; this one succeeded

    def _close(self) -> None:
        self._watchdog.close()
        self._checkpointing.close()
        if self._reporter is not None:
            self._reporter.end_line()
        if self._channel is not None:
            self._channel.close()
        self._stop_request.uninstall()
        TURNS.rest()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def rank(self) -> int:
        return self._need_peers().rank

    @property
    def world_size(self) -> int:
        return self._need_peers().world_size

    @property
    def device(self) -> torch.device:
        """Where this worker computes."""
        return self._device

    @property
    def step(self) -> int:
        """Steps done since training began, including earlier attempts."""
        return self._loop_state.step

    @property
    def epoch(self) -> int:
        """The epoch of the current batch, from 0."""
        return self._loop_state.epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether the current batch is the last of its epoch: the place to validate.

        Not known for an iterable dataset, where only the end of the stream tells.
        """
        if self._loop_state.ends_epoch is None:
            raise UsageError(
                "run.ends_epoch needs a current batch of a dataset with a length: ask inside the loop over run.steps, "
                "and for an iterable dataset validate every N steps (run.step % N == 0)"
            )
        return self._loop_state.ends_epoch

    @property
    def stopped(self) -> bool:
        """Whether the steps ended early because the job was asked to stop."""
        return self._loop_state.stopped

    @property
    def share(self) -> Share:
        """This worker's part of the current global batch."""
        return self._loop_state.share

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        batch_size_per_worker: int | None = None,
        batch_rule: str | None = None,
        warmup_steps: int = 0,
        shuffle: bool | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> SessionLoader:
        """A loader for this worker's part of every batch.

        Args:
            batch_size: the global batch, over however many workers there are.  Uneven splits are weighted.
            batch_size_per_worker: instead of ``batch_size``; the global batch grows with the number of workers, and
                every learning rate by the same factor, linearly over ``warmup_steps``.
            batch_rule: allows ``weft submit --batch MIN:MAX`` to replace ``batch_size``, and says what every learning
                rate is multiplied by then: ``"linear"`` (the ratio of the batch sizes), ``"sqrt"`` (its root), or
                ``"none"``.
            shuffle: by (seed, epoch); on by default for map-style datasets.
            drop_last: skip the last batch of an epoch if it is smaller.
            options: passed to ``torch.utils.data.DataLoader`` (num_workers, pin_memory, collate_fn, ...).
        """
        if (batch_size is None) == (batch_size_per_worker is None):
            raise UsageError("run.loader takes either batch_size= (of all workers) or batch_size_per_worker=")
        if batch_size_per_worker is not None:
            self._scaling = RateScaling(float(self.world_size), warmup_steps)
        ruled = None
        if batch_rule is not None:
            if batch_size is None:
                raise UsageError("batch_rule= needs batch_size=: batch_size_per_worker= has a rule of its own")
            environment = self._environment
            ruled = ruled_batch(batch_rule, batch_size, environment.batch_range, environment.batch_size)
            batch_size, self._scaling = ruled.size, RateScaling(ruled.rate_factor, warmup_steps)
        loader = SessionLoader(
            dataset,
            LoaderPlace(self.rank, self.world_size, self.seed),
            batch_size=batch_size_per_worker if batch_size is None else batch_size,  # type: ignore[arg-type]
            per_worker=batch_size is None,
            shuffle=shuffle,
            drop_last=drop_last,
            options=options,
        )
        if ruled is not None:
            loader.script_batch_size = ruled.script_size
        return loader

    def resume(self, *, data: SessionLoader | None = None, **objects: Any) -> bool:
        """Resume from the newest good checkpoint, if there is one, and save these objects from now on.

        Pass the model, the optimizer, the loader, and anything else with a ``state_dict`` (LR scheduler, GradScaler,
        metrics), always under the same names.  Returns whether there was a checkpoint.
        """
        peers = self._need_peers()
        manifest = self._checkpointing.begin(objects, data, peers, self._say)
        if self._reporter is not None:
            self._reporter.can_resume = True
        for model in self._checkpointing.registered.models.values() if self._checkpointing.registered else ():
            if handle_of(model) is None:  # overlapped models take turns on their own
                TURNS.hook_up(model)
        if manifest is None:
            return False
        self._loop_state.step = manifest.step
        if self._scaling is not None and manifest.scaling is not None:
            self._scaling.load_state_dict(manifest.scaling, manifest.step)
        if manifest.world_size == peers.world_size:
            self._loop_state.rng = manifest.rng[peers.rank]
        return True

    def log(self, *, to: object = None, **metrics: Any) -> None:
        """Metrics of this step for reports and the progress bar: ``run.log(loss=loss)``.  Never waits.

        ``to``: a TensorBoard ``SummaryWriter`` or a W&B run that gets them too, from the first worker, with
        :attr:`step`; then values on a GPU are waited for.
        """
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise UsageError(
                    f"run.log({name}=...) was given a tensor of {value.numel()} elements, expected one number"
                )
            if not hasattr(value, "__float__"):
                raise UsageError(f"run.log({name}=...) was given a {type(value).__name__}, expected one number")
        self._watchdog.alive()
        if self._reporter is not None:
            self._reporter.log(metrics)
        if to is not None and self.rank == 0:
            write_metrics(to, metrics, self.step)

    def sum(self, *values: float | torch.Tensor) -> list[float]:
        """Each value summed over all workers: ``correct, total = run.sum(correct, total)``.

        Every worker has to call it, in the same order; it waits for the others.
        """
        own = [float(value) for value in values]
        self._watchdog.alive()
        with TURNS.yielded():
            rows = self._need_peers().all_gather(own)
        if any(len(row) != len(own) for row in rows):
            raise UsageError(
                f"run.sum was called with {[len(row) for row in rows]} values on workers 0, 1, ...: "
                "call it with the same values in the same order everywhere"
            )
        return [math.fsum(column) for column in zip(*rows, strict=True)]

    def checkpoint(self) -> None:
        """Ask for a checkpoint soon after this step; one worker's call is enough."""
        self._checkpointing.ask()

    def steps(self, data: SessionLoader, *, epochs: int | None = None, max_steps: int | None = None) -> Iterator[Any]:
        """This worker's batches on its device, from the current position to the end of ``epochs`` or ``max_steps``.

        Ends early, after a checkpoint, if the job is asked to stop; then ``run.stopped`` is true, and the session
        exits with code 75.
        """
        if not isinstance(data, SessionLoader):
            raise UsageError(
                f"run.steps was given a {type(data).__name__}, expected the loader that run.loader returns: it keeps "
                "track of which samples are done"
            )
        if epochs is None and max_steps is None:
            raise UsageError("run.steps needs an end: give epochs= or max_steps=")
        self._check_batch_range(data, max_steps)
        peers, checkpointing = self._need_peers(), self._checkpointing
        if checkpointing.registered is not None and data is not checkpointing.data:
            raise UsageError("the loader given to run.steps is not the one given to run.resume: add data= there")
        stepper = Stepper(
            state=self._loop_state,
            peers=peers,
            device=self._device,
            stop_request=self._stop_request,
            watchdog=self._watchdog,
            checkpointing=checkpointing,
            reporter=self._reporter or Reporter(self._environment, peers, None, None),
            scaling=self._scaling,
            say=self._say,
            measures_noise=self._environment.batch_range is not None,
        )
        return stepper.steps(data, End(epochs, max_steps))

    def _check_batch_range(self, data: SessionLoader, max_steps: int | None) -> None:
        if self._environment.batch_range is None:
            return
        given = "this job was submitted with a range of batch sizes (--batch)"
        if data.script_batch_size is None:
            raise UsageError(
                f"{given}, but its loader does not say what happens to the learning rate: add "
                'batch_rule="linear", "sqrt", or "none" to run.loader, or submit the job without --batch'
            )
        if max_steps is not None:
            raise UsageError(
                f"{given}, so the number of samples in max_steps= would depend on the batch size: give run.steps "
                "epochs= instead, or submit the job without --batch"
            )

    def _need_peers(self) -> Peers:
        if self._peers is None:
            raise SessionError("the session is not open: write `with weft.session() as run:` around the training")
        return self._peers

    def _say(self, text: str) -> None:
        if self.rank == 0:
            if self._reporter is not None:
                self._reporter.end_line()
            print(f"weft: {text}", file=sys.stderr, flush=True)


def _default_folder() -> Path:
    """Relative to the working directory, so that running the script again finds its checkpoints."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "session"
    return Path("checkpoints", script or "session")
