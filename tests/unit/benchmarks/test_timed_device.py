from __future__ import annotations

import pytest
import torch
from benchmarks import timed_device
from benchmarks.overlap_scenarios import Timed
from benchmarks.timed_device import QUEUE_SLACK_S, TimedDevice, TimedModel


class Clock:
    """Replaces the module ``time``: only sleeping takes time, and exactly as long as requested."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.slept_s += duration_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timed_device, "time", clock)
    return clock


def test_a_step_takes_the_set_time_asleep(clock: Clock) -> None:
    model = TimedModel(Timed(num_parameters=4_000, num_layers=4, compute_s=1.2).each_layer())
    model(torch.zeros(8)).sum().backward()
    assert clock.slept_s == pytest.approx(1.2)


def test_backward_takes_twice_the_forward(clock: Clock) -> None:
    model = TimedModel(Timed(num_parameters=4_000, num_layers=4, compute_s=1.2).each_layer())
    loss = model(torch.zeros(8)).sum()
    assert clock.slept_s == pytest.approx(0.4)
    loss.backward()
    assert clock.slept_s == pytest.approx(1.2)


def test_waking_up_a_little_late_idles_no_device(clock: Clock) -> None:
    device = TimedDevice()
    device.occupy(0.1)
    clock.now_s += QUEUE_SLACK_S / 2
    device.occupy(0.1)
    assert clock.now_s == pytest.approx(100.2)


def test_waiting_for_the_network_idles_the_device(clock: Clock) -> None:
    device = TimedDevice()
    device.occupy(0.1)
    clock.now_s += 0.5
    device.occupy(0.1)
    assert clock.now_s == pytest.approx(100.7)


def test_every_parameter_gets_a_gradient_that_depends_on_the_loss(clock: Clock) -> None:
    model = TimedModel(Timed(num_parameters=4_000, num_layers=4, compute_s=0.1).each_layer())
    (3 * model(torch.zeros(8))).sum().backward()
    tripled = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    model(torch.zeros(8)).sum().backward()
    for grad, parameter in zip(tripled, model.parameters(), strict=True):
        assert grad.count_nonzero() == parameter.numel()
        torch.testing.assert_close(grad, 3 * parameter.grad)


def test_a_parameter_read_before_its_update_shows_in_the_loss(clock: Clock) -> None:
    model = TimedModel(Timed(num_parameters=4_000, num_layers=4, compute_s=0.1).each_layer())
    before = model(torch.zeros(8)).sum().item()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.add_(1.0)
        after = model(torch.zeros(8)).sum().item()
        assert after != before
        before = after
