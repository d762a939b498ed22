"""Disruption effects: what became of the requests when a command of ``--disrupt`` stopped, killed or
restarted servers, and when the server was as before, from the records alone.

Before the first disruption, the failures and the TTFT p95 of each window of 5 s show the former
range: up to 1.5 times the highest of them. After a disruption a window is out of this range, or in
it. The server is back when the first request is sent in a window in the range, after the last one out of
it. A window belongs to the requests that were sent in it. One that begins while no request was answered is out of
the range, whatever was sent in it.

Which later windows belong to the disruption? Failures may come at the end of a grace period. But one
request is slow for a moment on any machine: slow windows that are apart from the command count only if
more than one such moment made them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.run_facts import Disruption, Run
from locust_llm.report.array_types import Bools, Floats
from locust_llm.report.disruption_results import (
    BudgetSpent,
    DisruptionEffect,
    DisruptionEffects,
    RequestFates,
)
from locust_llm.report.outages import Outage
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.slo_evidence.censoring import (
    COUNTED,
    bound_metric,
    find_send_times,
    meets_conditions,
)
from locust_llm.report.slo_evidence.observed_rule_values import select_requests
from locust_llm.slo.metric_definitions import BY_WORD, ERROR_RATE, POOLED, TIME
from locust_llm.slo.percentile import find_percentile
from locust_llm.slo.rules import OPERATORS, Rule
from locust_llm.text.format import format_brief

COMMAND_FAILED: Final = "its command failed"
LOAD_ENDED: Final = "the load ended"
WINDOW_S: Final = 5.0
ROUNDED_S: Final = 1e-5
STEP_S: Final = 0.1
"""The begins of two neighbouring windows are so far apart."""
ROOM: Final = 1.5
"""A value is in the former range up to so many times the highest former one."""
ONSET_S: Final = 60.0
"""A server may fail so long after the end of the command, such as at the end of its grace period. What
begins later has another reason."""
MOMENT_S: Final = 1.0
"""Slow requests that were sent within this time, with none near them, are a single moment: chance."""
APART: Final = 5
"""So many requests in the former range divide the slow ones into groups."""
PERCENTILE: Final = 95.0
EARLY_OUTCOMES: Final = ("truncated", "empty")
"""The outcomes of answers that ended in order, without a finish_reason or without any text."""
HUNG: Final = ("timeout", "first_token_timeout", "gap_timeout")
BY_LIMIT: Final = ("length", "max_tokens")
"""The finish reasons of an answer that reached its limit of tokens."""
EXPLAINED_ENDS: Final = ("tool_calls", "function_call", "tool_use", "content_filter", "refusal")
"""These reasons explain an early end always, any other one if an answer before the disruption had it
with an early end."""


class _Windows(NamedTuple):
    """The requests of each window, by its begin."""

    begins: Floats
    failures: Floats
    """The share of the requests that failed. NaN: nothing was sent in the window."""
    ttft_p95: Floats
    """NaN: no request has one."""


class _FormerRange(NamedTuple):
    """The highest value of a window before the first disruption. NaN: there was none."""

    failures: float
    ttft_p95: float

    def find_failing(self, windows: _Windows) -> Bools:
        """Which windows are out of the range by their failures."""
        with np.errstate(invalid="ignore"):
            return np.asarray(windows.failures > ROOM * self.failures)

    def find_slow(self, windows: _Windows) -> Bools:
        """Which windows are out of the range by their first tokens."""
        with np.errstate(invalid="ignore"):
            return np.asarray(windows.ttft_p95 > ROOM * self.ttft_p95)


class _Requests(NamedTuple):
    """The columns of all requests of a run. Moments are Unix seconds."""

    everything: RequestSelection
    sent_at: Floats
    closed_at: Floats
    first_at: Floats
    """The first token; of an answer in one piece its end. NaN: there is none."""
    ttft_s: Floats
    """Until ``first_at``."""
    last_at: Floats
    ok: Bools
    """It succeeded, and did not end early."""
    failed: Bools
    truncated: Bools
    """It ended early, and looked complete."""
    timed_out: Bools
    cut: Bools
    cancelled: Bools


def measure_disruptions(
    everything: RequestSelection, run: Run, outages: Sequence[Outage]
) -> DisruptionEffects | None:
    """None: the run has no disruption. ``everything``: the warmup's requests may be in flight too."""
    if not run.disruptions or not everything.size:
        return None
    disruptions = sorted(run.disruptions, key=lambda disruption: disruption.began_at)
    known = _collect_requests(everything, disruptions[0].began_at)
    former = _measure_former_range(known, run.profiling_at, disruptions[0].began_at)
    load_ended_at = run.stopping_at or float(known.closed_at.max())
    ends = [*(disruption.began_at for disruption in disruptions[1:]), load_ended_at]
    effects = list[DisruptionEffect]()
    concerned = np.zeros(everything.size, np.bool_)
    for disruption, until in zip(disruptions, ends, strict=True):
        recovery = _find_recovery(known, former, disruption, until, run, outages)
        episode = _select_episode(known, disruption, until, recovery)
        concerned |= episode.flying | episode.sent
        effects.append(
            _describe_effect(len(effects) + 1, disruption, episode, known, former, recovery, run)
        )
    return DisruptionEffects(
        effects=tuple(effects),
        truncated_silently=int(np.count_nonzero(concerned & known.truncated)),
        concerned=int(np.count_nonzero(concerned)),
    )


