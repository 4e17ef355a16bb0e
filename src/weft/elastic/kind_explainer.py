"""Why each job has its workers in a cluster of several device kinds: the reasons on its own kind, and why that kind."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.reason import Reason
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.explainer import DecisionExplainer

MakeExplainer = Callable[[str, Snapshot, Allocation], DecisionExplainer]
"""The explainer of a decision on one kind alone."""


class MixedExplainer:
    """Answers with the facts of one kind: the job's own, or the one where it would be fastest."""

    def __init__(self, snapshot: Snapshot, allocation: Allocation, make: MakeExplainer) -> None:
        self.snapshot, self.allocation = snapshot, allocation
        self.num_free = max(snapshot.num_devices - allocation.num_devices(), 0)
        self._make = make
        self._views = {view.id: view for view in snapshot.jobs}
        self._of_kind: dict[str, DecisionExplainer] = {}

    def reason(self, job_id: str) -> Reason:
        return self._explainer(job_id).reason(job_id)

    def time_left(self, job_id: str, remaining_steps: int) -> str:
        return self._explainer(job_id).time_left(job_id, remaining_steps)

    def why_this_kind(self, job_id: str) -> str:
        view, kind = self._views[job_id], self.allocation.kinds.get(job_id)
        workers = self.allocation.workers.get(job_id, 0)
        curves = dict(view.curves)
        if kind is None or kind not in curves or workers not in curves[kind].times:
            return ""
        own_s = curves[kind].times[workers].step_s
        others = [
            f"{curve.times[workers].step_s / own_s:.2f}x as fast as on {other or 'other devices'}"
            + (" (expected)" if workers in curve.untried or workers in curves[kind].untried else "")
            for other, curve in view.curves
            if other != kind and workers in curve.times
        ]
        return ", ".join([f"on {kind or 'devices without a kind'}", *others])

    def _explainer(self, job_id: str) -> DecisionExplainer:
        view = self._views[job_id]
        kind = self.allocation.kinds.get(job_id) or self._kind_of_waiting(view)
        found = self._of_kind.get(kind)
        if found is None:
            here = {name: num for name, num in self.allocation.workers.items() if self.allocation.kinds[name] == kind}
            part = Allocation(
                here,
                tuple(pair for pair in self.allocation.pairs if pair[0] in here),
                self.allocation.fillers & here.keys(),
                self.allocation.valid_until_s,
            )
            waiting = [one for one in self.snapshot.jobs if self.allocation.kinds.get(one.id, kind) == kind]
            found = self._of_kind[kind] = self._make(kind, self.snapshot.of_kind(kind, waiting), part)
        return found

    @staticmethod
    def _kind_of_waiting(view: JobView) -> str:
        own = view.kind if view.workers else next((kind for kind, curve in view.curves if curve is view.curve), "")
        return own or view.curves[0][0]
