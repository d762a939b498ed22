"""What-if rows: compare what-ifs and their answers with the rules of an SLO, and find the best of
them.

A rule is met, not met, or inconclusive if the interval holds its limit.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from locust_llm.lab.twin.server_observations import IN_FLIGHT, REQUESTS_PER_S, SERVED
from locust_llm.lab.twin.twin_model import SHAPE, Twin
from locust_llm.lab.twin.twin_prediction import (
    RUNS,
    WIDTH,
    PredictedValue,
    interval_of_logarithms,
    lengths_apart,
    log_ratios,
    mean_of_logarithms,
    settings_apart,
    standard_error_of,
    variance_of_logarithms,
)
from locust_llm.lab.twin.virtual_replay import Lengths, OfferedLoad
from locust_llm.lab.twin.whatif.simulation_processes import (
    LogarithmsByFigure,
    Progress,
    SharedWork,
    simulate_what_ifs,
)
from locust_llm.lab.twin.whatif.whatif_grid import (
    Case,
    as_fitted,
    beyond_lengths,
    beyond_settings,
    find_further_load,
    list_unknowns,
)
from locust_llm.slo.rules import Rule, parse_rule

MET, NOT_MET, OPEN = "met", "not met", "open"
METRICS: Final = {
    "ttft": "ttft",
    "ttft_from_due": "ttft_from_due",
    "itl": "itl",
    "longest_stall": "stall",
    "request_latency": "request_latency",
}
"""Figures have these names for the metrics of rules."""
RATES: Final = {"output_tokens_per_s": "throughput", "requests_per_s": REQUESTS_PER_S}
PREDICTED: Final = f"{', '.join(METRICS)} with avg, med or pNN, and {' and '.join(RATES)}"
MIN_SERVED: Final = 0.97
"""A server keeps up if it completes at least this share of the arriving requests."""


def parse_predicted_rule(text: str) -> Rule:
    """Parses a rule. Raises ValueError, also for a rule that no twin can predict."""
    found = parse_rule(text)
    figure_of_rule(found)
    return found


def figure_of_rule(rule: Rule) -> str:
    """Returns the name of the rule's figure. Raises ValueError."""
    if rule.base or rule.given or rule.where:
        what = "with conditions" if rule.given else "for some of the requests"
        if rule.base:
            what = "of another run"
        raise ValueError(
            f"SLO {str(rule)!r}: a twin cannot judge a rule {what}; it predicts {PREDICTED}"
        )
    if rule.metric in RATES:
        return RATES[rule.metric]
    statistic = "p50" if rule.stat == "med" else rule.stat
    if rule.metric not in METRICS or not (
        statistic == "avg" or rule.percentile is not None or rule.stat == "med"
    ):
        raise ValueError(f"SLO {str(rule)!r}: a twin predicts {PREDICTED}")
    return f"{METRICS[rule.metric]} {statistic}"


def judge_answer(rule: Rule, answers: Mapping[str, PredictedValue]) -> str:
    """Judges a rule: it is met or not met if both ends of the interval agree on it."""
    answer = answers.get(figure_of_rule(rule))
    if answer is None:
        return OPEN
    if falls_behind(answers) and rule.less_is_better:
        return NOT_MET
    holds = {rule.holds(answer.low), rule.holds(answer.high)}
    if len(holds) > 1:
        return OPEN
    return MET if holds == {True} else NOT_MET


def status_of_answers(rules: Sequence[Rule], answers: Mapping[str, PredictedValue]) -> str:
    """Returns the worst status of the rules that decide; empty without any."""
    found = {judge_answer(one, answers) for one in rules if one.decides}
    return next((one for one in (NOT_MET, OPEN, MET) if one in found), "")


def falls_behind(answers: Mapping[str, PredictedValue]) -> bool:
    """Returns whether more requests arrive than are completed, so that waits grow with the load's
    duration and have no percentile."""
    return SERVED in answers and answers[SERVED].about < MIN_SERVED