# -- the requests ----------------------------------------------------------------------------------


def _collect_requests(everything: RequestSelection, first_at: float) -> _Requests:
    def has(*outcomes: str) -> Bools:
        return np.asarray(everything.requests.has("outcome", *outcomes)[everything.chosen])

    closed_at = np.fmax(everything["closed_at"], everything["last_chunk_at"])
    whole = has(OK) & np.isnan(everything["first_chunk_at"])
    truncated = has(*EARLY_OUTCOMES) | _find_early_ends(everything, has(OK), closed_at < first_at)
    return _Requests(
        everything=everything,
        sent_at=find_send_times(everything),
        closed_at=closed_at,
        first_at=np.where(whole, closed_at, everything["first_chunk_at"]),
        ttft_s=np.where(whole, everything["latency_s"], everything["ttft_s"]),
        last_at=everything["last_chunk_at"],
        ok=has(OK) & ~truncated,
        failed=has(*FAILURES) & ~truncated,
        truncated=truncated,
        timed_out=has(*HUNG),
        cut=has(CUT),
        cancelled=has(CANCELLED),
    )


def _find_early_ends(everything: RequestSelection, ok: Bools, before: Bools) -> Bools:
    """Which successful answers have fewer tokens than asked for, and a finish reason that does not
    explain it. ``before``: they ended before the first disruption. Fewer chunks than tokens are no
    early end where the limit ended the answer, as a chunk may hold several."""
    counted = everything.requests.has("tokens_from", "usage")
    asked = everything["asked_output_tokens"] * everything["choices"]
    reasons = everything.requests.texts("finish_reason").rows(everything.chosen)
    early = ok & (everything["output_tokens"] < asked)
    early &= counted[everything.chosen] | ~reasons.select(BY_LIMIT.__contains__)
    explained = {*EXPLAINED_ENDS, *reasons.rows(early & before).tolist()}
    return np.asarray(early & ~reasons.select(explained.__contains__))


# -- windows ---------------------------------------------------------------------------------------


def _measure_former_range(known: _Requests, since: float, until: float) -> _FormerRange:
    """By what was known of the requests when the first disruption began."""
    ended = known.closed_at <= until
    answered = known.first_at <= until
    windows = _measure_windows(
        known.sent_at,
        (known.failed | known.truncated) & ended,
        np.where(answered, known.ttft_s, np.nan),
        (since, until),
    )
    return _FormerRange(_find_highest(windows.failures), _find_highest(windows.ttft_p95))


