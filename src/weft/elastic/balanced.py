"""The default policy: every job counts by what its end is worth to all jobs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.elastic.optimal import UtilityPolicy
from weft.elastic.stakes import FloatArray, IntArray, Stakes

SIZE_KEPT_S = 600.0
"""How long a job typically keeps its size: a restart must pay for itself within this time."""
NEWCOMERS = 0.1
"""Share of the shorter jobs in whose place new ones are still waiting when a job ends."""
GUESS_STEEPNESS = 0.5
"""How likely a job that looks longer is longer, if its length is a guess: one that looks 10 times as long, 76 %."""
_SAME = np.log(1.25)
"""Logarithm of the factor within which known lengths count as equal when other lengths are guesses."""
_LEAST_S = 1e-9
_LONGEST_S = 1e300
"""Finite, since an infinite number of restarts that cost nothing would not be a number."""
_GRID = 64
"""If there are more jobs than this, the number of longer jobs is computed at this many lengths and interpolated."""


class Balanced(UtilityPolicy):
    """Maximizes the sum of weight x standing / T over the remaining times T.

    [Note: what a job's speed is worth]  Let a device have a price: what it would bring other jobs per second.  In the
    best schedule a job is worth the same per step as long as it runs (nothing distinguishes one of its steps from
    another), and this worth is set by its end: there, the profit of one more second must equal that second, in which
    the job is still waited for.  So the worth of all its remaining steps is

        standing = min over sizes w of T(w) x (1 + price at its end x w)

    the least that the job's end can cost its owner and, through the devices it holds, the others.  Once all shorter
    jobs have gone, n jobs wait for the M devices, and a second of a device delays each of them by 1/M: the price is
    n / M.  Short jobs end while the price is high, so they count more per second they need; where the price is low,
    the fastest size sets the worth, and where it is high, the most economical one.  For speeds that grow as w^e this
    is the rule of heSRPT (Berg, Vesilo, Harchol-Balter, 2020): the i-th longest job counts i^e.  It needs no
    adjustment to how well jobs scale or to how crowded the cluster is.

    [Note: stopping for another]  Let a running job have a seconds to go, a waiting one b, and a start take R.  If the
    running job ends first, the two end after a and a + R + b.  If it is stopped, they end after R + b and after
    R + b + R + a, since both need a start.  The sum is smaller only if b + 2 R < a.  So among lengths, a waiting job
    counts as longer by its start, and a running one as shorter by the restart that stopping it would cost.

    [Note: jobs to come]  heSRPT assumes that no job arrives.  If jobs keep coming, some have taken the place of the
    shorter ones by the time a job ends, and they wait for its devices too.  In a steady stream there would be as many
    as now, but a long job can make its progress while few others wait, and a queue may also drain.  So only a share of
    the shorter jobs counts: found by trial, on queues where it should do no harm.
    A job of guessed length counts shorter jobs already, by the chance that they are longer.

    [Note: device kinds]  Where devices are of several kinds, a second of a fast one is worth more to those who wait: in
    the price, a device counts as many as its speed says, by the median job.

    [Note: guessed lengths]  If a length is a guess, so is the number n of jobs that are longer: each other job counts
    with the probability that it is longer.  Jobs of guessed lengths thus have nearly the same price.
    """

    name = "balanced"
    because = "this split of the devices gives the most progress (short jobs and jobs that scale well count more)"

    def standing(self, stakes: Stakes) -> FloatArray:
        # A waiting job cannot avoid its start.  Without it here, a job shorter than a start would never be worth one.
        waits = stakes.workers == 0
        times_s = stakes.times_s + np.where(waits, stakes.restart_s, 0.0)[:, None]
        length_s = stakes.least_size_s(times_s) - np.where(waits, 0.0, stakes.restart_s)
        price = num_waiting(length_s, stakes.is_length_known) / stakes.num_devices
        costs: FloatArray = times_s * (1.0 + price[:, None] * stakes.counted_sizes)
        standing: FloatArray = stakes.weights * np.minimum.reduce(costs, axis=1)
        return standing

    def utility(self, times_s: FloatArray, standing: FloatArray) -> FloatArray:
        return standing / times_s

    def restarts_s(self, times_s: FloatArray, stakes: Stakes, rows: IntArray | slice) -> FloatArray:
        """The next restart is not far: a job with a long time to go pays for restarts in proportion."""
        num = np.maximum(1.0, np.minimum(times_s, _LONGEST_S) / SIZE_KEPT_S)
        lost_s: FloatArray = stakes.restart_s[rows, None] * num
        return lost_s

    def stop_costs(self, stakes: Stakes, standing: FloatArray) -> FloatArray:
        """A restart's share of what the job gains while it keeps its size.

        Otherwise two jobs of unknown length take turns: the one that waits always looks shorter.
        """
        times_s = np.minimum.reduce(np.where(stakes.is_present, stakes.times_s, np.inf), axis=1)
        lost: FloatArray = self.utility(times_s, standing) * np.minimum(1.0, stakes.restart_s / SIZE_KEPT_S)
        return lost


def num_waiting(times_s: FloatArray, is_known: NDArray[np.bool_]) -> FloatArray:
    """How many jobs are expected to wait for devices when each one ends, itself included.

    >>> num_waiting(np.array([10.0, 1000.0, 100.0]), np.array([True, True, True])).round(2).tolist()
    [3.0, 1.2, 2.1]
    """
    longer = num_longer(times_s, is_known)
    num: FloatArray = np.where(is_known, longer + NEWCOMERS * (len(times_s) - longer), longer)
    return num


def num_longer(times_s: FloatArray, is_known: NDArray[np.bool_]) -> FloatArray:
    """How many jobs are at least as long as each one, itself included; an expectation where lengths are guesses.

    >>> num_longer(np.array([10.0, 1000.0, 100.0]), np.array([True, True, True])).tolist()
    [3.0, 1.0, 2.0]
    >>> num_longer(np.array([10.0, 1000.0]), np.array([False, True])).round(2).tolist()
    [1.91, 1.09]
    """
    if is_known.all():
        return _rank(times_s)
    length = np.log(np.maximum(times_s, _LEAST_S))
    guessed = length[~is_known]
    num = np.empty(len(times_s))
    num[is_known] = _shared_rank(length[is_known]) + _expected_longer(length[is_known], guessed)
    num[~is_known] = 0.5 + _expected_longer(guessed, length)  # itself counts half in the sum
    return num


def _rank(times_s: FloatArray) -> FloatArray:
    num = np.empty(len(times_s))
    num[np.argsort(-times_s, kind="stable")] = np.arange(1, len(times_s) + 1)
    return num


def _shared_rank(length: FloatArray) -> FloatArray:
    """Like ``_rank``, but jobs of nearly the same length share a place.

    Otherwise a guess would come before the longer of two jobs that differ by seconds, and take its devices.
    """
    ordered = np.sort(length)
    num_longer = len(length) - np.searchsorted(ordered, length + _SAME, side="right")
    num_as_long = len(length) - np.searchsorted(ordered, length - _SAME, side="left") - num_longer
    shared: FloatArray = num_longer + 0.5 * num_as_long + 0.5
    return shared


def _expected_longer(at: FloatArray, length: FloatArray) -> FloatArray:
    """How many jobs of (logarithmic) ``length`` are expected to be longer than each of ``at``."""
    if not len(at):
        return at
    points = np.linspace(at.min(), at.max(), _GRID) if len(at) > _GRID else at
    shorter = np.exp(GUESS_STEEPNESS * (points[:, None] - length[None, :]))
    num: FloatArray = np.add.reduce(1.0 / (1.0 + shorter), axis=1)
    return np.interp(at, points, num) if points is not at else num