# -- rows ------------------------------------------------------------------------------------------
# A grid of what-ifs with their answers: all of them roughly, then those that matter of every model.

ROUGH: Final = 4
"""A first pass simulates up to this many of the models."""
ROUGH_WIDTH: Final = 3.18
"""Its interval reaches this many standard errors to each side: 95% of Student's t with 3 degrees of
freedom."""
ALONE: Final = 24
"""The only model of a twin without draws is simulated this many times."""
SMALL: Final = 40
"""Up to this many what-ifs are simulated with every model at once."""
SHOWN: Final = 20
"""This many rows are simulated a second time, with every model, and printed."""
THROUGHPUT: Final = "throughput"
DEFAULT: Final = (
    "ttft p50", "ttft p95", "ttft_from_due p50", "ttft_from_due p95", "itl p50", "itl p99",
    "stall p95", THROUGHPUT,
)  # fmt: skip
"""Each row has these figures besides the figures of the rules."""
WAIT: Final = "ttft_from_due p95"
"""The frontier compares throughput with this figure without a rule. It includes the wait at the
gate."""
OF_FLOW: Final = (REQUESTS_PER_S, IN_FLIGHT, SERVED)


class WhatIfRow(NamedTuple):
    """Holds a what-if with its prediction."""

    case: Case
    logs: LogarithmsByFigure
    answers: Mapping[str, PredictedValue]
    """Figures are in seconds and per second. A twin that is good for shape only gives multiples of
    the fitted settings' figures."""
    status: str
    """The rules have this status. It is empty without rules, and for a twin that is good for shape
    only."""
    beyond: tuple[str, ...]
    """Each text names an extrapolation with the measured range."""
    unknown: tuple[str, ...]
    rough: bool
    """The row was simulated only a few times, with few requests."""
    beyond_load: tuple[str, ...] = ()
    """The load causes this part of ``beyond``."""
    falls_behind: bool = False
    """More requests arrive than are completed, so its waits have no percentile."""

    @property
    def throughput(self) -> float:
        return self.answers[THROUGHPUT].about if THROUGHPUT in self.answers else 0.0


def figures_to_ask(rules: Sequence[Rule]) -> tuple[str, ...]:
    """Returns the figures of the rules, and the figures of every answer."""
    return tuple(dict.fromkeys((*map(figure_of_rule, rules), *DEFAULT, *OF_FLOW)))