def _measure_windows(
    sent_at: Floats, failed: Bools, ttft_s: Floats, span: tuple[float, float]
) -> _Windows:
    """The windows that lie within the span."""
    count = math.floor(round((span[1] - span[0] - WINDOW_S) / STEP_S, 6)) + 1
    begins: Floats = span[0] + STEP_S * np.arange(max(count, 0), dtype=np.float64)
    order = np.argsort(sent_at, kind="stable")
    sent_at, failed, ttft_s = sent_at[order], failed[order], ttft_s[order]
    low = np.searchsorted(sent_at, begins)
    high = np.searchsorted(sent_at, begins + WINDOW_S)
    failures_until = np.concatenate(([0], np.cumsum(failed)))
    with np.errstate(invalid="ignore"):
        failures = (failures_until[high] - failures_until[low]) / (high - low)
    p95 = np.full(len(begins), np.nan)
    for place, (first, last) in enumerate(zip(low, high, strict=True)):
        if place and (first, last) == (low[place - 1], high[place - 1]):
            p95[place] = p95[place - 1]
            continue
        values = ttft_s[first:last]
        values = np.sort(values[~np.isnan(values)])
        if len(values):
            p95[place] = find_percentile(values, PERCENTILE, nearest=True)
    return _Windows(begins, failures, p95)


def _find_highest(values: Floats) -> float:
    """NaN: none is known."""
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else math.nan


def _none_if_unknown(value: float) -> float | None:
    return None if math.isnan(value) else value


# -- one disruption --------------------------------------------------------------------------------


class _Recovery(NamedTuple):
    seconds: float | None
    unknown: str
    windows: _Windows
    """The windows until the recovery."""
    silent_s: float
    least_s: float = 0.0
    """It took at least so long, where it was not seen."""


class _Episode(NamedTuple):
    """The requests that a disruption concerns."""

    flying: Bools
    sent: Bools
    began: float
    ended: float
    """When its command ended."""
    until: float
    over: float
    """The recovery, or ``until``."""


def _find_recovery(
    known: _Requests,
    former: _FormerRange,
    disruption: Disruption,
    until: float,
    run: Run,
    outages: Sequence[Outage],
) -> _Recovery:
    """A command that failed may have disrupted nothing: what comes later is not its recovery."""
    began = disruption.began_at
    silences = list(_list_silences(outages, run, began, until))
    silent_s = sum(end - start for start, end in silences)
    unanswered = known.cut & np.isnan(known.first_at)
    ttft_s = np.where(unanswered, math.inf, known.ttft_s)
    failed = known.failed | known.truncated
    command_ended = _find_command_end(disruption, until)
    slowest_s = ROOM * former.ttft_p95
    ttft_s = _without_single_moments(known.sent_at, failed, ttft_s, slowest_s, command_ended)
    windows = _measure_windows(known.sent_at, failed, ttft_s, (began, until))
    if disruption.command_failed:
        return _Recovery(None, COMMAND_FAILED, windows, silent_s)
    if math.isnan(former.failures):
        return _Recovery(None, f"no {WINDOW_S:g} s of load were before it", windows, silent_s)
    # from then on the server answered again
    answering_s = silences[-1][1] - began if silences else 0.0
    if not len(windows.begins):
        short = _describe_short_time(began, until, run)
        return _Recovery(None, short, windows, silent_s, answering_s)
    failing = former.find_failing(windows)
    for start, end in silences:
        failing |= (windows.begins >= start) & (windows.begins < end)
    slow = former.find_slow(windows)
    in_range = ~failing & ~slow & ~np.isnan(windows.failures)
    last_out = _find_last_out(windows, failing, slow, command_ended)
    back = np.flatnonzero(in_range & (np.arange(len(slow)) > last_out))
    if not len(back) and 0 < until - began - answering_s < WINDOW_S:
        short = _describe_short_time(began + answering_s, until, run)
        return _Recovery(None, short, windows, silent_s, answering_s)
    if not len(back):
        why = _describe_no_recovery(began, until, run)
        return _Recovery(None, why, windows, silent_s, until - began)
    if last_out < 0:
        return _Recovery(0.0, "", _Windows(*(column[:1] for column in windows)), silent_s)
    first = int(back[0])
    shown = _Windows(*(column[:first] for column in windows))
    back_at = float(known.sent_at[known.sent_at >= windows.begins[first]].min())
    return _Recovery(back_at - began, "", shown, silent_s)


