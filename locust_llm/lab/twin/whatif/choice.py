"""Choice: the best what-if within the rules, and the run that would decide where another may be
better."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from locust_llm.lab.twin.observations import REQUESTS_PER_S
from locust_llm.lab.twin.predict import WIDTH, log_ratios, standard_error_of, uncertain
from locust_llm.lab.twin.replay import OfferedLoad
from locust_llm.slo.grammar import Rule

from .evaluate_rules import MET, OPEN, figure_of
from .rows import THROUGHPUT, WAIT, WhatIfRow, top_rows

REQUESTS: Final = 500
"""Of a run that is to decide,"""
MIN_MINUTES: Final = 2
"""and at least so long."""
ROOM: Final = 4
"""Sessions of an open loop, as times as many as are open on the mean."""


class Rival(NamedTuple):
    """Two settings that cannot be told apart, and where they could be."""

    best: WhatIfRow
    other: WhatIfRow
    load: OfferedLoad
    figure: str
    difference: float
    """At that load, other / best - 1 of that figure, as predicted,"""
    sigmas: float
    """and how many standard errors that is."""
    minutes: int


def best_what_if(rows: Sequence[WhatIfRow]) -> WhatIfRow | None:
    """The most output tokens a second within the rules, else where it is open whether they are met;
    None: neither."""
    return next((row for row in top_rows(rows) if row.status in (MET, OPEN)), None)


def rival(
    rows: Sequence[WhatIfRow], rules: Sequence[Rule], errors: Mapping[str, float]
) -> Rival | None:
    """The best of other settings, where it may be as good: its throughput is not surely less, or it
    is open whether one of the two is within the rules. None: the best is, or there are no other
    settings."""
    first = best_what_if(rows)
    if first is None:
        return None
    others = [
        row
        for row in top_rows(rows)
        if row.case.chosen != first.case.chosen and row.status in (MET, OPEN)
    ]
    other = max(others, key=lambda row: (row.models, row.throughput), default=None)
    if other is None or (
        other.throughput < first.throughput and _apart(first, other, THROUGHPUT, errors)[1] > WIDTH
    ):
        return None
    at = dict[OfferedLoad, dict[tuple[tuple[str, str], ...], WhatIfRow]]()
    for row in rows:
        at.setdefault(row.case.asked.load, {})[row.case.chosen] = row
    figures = (
        tuple(dict.fromkeys((*map(figure_of, rules), THROUGHPUT))) if rules else (WAIT, THROUGHPUT)
    )
    tried = [
        (*_apart(here[first.case.chosen], here[other.case.chosen], figure, errors)[::-1], load,
            figure)
        for load, here in at.items()
        if first.case.chosen in here and other.case.chosen in here
        and not any(here[one.case.chosen].falls_behind for one in (first, other))
        for figure in figures
    ]  # fmt: skip
    if not tried:
        return None
    sigmas, difference, load, figure = max(tried, key=lambda one: one[0])
    per_s = at[load][first.case.chosen].answers.get(REQUESTS_PER_S)
    minutes = (
        max(MIN_MINUTES, math.ceil(REQUESTS / per_s.about / 60))
        if per_s is not None
        else MIN_MINUTES
    )
    return Rival(first, other, load, figure, difference, sigmas, minutes)


def _apart(
    one: WhatIfRow, other: WhatIfRow, figure: str, errors: Mapping[str, float]
) -> tuple[float, float]:
    """(other / one - 1, how many standard errors that is): pair by pair, as both were asked of the
    same models."""
    logs = log_ratios(other.logs.get(figure, ()), one.logs.get(figure, ()))
    if not logs:
        return 0.0, 0.0
    difference = sum(logs) / len(logs)
    differ = one.case.asked.settings != other.case.asked.settings
    error = math.sqrt(
        uncertain(logs) + standard_error_of(figure, errors, other_settings=differ) ** 2
    )
    return math.expm1(difference), abs(
        difference
    ) / error if error else math.inf if difference else 0.0


def commands(found: Rival, workload: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(what the server is to run with, the command line), one for each of the two. ``workload``:
    options of run."""
    for row in (found.best, found.other):
        server = " ".join(
            f"--{key} {value}" for key, value in row.case.chosen if key != "prefill-concurrency"
        )
        yield server or "as it was fitted", " ".join(_words(row, found, workload))


def _words(row: WhatIfRow, found: Rival, workload: Sequence[str]) -> Iterator[str]:
    load, limit = found.load, row.case.asked.prefill_limit
    yield "locust-llm run --headless --host HOST"
    if load.users:
        yield f"-u {load.users}"
    else:
        inside = row.answers["in flight"].about if "in flight" in row.answers else load.rate
        yield f"--request-rate {load.rate:g} -u {max(10, math.ceil(ROOM * inside))}"
    yield f"-t {found.minutes}m"
    if math.isfinite(limit):
        yield f"--prefill-concurrency {limit:.0f}"
    yield from workload
