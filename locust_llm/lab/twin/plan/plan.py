"""Plan: from the requests of a day to the replicas that hold the rules, their cost and their hours.

The requests a second come from a trace with times, a rate, or requests a day and a shape.
"""

import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from locust_llm.lab.twin.fit import MAX_ERROR
from locust_llm.lab.twin.model import FIGURES, Twin
from locust_llm.lab.twin.observations import IN_FLIGHT
from locust_llm.lab.twin.predict import PredictedValue, WhatIf
from locust_llm.lab.twin.replay import Lengths, OfferedLoad
from locust_llm.lab.twin.whatif.grid import Case
from locust_llm.lab.twin.whatif.rows import MET, WhatIfPredictor, WhatIfRow, status_of_answers
from locust_llm.slo.rules import Rule
from locust_llm.workload.dataset import Dataset

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
HOUR_S: Final = 3600.0
DAY: Final = 24
WINDOW_S: Final = 300.0
"""Of a trace the busiest such window is its peak."""
SWING, PEAK_HOUR = 0.8, 15
FLAT, DIURNAL = "flat", "diurnal"
SHAPES: Final = f"{FLAT}, {DIURNAL}, or 24 numbers with commas, one for each hour"
KEPT: Final = 400
"""Lengths of a trace, evenly over it."""
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)\s*/\s*(s|min|h|day)")


class PlannedArrivals(NamedTuple):
    hours: tuple[float, ...]
    """Requests a second of each hour."""
    peak: float
    """Requests a second that the replicas must hold."""
    mean: float
    what: str
    lengths: Lengths = ()
    """Of a trace: (prompt, output) tokens, where each row has them."""


