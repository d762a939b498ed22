"""Figures: what an SLO rule is about, measured over the requests that it selects, and its interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .breakdowns import lengths
from .definitions import PER_USER, WAITS, Metric
from .gaps import Gaps
from .intervals import SECTIONS, Ends, of_percentile, of_sections, of_share
from .measures import BY_WORD, POOLED, RATE
from .parts import Floats, Part, scarce, total
from .record import FAILURES, OK, Record
from .run import Run
from .slo import OPERATORS, Condition, Rule
from .slo import lengths as range_of
from .summary import Delivery
from .verdict import Verdict

Mask = NDArray[np.bool_]

NEEDS_TWO: Final = ("itl_s", "longest_stall_s")
"""What an answer of one token, or of one chunk, cannot have: there such a condition is met."""
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
        return _rate(rule, part, seen.main.span())
    return _share(rule, part)


def selected(rule: Rule, main: Part) -> Part:
    """The requests that a rule is about."""
    part = main
    for key, value in rule.where:
        if key in KEYS:
            part = part.only(main.requests[KEYS[key]] == value)
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
    ok, failures = part.outcome(OK), part.outcome(*FAILURES).size
    measured = part.outcome(OK, *FAILURES) if metric.tag in WAITS else ok
    values = _values(measured, metric)
    known = ~np.isnan(values)
    counted = failures if metric.adjusted or metric is PER_USER else 0
    if not known.any() and not counted:
        return Found(None, note=_none(rule.metric))
    if rule.stat == "avg":
        note = f"{failures} failures are in no average: a rule on error_rate counts them" if counted else ""
        return _average(values[known], measured["asked_at"][known], note)
    worst = math.inf if rule.op.startswith("<") else -math.inf
    ordered = np.sort(np.append(values[known], np.full(counted, worst)))
    percentile = rule.percentile
    if percentile is None:
        value = float(ordered[0] if rule.stat == "min" else ordered[-1])
        return Found(value, None, len(ordered), _landed(rule, value, counted, len(ordered)))
    rank = max(math.ceil(round(percentile / 100 * len(ordered), 9)), 1)
    value = float(ordered[rank - 1] if counted else np.percentile(ordered, percentile))
    note = _landed(rule, value, counted, len(ordered))
    return Found(value, of_percentile(ordered, percentile), len(ordered), note)


def _landed(rule: Rule, value: float, failures: int, count: int) -> str:
    return f"{failures} of {count} requests failed, and {rule.stat} lands on one" if math.isinf(value) else ""


def _average(values: Floats, at: Floats, note: str) -> Found:
    """Of values asked for at these moments."""
    if not len(values):
        return Found(None, note="no request succeeded")
    value = float(values.mean())
    if len(values) < SECTIONS:
        return Found(value, count=len(values), note=_few(len(values)))
    stretches = np.array_split(values[np.argsort(at, kind="stable")], SECTIONS)
    return Found(value, of_sections(value, [float(s.mean()) for s in stretches]), len(values), note)


def _share(rule: Rule, part: Part) -> Found:
    ok, failed = part.outcome(OK), part.outcome(*FAILURES).size
    count = ok.size + failed
    if rule.metric == "error_rate":
        return Found(failed / count, of_share(failed, count), count)
    if absent := _absent(ok, rule.given):
        return Found(None, note=absent)
    good = int(meets(ok, rule.given).sum())
    return Found(good / count, of_share(good, count), count)


def _rate(rule: Rule, part: Part, span: tuple[float, float]) -> Found:
    """What successful requests amount to a second of the phase; in its stretches each counts where it was over."""
    ok, count = part.outcome(OK), part.outcome(OK, *FAILURES).size
    tag, seconds = BY_WORD[rule.metric].tag, span[1] - span[0]
    if not seconds > 0:
        return Found(None, note="the phase took no time")
    if rule.metric == "goodput":
        if absent := _absent(ok, rule.given):
            return Found(None, note=absent)
        amounts = meets(ok, rule.given).astype(np.float64)
    elif tag in AMOUNTS:
        columns = [ok[column] for column in AMOUNTS[tag]]
        if ok.size and any(total(column) is None for column in columns):
            return Found(None, note="no request has a count of its tokens")
        amounts = np.sum([np.nan_to_num(column) for column in columns], axis=0)
    else:
        amounts = np.ones(ok.size)
    value = float(amounts.sum()) / seconds
    if count < SECTIONS:
        return Found(value, count=count, note=_few(count))
    over = np.fmax(ok["closed_at"], ok["last_chunk_at"])
    stretch = np.clip(((over - span[0]) / seconds * SECTIONS).astype(np.int64), 0, SECTIONS - 1)
    rates = np.bincount(stretch, amounts, SECTIONS) / (seconds / SECTIONS)
    return Found(value, of_sections(value, rates.tolist()), count)


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