def _describe_no_recovery(began: float, until: float, run: Run) -> str:
    """``not before disruption 2, 5.99 s later``: what ended the time for a recovery."""
    later = format_brief(until - began, " s", 3)
    return f"not before {_name_end(until, run)}, {later} later"


def _describe_short_time(began: float, until: float, run: Run) -> str:
    """``less than 5 s of load followed``"""
    end = _name_end(until, run)
    if end == LOAD_ENDED:
        return f"less than {WINDOW_S:g} s of load followed"
    return f"less than {WINDOW_S:g} s were left before {end}"


def _name_end(until: float, run: Run) -> str:
    """``disruption 2``, or ``the load ended``"""
    began_at = sorted(disruption.began_at for disruption in run.disruptions)
    return f"disruption {began_at.index(until) + 1}" if until in began_at else LOAD_ENDED


def _without_single_moments(
    sent_at: Floats, failed: Bools, ttft_s: Floats, slowest_s: float, command_ended: float
) -> Floats:
    """The TTFT without the single moments of slow first tokens that came after the disruption: its
    own slow requests follow its command or failures, last longer than MOMENT_S, or come again."""
    order = np.argsort(sent_at, kind="stable")
    order = order[failed[order] | ~np.isnan(ttft_s[order])]
    out = np.flatnonzero(failed[order] | (ttft_s[order] > slowest_s))
    after_command = int(np.searchsorted(sent_at[order], command_ended))
    moments = list[NDArray[np.intp]]()
    for group in np.split(out, np.flatnonzero(np.diff(out) > APART) + 1):
        if not len(group) or group[0] - after_command < APART:
            continue
        chosen = order[group]
        if failed[chosen].any() or np.ptp(sent_at[chosen]) > MOMENT_S:
            continue
        moments.append(chosen)
    begins = np.array([sent_at[moment[0]] for moment in moments])
    kept = ttft_s.copy()
    for moment, begin in zip(moments, begins, strict=True):
        if np.count_nonzero(np.abs(begins - begin) < WINDOW_S) == 1:
            kept[moment] = np.nan
    return kept


def _find_last_out(windows: _Windows, failing: Bools, slow: Bools, command_ended: float) -> int:
    """The place of the last window that the disruption drove out of the range. -1: there is none."""
    begins = windows.begins
    latest = command_ended + ONSET_S
    failed = np.flatnonzero(failing & (begins <= latest))
    last = int(failed[-1]) if len(failed) else -1
    slow_places = np.flatnonzero(slow)
    breaks = np.flatnonzero(np.diff(slow_places) > 1) + 1
    for stretch in np.split(slow_places, breaks):
        if not len(stretch):
            continue
        first = int(stretch[0])
        if first <= last + 1 or begins[first] <= latest:
            last = max(last, int(stretch[-1]))
    return last


def _list_silences(
    outages: Sequence[Outage], run: Run, began: float, until: float
) -> Iterator[tuple[float, float]]:
    """(from, to) of the outages as far as they lie in this time."""
    for outage in outages:
        start = max(run.started_at + outage.began_s, began)
        end = until if outage.ended_s is None else min(run.started_at + outage.ended_s, until)
        if start < end:
            yield start, end


def _find_command_end(disruption: Disruption, until: float) -> float:
    return until if disruption.ended_at is None else min(disruption.ended_at, until)


def _select_episode(
    known: _Requests, disruption: Disruption, until: float, recovery: _Recovery
) -> _Episode:
    began = disruption.began_at
    over = until if recovery.seconds is None else began + recovery.seconds
    was_sent = ~np.isnan(known.everything["sent_at"])
    return _Episode(
        flying=was_sent & (known.sent_at < began) & (known.closed_at > began),
        sent=(known.sent_at >= began) & (known.sent_at < over - ROUNDED_S),
        began=began,
        ended=_find_command_end(disruption, until),
        until=until,
        over=over,
    )


def _describe_effect(
    number: int,
    disruption: Disruption,
    episode: _Episode,
    known: _Requests,
    former: _FormerRange,
    recovery: _Recovery,
    run: Run,
) -> DisruptionEffect:
    later = known.ok & (known.sent_at >= episode.began) & (known.sent_at < episode.until)
    first_at = float(known.first_at[later].min()) if later.any() else math.nan
    several = (known.everything["attempt"] > 1) | (known.everything["resent"] > 0)
    due = known.everything["due_at"] < episode.over
    sent_again = several & due & (known.closed_at > episode.began)
    budgets = list[BudgetSpent]()
    for rule in run.settings.rules.readable:
        spent = _measure_budget(rule, known, episode.flying | episode.sent)
        budgets += [] if spent is None else [spent]
    return DisruptionEffect(
        number=number,
        at_s=episode.began - run.started_at,
        schedule=disruption.schedule,
        command=disruption.command,
        status=disruption.status,
        why=disruption.why,
        command_s=episode.ended - episode.began,
        watched_s=episode.until - episode.began,
        least_recovery_s=recovery.least_s,
        in_flight=_count_fates(known, episode.flying),
        sent=_count_fates(known, episode.sent),
        sent_again=int(np.count_nonzero(sent_again)),
        first_success_s=_none_if_unknown(first_at - episode.began),
        recovery_s=recovery.seconds,
        unknown=recovery.unknown,
        silent_s=recovery.silent_s,
        failures_before=_none_if_unknown(former.failures),
        failures_most=_none_if_unknown(_find_highest(recovery.windows.failures)),
        ttft_p95_before_s=_none_if_unknown(former.ttft_p95),
        ttft_p95_most_s=_none_if_unknown(_find_highest(recovery.windows.ttft_p95)),
        budgets=tuple(budgets),
    )


def _count_fates(known: _Requests, these: Bools) -> RequestFates:
    silent_s = known.closed_at - np.fmax(known.last_at, known.sent_at)
    went_on = silent_s <= WINDOW_S

    def count(fate: Bools) -> int:
        return int(np.count_nonzero(these & fate))

    return RequestFates(
        total=int(np.count_nonzero(these)),
        finished=count(known.ok),
        failed=count(known.failed & ~known.timed_out),
        truncated=count(known.truncated),
        hung=count(known.timed_out | (known.cut & ~went_on)),
        still_open=count(known.cut & went_on),
        cancelled=count(known.cancelled),
    )


# -- SLO budget ------------------------------------------------------------------------------------


def _measure_budget(rule: Rule, known: _Requests, episode: Bools) -> BudgetSpent | None:
    """None: the rule allows no share of the requests to break it."""
    share = _find_allowed_share(rule)
    if share is None:
        return None
    measured = known.everything.only(known.everything.requests.has("phase", PROFILING))
    counted = select_requests(rule, measured).outcome(*COUNTED)
    broken = _find_broken(rule, counted)
    inside = np.zeros(len(counted.chosen), np.bool_)
    inside[known.everything.chosen] = episode
    return BudgetSpent(
        rule=str(rule),
        broken=int(np.count_nonzero(broken & inside[counted.chosen])),
        allowed=share * counted.size,
    )


def _find_allowed_share(rule: Rule) -> float | None:
    measure = BY_WORD[rule.metric]
    if rule.base or rule.staged or not rule.decides:
        return None
    if rule.metric == ERROR_RATE and rule.op.startswith("<"):
        return rule.limit
    if rule.metric == "attainment" and rule.op.startswith(">"):
        return 1.0 - rule.limit
    is_upper = measure.units is TIME and rule.op.startswith("<") and measure.tag != POOLED
    if is_upper and rule.percentile is not None:
        return 1.0 - rule.percentile / 100.0
    return None


def _find_broken(rule: Rule, counted: RequestSelection) -> Bools:
    """Which of these requests break the rule for certain, each by itself."""
    failed = np.asarray(counted.requests.has("outcome", *FAILURES)[counted.chosen])
    if rule.metric == ERROR_RATE:
        return failed
    if rule.metric == "attainment":
        return np.asarray(failed | ~meets_conditions(counted, rule.given))
    metric = BY_WORD[rule.metric].metric
    assert metric is not None  # see _find_allowed_share
    least, _ = bound_metric(counted, metric)
    over = ~np.isnan(least) & ~OPERATORS[rule.op](least, rule.limit)
    return np.asarray(failed | over)