def parse_planned_arrivals(text: str, shape: str = FLAT) -> PlannedArrivals:
    """``text``: ``1.4/s``, ``5000/h``, ``120000/day``, or the file of a trace. Raises ValueError of
    one sentence."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        if shape != FLAT:
            raise ValueError("--day is for a rate: a trace has a day of its own")
        return arrivals_of_trace(text)
    mean = float(match[1]) / SECONDS[match[2]]
    if not 0 < mean < math.inf:
        raise ValueError(f"--arrivals {text!r}: no request ever comes")
    factors = parse_day_factors(shape)
    hours = tuple(mean * one for one in factors)
    said = {
        FLAT: "spread evenly over the day",
        DIURNAL: f"over the day 1 + {SWING} cos(2 pi (hour - {PEAK_HOUR}) / 24) times the mean, an "
        f"assumption",
    }.get(shape, "over the day as given by --day")
    return PlannedArrivals(hours, max(hours), mean, f"{text.strip()}, {said}")


def parse_day_factors(shape: str) -> list[float]:
    """Of each hour, of mean 1. Raises ValueError of one sentence."""
    if shape == FLAT:
        return [1.0] * DAY
    if shape == DIURNAL:
        return [
            1 + SWING * math.cos(2 * math.pi * (hour + 0.5 - PEAK_HOUR) / DAY)
            for hour in range(DAY)
        ]
    try:
        found = [float(one) for one in shape.split(",")]
    except ValueError:
        found = []
    if len(found) != DAY or not all(0 <= one < math.inf for one in found) or not any(found):
        raise ValueError(f"--day {shape[:100]!r}: write {SHAPES}")
    return [one / fmean(found) for one in found]


def arrivals_of_trace(path: str) -> PlannedArrivals:
    """Raises ValueError of one sentence."""
    if not Path(path).is_file():
        raise ValueError(
            f"--arrivals {path[:200]}: there is no such file; for a rate write 1.4/s, 5000/h or "
            f"120000/day"
        )
    times = array("d")
    lengths = list[tuple[int, int]]()
    for item in Dataset(path):
        for turn in item.turns:
            if turn.at_s is None:
                raise ValueError(
                    f"{path}: row {turn.row or item.row} has no time, so it says nothing of "
                    f"arrivals"
                )
            times.append(turn.at_s)
            if turn.input_tokens and turn.output_tokens:
                lengths.append((turn.input_tokens, turn.output_tokens))
    every = lengths if len(lengths) == len(times) else []
    return arrivals_of_times(sorted(times), path)._replace(
        lengths=tuple(every[:: max(1, -(-len(every) // KEPT))])
    )


def arrivals_of_times(times: Sequence[float], name: str) -> PlannedArrivals:
    """``times``: in order. Hours from the first one on, days above each other. Raises ValueError of
    one sentence."""
    if len(times) < 2 or times[-1] <= times[0]:
        raise ValueError(f"{name}: a trace needs requests at two times or more")
    span = times[-1] - times[0]
    counts = [0] * DAY
    covered = [0.0] * DAY
    for at in times:
        counts[int((at - times[0]) // HOUR_S) % DAY] += 1
    for hour in range(math.ceil(span / HOUR_S)):
        covered[hour % DAY] += min(HOUR_S, span - hour * HOUR_S)
    hours = tuple(
        count / seconds for count, seconds in zip(counts, covered, strict=True) if seconds > 0
    )
    mean = len(times) / span
    window = min(WINDOW_S, span)
    peak, first = 0, 0
    for last, at in enumerate(times):
        while times[first] <= at - window:
            first += 1
        peak = max(peak, last - first + 1)
    what = (
        f"{name}, {len(times):,} requests in {span / HOUR_S:.3g} h, its busiest "
        f"{window / 60:.3g} minutes as the peak"
    )
    return PlannedArrivals(hours, max(peak / window, mean), mean, what)


# -- replicas --------------------------------------------------------------------------------------
# The most that one replica holds within the rules, and how many the peak needs with one lost.

ROUNDS: Final = (9, 6, 5)
"""Rates that are tried at once, each time between the last that holds and the next."""
LEAST, MOST = 1e-3, 8.0
"""Of the peak, what is tried for one replica."""
HYSTERESIS: Final = 0.9
"""Of the rate at which a replica would be added again, below which one is removed."""
Holds = Callable[[Sequence[float]], Sequence[bool]]
"""Of each rate, in requests a second, whether a replica holds it."""


def find_highest_rate(holds: Holds, peak: float) -> float:
    """The highest rate of one replica that holds, within 3%, as far as up to MOST times the peak;
    0: none does. A rate holds only where all lower ones that are tried do."""
    low = 0.0
    high = MOST * peak
    for number, count in enumerate(ROUNDS):
        first = LEAST * peak if number == 0 else low
        tried = space_rates(first, high, count, number == 0)
        found = holds(tried)
        for rate, good in zip(tried, found, strict=True):
            if not good:
                high = rate
                break
            low = rate
        if low == 0.0:
            return 0.0
        if low >= high:
            break
    return low


def space_rates(low: float, high: float, count: int, ends: bool) -> list[float]:
    """Rates with equal ratios, with both ends or with neither."""
    if ends:
        return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    return [low * (high / low) ** (i / (count + 1)) for i in range(1, count + 1)]


class Fleet(NamedTuple):
    """Replicas for a peak."""

    per_replica: float
    """Requests a second that one holds."""
    working: int
    """That hold the peak."""

    @property
    def replicas(self) -> int:
        """With one more, so that the rest holds it when one is lost."""
        return self.working + 1

    def needed(self, rate: float) -> int:
        """At this rate, with one that may be lost."""
        return max(1, math.ceil(rate / self.per_replica - 1e-9)) + 1

    @property
    def add_above(self) -> float:
        """Requests a second of each replica: with more, the rest would not hold it when one is
        lost."""
        return self.per_replica * self.working / self.replicas

    @property
    def remove_below(self) -> float:
        """Requests a second of each replica, where one fewer would do, with some room; 0: there are
        no fewer than two."""
        return HYSTERESIS * self.per_replica * (self.working - 1) / self.replicas


def size_fleet(per_replica: float, peak: float) -> Fleet:
    return Fleet(per_replica, max(1, math.ceil(peak / per_replica - 1e-9)))


# -- cost ------------------------------------------------------------------------------------------
# What replicas cost a month and a million tokens.

MONTH_H: Final = 730
"""Hours: a year / 12."""
MILLION: Final = 1e6


class PlanCost(NamedTuple):
    """In the currency of the price."""

    gpus: int
    month: float
    month_scaled: float
    """With as many replicas each hour as it needs."""
    million_output: float
    million_all: float
    """Of prompts and answers together."""


def price_fleet(
    fleet: Fleet,
    arrivals: PlannedArrivals,
    lengths: Lengths,
    gpus_per_replica: int,
    gpu_hour: float,
) -> PlanCost:
    gpus = fleet.replicas * gpus_per_replica
    hourly = gpus * gpu_hour
    bursts = arrivals.peak / max(arrivals.hours)
    scaled = (
        fmean(fleet.needed(rate * bursts) for rate in arrivals.hours) * gpus_per_replica * gpu_hour
    )
    requests = arrivals.mean * HOUR_S
    prompt = fmean(tokens for tokens, _ in lengths)
    output = fmean(tokens for _, tokens in lengths)
    return PlanCost(
        gpus=gpus, month=hourly * MONTH_H, month_scaled=scaled * MONTH_H,
        million_output=hourly / (requests * output) * MILLION,
        million_all=hourly / (requests * (prompt + output)) * MILLION,
    )  # fmt: skip


# -- plan ------------------------------------------------------------------------------------------
# A plan from a twin: what one replica holds, how many there are to be, what they cost, when to
# change them.

SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the rate at which a server falls behind, for the shape of a load."""
ASKED: Final = 2 * sum(ROUNDS)
"""Rates, about."""
Progress = Callable[[int], None]


