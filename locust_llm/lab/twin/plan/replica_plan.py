"""Replica plan: computes from the requests of a day the replicas that meet the rules, their cost
and their hours.

The requests per second come from a trace with times, a rate, or requests per day and a shape.
"""

import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from locust_llm.lab.twin.server_observations import IN_FLIGHT
from locust_llm.lab.twin.twin_fit import MAX_ERROR
from locust_llm.lab.twin.twin_model import FIGURES, Twin
from locust_llm.lab.twin.twin_prediction import PredictedValue, WhatIf
from locust_llm.lab.twin.virtual_replay import Lengths, OfferedLoad
from locust_llm.lab.twin.whatif.whatif_grid import Case
from locust_llm.lab.twin.whatif.whatif_rows import (
    MET,
    WhatIfPredictor,
    WhatIfRow,
    status_of_answers,
)
from locust_llm.slo.rules import Rule
from locust_llm.workload.dataset import Dataset

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
HOUR_S: Final = 3600.0
DAY: Final = 24
WINDOW_S: Final = 300.0
"""The busiest window of a trace with this length is its peak."""
SWING, PEAK_HOUR = 0.8, 15
FLAT, DIURNAL = "flat", "diurnal"
SHAPES: Final = f"{FLAT}, {DIURNAL}, or 24 comma-separated numbers, one per hour"
KEPT: Final = 400
"""This many lengths of a trace are kept, evenly over it."""
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)\s*/\s*(s|min|h|day)")


class PlannedArrivals(NamedTuple):
    hours: tuple[float, ...]
    """Each hour has its requests per second."""
    peak: float
    """The replicas must serve this many requests per second."""
    mean: float
    what: str
    lengths: Lengths = ()
    """A trace has (prompt, output) tokens if each row has them."""


