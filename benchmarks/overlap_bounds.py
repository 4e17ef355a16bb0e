"""Lower bounds on a step, from the measured step of one worker alone.  Pure.

F, B, U: forward, backward and update of the worker alone; F + B + U is ``alone``, by construction
(:meth:`StepShape.scaled_to`).  R = G: reduce-scatter and all-gather of all gradients at the set line rate, without
latency or headers; a host's link carries (H - 1) / H of them each way, however many workers the host has.

    compute                  c = F + B + U, as measured
    network                  n = time to move the gradients both ways with nothing else running, as measured
    DeAR's bound             max(B + U/P, R) + max(F, G)
    barrier-free bound       max(F + B + U/P + r1 + g1, b_last + R + G + f_last)

[Note: a bound below alone]  A worker alone makes the whole update U.  P workers share it, so U/P is the least it can
take, and with a fast link a bound is below ``alone`` by up to U (1 - 1/P).  It is never lower than that.

The update counts as compute on the backward's side: under the barrier it stands between the two halves, after the last
gradient and before the first gather.  In the barrier-free bound the first layer's bucket is the last to be reduced and
the first to be needed: its reduce and gather (r1, g1) can hide under nothing; b_last and f_last are the last layer's
backward (nothing can be sent before) and forward (which cannot start before everything has arrived).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step of a worker alone."""

    forward_s: float
    backward_s: float
    update_s: float
    last_forward_s: float
    last_backward_s: float
    gradient_bytes: int
    first_layer_bytes: int

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.update_s

    def scaled_to(self, step_s: float) -> StepShape:
        """The same shares of a step that takes ``step_s``.

        Phases are medians over steps, a step's own time a median over rounds: on a machine with a few slow steps the
        two differ by more than what a schedule gains, so the bound takes the shares from one and the time
        from the other.
        """
        factor = step_s / self.compute_s
        return replace(
            self,
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            update_s=self.update_s * factor,
            last_forward_s=self.last_forward_s * factor,
            last_backward_s=self.last_backward_s * factor,
        )


def half_exchange_s(num_bytes: int, num_workers: int, rate_bits_per_s: float) -> float:
    """Line-rate time of a reduce-scatter, or of an all-gather.

    >>> half_exchange_s(100_000_000, 2, 1e9)
    0.4
    """
    return num_bytes * 8 * (num_workers - 1) / num_workers / rate_bits_per_s


def rate_for_ratio(shape: StepShape, num_workers: int, network_over_compute: float) -> float:
    """The link rate at which the network needs ``network_over_compute`` times as long as the compute."""
    return 2 * half_exchange_s(shape.gradient_bytes, num_workers, 1.0) / (network_over_compute * shape.compute_s)


def barrier_bound_s(shape: StepShape, num_hosts: int, rate_bits_per_s: float, workers_per_host: int = 1) -> float:
    """The least a step can take when the gather waits for the end of backward (DeAR)."""
    half_s = half_exchange_s(shape.gradient_bytes, num_hosts, rate_bits_per_s)
    update_s = shape.update_s / (num_hosts * workers_per_host)
    return max(shape.backward_s + update_s, half_s) + max(shape.forward_s, half_s)


def eager_bound_s(shape: StepShape, num_hosts: int, rate_bits_per_s: float, workers_per_host: int = 1) -> float:
    """The least a step can take when each bucket is gathered as soon as it is reduced and updated."""
    half_s = half_exchange_s(shape.gradient_bytes, num_hosts, rate_bits_per_s)
    first_s = half_exchange_s(shape.first_layer_bytes, num_hosts, rate_bits_per_s)
    update_s = shape.update_s / (num_hosts * workers_per_host)
    return max(
        shape.forward_s + shape.backward_s + update_s + 2 * first_s,
        shape.last_backward_s + 2 * half_s + shape.last_forward_s,
    )
