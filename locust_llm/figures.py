"""Figures: what an SLO rule is about, measured over the requests that it selects, and its interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .breakdowns import lengths
from .definitions import NEEDS_TWO, PER_USER, WAITS, Metric
from .gaps import Gaps
from .intervals import SECTIONS, Ends, of_percentile, of_sections, of_share
from .measures import BY_WORD, POOLED, RATE
from .parts import Floats, Part, scarce, total
from .record import FAILURES, OK, Record
from .run import Run
from .slo import OPERATORS, STAGES, Condition, Rule
from .slo import lengths as range_of
from .steady import Time
from .summary import Delivery
from .verdict import Verdict

Mask = NDArray[np.bool_]

AMOUNTS: Final = {
    "output_token_throughput": ("output_tokens",),
    "input_token_throughput": ("input_tokens",),
    "total_token_throughput": ("input_tokens", "output_tokens"),
}
KINDS: Final = 10
"""How many user classes, names or models are listed."""
KEYS: Final = {"class": "user_class", "name": "name", "model": "model"}


@dataclass(frozen=True)
class Found:
    """A figure in the base unit of its rule: seconds, a share of 1, a number a second."""

    value: float | None
    """None: there is nothing to judge, and ``note`` says why."""
    ends: Ends | None = (None, None)
    """Of its interval; None: a fact of the run, which has none."""
    count: int = 0
    note: str = ""

    def decides(self, rule: Rule) -> bool | None:
        """Whether the rule holds, at the figure and at both ends alike; None if they differ."""
        low, high = (self.value, self.value) if self.ends is None else self.ends
        held = {rule.holds(-math.inf if low is None else low), rule.holds(math.inf if high is None else high)}
        held |= {rule.holds(self.value)} if self.value is not None else {True, False}
        return held.pop() if len(held) == 1 else None


class Seen(NamedTuple):
    """What the rules are held against."""

    main: Part
    """The requests of the profiling phase."""
    run: Run
    verdict: Verdict | None
    delivery: Delivery | None
    records: Iterable[Record]
    """Those that ``main.requests`` was made of, in its order, to be read again: only for rules about pooled gaps."""
    ended: Part
    """The requests of which rates are made: of a stage those that ended in its measured time, else ``main``."""
    time: Time
    """What these rates are over."""


def figure(rule: Rule, seen: Seen) -> Found:
    """The figure of a rule; what stands in no column and in no count says so in its note."""
    measure = BY_WORD[rule.metric]
    if rule.metric == "delivered":
        if seen.delivery is None:
            return Found(None, note="a closed loop has no schedule of which something could be delivered")
        return Found(seen.delivery.share, None, seen.delivery.due)
    part = selected(rule, seen.main)
    if not part.outcome(OK, *FAILURES).size:
        return Found(None, note=_nobody(rule, seen.main))
    if measure.tag == POOLED:
        return _pooled(rule, part.outcome(OK), seen.records)
    if measure.metric is not None:
        return _distribution(rule, part, measure.metric)
    if measure.units is RATE:
        return _rate(rule, selected(rule, seen.ended), seen.time)
    return _share(rule, part)


def selected(rule: Rule, main: Part) -> Part:
    """The requests that a rule is about."""
    part = main
    for key, value in rule.where:
        if key in KEYS:
            part = part.only(main.requests[KEYS[key]] == value)
        elif key in STAGES:
            continue  # these requests are of that stage
        elif key == "turn":
            part = part.only((main.requests["turn"] == 0) == (value == "first"))
        else:
            low, high = range_of(value)
            here = lengths(main)
            part = Part(main.requests, part.chosen & main.where((here >= low) & (here < high)).chosen)
    return part


def _nobody(rule: Rule, main: Part) -> str:
    """No request for this rule: what there would have been."""
    if not rule.where:
        return "no request succeeded or failed"
    there = ""
    for key, _ in rule.where:
        if key in KEYS and main.size:
            kinds = main.requests.loc[main.chosen, KEYS[key]].astype(str).unique()
            there += f"; the {key} is one of {', '.join(kind or '-' for kind in sorted(kinds)[:KINDS])}"
    return f"no request has {', '.join(f'{key}={value}' for key, value in rule.where)}{there}"


# -- figures -----------------------------------------------------------------------------------------------------------


def _distribution(rule: Rule, part: Part, metric: Metric) -> Found:
    """Of a number that each request has. Percentiles as in the tables: linear without failures, else nearest rank."""
    values, at = each(rule, part, metric)
    counted = part.outcome(*FAILURES).size if _counts_failures(metric) else 0
    if not len(values) and not counted:
        return Found(None, note=_none(rule.metric))
    if rule.stat == "avg":
        note = f"{counted} failures are in no average: a rule on error_rate counts them" if counted else ""
        return _average(values, at, note)
    ordered = np.sort(values)
    percentile = rule.percentile
    if percentile is None:
        value = float(ordered[0] if rule.stat == "min" else ordered[-1])
        return Found(value, None, len(ordered), _landed(rule, value, counted, len(ordered)))
    rank = max(math.ceil(round(percentile / 100 * len(ordered), 9)), 1)
    value = float(ordered[rank - 1] if counted else np.percentile(ordered, percentile))
    note = _landed(rule, value, counted, len(ordered))
    return Found(value, of_percentile(ordered, percentile), len(ordered), note)


def each(rule: Rule, part: Part, metric: Metric) -> tuple[Floats, Floats]:
    """(what each request counts with, when it was sent), in seconds or a number a second, and Unix seconds. A failure has
    a value that breaks the rule, but for averages and for waits before the send."""
    measured = part.outcome(OK, *FAILURES) if metric.tag in WAITS else part.outcome(OK)
    values, at = _values(measured, metric), sent(measured)
    known = ~np.isnan(values)
    values, at = values[known], at[known]
    if rule.stat != "avg" and _counts_failures(metric):
        failed = sent(part.outcome(*FAILURES))
        worst = math.inf if rule.op.startswith("<") else -math.inf
        values, at = np.append(values, np.full(len(failed), worst)), np.append(at, failed)
    return values, at


def sent(part: Part) -> Floats:
    """When; of requests that could not be sent, when they were asked for."""
    return np.where(np.isnan(part["sent_at"]), part["asked_at"], part["sent_at"])


def _counts_failures(metric: Metric) -> bool:
    return metric.adjusted or metric is PER_USER


def _landed(rule: Rule, value: float, failures: int, count: int) -> str:
    return f"{failures} of {count} requests failed, and {rule.stat} lands on one" if math.isinf(value) else ""


def _average(values: Floats, at: Floats, note: str) -> Found:
    """Of values of requests sent at these moments."""
    if not len(values):
        return Found(None, note="no request succeeded")
    value = float(values.mean())
    if len(values) < SECTIONS:
        return Found(value, count=len(values), note=_few(len(values)))
    stretches = np.array_split(values[np.argsort(at, kind="stable")], SECTIONS)
    return Found(value, of_sections(value, [float(s.mean()) for s in stretches]), len(values), note)


def _share(rule: Rule, part: Part) -> Found:
    if absent := _absent(part.outcome(OK), rule.given):
        return Found(None, note=absent)
    ones, _ = hits(rule, part)
    some, count = int(ones.sum()), len(ones)
    return Found(some / count, of_share(some, count), count)


def hits(rule: Rule, part: Part) -> tuple[Floats, Floats]:
    """(1 for each request that is what the share is about, else 0; when it was sent)."""
    ok, counted, hit = part.outcome(OK), part.outcome(OK, *FAILURES), np.zeros(len(part.requests))
    if rule.metric == "error_rate":
        hit[counted.chosen & ~ok.chosen] = 1
    else:
        hit[ok.chosen] = meets(ok, rule.given)
    return hit[counted.chosen], sent(counted)


def _rate(rule: Rule, part: Part, time: Time) -> Found:
    """What successful requests amount to a second of the phase; in its stretches each counts where it was over."""
    ok, count = part.outcome(OK), part.outcome(OK, *FAILURES).size
    tag, seconds = BY_WORD[rule.metric].tag, time.seconds
    if not seconds > 0:
        return Found(None, note="the phase took no time")
    if absent := _absent(ok, rule.given):
        return Found(None, note=absent)
    if ok.size and any(total(ok[column]) is None for column in AMOUNTS.get(tag, ())):
        return Found(None, note="no request has a count of its tokens")
    through, over = amounts(rule, ok)
    value = float(through.sum()) / seconds
    if count < SECTIONS:
        return Found(value, count=count, note=_few(count))
    stretch = np.clip((time.of(over) / seconds * SECTIONS).astype(np.int64), 0, SECTIONS - 1)
    rates = np.bincount(stretch, through, SECTIONS) / (seconds / SECTIONS)
    return Found(value, of_sections(value, rates.tolist()), count)


def amounts(rule: Rule, ok: Part) -> tuple[Floats, Floats]:
    """(what each of these requests adds to what a rate counts, when it was over)."""
    over = np.fmax(ok["closed_at"], ok["last_chunk_at"])
    if rule.metric == "goodput":
        return meets(ok, rule.given).astype(np.float64), over
    columns = [np.nan_to_num(ok[column]) for column in AMOUNTS.get(BY_WORD[rule.metric].tag, ())]
    return np.sum(columns, axis=0) if columns else np.ones(ok.size), over


def _pooled(rule: Rule, ok: Part, records: Iterable[Record]) -> Found:
    """Of the sharp gaps of all these requests, in ten stretches of as many requests each, by the time of their send."""
    stretches = _gaps(ok, records)
    gaps = Gaps()
    for stretch in stretches:
        gaps.merge(stretch)
    value = _of_gaps(rule, gaps)
    if value is None:
        return Found(None, note="no request has two chunks with exact stamps")
    if rule.stat in ("min", "max"):
        return Found(value, None, gaps.count)
    percentile = rule.percentile
    each = [_of_gaps(rule, stretch) for stretch in stretches]
    known = [figure for figure in each if figure is not None]
    if len(known) < SECTIONS or (percentile is not None and scarce(gaps.count, percentile)):
        return Found(value, count=gaps.count, note=_few(ok.size))
    return Found(value, of_sections(value, known), gaps.count)


def _gaps(ok: Part, records: Iterable[Record]) -> list[Gaps]:
    """By stretch. The records are read again: the columns do not keep which gap belongs to whom."""
    rows = np.flatnonzero(ok.chosen)
    rows = rows[ok["chunks"] > 1]
    order = rows[np.argsort(ok.requests["sent_at"].to_numpy()[rows], kind="stable")]
    stretch_of = np.full(len(ok.requests), -1, np.int8)
    for i, some in enumerate(np.array_split(order, SECTIONS)):
        stretch_of[some] = i
    found = [Gaps() for _ in range(SECTIONS)]
    for i, record in zip(stretch_of.tolist(), records, strict=False):
        if i >= 0:
            found[i].add(np.array(record.sharp_gaps_us, np.int64))
    return found


def _of_gaps(rule: Rule, gaps: Gaps) -> float | None:
    percentile = rule.percentile
    if percentile is not None:
        ms = gaps.percentiles_ms([percentile])[0]
    else:
        ms = {"avg": gaps.avg_ms, "min": gaps.min_ms, "max": gaps.max_ms}[rule.stat]
    return None if ms is None else ms / 1e3


def _absent(ok: Part, given: Sequence[Condition]) -> str:
    """Why the conditions cannot be judged: a metric that no successful request has; empty if they can."""
    for condition in given:
        metric = BY_WORD[condition.metric].metric
        if ok.size and metric is not None and np.isnan(_values(ok, metric)).all():
            return _none(condition.metric)
    return ""


def _values(part: Part, metric: Metric) -> Floats:
    """In seconds, or tokens a second; NaN where a request has none."""
    values = part[metric.column]
    if metric is PER_USER:
        itl: Floats = np.where(values > 0, values, np.nan)
        return 1 / itl
    seconds: Floats = values * (metric.scale / 1e3)
    return seconds


def _none(word: str) -> str:
    return f"it is absent: no request has a value of {word}"


def _few(count: int) -> str:
    return f"too few samples: its interval takes {SECTIONS} requests, there are {count}"


def meets(ok: Part, given: Sequence[Condition]) -> Mask:
    """Which of these requests meet every condition; as long as the part."""
    good = np.ones(ok.size, np.bool_)
    for condition in given:
        metric = BY_WORD[condition.metric].metric
        assert metric is not None  # the grammar sees to it
        values = _values(ok, metric)
        met = OPERATORS[condition.op](values, condition.limit)
        if metric.column in NEEDS_TWO:
            met |= np.isnan(values) & ~np.isnan(ok["ttft_s"])
        good &= met
    return good