def parse_planned_arrivals(text: str, shape: str = FLAT) -> PlannedArrivals:
    """Parses ``1.4/s``, ``5000/h``, ``120000/day``, or the file of a trace. Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        if shape != FLAT:
            raise ValueError("--day works with a rate only: a trace has its own times")
        return arrivals_of_trace(text)
    mean = float(match[1]) / SECONDS[match[2]]
    if not 0 < mean < math.inf:
        raise ValueError(f"--arrivals {text!r}: the rate must be above 0")
    factors = parse_day_factors(shape)
    hours = tuple(mean * one for one in factors)
    said = {
        FLAT: "spread evenly over the day",
        DIURNAL: f"over the day 1 + {SWING} cos(2 pi (hour - {PEAK_HOUR}) / 24) times the mean, an "
        f"assumption",
    }.get(shape, "over the day as given by --day")
    return PlannedArrivals(hours, max(hours), mean, f"{text.strip()}, {said}")


def parse_day_factors(shape: str) -> list[float]:
    """Parses a factor for each hour, with mean 1. Raises ValueError."""
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
    """Reads a trace. Raises ValueError."""
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
                    f"{path}: row {turn.row or item.row} has no time, so its arrivals are unknown"
                )
            times.append(turn.at_s)
            if turn.input_tokens and turn.output_tokens:
                lengths.append((turn.input_tokens, turn.output_tokens))
    every = lengths if len(lengths) == len(times) else []
    return arrivals_of_times(sorted(times), path)._replace(
        lengths=tuple(every[:: max(1, -(-len(every) // KEPT))])
    )


def arrivals_of_times(times: Sequence[float], name: str) -> PlannedArrivals:
    """Counts sorted ``times`` by hours from the first one on, with all days added up. Raises
    ValueError."""
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
"""Rates are tried in this many rounds, each between the last rate that holds and the next."""
LEAST, MOST = 1e-3, 8.0
"""One replica is tried with rates between these shares of the peak."""
HYSTERESIS: Final = 0.9
"""A replica is removed below this share of the rate at which it would be added again."""
Holds = Callable[[Sequence[float]], Sequence[bool]]
"""The function returns whether a replica holds each rate, in requests per second."""


def find_highest_rate(holds: Holds, peak: float) -> float:
    """Returns the highest rate that one replica holds, within 3%, up to MOST times the peak. 0:
    none holds. A rate holds only if all tried lower ones do."""
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
    """Returns rates with equal ratios, with both ends or with neither."""
    if ends:
        return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    return [low * (high / low) ** (i / (count + 1)) for i in range(1, count + 1)]


class Fleet(NamedTuple):
    """Computes the replicas for a peak."""

    per_replica: float
    """One replica holds this many requests per second."""
    working: int
    """This many replicas hold the peak."""

    @property
    def replicas(self) -> int:
        """Returns one more, so that the rest holds the peak when one is lost."""
        return self.working + 1

    def needed(self, rate: float) -> int:
        """Returns the replicas at this rate, including one that may be lost."""
        return max(1, math.ceil(rate / self.per_replica - 1e-9)) + 1

    @property
    def add_above(self) -> float:
        """Returns the requests per second of each replica above which the rest would not hold them
        with one lost."""
        return self.per_replica * self.working / self.replicas

    @property
    def remove_below(self) -> float:
        """Returns the requests per second of each replica below which one fewer is enough, with
        some margin. 0: there are fewer than two."""
        return HYSTERESIS * self.per_replica * (self.working - 1) / self.replicas


def size_fleet(per_replica: float, peak: float) -> Fleet:
    return Fleet(per_replica, max(1, math.ceil(peak / per_replica - 1e-9)))


# -- cost ------------------------------------------------------------------------------------------
# What replicas cost a month and a million tokens.

MONTH_H: Final = 730
"""A month has these hours: a year / 12."""
MILLION: Final = 1e6


class PlanCost(msgspec.Struct, frozen=True):
    """The costs, in the currency of the price."""

    gpus: int
    """The number of GPUs of all replicas."""
    month: float
    """The cost of a month (730 hours) in which all replicas always run."""
    month_scaled: float
    """The cost of a month in which each hour has only as many replicas as it needs."""
    million_output: float
    """The cost of a million output tokens."""
    million_all: float
    """The cost of a million tokens of prompts and answers together."""


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
"""A shape has these shares of the rate at which a server falls behind."""
ASKED: Final = 2 * sum(ROUNDS)
"""About this many rates are tried."""
Progress = Callable[[int], None]


class CapacityPlan(NamedTuple):
    twin: Twin
    name: str
    workload: str
    lengths: Lengths
    rules: tuple[Rule, ...]
    arrivals: PlannedArrivals
    only_shape: str
    """This explains why there is no number of replicas. Empty: there is one."""
    fleet: Fleet | None = None
    """None: there is only a shape, or no number of replicas holds the rules."""
    by_middle: Fleet | None = None
    """The middle of the answers decides instead of their intervals."""
    rows: tuple[WhatIfRow, ...] = ()
    """The rows are of one replica: with one working replica fewer, with all working ones, with all.
    Otherwise they are of a shape."""
    limited: str = ""
    """This explains why a replica does not get more: it would be an extrapolation. Empty: the rules
    limit it."""
    add_in_flight: float = 0.0
    remove_in_flight: float = 0.0
    """Each replica has these open requests at the rates at which one is added and removed."""
    cost: PlanCost | None = None


def only_shape(twin: Twin) -> str:
    """Explains why a twin gives no number of replicas. Empty: it gives one."""
    trust = twin.trust
    if trust.verdict != FIGURES:
        why = "; ".join(trust.reasons) or "its file gives no reason"
        return (
            f"This twin is good for relative changes only ({why}), so no number of replicas is "
            "given."
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
    """Makes a plan. Requests are spread evenly over the replicas, so each has random arrivals
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
    """Holds rows of one replica at rates, each simulated once."""

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
    """Explains the next higher rate, if the rules were met but nothing similar was measured."""
    above = min((rate for rate in rows_at.known if rate > per_replica), default=None)
    if above is not None and rows_at.known[above].status == MET:
        yield from rows_at.known[above].beyond_load
