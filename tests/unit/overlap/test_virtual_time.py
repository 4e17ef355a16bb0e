"""The schedule on virtual time: what is sent when, what waits for what, and how long a step takes."""

from __future__ import annotations

import math

import pytest
import torch
from timed_model import TimedModel

from weft.overlap.bucket import Phase
from weft.perf.link import Link
from weft.perf.schedule import bound_s, simulate
from weft.perf.step_profile import Mode

# A layer of 1024 elements takes 2048 bytes on the wire with two workers.
SLOW = Link(alpha_s=0.01, beta_s_per_byte=2.0 / 2048, launch_s=0.001)
# Two layers per bucket.
PAIRS = (2048, 4096, 6144)
FAST = Link(alpha_s=0.01, beta_s_per_byte=0.5 / 2048, launch_s=0.001)


def test_buckets_leave_in_the_order_of_backward_as_soon_as_they_are_complete() -> None:
    model = TimedModel(FAST)
    model.forward().backward()
    launches = model.transport.named("launch reduce")
    assert [call.bucket for call in launches] == list(range(8))
    forward_s = 8 * model.forward_s
    for k, call in enumerate(launches):
        assert call.at_s == pytest.approx(forward_s + (k + 1) * (model.backward_s + FAST.launch_s))
    assert model.transport.named("launch gather") == []


def test_parameters_are_gathered_in_the_order_of_the_next_forward() -> None:
    model = TimedModel(SLOW)
    model.train(2)
    order = [call.bucket for call in model.transport.named("launch gather")]
    assert order == 2 * list(range(8))[::-1]


def test_a_layer_waits_only_for_the_buckets_it_reads() -> None:
    model = TimedModel(SLOW)
    model.train(1)
    model.transport.calls.clear()
    model.forward()
    finished = model.transport.named("finish gather")
    assert [call.bucket for call in finished] == list(range(8))[::-1]
    launched = {call.bucket: call for call in model.transport.calls if call.name == "launch gather"}
    assert launched == {}
    for number in range(7):
        # the next bucket is asked for only when this layer has been computed
        assert finished[number + 1].at_s == pytest.approx(model.read_at_s[number] + model.forward_s)


def test_a_layer_that_is_not_read_is_not_waited_for() -> None:
    model = TimedModel(SLOW)
    model.train(1)
    model.skipped = {2, 5}
    model.transport.calls.clear()
    model.forward()
    assert {call.bucket for call in model.transport.named("finish gather")} == set(range(8)) - {7 - 2, 7 - 5}


