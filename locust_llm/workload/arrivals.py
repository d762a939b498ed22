"""Arrivals: the instants at which requests are due, made before anybody obeys them.

Instants are seconds after the start of the phase, lazy, ascending and mostly endless: ``until``
bounds them. None is reached by adding rounded steps: the n-th comes from the whole schedule up to
it, so nothing drifts. A schedule knows no clock, and its chance is a ``Random`` that is given to
it.

A pattern is a series of steps of mean 1, which count arrivals; a rate says when the count is
reached. Thus any pattern goes with any rate, and a Poisson pattern under a changing rate is the
exact inhomogeneous process (Çınlar, Introduction to Stochastic Processes, 1975: the inverse of the
expected count).
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise, takewhile
from random import Random
from typing import Any, Final, TypeVar

import msgspec

PATTERNS: Final = ("constant", "poisson", "gamma")
_TIME_KEYS: Final = ("time_s", "time")
_RATE_KEYS: Final = ("qps", "rate")
_HUGE: Final = 1e15
"""No time and no rate is so large. A value that is not below it (NaN too) is refused."""

Arrival = TypeVar("Arrival", float, tuple[float, int])


class ArrivalRate:
    """Arrivals a second over time: linear between points, the first rate held before them and the
    last one after.

    Two points of the same time are a jump. Rates of 0 mean no arrivals there.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """``points``: (seconds, per second), in order of time.

        Raises ValueError, which names the point (counted from 1), for a time below 0 or before the
        last one, a negative rate, no points, and rates that are 0 everywhere.
        """
        for number, (time_s, per_s) in enumerate(points, 1):
            if not 0 <= time_s < _HUGE:
                raise ValueError(
                    f"point {number}: the time must be from 0 to {_HUGE:g} s, got {time_s:g}"
                )
            if number > 1 and time_s < points[number - 2][0]:
                raise ValueError(
                    f"point {number}: its time {time_s:g} s is before {points[number - 2][0]:g} s, "
                    f"the one before"
                )
            if not 0 <= per_s < _HUGE:
                raise ValueError(
                    f"point {number}: the rate must be from 0 to {_HUGE:g}, got {per_s:g}"
                )
        if not any(per_s for _, per_s in points):
            raise ValueError("the rate is 0 everywhere" if points else "the rate has no points")
        points = [(0.0, points[0][1]), *points]
        self._times = [float(time_s) for time_s, _ in points]
        self._rates = [float(per_s) for _, per_s in points]
        areas = ((t1 - t0) * (r0 + r1) / 2 for (t0, r0), (t1, r1) in pairwise(points))
        self._counts = list(accumulate(areas, initial=0.0))
        """The expected arrivals until each point."""

    def count(self, time_s: float) -> float:
        """The expected arrivals until then: the integral of the rate."""
        if time_s <= 0:
            return 0.0
        at = bisect_right(self._times, time_s) - 1
        passed = time_s - self._times[at]
        return self._counts[at] + passed * (self._rates[at] + self._slope(at) * passed / 2)

    def time_of(self, count: float) -> float:
        """The time at which ``count`` arrivals are expected: the inverse of ``count``.

        It is the last such moment if the rate is 0 for a while. It is infinity if the rate never
        comes to more. Within a piece that begins with the rate r and rises by k a second, x seconds
        bring r x + k x² / 2.
        """
        at = bisect_right(self._counts, count) - 1
        missing = count - self._counts[at]
        rate = self._rates[at]
        if at == len(self._times) - 1:
            return self._times[at] + missing / rate if rate else math.inf
        if not missing:
            return self._times[at]
        # this form of the solution neither cancels nor divides by a slope of 0
        root = math.sqrt(max(0.0, rate * rate + 2 * self._slope(at) * missing))
        return min(self._times[at] + 2 * missing / (rate + root), self._times[at + 1])

    def _slope(self, at: int) -> float:
        if at == len(self._times) - 1:
            return 0.0
        return (self._rates[at + 1] - self._rates[at]) / (self._times[at + 1] - self._times[at])


