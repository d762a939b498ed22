"""Censoring: what is known of requests that were not let run to their end, as the best and the
worst that each may yet be.

A request that was cut (still running when the grace period was over) is right-censored: its latency
is above its age, and so is its TTFT if it had no chunk yet; what it had already, its TTFT say, is
known exactly and counts fully. Each function here gives two values a request, between which the
true one lies; the interval of a figure is built on the low ones and on the high ones, and reaches
from the lower end of one to the upper end of the other (Manski, Partial Identification of
Probability Distributions, 2003). So a rule passes only if it does when every cut request comes out
at its best and at its worst, and no cut request is ever dropped. That it may yet fail is in neither
value of a latency, but a good request is one that succeeded: a cut one is at most perhaps good.

A request that was cancelled on purpose is censored too, by a delay that has nothing to do with the
request. To drop it would be wrong: with a delay below the limit only the fast ones of those that
were to be cancelled would be left, and a server that hangs would look like one that does not. What
it had counts fully. For the rest it stands for the requests that were in its place: it takes the
value of one that was still without its own at that age (redistribution to the right: Efron, The two
sample problem with censored data, 1967; the estimate is that of Kaplan and Meier). Where no request
outlived it, nothing is known of what would have been, and it counts as one that was cut. It is in
no error rate and no goodput.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK
from locust_llm.report.array_types import Floats
from locust_llm.report.request_selection import RequestSelection
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    ITL,
    TTFT_FROM_DUE,
    Metric,
)
from locust_llm.slo.rules import Condition, Rule

Mask = NDArray[np.bool_]

COUNTED: Final = (OK, *FAILURES, CUT)
MOMENTS: Final = ("ttft_s", "ttfo_s", "ttft_from_due_s", "latency_s")
"""The columns with the time of an event: a request has none yet, or has it for good."""
_OK: Final = 0
_CUT: Final = 1
_CANCELLED: Final = 2
_FAILED: Final = 3
GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, are spread evenly, however many there are (Weyl). They choose without
a seed."""


class ValueBounds(NamedTuple):
    """One value for each of some requests, between ``low`` and ``high``. They are equal where the
    value is known."""

    low: Floats
    high: Floats
    at: Floats
    """When the request was sent, in Unix seconds. For the amounts of a rate, when it was over."""
    cut: Mask
    """Which of the requests were cut."""

    def only(self, these: Mask) -> "ValueBounds":
        return ValueBounds(self.low[these], self.high[these], self.at[these], self.cut[these])

    def with_unknown(self, count: int) -> "ValueBounds":
        """The values with ``count`` more, spread evenly, which are unknown, but not negative."""
        more = np.zeros(count)
        at = np.linspace(self.at.min(), self.at.max(), count)
        cut = np.append(self.cut, more > 0)
        return ValueBounds(
            np.append(self.low, more),
            np.append(self.high, more + math.inf),
            np.append(self.at, at),
            cut,
        )

    @property
    def in_order(self) -> "ValueBounds":
        """The values in the order of time."""
        order = np.argsort(self.at, kind="stable")
        return ValueBounds(self.low[order], self.high[order], self.at[order], self.cut[order])

    @property
    def known(self) -> bool:
        return bool(np.array_equal(self.low, self.high))


def value_of_failure(rule: Rule) -> float:
    """The value of a failed request: one that breaks the rule, and none (NaN) in averages."""
    if rule.stat == "avg":
        return math.nan
    return math.inf if rule.op.startswith("<") else -math.inf


def bound_values(
    part: RequestSelection,
    metric: Metric,
    failure: float = math.inf,
    longest_s: float = math.inf,
) -> ValueBounds:
    """The values of requests in seconds or a number a second. Requests without a value are left
    out.

    ``failure`` is the value of each failed request (NaN: it is left out). A wait before the send is
    known also for a failed one. ``longest_s``: no successful request takes longer, as its time-out
    ends it. Otherwise there is no bound above.
    """
    everything = part.outcome(OK, *FAILURES, CUT, CANCELLED)
    low, high = bound_metric(everything, metric, longest_s)
    open_ = low != high
    outcome = _outcomes(everything)
    failed = outcome == _FAILED
    if not metric.waits:
        ok = outcome == _OK
        absent = bool(ok.any()) and bool(np.isnan(low[ok]).all())
        low[failed] = high[failed] = failure if metric.censored and not absent else math.nan
        if absent or not metric.censored:
            low[~ok & ~failed] = math.nan  # answers have none: nor would these have had one
    there = ~np.isnan(low)
    own = low if metric.column in MOMENTS else everything["closed_at"] - everything["sent_at"]
    found = ValueBounds(low, high, find_send_times(everything), outcome == _CUT).only(there)
    return _redistributed(found, (open_ & (outcome == _CANCELLED))[there], own[there])