class WhatIfPredictor(NamedTuple):
    """Predicts rows for one twin, one workload and one set of rules."""

    twin: Twin
    lengths: Lengths
    rules: Sequence[Rule]

    @property
    def shape(self) -> bool:
        return self.twin.trust.verdict == SHAPE

    def rows(
        self, cases: Sequence[Case], on_progress: Progress, processes: int = 0
    ) -> list[WhatIfRow]:
        """Predicts all cases, in their order."""
        few = len(cases) <= SMALL
        most = len(cases) + (0 if few else SHOWN)
        every = list(dict.fromkeys([*cases, *(map(as_fitted, cases) if self.shape else ())]))
        found = simulate_what_ifs(
            self._work(rough=not few), [case.what_if for case in every], processes=processes, on_progress=lambda done,
            _: on_progress(done, most)
        )  # fmt: skip
        rows = self._judged(dict(zip(every, found, strict=True)), cases, rough=not few)
        if few:
            return rows
        again = sorted(rows, key=_hope)[:SHOWN] if self.rules else top_rows(rows)[:SHOWN]
        second = list(dict.fromkeys(row.case for row in again))
        second = list(dict.fromkeys([*second, *(map(as_fitted, second) if self.shape else ())]))
        found = simulate_what_ifs(
            self._work(rough=False),
            [case.what_if for case in second],
            processes=processes,
            on_progress=lambda done, _: on_progress(len(cases) + min(done, SHOWN), most),
        )  # fmt: skip
        better = self._judged(
            dict(zip(second, found, strict=True)), [row.case for row in again], rough=False
        )
        by_case = {row.case: row for row in better}
        return [by_case.get(row.case, row) for row in rows]

    def _work(self, *, rough: bool) -> SharedWork:
        models = self.twin.models()
        runs = RUNS if len(models) > 1 else ALONE
        if rough:
            models = models[:ROUGH]
            runs = ROUGH // len(models)
        return SharedWork(
            models=models,
            lengths=self.lengths,
            figures=figures_to_ask(self.rules),
            runs=runs,
            rough=rough,
            sampled=self.lengths == self.twin.lengths,
        )

    def _judged(
        self, found: Mapping[Case, LogarithmsByFigure], cases: Sequence[Case], *, rough: bool
    ) -> list[WhatIfRow]:
        lengths = tuple(beyond_lengths(self.twin.ranges, self.lengths))
        return [
            self._row(case, found[case], found.get(as_fitted(case)), lengths, rough=rough)
            for case in cases
        ]

    def _row(
        self,
        case: Case,
        logs: LogarithmsByFigure,
        fitted: LogarithmsByFigure | None,
        lengths: tuple[str, ...],
        *,
        rough: bool,
    ) -> WhatIfRow:
        twin, what_if = self.twin, case.what_if
        width = ROUGH_WIDTH if rough else WIDTH
        octaves = lengths_apart(self.lengths, twin.lengths)
        if what_if.settings is not None:
            octaves += settings_apart(what_if.settings, twin.model.settings)
        further = find_further_load(what_if.load, logs, twin.ranges)
        if further is not None:
            octaves += math.log2(further.times)
        errors = {name: standard_error_of(name, twin.trust.errors, octaves) for name in logs}
        absolute = {
            name: interval_of_logarithms(one, errors[name], width) for name, one in logs.items()
        }
        relative = absolute
        if self.shape and fitted is not None:
            relative = {
                name: interval_of_logarithms(log_ratios(one, fitted[name]), errors[name], width)
                for name, one in logs.items()
                if name in fitted and name not in OF_FLOW
            }
        of_load = () if further is None else (further.text,)
        beyond = (
            *of_load, *beyond_settings(what_if, twin.model.settings), *lengths,
        )  # fmt: skip
        chosen = [key.replace("-", "_") for key, _ in case.chosen]
        return WhatIfRow(
            case=case, logs=logs, answers=relative,
            status="" if self.shape else status_of_answers(self.rules, absolute), beyond=beyond,
            unknown=tuple(list_unknowns(twin, what_if, chosen, beyond)), rough=rough, beyond_load=of_load,
            falls_behind=falls_behind(absolute),
        )  # fmt: skip


def _hope(row: WhatIfRow) -> tuple[bool, float]:
    """Sorts rows by their chance to be within the rules, then by their possible throughput."""
    return row.status == NOT_MET, -row.answers[
        THROUGHPUT
    ].high if THROUGHPUT in row.answers else 0.0


def top_rows(rows: Sequence[WhatIfRow]) -> list[WhatIfRow]:
    """Returns the rows with every model simulated, if there are some. Rows within the rules come
    first, then possible ones, then others, each by throughput. Without rules the frontier comes
    first."""
    if any(row.status for row in rows):
        order = {MET: 0, OPEN: 1, NOT_MET: 2}
        return sorted(rows, key=lambda row: (row.rough, order[row.status], -row.throughput))
    best = {row.case for row in select_frontier(rows, WAIT)}
    return sorted(rows, key=lambda row: (row.rough, row.case not in best, -row.throughput))


def select_frontier(rows: Sequence[WhatIfRow], figure: str) -> list[WhatIfRow]:
    """Returns rows by rising throughput of which no other has more throughput and less of
    ``figure``. Rows that fall behind are excluded."""
    known = [
        row
        for row in rows
        if figure in row.answers and THROUGHPUT in row.answers and not row.falls_behind
    ]
    found = list[WhatIfRow]()
    least = float("inf")
    for row in sorted(known, key=lambda row: (-row.throughput, row.answers[figure].about)):
        if row.answers[figure].about < least:
            least = row.answers[figure].about
            found.append(row)
    return found[::-1]