def make_steady_rate(per_s: float, ramp_s: float | None = None) -> ArrivalRate:
    """One rate, from the start or reached in ``ramp_s`` seconds, from 0 on a straight line.

    Within the ramp arrival n of the constant pattern is due at sqrt(2 n D / R), as in k6's ramping
    arrivals: 0 to 1 a second over 5 s sends number 1 at 3.162 s. AIPerf 0.13 begins with R * 0.1 /
    D and goes on in steps of 0.1 s, since it draws each gap from the rate of the moment and could
    not do so at 0. Here the line itself is integrated, so the count is R D / 2 at the end of the
    ramp, whatever R and D are.

    Raises ValueError unless both are above 0.
    """
    if not per_s > 0:
        raise ValueError(f"the rate must be above 0, got {per_s:g}")
    if ramp_s is None:
        return ArrivalRate([(0.0, per_s)])
    if not ramp_s > 0:
        raise ValueError(f"the ramp of the rate must take more than 0 s, got {ramp_s:g}")
    return ArrivalRate([(0.0, 0.0), (ramp_s, per_s)])


def parse_rate_series(text: str) -> ArrivalRate:
    """The rate of a ``--request-rate-series`` file: a JSON list of points, or an object whose
    ``points`` is such a list.

    A point is ``[0, 5]``, ``{"time_s": 0, "qps": 5}`` (AIPerf's keys) or ``{"time": 0, "rate":
    5}``: seconds, arrivals a second. AIPerf wants two points, times that rise and rates above 0;
    here one point, a jump and a pause are allowed.

    Raises ValueError of one sentence, which names the point (counted from 1).
    """
    try:
        series: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"a rate series must be JSON: {error}") from None
    except RecursionError:
        raise ValueError(
            "a rate series must be a list of points: this one is nested too deeply"
        ) from None
    if isinstance(series, dict):
        series = series.get("points")
    if not isinstance(series, list):
        raise ValueError(
            'a rate series must be a list of points, or an object with a list of "points"'
        )
    return ArrivalRate([_point(number, point) for number, point in enumerate(series, 1)])


def _first_of(point: Mapping[str, object], keys: Iterable[str]) -> object:
    return next((point[key] for key in keys if key in point), None)


def _point(number: int, point: object) -> tuple[float, float]:
    pair: object = point
    if isinstance(point, dict):
        pair = [_first_of(point, _TIME_KEYS), _first_of(point, _RATE_KEYS)]
    if (
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(x) in (int, float) and abs(x) < _HUGE for x in pair)
    ):
        return float(pair[0]), float(pair[1])
    raise ValueError(
        f'point {number}: must be two numbers, [seconds, per second], {{"time_s": ..., "qps": '
        f"...}} or "
        f'{{"time": ..., "rate": ...}}, got {msgspec.json.encode(point).decode()[:80]}'
    )