def bound_metric(
    part: RequestSelection, metric: Metric, longest_s: float = math.inf
) -> tuple[Floats, Floats]:
    """(least, most) of each request's metric, if it does not fail. NaN: it has none, or nothing is
    known."""
    if metric.inverse:
        least, most = bound_metric(part, ITL, longest_s)
        with np.errstate(divide="ignore"):
            both = [
                1 / np.where(itl > 0, itl, np.where(_running(part), 0.0, np.nan))
                for itl in (most, least)
            ]
        return both[0], both[1]
    low: Floats = part[metric.column] * metric.base
    high = low.copy()
    running = _running(part)
    longest = np.full(part.size, longest_s)
    age_s = part["closed_at"] - part["sent_at"]
    first = part["first_chunk_at"]
    if metric.column in ("ttft_s", "ttfo_s"):
        open_ = running & np.isnan(low)
        bound = age_s
    elif metric is TTFT_FROM_DUE:
        open_ = running & np.isnan(low)
        bound = part["closed_at"] - part["due_at"]
        longest = longest + part["late_s"]
    elif metric.column == "latency_s":
        open_, bound = running, age_s
    elif metric.column == "longest_stall_s":
        open_ = running
        bound = np.fmax(np.fmax(low, part["closed_at"] - part["last_chunk_at"]), 0.0)
    elif metric is ITL:
        most = np.fmax(part["asked_output_tokens"], part["output_tokens"])
        known = ~np.isnan(part["asked_output_tokens"]) & (most > 0) & ~np.isnan(first)
        per_token = (part["closed_at"] - first) / np.where(known, most, 1.0)
        open_ = running
        bound = np.where(known, per_token, 0.0)
    elif (
        metric.felt
    ):  # what is not there yet may be in time, or too late for everything; a stall only grows
        open_ = running
        bound = np.fmax(low, 0.0) if metric.unit == "ms" else np.zeros(part.size)
        longest = longest if metric.unit == "ms" else np.ones(part.size)
    else:
        return low, high
    bound = np.where(np.isnan(bound), 0.0, bound)
    low[open_], high[open_] = bound[open_], longest[open_]
    return low, np.maximum(low, high)


def count_later_tokens(part: RequestSelection) -> Floats:
    """The tokens after the first chunk of each answer. 1: they are unknown. NaN: it has no ITL."""
    itl = part["itl_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        later: Floats = np.where(
            itl > 0, (part["latency_s"] - part["ttft_s"]) / itl, np.where(itl == 0, 1.0, np.nan)
        )
    return later


def bound_share_hits(rule: Rule, part: RequestSelection) -> ValueBounds:
    """1 for each request that counts in the share of a rule, else 0."""
    if rule.metric == "error_rate":
        return bound_failures(part)
    if flag := BY_WORD[rule.metric].flag:
        known = part.only(~np.isnan(part.requests.floats(flag))).outcome(OK)
        hits = known[flag]
        return ValueBounds(hits, hits, find_send_times(known), np.zeros(len(hits), np.bool_))
    counted = part.outcome(*COUNTED, CANCELLED)
    outcome = _outcomes(counted)
    ok = outcome == _OK
    perhaps = meets_conditions(counted, rule.given) & (outcome != _FAILED)
    found = ValueBounds(
        (perhaps & ok).astype(np.float64),
        perhaps.astype(np.float64),
        find_send_times(counted),
        outcome == _CUT,
    )
    return _redistributed(found, outcome == _CANCELLED, counted["closed_at"] - counted["sent_at"])


def bound_failures(part: RequestSelection) -> ValueBounds:
    """1 for each request that failed, or may have failed because it was cut; else 0."""
    counted = part.outcome(*COUNTED)
    outcome = _outcomes(counted)
    cut = outcome == _CUT
    failed = (outcome == _FAILED).astype(np.float64)
    return ValueBounds(failed, failed + cut, find_send_times(counted), cut)


IN_WINDOW: Final = "in_window"
"""A column of the requests of two arms."""


def bound_rate_amounts(rule: Rule, part: RequestSelection) -> ValueBounds:
    """What each request adds to the count of a rate. With two arms it is the share of the request
    in the measured time (``IN_WINDOW``). ``at`` is when it was over."""
    these = part.outcome(OK, CUT) if rule.metric == "goodput" else part.outcome(OK)
    share = these[IN_WINDOW] if IN_WINDOW in these.requests else np.ones(these.size)
    over = np.fmax(these["closed_at"], these["last_chunk_at"])
    cut = _outcomes(these) == _CUT
    if rule.metric == "goodput":
        good = meets_conditions(these, rule.given).astype(np.float64)
        return ValueBounds(np.where(cut, 0.0, good) * share, good * share, over, cut)
    columns = [np.nan_to_num(these[column]) for column in BY_WORD[rule.metric].sums or ()]
    through = (np.sum(columns, axis=0) if columns else np.ones(these.size)) * share
    return ValueBounds(through, through, over, cut)


def meets_conditions(part: RequestSelection, given: Sequence[Condition]) -> Mask:
    """Which of these requests meet every condition, with cut and cancelled ones at their best. It
    is as long as the part."""
    good = np.ones(part.size, np.bool_)
    running = _running(part)
    for condition in given:
        metric = BY_WORD[condition.metric].metric
        assert metric is not None  # the grammar sees to it
        low, high = bound_metric(part, metric)
        met = condition.met(
            low if condition.op.startswith("<") else high, ~np.isnan(part["ttft_s"])
        )
        good &= met | (running & np.isnan(low))
    return good


def measure_margins(rule: Rule, part: RequestSelection) -> Floats:
    """For each request, in the order of ``bound_share_hits(...).in_order``, its largest value as a
    share of the condition's limit. A lower limit uses the inverse, so larger is worse. Infinite: it
    failed or has no value."""
    counted = part.outcome(*COUNTED, CANCELLED)
    margins = np.zeros(counted.size)
    for condition in rule.given:
        metric = BY_WORD[condition.metric].metric
        assert metric is not None  # the grammar sees to it
        low, high = bound_metric(counted, metric)
        with np.errstate(divide="ignore", invalid="ignore"):
            margin = (
                low / condition.limit if condition.op.startswith("<") else condition.limit / high
            )
        margins = np.maximum(margins, np.where(np.isnan(margin), math.inf, margin))
    margins[_outcomes(counted) == _FAILED] = math.inf
    worst: Floats = margins[np.argsort(find_send_times(counted), kind="stable")]
    return worst


def find_send_times(part: RequestSelection) -> Floats:
    """When requests were sent. A request that could not be sent has the time when it was asked
    for."""
    return np.where(np.isnan(part["sent_at"]), part["asked_at"], part["sent_at"])


def _outcomes(part: RequestSelection) -> NDArray[np.int8]:
    """``_OK``, ``_CUT``, ``_CANCELLED`` or ``_FAILED`` for each request. A million texts would take ten
    times as long."""
    outcome = np.full(part.size, _FAILED, np.int8)
    for place, name in enumerate((OK, CUT, CANCELLED)):
        outcome[part.requests.has("outcome", name)[part.chosen]] = place
    return outcome


def _running(part: RequestSelection) -> Mask:
    """Which requests were not let run to their end."""
    return part.requests.has("outcome", CUT, CANCELLED)[part.chosen]


def _redistributed(found: ValueBounds, cancelled: Mask, until: Floats) -> ValueBounds:
    """The values, with each cancelled request without a known value taking the value of one that
    outlived it. ``until``: when each had its value, or its end for a metric that is no moment. A
    few that outlived many others say too little of them."""
    unknown = np.flatnonzero(cancelled & (found.low != found.high))
    donors = np.flatnonzero(~cancelled & ~np.isnan(until))
    if not len(unknown) or len(unknown) > len(donors):
        return found
    donors = donors[np.argsort(until[donors], kind="stable")]
    begin = np.searchsorted(until[donors], until[unknown], side="right")
    beyond = begin < len(donors)
    picked = begin + ((np.arange(len(unknown)) + 0.5) * GOLDEN % 1 * (len(donors) - begin)).astype(
        np.int64
    )
    to, of = unknown[beyond], donors[picked[beyond]]
    low = found.low.copy()
    high = found.high.copy()
    low[to] = np.clip(found.low[of], found.low[to], found.high[to])
    high[to] = np.clip(found.high[of], found.low[to], found.high[to])
    return found._replace(low=low, high=high)