# -- choice ----------------------------------------------------------------------------------------
# The best what-if within the rules, and the run that would decide where another may be better.

REQUESTS: Final = 500
"""A deciding run has this many requests."""
MIN_MINUTES: Final = 2
"""A deciding run takes at least this long."""
ROOM: Final = 4
"""An open loop has this multiple of its mean open sessions."""


class Rival(NamedTuple):
    """Holds two settings that are not distinguished, and the load that could distinguish them."""

    best: WhatIfRow
    other: WhatIfRow
    load: OfferedLoad
    figure: str
    difference: float
    """At that load the prediction is other / best - 1 of that figure."""
    sigmas: float
    """The difference is this many standard errors."""
    minutes: int


def best_what_if(rows: Sequence[WhatIfRow]) -> WhatIfRow | None:
    """Returns the what-if with the most output tokens per second within the rules, else among
    inconclusive ones. None: there is neither."""
    return next((row for row in top_rows(rows) if row.status in (MET, OPEN)), None)


def find_rival(rows: Sequence[WhatIfRow], rules: Sequence[Rule], twin: Twin) -> Rival | None:
    """Returns the best other setting that may be as good: its throughput is not surely less, or the
    rules are inconclusive for one of the two. None: there is none."""
    first = best_what_if(rows)
    if first is None:
        return None
    others = [
        row
        for row in top_rows(rows)
        if row.case.chosen != first.case.chosen and row.status in (MET, OPEN)
    ]
    other = max(others, key=lambda row: (not row.rough, row.throughput), default=None)
    if other is None or (
        other.throughput < first.throughput and _apart(first, other, THROUGHPUT, twin)[1] > WIDTH
    ):
        return None
    at = dict[OfferedLoad, dict[tuple[tuple[str, str], ...], WhatIfRow]]()
    for row in rows:
        at.setdefault(row.case.what_if.load, {})[row.case.chosen] = row
    figures = (
        tuple(dict.fromkeys((*map(figure_of_rule, rules), THROUGHPUT)))
        if rules
        else (WAIT, THROUGHPUT)
    )
    tried = []
    for load, here in at.items():
        one = here.get(first.case.chosen)
        another = here.get(other.case.chosen)
        if one is None or another is None or one.falls_behind or another.falls_behind:
            continue
        for figure in figures:
            difference, sigmas = _apart(one, another, figure, twin)
            tried.append((sigmas, difference, load, figure))
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


def _apart(one: WhatIfRow, other: WhatIfRow, figure: str, twin: Twin) -> tuple[float, float]:
    """Returns other / one - 1 and its standard errors, pair by pair, as both have the same models
    and requests."""
    if figure not in one.logs or figure not in other.logs or one.rough != other.rough:
        return 0.0, 0.0
    logs = log_ratios(other.logs[figure], one.logs[figure])
    difference = mean_of_logarithms(logs)
    settings = [row.case.what_if.settings or twin.model.settings for row in (one, other)]
    octaves = settings_apart(*settings)
    error = math.sqrt(
        variance_of_logarithms(logs) + standard_error_of(figure, twin.trust.errors, octaves) ** 2
    )
    sigmas = abs(difference) / error if error else 0.0
    if difference and not error:
        sigmas = math.inf
    return math.expm1(difference), sigmas


def make_run_commands(found: Rival, workload: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Returns the server's settings and the command line for each of the two. ``workload`` has
    options of run."""
    for row in (found.best, found.other):
        server = " ".join(
            f"--{key} {value}" for key, value in row.case.chosen if key != "prefill-concurrency"
        )
        yield server or "as it was fitted", " ".join(_words(row, found, workload))


def _words(row: WhatIfRow, found: Rival, workload: Sequence[str]) -> Iterator[str]:
    load, limit = found.load, row.case.what_if.prefill_limit
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
