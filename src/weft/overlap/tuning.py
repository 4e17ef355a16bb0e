"""Tunes fusion during training.

    step 1          shows the order in which gradients become ready; the flat memory is rearranged in that order
                    the link is measured with a few collectives (if nothing but the report needs it, in step 32: short
                    jobs should not pay for it)
    steps 2 to 5    show when each gradient is ready and when each parameter is read
    then            a plan by the recurrence (weft.perf.fusion), and trials around it: a few steps each, judged by the
                    slowest worker's step times (weft.perf.search); the best plan is kept
    with eager      finally, the best plan with and without early gathers, in turn: the faster one is kept.  Both give
                    the same values, and no model predicts what updates during backward cost on a CPU core

Rank 0 decides and broadcasts its decision, so that all workers change plan in the same step.
Tuning fusion during training is the paper's idea; recurrence, knobs, and search are ours.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Sequence

import torch

from weft.overlap.layout import MAX_BUCKETS, Lane, granularity, snap
from weft.overlap.link_probes import measure_link
from weft.overlap.schedule_interface import Schedule
from weft.overlap.step_times import StepTimes
from weft.perf.fusion import describe, scaled_cuts
from weft.perf.link import Link
from weft.perf.search import Duel, Search
from weft.perf.step_profile import Mode, ParameterTiming, StepProfile

_log = logging.getLogger("weft.overlap")

_FIRST_TRIAL_STEP = 5
_LINK_REPORTED_STEP = 32
_STEPS_PER_TRIAL = 3
_MAX_TRIALS = 18
_PATIENCE = 3
# Half of the trials decide between the best few: steps of one plan differ by more than good plans do.
_NUM_FINALISTS = 3
_NUM_FINAL_ROUNDS = 3
# With eager, fewer of both, to leave steps for comparing it with the barrier schedule.
_MAX_EAGER_TRIALS = 14
_NUM_EAGER_FINAL_ROUNDS = 2
_NUM_DUEL_ROUNDS = 2

Cuts = tuple[int, ...]


class Tuner:
    """Called after every step; idle once the plan is final."""

    def __init__(
        self,
        schedule: Schedule,
        move_to: Callable[[Sequence[int], Sequence[Sequence[int]]], None],
        *,
        tune: bool,
    ) -> None:
        """``move_to(order, cuts)`` moves parameters and state to another plan; collective."""
        self.profile: StepProfile | None = None
        self._schedule = schedule
        self._move_to = move_to
        self._device = schedule.parameters[0].device
        self._searching = tune and schedule.is_sharded and schedule.transport.num_workers > 1
        schedule.clock.profiling = self._searching
        self._search: Search | None = None
        self._duel: Duel | None = None
        self._point: tuple[float, ...] = ()
        self._steps_in_trial = 0
        self._lane = 0

    @property
    def link(self) -> Link | None:
        return self._schedule.clock.link

    @property
    def finished(self) -> bool:
        return not self._searching

    def after_step(self) -> None:
        schedule = self._schedule
        num_workers, num_steps = schedule.transport.num_workers, schedule.num_steps
        if num_workers == 1:
            return
        if num_steps == 1:
            self._take_up_order()
        # Early gathers are paced by the link, and the traffic of three and more workers is adapted to it.
        is_needed = self._searching or schedule.eager or num_workers > 2
        if num_steps == (1 if is_needed else _LINK_REPORTED_STEP):
            self._measure_link()
        elif self._searching and self._schedule.num_steps == _FIRST_TRIAL_STEP:
            self._start_search()
        elif self._searching and self._schedule.num_steps > _FIRST_TRIAL_STEP:
            self._steps_in_trial += 1
            if self._steps_in_trial == _STEPS_PER_TRIAL:
                self._end_trial()

    def describe(self) -> str:
        """The current plan, as text."""
        lane = self._schedule.memory.lanes[self._lane]
        return describe(self._schedule.round.cuts[self._lane], lane.num_elements, lane.element_bytes)

    # ---- first steps

    def _take_up_order(self) -> None:
        schedule = self._schedule
        seen = list(dict.fromkeys(schedule.round.ready_order))
        # Parameters without a gradient in the first step stay in order, after the others.
        order = seen + [number for number in schedule.memory.order if number not in set(seen)]
        agreed = self._agree(torch.tensor(order, dtype=torch.int64)).tolist()
        sizes = [len(lane.slots) for lane in schedule.memory.lanes]
        self._lane = sizes.index(max(sizes))
        if tuple(agreed) != schedule.memory.order:
            self._move_to(agreed, schedule.round.cuts)

    def _measure_link(self) -> None:
        transport = self._schedule.transport
        link = measure_link(transport, self._device)
        if transport.adapt(link):
            link = measure_link(transport, self._device)
        self._schedule.clock.link = link

    # ---- search

    def _start_search(self) -> None:
        memory, workers = self._schedule.memory, self._schedule.transport.num_workers
        num_elements = sum(lane.num_elements for lane in memory.lanes)
        steps = self._last_steps(_FIRST_TRIAL_STEP - 1)
        self.profile = measured_profile(memory.lanes[self._lane], steps, num_elements, workers)
        self._schedule.clock.profiling = False
        if self._schedule.transport.rank == 0:
            eager = self._mode is Mode.EAGER
            self._search = Search(
                max_trials=_MAX_EAGER_TRIALS if eager else _MAX_TRIALS,
                patience=_PATIENCE,
                num_finalists=_NUM_FINALISTS,
                num_final_rounds=_NUM_EAGER_FINAL_ROUNDS if eager else _NUM_FINAL_ROUNDS,
            )
            self._duel = Duel(_NUM_DUEL_ROUNDS if eager else 0)
        self._next_trial()

    def _end_trial(self) -> None:
        recent = self._last_steps(_STEPS_PER_TRIAL - 1)  # the first one includes the change of plan
        slowest = torch.tensor([step.total_s for step in recent], dtype=torch.float64, device=self._device)
        self._schedule.transport.all_reduce(slowest, maximum=True)
        if self._search is not None and self._duel is not None:
            if self._search.finished:
                self._duel.tell(statistics.median(slowest.tolist()))
            else:
                self._search.tell(self._point, *slowest.tolist())
        self._next_trial()

    def _next_trial(self) -> None:
        """Rank 0 asks its search and broadcasts [continue, early gathers, number of cuts, cuts...]."""
        message = torch.zeros(MAX_BUCKETS + 3, dtype=torch.int64)
        if self._search is not None and self._duel is not None:
            self._point = self._search.ask()
            asked = self._cuts(self._point)[:MAX_BUCKETS]
            searching = not self._search.finished
            flags = [searching or not self._duel.finished, searching or self._duel.ask()]
            message[: len(asked) + 3] = torch.tensor([*flags, len(asked), *asked])
        continues, early, count, *rest = self._agree(message).tolist()
        cuts = tuple(rest[:count])
        if cuts != self._schedule.round.cuts[self._lane]:
            all_cuts = list(self._schedule.round.cuts)
            all_cuts[self._lane] = cuts
            self._move_to(self._schedule.memory.order, all_cuts)
        if self._schedule.pacing is not None:
            self._schedule.pacing.early = bool(early)
        self._steps_in_trial = 0
        if not continues:
            self._searching = False
            if self._search is not None:
                self._search = self._duel = None
                self._log_result()

    def _log_result(self) -> None:
        found = self.describe()
        if self._mode is Mode.EAGER and self._schedule.pacing is not None:
            early = self._schedule.pacing.early
            found += ", some of them gathered early" if early else "; early gathers do not pay off here"
        _log.info("fusion tuned in %d steps: %s", self._schedule.num_steps, found)

    def _cuts(self, point: Sequence[float]) -> Cuts:
        assert self.profile is not None
        assert self.link is not None
        schedule = self._schedule
        lane, workers = schedule.memory.lanes[self._lane], schedule.transport.num_workers
        cuts = scaled_cuts(self.profile, self.link, workers, self._mode, granularity(workers), *point)
        return snap(cuts, lane, workers)

    def _last_steps(self, num_steps: int) -> list[StepTimes]:
        clock = self._schedule.clock
        clock.catch_up()
        return list(clock.steps)[-num_steps:]

    @property
    def _mode(self) -> Mode:
        return Mode.EAGER if self._schedule.eager else Mode.BARRIER

    def _agree(self, message: torch.Tensor) -> torch.Tensor:
        message = message.to(self._device)
        self._schedule.transport.broadcast(message).wait()
        return message


def measured_profile(lane: Lane, steps: Sequence[StepTimes], num_elements: int, num_workers: int) -> StepProfile:
    """The median step without communication; ``num_elements`` are those of all lanes, which one update covers."""
    # What is left after subtracting waits can come out negative on a busy machine.
    forward, backward, update = (
        max(statistics.median(getattr(step, name) for step in steps), 0.0)
        for name in ("forward_s", "backward_s", "update_s")
    )
    timings = []
    for slot in lane.slots:
        ready = _median_of(step.ready_s.get(slot.parameter) for step in steps)
        read = _median_of(step.read_s.get(slot.parameter) for step in steps)
        timings.append(
            ParameterTiming(
                slot.room,
                backward if ready is None else min(max(ready, 0.0), backward),
                0.0 if read is None else min(max(read, 0.0), forward),
            )
        )
    return StepProfile(tuple(timings), forward, backward, update * num_workers / num_elements, lane.element_bytes)


def _median_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
