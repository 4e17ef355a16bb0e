"""``weft.session()``: the same script alone, under torchrun, under ``weft run`` and under the controller."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from weft.core.turns import TURNS
from weft.core.worker_environment import STOPPED_EXIT_CODE, STOPPED_UNSAVED_EXIT_CODE
from weft.errors import InputError, SessionError, UsageError
from weft.overlap.handle import handle_of
from weft.version import __version__
from weft.worker.agreement import NOTHING, Wishes, choose_agreement
from weft.worker.channel import Channel
from weft.worker.checkpoint import CheckpointFolder
from weft.worker.data import LoaderPlace, SessionLoader
from weft.worker.environment import read_environment
from weft.worker.joining import choose_device, choose_num_threads, join, peers_of_running_group
from weft.worker.manifest import Manifest
from weft.worker.peers import Peers
from weft.worker.progress import ProgressBar
from weft.worker.reports import Meter, StepReport, peak_memory_bytes, send_report
from weft.worker.resuming import find_checkpoint, load_checkpoint
from weft.worker.rng import capture_rng, derived_seed, restore_rng, seed_everything
from weft.worker.sampling import Share
from weft.worker.scaling import LinearScaling
from weft.worker.shards import Registered, capture_own, capture_replicated, register
from weft.worker.stopping import StopRequest
from weft.worker.updates import UpdateCount
from weft.worker.watchdog import NoWatchdog, Watchdog, start_watchdog
from weft.worker.weighting import Weighting, choose_weighting
from weft.worker.writer import CheckpointWriter, Snapshot

_EXIT_PATIENCE_S = 5.0


class Session:
    """What the script holds as ``run``.  Made by :func:`weft.session`; see there."""

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
        # Whoever starts the job knows where its checkpoints go and when; the script only has a preference.
        self._checkpoint_dir = self._environment.checkpoint_dir or Path(checkpoint_dir or _default_folder())
        self._checkpoint_every_s = self._environment.checkpoint_every_s
        if checkpoint_every_s is not None and "WEFT_CHECKPOINT_EVERY_S" not in os.environ:
            self._checkpoint_every_s = checkpoint_every_s
        self._keep = keep_checkpoints
        self.seed = seed
        self.step = 0
        self.stopped = False
        self.share = Share(0, 1, 1)
        self._peers: Peers | None = None
        self._device = torch.device("cpu")
        self._owns_group = False
        self._channel = Channel(self._environment.channel) if self._environment.channel else None
        self._request = StopRequest(self._channel, self._environment.stop_file)
        self._registered: Registered | None = None
        self._data: SessionLoader | None = None
        self._scaling: LinearScaling | None = None
        self._folder: CheckpointFolder | None = None
        self._writer: CheckpointWriter | None = None
        self._pending_rng: dict[str, Any] | None = None
        self._resumed_finished = False
        self._checkpoint_asked = False
        self._saved_step = -1
        self._saved_s = time.monotonic()
        self._meter = Meter()
        self._bar: ProgressBar | None = None
        self._total_steps: int | None = None
        self._watchdog: Watchdog | NoWatchdog = NoWatchdog()

    # ---- the way in and out

    def __enter__(self) -> Session:
        environment = self._environment
        self._request.install()
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
            self._bar = ProgressBar.for_worker(self.rank, sys.stderr)
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
            if self._writer is not None and error is None:
                self._writer.finish()
            if error is None:
                self._part()
        finally:
            self._close()
        if error is None and self.stopped:
            saved = self._saved_step == self.step
            raise SystemExit(STOPPED_EXIT_CODE if saved else STOPPED_UNSAVED_EXIT_CODE)

    def _part(self) -> None:
        """Nobody takes the group down while another may still ask for its part of the optimizer's state."""
        self._watchdog.pause()
        if self._owns_group and self._peers is not None:
            try:
                self._peers.all_gather(None)
            except SessionError:
                return  # that worker has an end of its own to tell of; ours was good

    def _close(self) -> None:
        self._watchdog.close()
        if self._writer is not None and self._writer.busy:
            self._writer.abandon(_EXIT_PATIENCE_S)
        if self._bar is not None:
            self._bar.close()
        if self._channel is not None:
            self._channel.close()
        self._request.uninstall()
        TURNS.rest()
        if self._folder is not None:
            self._folder.close()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

    # ---- what the script may ask

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

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        batch_size_per_worker: int | None = None,
        warmup_steps: int = 0,
        shuffle: bool | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> SessionLoader:
        """A loader of this worker's part of every batch.

        Args:
            batch_size: of all workers together, whatever their number.  An uneven split is weighted.
            batch_size_per_worker: instead; the global batch grows with the workers, and every learning rate by the
                same factor, linearly over ``warmup_steps``.
            shuffle: by (seed, epoch); on by default for map-style datasets.
            drop_last: leave out the last batch of an epoch if it is smaller.
            options: go to ``torch.utils.data.DataLoader`` (num_workers, pin_memory, collate_fn, ...).
        """
        if (batch_size is None) == (batch_size_per_worker is None):
            raise UsageError("run.loader takes either batch_size= (of all workers) or batch_size_per_worker=")
        if batch_size_per_worker is not None:
            self._scaling = LinearScaling(float(self.world_size), warmup_steps)
        return SessionLoader(
            dataset,
            LoaderPlace(self.rank, self.world_size, self.seed),
            batch_size=batch_size_per_worker if batch_size is None else batch_size,  # type: ignore[arg-type]
            per_worker=batch_size is None,
            shuffle=shuffle,
            drop_last=drop_last,
            options=options,
        )

    def resume(self, *, data: SessionLoader | None = None, **objects: Any) -> bool:
        """Go on from the newest good checkpoint, if there is one, and save these objects from now on.

        Give the model, the optimizer, the loader, and whatever else has a ``state_dict`` (LR scheduler, GradScaler,
        metrics), each under a name that stays the same.  Whether there was a checkpoint.
        """
        peers = self._need_peers()
        if self._registered is not None:
            raise UsageError("run.resume was called twice: call it once, with everything that is to be saved")
        self._registered = register(objects)
        for model in self._registered.models.values():
            if handle_of(model) is None:  # an overlapped model takes its turns by itself
                TURNS.hook_up(model)
        self._data = data
        self._folder = CheckpointFolder(self._checkpoint_dir, self._keep)
        found, token = find_checkpoint(self._folder, peers, secrets.token_hex(4), self._say)
        self._writer = CheckpointWriter(self._folder, peers.again(), token)
        if found is None:
            return False
        manifest = load_checkpoint(found, self._registered)
        peers.all_gather(manifest.step)  # nobody asks the others for state that they have not loaded yet
        if data is not None:
            if manifest.data is None:
                raise InputError(f"the checkpoint {found} has no position in the data: it was saved without data=")
            data.load_state_dict(manifest.data)
        self.step = manifest.step
        if self._scaling is not None and manifest.scaling is not None:
            self._scaling.load_state_dict(manifest.scaling, self.step)
        if manifest.world_size == peers.world_size:
            self._pending_rng = manifest.rng[peers.rank]
        self._saved_step = manifest.step
        self._resumed_finished = manifest.finished
        self._say(f"going on from step {manifest.step} (epoch {manifest.epoch}), checkpoint {found}")
        return True

    def log(self, **metrics: Any) -> None:
        """Numbers of this step for reports and the progress bar: ``run.log(loss=loss)``.  Never waits."""
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise UsageError(
                    f"run.log({name}=...) was given a tensor of {value.numel()} elements, expected one number"
                )
            if not hasattr(value, "__float__"):
                raise UsageError(f"run.log({name}=...) was given a {type(value).__name__}, expected one number")
        self._watchdog.alive()
        self._meter.log(metrics)

    def checkpoint(self) -> None:
        """Ask for a checkpoint after this step or one of the next; one worker's call is enough."""
        self._checkpoint_asked = True

    def steps(self, data: SessionLoader, *, epochs: int | None = None, max_steps: int | None = None) -> Iterator[Any]:
        """This worker's batches on its device, from where the run is, to the end of epoch ``epochs`` or ``max_steps``.

        Ends early, after a checkpoint, when the job is asked to stop; ``run.stopped`` says so, and the session then
        ends the script with exit code 75.
        """
        if not isinstance(data, SessionLoader):
            raise UsageError(
                f"run.steps was given a {type(data).__name__}, expected what run.loader returns: only that knows which "
                "samples are done"
            )
        if epochs is None and max_steps is None:
            raise UsageError("run.steps needs an end: give epochs= or max_steps=")
        if self._registered is not None and data is not self._data:
            raise UsageError("the loader given to run.steps is not the one given to run.resume: add data= there")
        return self._steps(data, epochs, max_steps)

    # ---- the loop

    def _steps(self, data: SessionLoader, epochs: int | None, max_steps: int | None) -> Iterator[Any]:
        registered = self._registered or Registered()
        updates = UpdateCount(registered.optimizers.values())
        weighting = choose_weighting(
            list(registered.models.values()), registered.handles, data.may_be_uneven, self.world_size, updates
        )
        try:
            yield from self._walk(data, epochs, max_steps, registered, weighting, updates)
        finally:  # also when the script leaves the loop by itself
            self._watchdog.pause()
            weighting.close()
            updates.close()

    def _walk(
        self,
        data: SessionLoader,
        epochs: int | None,
        max_steps: int | None,
        registered: Registered,
        weighting: Weighting,
        updates: UpdateCount,
    ) -> Iterator[Any]:
        handle = registered.handles[0] if registered.handles else None
        agreement = choose_agreement(self._need_peers(), handle, updates)
        optimizers, schedulers = registered.optimizers.values(), registered.others.values()
        self._start_generators()
        self._total_steps = _total_steps(data, epochs, max_steps)
        self._saved_s = time.monotonic()
        done = self._reached_end(data, epochs, max_steps)
        if done and self._resumed_finished:
            self._say(
                f"this run had finished at step {self.step}: ask for more epochs, or empty {self._checkpoint_dir}"
            )
        self._watchdog.step_done(self.step)
        while not done:
            was_at = data.position
            for share, batch in data.batches(data.epoch, data.position):
                if self._scaling is not None:
                    self._scaling.before_step(self.step, optimizers, schedulers)
                weighting.set(share)
                self.share = share
                agreement.before_step(self._wishes())
                yield _moved(batch, self._device)
                self.step += 1
                self._watchdog.step_done(self.step)
                data.position += share.num_global
                self._report(data, share, handle)
                agreed = agreement.after_step(self._wishes())
                done = self._reached_end(data, epochs, max_steps)
                if self._writer is not None:
                    self._writer.raise_error()
                if agreed.checkpoint and not agreed.stop and not done:
                    self._save(data, beside=True)
                    self._watchdog.step_done(self.step)
                if agreed.stop and not done:
                    agreement.close()
                    self._save(data, beside=False)
                    self.stopped = True
                    saved = "saved" if self._saved_step == self.step else "not saved: nothing was given to run.resume"
                    self._say(f"asked to stop{self._why()}: stopped after step {self.step}, {saved}")
                    return
                if done:
                    break
            if not done:
                if data.position == 0 and was_at == 0:
                    raise InputError(f"the dataset yielded nothing in epoch {data.epoch}: there is nothing to train on")
                data.epoch, data.position = data.epoch + 1, 0
                done = self._reached_end(data, epochs, max_steps)
        agreement.close()
        self._save(data, beside=False, finished=True)

    def _reached_end(self, data: SessionLoader, epochs: int | None, max_steps: int | None) -> bool:
        return (epochs is not None and data.epoch >= epochs) or (max_steps is not None and self.step >= max_steps)

    def _start_generators(self) -> None:
        """As they were in the checkpoint; otherwise apart on every worker, so that dropout differs between them."""
        if self._pending_rng is not None:
            restore_rng(self._pending_rng, self._device)
            self._pending_rng = None
        elif self.step > 0 or self.rank > 0:
            seed_everything(derived_seed(torch.initial_seed(), self.step, self.rank))

    def _wishes(self) -> Wishes:
        stop = self._request.requested()
        if self._writer is None:
            return Wishes(stop=stop) if stop else NOTHING
        due = (
            self.rank == 0
            and self._checkpoint_every_s > 0
            and time.monotonic() - self._saved_s >= self._checkpoint_every_s
            and not self._writer.busy
        )
        return Wishes(stop, due or self._checkpoint_asked) if stop or due or self._checkpoint_asked else NOTHING

    def _report(self, data: SessionLoader, share: Share, handle: Any) -> None:
        self._meter.step_done(share.num_global)
        if (self._channel is None and self._bar is None) or not self._meter.due:
            return
        step_s, turn_s, samples_per_s, metrics = self._meter.take()
        report = StepReport(
            job_id=self._environment.job_id,
            attempt=self._environment.attempt,
            rank=self.rank,
            world_size=self.world_size,
            step=self.step,
            total_steps=self._total_steps,
            epoch=data.epoch,
            step_s=step_s,
            exposed_s=self._meter.exposed_s(handle),
            turn_s=turn_s,
            samples_per_s=samples_per_s,
            metrics=metrics,
            memory_bytes=peak_memory_bytes(),
            takes_turns=TURNS.sharing,
            can_resume=self._registered is not None,
        )
        send_report(self._channel, report)
        if self._bar is not None:
            self._bar.show(report)

    def _save(self, data: SessionLoader, *, beside: bool, finished: bool = False) -> None:
        self._checkpoint_asked = False
        self._saved_s = time.monotonic()
        if self._writer is None or self._registered is None:
            return
        self._watchdog.pause()  # a disk may be slow
        self._writer.finish()
        if self._saved_step == self.step and not (finished and not self._resumed_finished):
            return
        peers = self._need_peers()
        manifest = Manifest(
            step=self.step,
            epoch=data.epoch,
            position=data.position,
            world_size=peers.world_size,
            weft_version=__version__,
            torch_version=str(torch.__version__),
            finished=finished,
            created_s=time.time(),
            models=self._registered.entries(),
            data=data.state_dict(),
            scaling=self._scaling.state_dict() if self._scaling else None,
        )
        snapshot = Snapshot(
            manifest=manifest,
            own=capture_own(self._registered, peers.rank, peers.world_size),
            replicated=capture_replicated(self._registered) if peers.rank == 0 else None,
            rng=capture_rng(self._device),
        )
        self._writer.write(snapshot, beside=beside)
        self._saved_step = self.step
        self._resumed_finished = finished

    def _need_peers(self) -> Peers:
        if self._peers is None:
            raise SessionError("the session is not open: write `with weft.session() as run:` around the training")
        return self._peers

    def _why(self) -> str:
        return f" ({self._request.reason})" if self._request.reason else ""

    def _say(self, text: str) -> None:
        """One voice for all workers."""
        if self.rank == 0:
            if self._bar is not None:
                self._bar.close()
            print(f"weft: {text}", file=sys.stderr, flush=True)


def _default_folder() -> Path:
    """Beside where the script was started, so that starting it again finds them."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "session"
    return Path("checkpoints", script or "session")


def _total_steps(data: SessionLoader, epochs: int | None, max_steps: int | None) -> int | None:
    by_epochs = epochs * len(data) if epochs is not None and data.num_samples is not None else None
    known = [steps for steps in (by_epochs, max_steps) if steps is not None]
    return min(known) if known else None


def _moved(batch: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [_moved(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch
