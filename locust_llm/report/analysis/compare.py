"""Compare: the same figure of two runs, and the interval of its difference.

Both runs are resampled at the same places of their time (bootstrap.py), so what they share there, a first wave that finds
the server idle or a last one that drains it, is no difference between them and widens no interval.
"""

import math
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from locust_llm.core.record import CUT, OK, RETRIED, Record
from locust_llm.core.text import brief
from locust_llm.slo.grammar import Rule
from locust_llm.slo.intervals import SECTIONS, Ends, needed
from locust_llm.slo.metrics import BY_WORD, POOLED, RATE, SHARE, TIME

from .baseline import condition_changes
from .bootstrap import CELLS, Times, blocks, cells, ends, of_means, of_percentile, of_sums, resamples, widened
from .censoring import COUNTED, Bounds, amounts, hits, sent, values
from .selection import Floats, Selection, mean, scarce
from .slo_figures import Evaluation, Found, figure, selected
from .window import RateWindow

SEED: Final = 1
"""Of the resamples: the same folders give the same intervals."""
GAPS: Final = 4_000_000
"""Of more gaps than these a random part is resampled."""

BETTER: Final = "better"
WORSE: Final = "worse"
SAME: Final = "no difference to be seen"
FEW: Final = "too few to tell"
HARDLY: Final = 0.01
"""A smaller difference, as a share of the base's figure, is hardly one, however sure it is."""


class Change(NamedTuple):
    """From one run to another, in seconds, a share of 1, or a number a second."""

    base: Found
    here: Found
    difference: float | None = None
    """None: there is nothing to compare, and ``note`` says why."""
    ends: Ends | None = (None, None)
    """Of its 95 % interval; None: a fact of the runs, which has none."""
    ratio: float | None = None
    """here / base; infinite if only that of the base is 0."""
    ratio_ends: Ends | None = (None, None)
    note: str = ""

    def word(self, rule: Rule) -> str:
        """Whether the figure of the rule became better or worse, as far as can be told."""
        if self.difference is None:
            return "-"
        low, high = (self.difference, self.difference) if self.ends is None else self.ends
        if low is None or high is None:
            return FEW
        if low <= 0 <= high:
            return SAME
        hardly = self.ratio is not None and abs(self.ratio - 1) < HARDLY and BY_WORD[rule.metric].units is not SHARE
        return "hardly " * hardly + (WORSE if (low > 0) == rule.less_is_better else BETTER)


def change(rule: Rule, base: Evaluation, here: Evaluation) -> Change:
    """Of the figure that a rule is about; its limit plays no part."""
    rule = replace(rule, op="<=" if rule.less_is_better else ">=")
    samples = _sample(rule, base), _sample(rule, here)
    old, new = (sample.found for sample in samples)
    if old.value is None or new.value is None:
        return Change(old, new, note=f"in the base, {old.note}" if new.value is not None else f"here, {new.note}")
    a, b = np.array([old.value]), np.array([new.value])
    known = Change(old, new, float(_minus(b, a)[0]), ratio=float(_over(b, a)[0]))
    if rule.metric == "delivered":
        return known._replace(ends=None, ratio_ends=None)
    if few := "; ".join(filter(None, (_few(rule, old, "in the base"), _few(rule, new, "here")))):
        return known._replace(note=few)
    count = min(_blocks(base), _blocks(here))
    times = _times(count)
    before, after = (
        [widened(value, draws, count) for value, draws in _draws(rule, sample, seen.time, times)]
        for sample, seen in zip(samples, (base, here), strict=True)
    )
    # the highest of one against the lowest of the other, where cut requests leave either open
    reach = ends(_minus(after[0], before[-1]))[0], ends(_minus(after[-1], before[0]))[1]
    share = ends(_ratio(after[0], before[-1]))[0], ends(_ratio(after[-1], before[0]))[1]
    if rule.metric in ("error_rate", "attainment"):
        reach = _at_least(reach, old, new)
    return known._replace(ends=reach, ratio_ends=share, note=_cut(old, new))


def worse(rule: Rule, base: Evaluation, here: Evaluation) -> Found:
    """By how much the figure of a rule is worse than its base's: a share of that, or in the unit of the figure; negative
    if it is better. Nothing where the runs differ in what is reason enough for it."""
    if told := [
        f"{d.what} ({d.base} in {rule.base}, {d.here} here)" for d in condition_changes(base, here) if d.decisive
    ]:
        return Found(None, note=f"the runs differ in {'; '.join(told)}")
    found = change(rule, base, here)
    base_is, here_is = found.base.value, found.here.value
    if found.difference is None or found.ratio is None or base_is is None or here_is is None:
        return Found(None, note=found.note)
    if rule.unit == "%" and math.isinf(found.ratio) and not base_is:
        return Found(
            None, note=f"it is 0 in {rule.base}, and there is no percentage of 0: give the room in another unit"
        )
    value, reach, nothing = (
        (found.ratio, found.ratio_ends, 1.0) if rule.unit == "%" else (found.difference, found.ends, 0.0)
    )
    sign = 1 if rule.less_is_better else -1
    if reach is not None and reach[0] is not None and reach[1] is not None:
        low, high = sorted((sign * (reach[0] - nothing), sign * (reach[1] - nothing)))
        reach = low, high
    measure = BY_WORD[rule.metric]
    unit = "ms" if measure.units is TIME else next(iter(measure.units))
    here_said, base_said = (brief(value * measure.units[unit], unit) for value in (here_is, base_is))
    told = [f"{here_said} here, {base_said} in {rule.base}", found.note]
    return Found(sign * (value - nothing), reach, found.here.count, "; ".join(filter(None, told)))


class _Sample(NamedTuple):
    """What a figure is made of: values, and when; of a rate amounts."""

    found: Found
    known: Bounds | None = None


def _sample(rule: Rule, seen: Evaluation) -> _Sample:
    measure, part = BY_WORD[rule.metric], selected(rule, seen.main)
    if measure.tag == POOLED and part.outcome(OK, CUT).size:
        return _pooled(rule, part.outcome(OK, CUT), seen.records)
    found = figure(rule, seen)
    if found.value is None or rule.metric == "delivered":
        return _Sample(found)
    if measure.metric is not None:
        longest_s = seen.run.settings.request_timeout_s if rule.stat == "avg" else math.inf
        return _Sample(found, values(rule, part, measure.metric, longest_s))
    if measure.units is RATE:
        return _Sample(found, amounts(rule, selected(rule, seen.ended)))
    return _Sample(found, hits(rule, part))


def _pooled(rule: Rule, part: Selection, records: Iterable[Record]) -> _Sample:
    """Of the sharp gaps of these requests, by the time of their send; of more than GAPS a random part. The silence in which
    a request was cut is a gap at least as long."""
    most = float(np.maximum(part["chunks"] - 1, 0).sum())
    random, share = np.random.default_rng(SEED), min(1.0, GAPS / max(most, 1.0))
    kept_us, kept, count = array("q"), np.zeros(len(part.requests), np.int64), 0
    finished = (record for record in records if record.outcome != RETRIED)  # as the columns have it
    for i, (wanted, record) in enumerate(zip(part.chosen.tolist(), finished, strict=False)):
        if wanted and len(record.chunk_us) > 1:
            gaps_us = np.array(record.sharp_gaps_us, np.int64)
            count += len(gaps_us)
            if share < 1:
                gaps_us = gaps_us[random.random(len(gaps_us)) < share]
            kept_us.frombytes(gaps_us.tobytes())
            kept[i] = len(gaps_us)
    open_ = part.outcome(CUT).where(part.outcome(CUT)["chunks"] > 0)
    gaps_s, silence_s = np.frombuffer(kept_us, np.int64) / 1e6, open_["closed_at"] - open_["last_chunk_at"]
    at = np.concatenate([np.repeat(sent(part), kept[part.chosen]), sent(open_)])
    cut = np.arange(len(at)) >= len(gaps_s)
    low, high = (np.append(gaps_s, ends) for ends in (silence_s, np.full(len(silence_s), math.inf)))
    if not len(low):
        return _Sample(Found(None, note="no request has two chunks with exact stamps"))
    best, worst = (float(v.mean() if rule.percentile is None else _nearest(v, rule.percentile)) for v in (low, high))
    few = part.size < SECTIONS or (rule.percentile is not None and scarce(count, rule.percentile))
    note = f"too few samples: {part.size} requests with {count} gaps" if few else ""
    ends_ = (None, None) if few else None
    found = Found(best, ends_, count, note, worst if worst != best else None, open_.size, open_.size)
    return _Sample(found, Bounds(low, high, at, cut))


def _nearest(values: Floats, percentile: float) -> float:
    """Linear where all values are finite, else the nearest rank."""
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    return float(np.percentile(values, percentile, method=method))


def _few(rule: Rule, found: Found, where: str) -> str:
    """Why there is no interval, if there are too few values for one."""
    if found.ends is None or None not in found.ends:
        return ""
    if found.note:
        return f"{where}, {found.note}"
    least = SECTIONS if rule.percentile is None else needed(rule.percentile)
    return f"{where}, too few samples: the interval of {rule.stat} takes {least} requests, there are {found.count}"


def _draws(rule: Rule, sample: _Sample, time: RateWindow, times: Times) -> Iterator[tuple[float, Floats]]:
    """(the figure, how else it could have come out): at the lowest that each request may be, and at the highest where that
    is another."""
    known, found = sample.known, sample.found
    assert known is not None
    assert found.value is not None
    count, at = times.shape[1] // CELLS, time.of(known.at)
    whole = rule.stat == "" and BY_WORD[rule.metric].units is RATE
    cell = cells(at, 0.0, time.seconds, count) if whole else cells(at, float(at.min()), float(at.max()), count)
    nearest = not known.known or bool(np.isinf(known.low).any())
    figures = sorted([found.value, found.value if found.worst is None else found.worst])
    for value, some in zip(figures, (known.low,) if known.known else (known.low, known.high), strict=False):
        if whole:
            yield value, of_sums(some, cell, times) / time.seconds
        elif rule.percentile is None:
            yield value, of_means(some, cell, times)
        else:
            yield value, of_percentile(some, cell, times, rule.percentile, nearest=nearest)


def _cut(old: Found, new: Found) -> str:
    """Which of two figures cut requests leave open."""
    sides = [
        f"{found.cut} {where}" for found, where in ((old, "in the base"), (new, "here")) if found.worst is not None
    ]
    return f"requests were cut ({', '.join(sides)}), and count at their best and at their worst" if sides else ""


def _blocks(seen: Evaluation) -> int:
    """A turnaround: from asking the gate to the end."""
    finished = seen.main.outcome(*COUNTED)
    seconds = float(np.ptp(seen.time.of(sent(finished))))
    return blocks(seconds, mean(finished["closed_at"] - finished["asked_at"]) or 0.0)


@lru_cache(maxsize=2)
def _times(blocks: int) -> Times:
    return resamples(blocks, SEED)


def _at_least(reach: Ends, old: Found, new: Found) -> Ends:
    """An interval of a difference of shares, at least as wide as if requests were independent: resamples of requests that
    all succeeded say nothing. From the exact ones of both (Newcombe's method 10, Interval estimation for the difference
    between independent proportions, Statistics in Medicine 17, 1998)."""
    (l1, u1), (l2, u2) = old.ends or (None, None), new.ends or (None, None)
    p1, p2, (low, high) = old.value, new.value, reach
    if l1 is None or u1 is None or l2 is None or u2 is None or p1 is None or p2 is None or low is None or high is None:
        return reach
    d = p2 - p1
    return min(low, d - math.hypot(p2 - l2, u1 - p1)), max(high, d + math.hypot(u2 - p2, p1 - l1))


def _ratio(these: Floats, those: Floats) -> Floats:
    return _over(np.maximum(these, 0), np.maximum(those, 0))


def _minus(these: Floats, those: Floats) -> Floats:
    """What is equal differs by 0, if both land on a failure too."""
    return np.subtract(these, those, out=np.zeros(len(these)), where=these != those)


def _over(these: Floats, those: Floats) -> Floats:
    """1 where both are equal, 0 as well."""
    with np.errstate(divide="ignore"):
        return np.divide(these, those, out=np.ones(len(these)), where=these != those)
