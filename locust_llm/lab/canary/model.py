"""The canary's arithmetic: from the gaps of one slow stream, how much the server is held up by
other people's requests.

What others do to a stream has two shapes, and each gets a figure of its own:

- Their **prefills** stop it for a moment: single gaps far above the others. The time lost in them,
  over all time that the
  canary decoded, is the share of the server's time that others' prefills take (``lost``): so where
  they come at random
  (Poisson), as a canary decodes a fixed number of steps, and waits out whatever comes between.
- Their **decodes** make the batch larger, and all gaps a little longer: the usual gap of a round,
  over the lowest of the
  session (``slower``). Whoever was there all the time is in both, and is not seen.

A prompt computed over so many steps that it fills more than three quarters of a round looks like a
larger batch in that round. Beside the other rounds it does not: no batch makes the gaps of one
round nearly twice those of the others.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import msgspec
from msgspec.structs import replace

from locust_llm.slo.correlation_time import CorrelationTime
from locust_llm.slo.intervals import TAIL
from locust_llm.slo.student_t import find_student_t

QUIET_SHARE: Final = 0.25
"""Of the gaps of a round at least so many are quiet."""
ALIKE: Final = 0.05
"""Gaps that differ by less are as dense as equal ones."""
STALL: Final = 0.35
"""A gap longer than the quiet one by this share of it is a stall,"""
SPREADS: Final = 4.0
"""and by so many widths of the quiet gaps,"""
MOST_ABOVE: Final = 0.75
"""but that need not be more than this share of one. A round whose quiet gap is above the usual one
by so much is one stall."""
LATE: Final = 0.5
"""Below this share of a quiet gap a chunk had waited with the one before it: what it came sooner is
no lost time."""
TOGETHER_S: Final = 0.0002
"""Chunks no farther apart came together, after a pause on the way: no server computes a token in so
little time."""
LOWEST: Final = 0.1
"""Of the quiet gaps of a session, this quantile is the pace of a server that nobody else uses."""
FAR: Final = 700.0
"""What still has an exponential."""
CALM: Final = 0.05
"""Rounds that lose no more than this share of their time are a quiet time."""
MIN_GAPS: Final = 8
MIN_ROUNDS: Final = 4
"""Fewer of them make no figure, or no interval."""


class CanaryRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One canary stream: a line of canary.jsonl."""

    at: float
    """Unix seconds of its send."""
    error: str = ""
    ttft_s: float | None = None
    gaps: int = 0
    watched_s: float = 0.0
    """The time from its first to its last chunk."""
    quiet_s: float | None = None
    """Its usual undisturbed gap; None: too few gaps, or most chunks came together."""
    stalls: int = 0
    """Runs of gaps that are far above that."""
    lost_s: float = 0.0
    """The time by which these gaps are longer than usual ones."""
    input_tokens: int | None = None
    """The tokens of its prompt, as the server counted them."""
    others: bool | None = None
    """The server's counters show requests of others during the round; None: it has no such
    counters."""


class BackgroundLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What others cause, over some rounds."""

    rounds: int
    watched_s: float
    lost: float
    """Share of the time that a stream decodes, 0 to 1."""
    low: float | None
    high: float | None
    """The ends of its 95 % interval; None: too few rounds, or no stall."""
    stalls: int
    slower: float
    """Usual gap / the lowest of the session - 1."""
    quiet_s: float
    ttft_s: float
    """The median."""

    def tokens_per_s(self, token_s: float) -> tuple[float, float | None, float | None]:
        """Prefill tokens that others send a second, with the ends. ``token_s``: what one takes the
        server."""
        low = None if self.low is None else self.low / token_s
        high = None if self.high is None else self.high / token_s
        return self.lost / token_s, low, high

    @property
    def stalls_per_s(self) -> float:
        return self.stalls / self.watched_s

    @property
    def most_stalls_per_s(self) -> float:
        """Where none was seen: more than so many would have shown in 39 of 40 sessions
        (Poisson)."""
        return -math.log(TAIL) / self.watched_s


def has_calm_rounds(session: Sequence[CanaryRound]) -> bool:
    """Some rounds in a row had next to no stall: the server's own noise is low, at least at
    times."""
    usable = [sample for sample in session if sample.quiet_s is not None]
    for first in range(len(usable) - MIN_ROUNDS + 1):
        row = usable[first : first + MIN_ROUNDS]
        if sum(sample.lost_s for sample in row) <= CALM * sum(sample.watched_s for sample in row):
            return True
    return False


def measure_round(at: float, chunk_s: Sequence[float]) -> CanaryRound:
    """``chunk_s``: seconds after the send."""
    gaps = [after - before for before, after in pairwise(chunk_s)]
    ttft_s = chunk_s[0]
    watched_s = chunk_s[-1] - chunk_s[0]
    apart = [gap for gap in gaps if gap > TOGETHER_S]
    if len(apart) < max(MIN_GAPS, QUIET_SHARE * len(gaps)):
        return CanaryRound(at=at, ttft_s=ttft_s, gaps=len(gaps), watched_s=watched_s)
    quiet_s, width_s = find_quiet_gap(apart)
    limit_s = quiet_s + max(STALL * quiet_s, min(SPREADS * width_s, MOST_ABOVE * quiet_s))
    stalls_s = [lost_s for lost_s in _stalls(gaps, quiet_s, limit_s) if lost_s > limit_s - quiet_s]
    return CanaryRound(
        at=at,
        ttft_s=ttft_s,
        gaps=len(gaps),
        watched_s=watched_s,
        quiet_s=quiet_s,
        stalls=len(stalls_s),
        lost_s=sum(stalls_s),
    )


def _stalls(gaps: Iterable[float], quiet_s: float, limit_s: float) -> Iterator[float]:
    """Of each run of long gaps, by how much they are above quiet ones, less what the chunks right
    behind it came sooner."""
    lost_s, over = 0.0, False
    for gap in gaps:
        catches_up = gap < LATE * quiet_s
        if lost_s > 0 and not (catches_up or (gap > limit_s and not over)):
            yield lost_s
            lost_s = 0.0
        if gap > limit_s:
            lost_s += gap - quiet_s
        elif catches_up:
            lost_s = max(lost_s - (quiet_s - gap), 0.0)
        over = catches_up
    if lost_s > 0:
        yield lost_s


def find_quiet_gap(gaps: Sequence[float]) -> tuple[float, float]:
    """(the middle, the width) of the lowest dense heap of gaps: the shortest stretch that holds a
    quarter of them, or one further down that is nearly as short."""
    ordered = sorted(gaps)
    size = max(MIN_GAPS // 2, math.ceil(QUIET_SHARE * len(ordered)))
    stretches = [
        (ordered[i + size - 1] - ordered[i], ordered[i : i + size])
        for i in range(len(ordered) - size + 1)
    ]
    shortest = min(width for width, _ in stretches)
    width, held = next(
        (width, held) for width, held in stretches if width <= max(2 * shortest,
            ALIKE * median(held))
    )  # fmt: skip
    return fmean(held), width


def estimate_background_load(
    rounds: Iterable[CanaryRound], session: Iterable[CanaryRound], *, without_noise: bool = False
) -> BackgroundLoad | None:
    """Of some rounds, the last few minutes say. ``session``: all so far, which know the pace of an
    empty server; ``without_noise``: stalls of rounds in which nobody else was there count as none.
    None: no round has enough gaps."""
    samples = [sample for sample in rounds if sample.quiet_s is not None]
    if not samples:
        return None
    quiets = sorted(sample.quiet_s for sample in session if sample.quiet_s is not None)
    lowest_s = quiets[int(LOWEST * len(quiets))] if quiets else samples[0].quiet_s or 0.0
    usual_s = median(sample.quiet_s or 0.0 for sample in samples)
    samples = [
        _filled(sample, usual_s) if (sample.quiet_s or 0.0) > (1 + MOST_ABOVE) * usual_s else sample
        for sample in samples
    ]
    if without_noise:
        samples = [
            replace(sample, stalls=0, lost_s=0.0) if sample.others is False else sample
            for sample in samples
        ]
    watched_s = sum(sample.watched_s for sample in samples)
    lost_s = sum(sample.lost_s for sample in samples)
    lost = lost_s / watched_s
    low, high = _interval(samples, lost, watched_s)
    return BackgroundLoad(
        rounds=len(samples),
        watched_s=watched_s,
        lost=lost,
        low=low,
        high=high,
        stalls=sum(sample.stalls for sample in samples),
        slower=max(usual_s / lowest_s - 1, 0.0),
        quiet_s=usual_s,
        ttft_s=median(sample.ttft_s or 0.0 for sample in samples),
    )


def _filled(sample: CanaryRound, usual_s: float) -> CanaryRound:
    """A round that prefills filled: none of its gaps is quiet."""
    return replace(
        sample, stalls=1, lost_s=max(sample.watched_s - sample.gaps * usual_s, sample.lost_s)
    )


def _interval(
    samples: Sequence[CanaryRound], lost: float, watched_s: float
) -> tuple[float | None, float | None]:
    """Of a ratio of sums over rounds (the delta method, with Student's t), which count as as many
    as their correlation leaves. On the scale of log odds, as few rounds with few stalls lie to one
    side: there it held the truth in 347 of 354 windows of 15 simulated rounds, on the plain scale
    in 335."""
    n = len(samples)
    if n < MIN_ROUNDS or not 0 < lost < 1:
        return None, None
    off = [sample.lost_s - lost * sample.watched_s for sample in samples]
    correlation = CorrelationTime()
    for value in off:
        correlation.add(value)
    effective_size = max(n / correlation.requests, 2.0)
    error = math.sqrt(sum(value * value for value in off) / (n - 1) / effective_size) / (
        watched_s / n
    )
    reach = find_student_t(effective_size - 1, TAIL) * error / (lost * (1 - lost))
    odds = math.log(lost / (1 - lost))
    return 1 / (1 + math.exp(min(reach - odds, FAR))), 1 / (1 + math.exp(-odds - reach))
