"""The training loop behind ``run.steps``: yield batches, count steps, report, save, stop together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import InputError
from weft.worker.agreement import Wishes, choose_agreement
from weft.worker.checkpointing import Checkpointing
from weft.worker.data import SessionLoader
from weft.worker.noise_meter import NoiseMeter
from weft.worker.peers import Peers
from weft.worker.reports import Reporter
from weft.worker.rng import derived_seed, restore_rng, seed_everything
from weft.worker.sampling import Share
from weft.worker.scaling import RateScaling
from weft.worker.shards import Registered, distinct
from weft.worker.stopping import StopRequest
from weft.worker.watchdog import NoWatchdog, Watchdog
from weft.worker.weighting import ModelWeighting, UpdateCount, choose_weightings


@dataclass(slots=True)
class LoopState:
    step: int = 0
    epoch: int = 0
    ends_epoch: bool | None = None
    """Whether the current batch is the last of its epoch; None if only the end of the stream will tell."""
    stopped: bool = False
    share: Share = field(default_factory=lambda: Share(0, 1, 1))
    rng: dict[str, Any] | None = None
    """State of the random generators in the checkpoint, until the loop starts."""


@dataclass(frozen=True, slots=True)
class End:
    """What ends the loop: a number of epochs or of steps, whichever comes first."""

    epochs: int | None
    max_steps: int | None

    def reached(self, step: int, epoch: int) -> bool:
        return (self.epochs is not None and epoch >= self.epochs) or (
            self.max_steps is not None and step >= self.max_steps
        )

    def total_steps(self, step: int, data: SessionLoader) -> int | None:
        """Those done and those left: earlier ones may have had another batch size."""
        left = data.num_steps_left(self.epochs) if self.epochs is not None else None
        by_epochs = step + left if left is not None else None
        known = [steps for steps in (by_epochs, self.max_steps) if steps is not None]
        return min(known) if known else None


@dataclass(frozen=True, slots=True)
class Stepper:
    """One pass over the data, starting at ``state``."""

    state: LoopState
    peers: Peers
    device: torch.device
    stop_request: StopRequest
    watchdog: Watchdog | NoWatchdog
    checkpointing: Checkpointing
    reporter: Reporter
    scaling: RateScaling | None
    say: Callable[[str], None]
    measures_noise: bool = False

    def steps(self, data: SessionLoader, end: End) -> Iterator[Any]:
        registered = self.checkpointing.registered or Registered()
        updates = UpdateCount(registered.optimizers.values())
        weightings = choose_weightings(registered, data.may_be_uneven, self.peers.world_size, updates)
        models = distinct(registered.models.values())
        noise = NoiseMeter(models, self.peers.world_size, updates, self.say) if self.measures_noise else None
        if noise is not None and data.script_batch_size is not None:
            self.reporter.tell_batch(data.batch_size, data.script_batch_size, noise.noise)
        try:
            yield from self._walk(data, end, registered, weightings, updates, noise)
        finally:  # also when the script breaks out of the loop
            self.reporter.flush()
            self.watchdog.pause()
            for weighting in weightings:
                weighting.close()
            if noise is not None:
                noise.close()
            updates.close()

    def _walk(
        self,
        data: SessionLoader,
        end: End,
        registered: Registered,
        weightings: list[ModelWeighting],
        updates: UpdateCount,
        noise: NoiseMeter | None,
    ) -> Iterator[Any]:
        state = self.state
        handle = registered.handles[0] if registered.handles else None
        agreement = choose_agreement(self.peers, handle, updates)
        optimizers, schedulers = registered.optimizers.values(), registered.others.values()
        total_steps = end.total_steps(state.step, data)
        self._start_generators()
        self.checkpointing.restart_timer()
        done = end.reached(state.step, data.epoch)
        if done and self.checkpointing.saved_finished:
            self.say(
                f"this run already finished at step {state.step}: raise epochs= or max_steps= to train longer, or "
                f"empty {self.checkpointing.folder.path} to start over"
            )
        self.watchdog.step_done()
        while not done:
            was_at = data.position
            for share, batch in data.batches(data.epoch, data.position):
                if self.scaling is not None:
                    self.scaling.before_step(state.step, optimizers, schedulers)
                for weighting in weightings:
                    weighting.set(share)
                state.share = share
                state.epoch, state.ends_epoch = data.epoch, data.ends_epoch(share)
                agreement.before_step(self._wishes())
                if noise is not None:
                    noise.before_step(share)
                yield _moved(batch, self.device)
                if noise is not None:
                    noise.after_step(share)
                state.step += 1
                self.watchdog.step_done()
                data.position += share.num_global
                self.reporter.step_done(state.step, total_steps, data.epoch, share, handle)
                agreed = agreement.after_step(self._wishes())
                done = end.reached(state.step, data.epoch)
                self.checkpointing.raise_error()
                if done:
                    break
                if agreed.stop:
                    agreement.close()
                    self._save(data)
                    state.stopped = True
                    saved = self.checkpointing.saved_step == state.step
                    result = "saved" if saved else "not saved, because nothing was passed to run.resume"
                    why = f" ({self.stop_request.reason})" if self.stop_request.reason else ""
                    self.say(f"asked to stop{why}: stopped after step {state.step}, {result}")
                    return
                if agreed.checkpoint:
                    self._save(data, in_background=True)
                    self.watchdog.step_done()
            if not done:
                if data.position == 0 and was_at == 0:
                    raise InputError(f"the dataset yielded nothing in epoch {data.epoch}: there is nothing to train on")
                data.epoch, data.position = data.epoch + 1, 0
                done = end.reached(state.step, data.epoch)
        agreement.close()
        self._save(data, finished=True)

    def _save(self, data: SessionLoader, *, in_background: bool = False, finished: bool = False) -> None:
        self.watchdog.pause()  # a disk may be slow
        step, save = self.state.step, self.checkpointing.save
        save(step, data, self.peers, self.device, self.scaling, in_background=in_background, finished=finished)

    def _wishes(self) -> Wishes:
        return Wishes(self.stop_request.requested(), self.checkpointing.wanted(self.peers.rank))

    def _start_generators(self) -> None:
        """Restore them from the checkpoint; otherwise seed each worker differently, so that dropout differs too."""
        state = self.state
        if state.rng is not None:
            restore_rng(state.rng, self.device)
            state.rng = None
        elif state.step > 0 or self.peers.rank > 0:
            seed_everything(derived_seed(torch.initial_seed(), state.step, self.peers.rank))


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
