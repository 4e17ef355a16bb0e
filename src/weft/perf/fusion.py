"""Which gradients travel together: cuts of the flat buffer, chosen by the recurrence.

Small buckets pay the startup cost often; large ones start late in backward, and hold up the next forward until their
last byte arrives.  The best sizes differ along the buffer: near the last layers, whose gradients come first and whose
values are read last, a bucket may be large; near the first layers there is nothing left to hide under.

Plans start from the greedy ones of :mod:`weft.perf.promises`; the full recurrence picks the best few, and a local
search refines them by moving, dropping, and adding cuts (also inside very large parameters, where an update can hide).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from weft.errors import UsageError
from weft.perf.link import Link
from weft.perf.promises import Cuts, Promises
from weft.perf.recurrence import StepModel
from weft.perf.step_profile import Mode, StepProfile

# Until fusion is tuned.  A bucket costs time on the core whatever its size: BERT-Base would have 105 of 4 MiB, and by
# the step model (0.4 ms of latency, 0.2 ms to launch) its step would take 14 % longer than with 16.
MIN_DEFAULT_BYTES = 4 << 20
MAX_DEFAULT_BUCKETS = 16
UNIFORM_MB = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0)

# Parameter borders closer than this share of the buffer, of backward, and of forward count as one (in the middle).
RESOLUTION = 1 / 256
# A parameter with more than this share of the buffer may be cut inside.
LARGE_SHARE = 1 / 8
# The least interpreter time that launching a collective takes.
MIN_LAUNCH_S = 2e-5
# A smaller relative gain is not worth another bucket: each has costs that the model does not include.
WORTH_A_BUCKET = 1e-3
NUM_STARTS = 4
# The local search looks at no more than this many parameters and buckets, whatever the size of the model.
SEARCH_BUDGET = 10_000


def plan_cuts(profile: StepProfile, link: Link, num_workers: int, mode: Mode, granularity: int) -> Cuts:
    """The plan with the shortest step found; deterministic.  Cuts are multiples of ``granularity``.

    According to the model, at most a thousandth slower than the best uniform bucket size of ``UNIFORM_MB``: among plans
    that close to each other, the one with the fewest buckets wins.
    """
    # A link fitted to a few samples may appear to have free launches.
    link = replace(link, launch_s=max(link.launch_s, MIN_LAUNCH_S))
    model = StepModel(profile, link, num_workers)
    places = cut_places(model, granularity)
    plans: dict[Cuts, float] = {(): model.step_s((), mode)}
    for cuts in Promises(model, places, mode).plans():
        if cuts not in plans:
            plans[cuts] = model.step_s(cuts, mode)
    best_s = min(plans.values())
    for megabytes in UNIFORM_MB:
        cuts = uniform_cuts(profile, megabytes * 1e6, granularity)
        if cuts not in plans and _floor_s(model, len(cuts) + 1, mode) < best_s:
            plans[cuts] = model.step_s(cuts, mode)
    starts = sorted(plans, key=lambda cuts: (plans[cuts], len(cuts), cuts))[:NUM_STARTS]
    budget = SEARCH_BUDGET // len(starts)
    plans.update(_refined(model, mode, places, cuts, plans[cuts], budget) for cuts in starts)
    enough_s = min(plans.values()) * (1 + WORTH_A_BUCKET)
    return min((cuts for cuts in plans if plans[cuts] <= enough_s), key=lambda cuts: (len(cuts), plans[cuts], cuts))


def default_bucket_bytes(num_bytes: int) -> int:
    """The size of all buckets until they are tuned.

    >>> [default_bucket_bytes(megabytes << 20) >> 20 for megabytes in (3, 40, 440)]
    [4, 4, 27]
    """
    return max(MIN_DEFAULT_BYTES, math.ceil(num_bytes / MAX_DEFAULT_BUCKETS))


def uniform_cuts(profile: StepProfile, bucket_bytes: float, granularity: int) -> Cuts:
    """Buckets of one size across parameter borders, as close to ``bucket_bytes`` as ``granularity`` allows."""
    _check_granularity(granularity)
    num_granules = max(1, round(bucket_bytes / profile.element_bytes / granularity))
    step = num_granules * granularity
    return tuple(range(step, profile.num_elements, step))


def scaled_cuts(
    profile: StepProfile,
    link: Link,
    num_workers: int,
    mode: Mode,
    granularity: int,
    log2_scale: float = 0.0,
    log2_tilt: float = 0.0,
) -> Cuts:
    """The model's plan, stretched by two knobs; both at 0 give the plan itself.

    The model is most reliable about the *shape* of a plan (where gradients come late and reads come early), which rests
    on measured layer times, and least about the fixed cost of a bucket: startup under load, interpreter time, and
    network threads that compete with compute.  Hence

    - ``log2_scale``: all buckets ``2**log2_scale`` times as large, and that many times fewer of them;
    - ``log2_tilt``: above 0, buckets near the first layers, which nothing hides, shrink, and those near the last
      layers grow; below 0, vice versa.

    Two numbers for any model: few enough for a search with about twenty noisy measurements.
    """
    base = plan_cuts(profile, link, num_workers, mode, granularity)
    places = cut_places(StepModel(profile, link, num_workers), granularity)
    return stretched(base, profile.num_elements, places, log2_scale, log2_tilt)


def stretched(base: Cuts, num_elements: int, places: Iterable[int], log2_scale: float, log2_tilt: float) -> Cuts:
    """Resample ``base`` as a curve from bucket number to offset; offsets snap to ``places``."""
    if log2_scale == 0 and log2_tilt == 0:
        return base
    edges = [0, *base, num_elements]
    allowed = sorted({*places, *base})
    if not allowed:
        return ()
    num_buckets = max(1, round((len(edges) - 1) * 2.0**-log2_scale))
    exponent = 2.0**log2_tilt
    cuts = set()
    for j in range(1, num_buckets):
        position = (1 - (1 - j / num_buckets) ** exponent) * (len(edges) - 1)
        whole = min(int(position), len(edges) - 2)
        offset = edges[whole] + (position - whole) * (edges[whole + 1] - edges[whole])
        above = min(bisect_left(allowed, offset), len(allowed) - 1)
        cuts.add(min(allowed[max(0, above - 1)], allowed[above], key=lambda place: abs(place - offset)))
    return tuple(sorted(cuts))


def describe(cuts: Sequence[int], num_elements: int, element_bytes: int) -> str:
    """The plan as text, for the log.

    >>> describe((6_000_000, 9_900_000), 10_000_000, 4)
    '3 buckets, 0.4 to 24.0 MB, 10.0 M parameters'
    """
    sizes_mb = [(b - a) * element_bytes / 1e6 for a, b in pairwise([0, *cuts, num_elements])]
    low, high = f"{min(sizes_mb):.1f}", f"{max(sizes_mb):.1f}"
    size = f"{low} MB" if low == high else f"{low} to {high} MB"
    buckets = "1 bucket" if len(sizes_mb) == 1 else f"{len(sizes_mb)} buckets"
    return f"{buckets}, {size}, {num_elements / 1e6:.1f} M parameters"


def cut_places(model: StepModel, granularity: int) -> list[int]:
    """Where a cut may help: parameter borders that differ enough, and points inside very large parameters.

    Borders are rounded down: the few elements that move to the next bucket are ready and gathered in time, while
    rounding up would make the bucket wait for another whole parameter.
    """
    _check_granularity(granularity)
    profile, total = model.profile, model.num_elements
    places: list[int] = []
    start = 0
    kept = (0.0, 0.0, 1.0)  # shares of the buffer, of backward, and of forward before the last border
    for i, end in enumerate(model.ends):
        size = end - start
        if size > total * LARGE_SHARE:
            pieces = min(16, round(size / total / LARGE_SHARE * 2))
            places += [start + size * piece // pieces for piece in range(1, pieces)]
        here = (
            end / total,
            model.ready_s[i] / profile.backward_s if profile.backward_s else 1.0,
            profile.parameters[i].read_s / profile.forward_s if profile.forward_s else 0.0,
        )
        if any(abs(now - then) > _resolution(now) for now, then in zip(here, kept, strict=True)):
            places.append(end)
            kept = here
        start = end
    rounded = {place // granularity * granularity for place in places}
    return sorted(place for place in rounded if 0 < place < total)


def _resolution(share: float) -> float:
    """Finer toward both ends: the first bucket to be sent and the last to return hide under nothing."""
    return RESOLUTION * max(1 / 64, 2 * min(share, 1 - share))


def _floor_s(model: StepModel, num_buckets: int, mode: Mode) -> float:
    """A lower bound for plans of ``num_buckets`` buckets, from their launch and startup costs."""
    launches = 2 if mode in (Mode.BARRIER, Mode.EAGER) else 1
    profile, link = model.profile, model.link
    compute_s = profile.forward_s + profile.backward_s + launches * num_buckets * link.launch_s
    return max(compute_s, 2 * num_buckets * link.alpha_s)


def _refined(
    model: StepModel, mode: Mode, places: list[int], cuts: Cuts, step_s: float, budget: int
) -> tuple[Cuts, float]:
    """Local search: sweep over the cuts until a whole sweep finds nothing or ``budget`` is spent."""
    unchanged = 0
    at = len(cuts)  # start near the first layers, where nothing hides a delay
    while unchanged <= len(cuts):
        at = at - 1 if at > 0 else len(cuts)
        unchanged += 1
        for neighbor in _neighbors(cuts, at, places, model.num_elements):
            budget -= len(neighbor) + 1 + (len(model.hooks) if mode == Mode.EAGER else 0)
            if budget < 0:
                return cuts, step_s
            neighbor_s = model.step_s(neighbor, mode)
            if neighbor_s < step_s or (neighbor_s == step_s and len(neighbor) < len(cuts)):
                cuts, step_s, unchanged = neighbor, neighbor_s, 0
                at = min(at, len(cuts))
                break
    return cuts, step_s


def _neighbors(cuts: Cuts, at: int, places: list[int], num_elements: int) -> Iterator[Cuts]:
    """Plans that differ by one move at bucket ``at``: drop or move the cut at its end, or add one or two inside."""
    before, after = cuts[:at], cuts[at + 1 :]
    low = before[-1] if before else 0
    if at < len(cuts):
        yield before + after
        high = after[0] if after else num_elements
        now = bisect_left(places, cuts[at])
        for jump in (1, -1, 3, -3, 9, -9, 27, -27):
            place = places[now + jump] if 0 <= now + jump < len(places) else 0
            if low < place < high:
                yield (*before, place, *after)
    end = cuts[at] if at < len(cuts) else num_elements
    inside = places[bisect_right(places, low) : bisect_left(places, end)]
    if inside:
        for k in dict.fromkeys((len(inside) // 2, len(inside) - 1)):
            yield (*before, inside[k], *cuts[at:])
    if len(inside) > 1:
        yield (*before, inside[len(inside) // 3], inside[max(1, 2 * len(inside) // 3)], *cuts[at:])


def _check_granularity(granularity: int) -> None:
    if granularity < 1:
        raise UsageError(f"a granularity of {granularity} elements: expected 1 or more")
