"""Learned speeds on several device kinds, and nodes that have one."""

from __future__ import annotations

from collections import deque

from weft.control.codec import event_from_json, event_to_json
from weft.control.node_changes import cluster_of, node_changes
from weft.control.reducer import reduce
from weft.control.state import Job, State
from weft.core.cluster import Cluster
from weft.core.engine import EngineNode
from weft.core.events import NodeJoined
from weft.core.job import JobSpec
from weft.core.speed import SpeedCurve, StepTime
from weft.daemon.kind_speeds import KindSpeeds
from weft.daemon.knowledge import Knowledge
from weft.daemon.step_samples import Samples

MIXED = Cluster((4, 4), kinds=("T4", "A100"))


def seen(step_s: float) -> Samples:
    return {(1,): deque([(step_s, 0.0)])}


def unknown(sizes: tuple[int, ...]) -> SpeedCurve:
    return SpeedCurve({size: StepTime(1.0 / size) for size in sizes}, frozenset(sizes))


def job(name: str) -> Job:
    return Job(JobSpec(name, 0.0, max_workers=4))


def test_the_ratio_between_kinds_is_shared_by_jobs() -> None:
    kinds = KindSpeeds()
    assert kinds.entered("a", "T4", {}) is None
    assert kinds.entered("a", "A100", seen(1.0)) == {}
    assert kinds.entered("b", "T4", {}) is None
    samples = {"a": seen(0.4), "b": seen(2.0)}
    curves = kinds.curves(job("b"), MIXED, samples, unknown, (1,))
    assert curves["T4"].times[1].step_s == 2.0
    assert round(curves["A100"].times[1].step_s, 6) == 0.8
    assert 1 in curves["A100"].untried
    assert kinds.entered("a", "T4", seen(0.4)) == seen(1.0), "what was measured there before is still known"


def test_until_a_job_ran_on_both_kinds_they_are_expected_to_be_equally_fast() -> None:
    kinds = KindSpeeds()
    kinds.entered("a", "T4", {})
    curves = kinds.curves(job("a"), MIXED, {"a": seen(3.0)}, unknown, (1,))
    assert curves["A100"].times[1].step_s == curves["T4"].times[1].step_s == 3.0


def test_speeds_by_kind_survive_a_restart_of_the_controller() -> None:
    kinds = KindSpeeds()
    kinds.entered("a", "T4", {})
    kinds.entered("a", "A100", seen(1.0))
    restored = KindSpeeds()
    restored.restore(kinds.document(), ["a"])
    assert restored.document() == kinds.document()


def test_a_job_that_never_ran_can_start_on_every_kind() -> None:
    belief = Knowledge(MIXED, 1.0).belief(job("a"), (1,), 0.0, 60.0)
    assert sorted(belief.curves) == ["A100", "T4"]
    plain = Knowledge(Cluster((4,)), 1.0).belief(job("a"), (1,), 0.0, 60.0)
    assert plain.curves == {}


def test_a_node_brings_its_kind() -> None:
    nodes = [EngineNode("a", 2, kind="T4"), EngineNode("b", 2, kind="A100")]
    assert cluster_of(nodes).kinds == ("T4", "A100")
    assert cluster_of([EngineNode("a", 2)]).kinds == ()
    assert node_changes(cluster_of(nodes), nodes, 1.0) == []


def test_a_cluster_from_an_older_journal_learns_its_kinds() -> None:
    state = State(Cluster((2,), names=("a",)))
    nodes = [EngineNode("a", 2, kind="T4"), EngineNode("b", 2, kind="A100")]
    for event in node_changes(state.cluster, nodes, 1.0):
        state, _ = reduce(state, event_from_json(event_to_json(event)))
    assert state.cluster.kinds == ("T4", "A100")
    assert node_changes(state.cluster, nodes, 2.0) == []
    assert event_from_json({"v": 3, "event": "NodeJoined", "at_s": 1.0, "name": "c", "num_devices": 2}) == NodeJoined(
        1.0, "c", 2
    )