def test_nothing_is_ever_computed_with_values_that_are_on_their_way() -> None:
    for eager in (False, True):
        model = TimedModel(SLOW, eager=eager, cuts=(1500 // 32 * 32, 4000 // 32 * 32))
        for _ in range(4):
            value = model.forward()
            assert math.isfinite(value.item())  # the fake fills what is in flight with not-a-number
            value.backward()
            model.step()
        model.schedule.flush()
        assert all(torch.isfinite(p).all() for p in model.parameters)


def test_barrier_gathers_nothing_before_step() -> None:
    model = TimedModel(FAST)
    model.train(2)
    model.transport.calls.clear()
    model.forward().backward()
    assert model.transport.named("launch gather") == []


def test_eager_gathers_during_backward_only_while_the_link_is_idle() -> None:
    model = TimedModel(FAST, eager=True, cuts=PAIRS)
    model.train(2)
    model.transport.calls.clear()
    model.forward().backward()
    early = model.transport.named("launch gather")
    assert [call.bucket for call in early][:2] == [0, 1]  # at the hooks that complete no bucket of their own
    assert all(call.start_s == call.at_s for call in early)
    reduces = model.transport.named("launch reduce")
    for gather in early:
        before = [call for call in reduces if call.at_s < gather.at_s]
        assert all(call.end_s <= gather.at_s for call in before)


def test_eager_leaves_a_busy_link_to_the_reductions() -> None:
    busy = Link(alpha_s=0.01, beta_s_per_byte=6.0 / 2048, launch_s=0.001)
    model = TimedModel(busy, eager=True, cuts=PAIRS)
    model.train(2)
    model.transport.calls.clear()
    model.forward().backward()
    assert model.transport.named("launch gather") == []


def test_eager_opens_a_gather_once_per_step_and_bucket() -> None:
    model = TimedModel(FAST, eager=True)
    model.train(3)
    for name in ("open gather", "launch gather", "open reduce", "launch reduce"):
        calls = [(call.tag, call.bucket) for call in model.transport.named(name)]
        assert sorted(calls) == [(tag, bucket) for tag in range(3) for bucket in range(8)]


CUTS = {"one per layer": None, "pairs": PAIRS, "one": (), "uneven": (512, 3072, 7680)}


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("num_workers", [2, 4])
def test_a_step_takes_as_long_as_the_recurrence_says(num_workers: int, ratio: float, cuts: str) -> None:
    wire_bytes = 8 * 1024 * 4 * (num_workers - 1) / num_workers
    link = Link(alpha_s=0.02, beta_s_per_byte=ratio * 12.0 / wire_bytes, launch_s=0.002)
    model = TimedModel(link, cuts=CUTS[cuts], num_workers=num_workers)
    found_s = model.train(4)
    expected_s = simulate(model.profile, model.cuts, link, num_workers, Mode.BARRIER).step_s
    assert found_s == pytest.approx(expected_s, rel=0.02)


@pytest.mark.parametrize("ratio", [0.3, 0.7, 1.0, 2.0])
def test_eager_is_never_slower_than_the_barrier_nor_faster_than_its_bound(ratio: float) -> None:
    link = Link(alpha_s=0.0, beta_s_per_byte=ratio * 12.0 / (4 * 8 * 512), launch_s=0.0)
    eager, barrier = TimedModel(link, eager=True, cuts=PAIRS), TimedModel(link, cuts=PAIRS)
    eager_s, barrier_s = eager.train(5), barrier.train(5)
    assert eager_s <= barrier_s * 1.001
    assert eager_s >= bound_s(eager.profile, link, 2, Mode.EAGER) * 0.999


def test_a_backward_that_fails_is_drained_and_forgotten() -> None:
    model = TimedModel(SLOW)
    model.train(1)
    model.schedule.flush()
    before = [p.detach().clone() for p in model.parameters]
    model.fails_at = 4
    with pytest.raises(ArithmeticError):
        model.forward().backward()
    model.fails_at = None
    model.transport.calls.clear()
    loss = model.forward()
    # the rest of the failed round leaves, with its own tag, before anything of the next is opened
    names = [(call.name, call.tag) for call in model.transport.calls if call.name in ("launch reduce", "open reduce")]
    assert names == 5 * [("launch reduce", 1)] + 8 * [("open reduce", 2)]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters, strict=True))
    loss.backward()
    model.step()
    assert model.schedule.num_steps == 2


def test_an_unused_parameter_is_not_decayed_and_blocks_nothing() -> None:
    model = TimedModel(SLOW)
    model.skipped = {3}
    model.train(3)
    model.schedule.flush()
    assert torch.equal(model.parameters[3], torch.ones(1024))
    own = model.parameters[4][:512]
    assert (own < 1).all()
    # its bucket and those behind it wait for the end of backward
    launches = model.transport.named("launch reduce")[:8]
    assert [call.bucket for call in launches] == list(range(8))
    end_s = 7 * (model.forward_s + model.backward_s)
    assert all(call.at_s > end_s for call in launches[7 - 3 :])
    assert all(call.at_s < end_s for call in launches[: 7 - 3])


def test_a_step_without_backward_takes_part_all_the_same() -> None:
    model = TimedModel(SLOW)
    model.train(1)
    model.step()
    assert [call.tag for call in model.transport.named("launch reduce")] == 8 * [0] + 8 * [1]
    model.schedule.flush()
    assert all(bucket.phase is Phase.IDLE for bucket in model.schedule.buckets)