class CapacityPlan(NamedTuple):
    twin: Twin
    name: str
    workload: str
    lengths: Lengths
    rules: tuple[Rule, ...]
    arrivals: PlannedArrivals
    only_shape: str
    """Why there is no number of replicas; empty: there is."""
    fleet: Fleet | None = None
    """None: only a shape, or no number of replicas holds the rules."""
    by_middle: Fleet | None = None
    """By the middle of the answers instead of their intervals."""
    rows: tuple[WhatIfRow, ...] = ()
    """Of one replica: with one fewer that works, with those that work, with all; or of a shape."""
    limited: str = ""
    """Why a replica is not given more: it would be an extrapolation. Empty: the rules are why."""
    add_in_flight: float = 0.0
    remove_in_flight: float = 0.0
    """Requests open at once in each replica, at the rates at which one is added and removed."""
    cost: PlanCost | None = None


def only_shape(twin: Twin) -> str:
    """Why a twin is not good enough for a number of replicas, one sentence; empty: it is."""
    trust = twin.trust
    if trust.verdict != FIGURES:
        why = "; ".join(trust.reasons) or "its file gives no reason"
        return (
            f"This twin is good for shape, not for figures ({why}), so no number of replicas is "
            f"given."
        )
    if trust.error is None or trust.error > MAX_ERROR:
        said = "was not measured" if trust.error is None else f"is {trust.error:.0%}"
        return (
            f"The error of this twin on loads kept out of its fit {said}, and a number of replicas "
            f"needs {MAX_ERROR:.0%} or "
            "less, so none is given."
        )
    return ""


def plan_capacity(
    predictor: WhatIfPredictor, name: str, workload: str, arrivals: PlannedArrivals, gpus_per_replica: int = 1,
    gpu_hour: float | None = None,
    on_progress: Progress = lambda done: None, processes: int = 0,
) -> CapacityPlan:  # fmt: skip
    """Requests are spread evenly over the replicas, each of which then has arrivals by chance
    (Poisson)."""
    rows_at = _Rates(predictor, on_progress, processes)
    begun = CapacityPlan(
        predictor.twin,
        name,
        workload,
        predictor.lengths,
        tuple(predictor.rules),
        arrivals,
        only_shape(predictor.twin),
    )
    if begun.only_shape:
        falls = find_highest_rate(
            lambda rates: [not row.falls_behind for row in rows_at(rates)], arrivals.peak
        )
        return begun._replace(
            rows=tuple(rows_at([share * falls for share in SHARES])) if falls else ()
        )
    per_replica = find_highest_rate(
        lambda rates: [_holds(row) for row in rows_at(rates)], arrivals.peak
    )
    if not per_replica:
        return begun._replace(rows=tuple(rows_at([1e-3 * arrivals.peak])))
    found = size_fleet(per_replica, arrivals.peak)
    middle = find_highest_rate(
        lambda rates: [_holds_by_middle(row, predictor.rules) for row in rows_at(rates)],
        arrivals.peak,
    )
    working = sorted({max(1, found.working - 1), found.working, found.replicas})
    rows = rows_at([arrivals.peak / count for count in working])
    add, remove = rows_at([found.add_above, found.remove_below or found.add_above])
    return begun._replace(
        fleet=found, by_middle=size_fleet(middle, arrivals.peak) if middle else None, rows=tuple(rows),
        limited=next(_limited(rows_at, per_replica), ""), add_in_flight=add.answers[IN_FLIGHT].about,
        remove_in_flight=remove.answers[IN_FLIGHT].about if found.remove_below else 0.0,
        cost=None if gpu_hour is None else price_fleet(found, arrivals, predictor.lengths, gpus_per_replica,
            gpu_hour),
    )  # fmt: skip


class _Rates:
    """Rows of one replica at rates, each simulated once."""

    def __init__(self, predictor: WhatIfPredictor, on_progress: Progress, processes: int) -> None:
        self.predictor, self.on_progress, self.processes = predictor, on_progress, processes
        self.known: dict[float, WhatIfRow] = {}

    def __call__(self, rates: Sequence[float]) -> list[WhatIfRow]:
        new = [rate for rate in dict.fromkeys(rates) if rate not in self.known]
        begun = len(self.known)
        cases = [Case(WhatIf(OfferedLoad(rate=rate)), ()) for rate in new]
        rows = self.predictor.rows(
            cases, lambda done, _: self.on_progress(begun + done), self.processes
        )
        self.known |= zip(new, rows, strict=True)
        return [self.known[rate] for rate in rates]


def _holds(row: WhatIfRow) -> bool:
    return row.status == MET and not row.falls_behind and not row.beyond_load


def _holds_by_middle(row: WhatIfRow, rules: Sequence[Rule]) -> bool:
    middle = {
        name: PredictedValue(one.about, one.about, one.about) for name, one in row.answers.items()
    }
    return status_of_answers(rules, middle) == MET and not row.falls_behind and not row.beyond_load


def _limited(rows_at: _Rates, per_replica: float) -> Iterator[str]:
    """Of the next rate above, where the rules were met, but nothing like it was measured."""
    above = min((rate for rate in rows_at.known if rate > per_replica), default=None)
    if above is not None and rows_at.known[above].status == MET:
        yield from rows_at.known[above].beyond_load