def draw_expected_counts(pattern: str, random: Random, smoothness: float = 1.0) -> Iterator[float]:
    """The expected count at each arrival, without end: the sum of steps of mean 1.

    ``constant`` steps by 1 and begins at 0, as vegeta's pacer does: at a rate r arrival n is due at
    n / r, the first at once (AIPerf's comes a step later; nothing else differs). ``poisson`` steps
    are exponential, ``gamma`` ones have shape k = ``smoothness`` and scale 1 / k, thus variance 1 /
    k: 1 is poisson, below 1 bursts, above 1 evens out (AIPerf's
    --arrival-smoothness, vLLM's burstiness). Their first arrival comes after a step, or counts
      would not be Poisson's.

    Raises ValueError for another pattern, and for a smoothness that is not above 0.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"the arrival pattern must be one of {', '.join(PATTERNS)}, got {pattern}")
    if not 0 < smoothness < _HUGE:
        raise ValueError(f"the arrival smoothness must be above 0, got {smoothness:g}")
    if pattern == "constant":
        return map(float, itertools.count())
    if pattern == "poisson":
        return accumulate(random.expovariate(1.0) for _ in itertools.count())
    return accumulate(random.gammavariate(smoothness, 1 / smoothness) for _ in itertools.count())


def draw_arrivals(
    rate: ArrivalRate, pattern: str, random: Random, smoothness: float = 1.0
) -> Iterator[float]:
    """When each request is due, in seconds. It ends only if the rate does. Pattern and smoothness
    are as in ``draw_expected_counts``."""
    return takewhile(
        math.isfinite, map(rate.time_of, draw_expected_counts(pattern, random, smoothness))
    )


def draw_user_centric_arrivals(users: int, per_s: float) -> Iterator[tuple[float, int]]:
    """(instant, user from 0): user i sends at (i + k N) / r, each every N / r seconds, staggered by
    1 / r.

    AIPerf's --user-centric-rate: turn_gap = users / QPS, stagger 1 / QPS. Here a user has no end
    and takes its next conversation when one is over; AIPerf instead starts its first users amid
    made-up histories.

    Raises ValueError for fewer than one user, and for a rate that is not above 0.
    """
    if users < 1:
        raise ValueError(f"the user-centric rate needs at least 1 user, got {users}")
    if not per_s > 0:
        raise ValueError(f"the user-centric rate must be above 0, got {per_s:g}")
    return ((number / per_s, number % users) for number in itertools.count())


def replay_arrivals(
    times_s: Iterable[float | None],
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    auto_offset: bool = False,
    speedup: float = 1.0,
) -> Iterator[tuple[float, int]]:
    """(instant, row from 0) of the rows of a trace, whose own times these are.

    Rows before ``start_s`` and after ``end_s`` are left out, those at them are not; both in the
    trace's time (AIPerf's
    --fixed-schedule-start-offset and -end-offset, which are ms). Zero is the first row that is left
      with ``auto_offset``,
    else ``start_s``, else the trace's own zero. ``speedup`` divides what has passed since: 2 takes
    half the time.

    Raises ValueError for a time that is missing, before the one above it, or before zero; it names
    the row, counted from 1, when it comes to it. A pass over all rows before the run finds it
    before any load. AIPerf sorts instead, which hides a mixed-up file. Also for a speedup that is
    not above 0.
    """
    if not 0 < speedup < _HUGE:
        raise ValueError(f"the replay speedup must be above 0, got {speedup:g}")
    last = -math.inf
    zero = None if auto_offset else start_s or 0.0
    for row, time_s in enumerate(times_s):
        if time_s is None or not math.isfinite(time_s):
            raise ValueError(f"row {row + 1}: has no time")
        if time_s < last:
            raise ValueError(
                f"row {row + 1}: its time {time_s:.15g} s is before {last:.15g} s, the one above it"
            )
        last = time_s
        if start_s is not None and time_s < start_s:
            continue
        if end_s is not None and time_s > end_s:
            return
        zero = time_s if zero is None else zero
        if time_s < zero:
            raise ValueError(
                f"row {row + 1}: its time {time_s:.15g} s is before 0; an auto offset makes the "
                f"first row 0"
            )
        yield (time_s - zero) / speedup, row


class RateFactor:
    """How many times as fast as drawn the arrivals of a schedule come. It may change meanwhile."""

    def __init__(self) -> None:
        self.value = 1.0

    def apply(self, drawn: Iterable[float]) -> Iterator[float]:
        """The instants of drawn arrivals. Those that were taken before a change stay."""
        factor = self.value
        drawn_then = due_then = drawn_s = due_s = 0.0
        for instant in drawn:
            if self.value != factor:
                drawn_then, due_then, factor = drawn_s, due_s, self.value
            drawn_s = instant
            due_s = due_then + (drawn_s - drawn_then) / factor
            yield due_s


def limit_arrivals(
    due: Iterable[Arrival], *, count: int | None = None, duration_s: float | None = None
) -> Iterator[Arrival]:
    """At most ``count`` arrivals, and none at or after ``duration_s``. They are instants, or pairs
    that begin with one."""
    end = math.inf if duration_s is None else duration_s
    return takewhile(lambda arrival: _instant(arrival) < end, islice(due, count))


def _instant(arrival: float | tuple[float, int]) -> float:
    return arrival[0] if isinstance(arrival, tuple) else arrival
