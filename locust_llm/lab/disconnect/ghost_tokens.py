"""Ghost tokens: the tokens that a server generates for clients who left. Pure.

With counters, they are the tokens that the server generated after the clients left, less the tokens
that others received.

Without counters, a witness stream shows them: a larger batch makes its gaps longer, and the gaps
shorten when the ghosts end. A server that batches gives each ghost a token at each gap of the
witness, so the number of long gaps after the clients left is the number of ghost tokens of each.
The sum of (gap - middle between long and quiet) over the first k gaps is largest at that number.
Times shift / step² this sum is the logarithm of a likelihood ratio (L). Without ghosts it exceeds x
somewhere with a probability of at most exp(-x).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from statistics import fmean, median, stdev
from typing import Final, NamedTuple

import msgspec

from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.slo.student_t import find_student_t

ALARM: Final = math.log(1000)
"""L of ghosts exceeds this. Without ghosts 1 of 1,000 series does, if the slow-down is known exactly."""
REACH: Final = 3.7
"""The interval has all numbers whose L is at most so much below the largest one. The largest L
exceeds the L of the true number by more in 1 of 20 series, as it may lie on either side:
2 exp(-3.7) = 0.05."""
ALARM_Z: Final = 3.3
"""The moments of the chunks at both ends of a sum move it by more in 1 of 2,000 cases."""
ENDS_Z: Final = 2.0
BATCH: Final = 10
"""So many neighbours show the noise of sums."""
LEAST_SHARE: Final = 10.0
"""The noise of steps has at least 1 / LEAST_SHARE of the variance of a sum."""
POWER_Z: Final = 1.645
"""95 of 100 series with the smallest number of ghost tokens that is stated exceed ALARM."""
SURE: Final = 3.0
"""A slow-down by the clients is known if it exceeds so many of its standard errors."""
CLIP: Final = 4.0
"""A gap counts as at most so many spreads away from the line of the quiet gaps: a stall is one
gap."""


LEAST_NOISE_S: Final = 1e-6
"""Stamps have no more digits."""


class GhostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The work for one client who left."""

    tokens: float
    tokens_interval: tuple[float, float] | None = None
    """The 95 % interval. null: one round has none."""
    seconds: float | None = None
    """The time until the work ended. null: unknown."""
    seconds_interval: tuple[float, float] | None = None
    smallest: float | None = None
    """Fewer ghost tokens than this may have been missed."""


class CounterRound(NamedTuple):
    """What the counters show of one round."""

    clients: int
    """So many left at the same time."""
    generated: float
    """The tokens that the server generated from just before they left to the end."""
    received: float
    """So many of these reached somebody."""
    doubt: float
    """The tokens that the readings may be off by."""
    seconds: float | None
    """The time until the server ran only the witness. None: it does not report that."""


def measure_ghosts_by_counters(rounds: Sequence[CounterRound]) -> GhostEstimate:
    tokens = [(one.generated - one.received) / one.clients for one in rounds]
    doubt = max(one.doubt / one.clients for one in rounds)
    seconds = [one.seconds for one in rounds if one.seconds is not None]
    interval = interval_of_mean(tokens, doubt)
    return GhostEstimate(
        tokens=max(fmean(tokens), 0.0),
        tokens_interval=interval,
        seconds=fmean(seconds) if seconds else None,
        seconds_interval=interval_of_mean(seconds),
        smallest=None if interval is None else (interval[1] - interval[0]) / 2,
    )


def interval_of_mean(values: Sequence[float], more: float = 0.0) -> tuple[float, float] | None:
    """The 95 % interval of a mean (Student's t), wider by ``more`` at both ends and not below 0.
    None: fewer than two values."""
    if len(values) < 2:
        return None
    error = stdev(values) / math.sqrt(len(values))
    half = find_student_t(len(values) - 1, TAIL) * error + more
    mean = fmean(values)
    return max(mean - half, 0.0), max(mean + half, 0.0)


# -- without counters ------------------------------------------------------------------------------


class WitnessRound(NamedTuple):
    """The gaps of a witness in one round, in seconds, and what happened at which of them."""

    gaps: Sequence[float]
    came: int
    """The gap in which the clients sent their requests: the gaps before it are quiet."""
    decoding: int
    """From here until they left, all clients got tokens. Equal to ``left``: they got none."""
    left: int
    tail: int
    """From here on, the longest answer would be over: the gaps are quiet."""

    def list_excess(self) -> list[float]:
        """Each gap less the line through the quiet gaps before and behind: a longer context makes
        the gaps of the witness longer, too."""
        before = median(self.gaps[: self.came])
        behind = median(self.gaps[self.tail :])
        middle = self.came / 2
        slope = (behind - before) / ((self.tail + len(self.gaps)) / 2 - middle)
        return [gap - before - slope * (at - middle) for at, gap in enumerate(self.gaps)]


class WitnessSlowdown(NamedTuple):
    """How much so many clients slow the witness down."""

    shift: float
    """A gap is longer by this, in seconds."""
    error: float
    """Its standard error."""

    @property
    def is_known(self) -> bool:
        return self.shift > SURE * self.error


def measure_witness_slowdown(rounds: Sequence[WitnessRound]) -> WitnessSlowdown:
    """From rounds in which the clients were decoding when they left."""
    noise = measure_witness_noise(rounds)
    slowed = list[float]()
    for one in rounds:
        slowed += one.list_excess()[one.decoding : one.left]
    usual = median(slowed)
    shift = fmean(clip(slowed, usual, CLIP * noise.spread)) - noise.mean
    of_steps = noise.step**2 * (1 / len(slowed) + 1 / noise.gaps)
    # each stretch of gaps has two ends
    of_ends = len(rounds) * 2 * noise.jitter**2 * (1 / len(slowed) ** 2 + 2 / noise.gaps**2)
    return WitnessSlowdown(shift, math.sqrt(of_steps + of_ends))


def find_ghosts_by_witness(
    rounds: Sequence[WitnessRound], slowdown: WitnessSlowdown
) -> GhostEstimate | None:
    """None: the witness cannot tell."""
    if not slowdown.is_known:
        return None
    noise = measure_witness_noise(rounds)
    length = min(one.tail - one.left for one in rounds)
    shift = slowdown.shift
    step = noise.step / math.sqrt(len(rounds))
    ends = noise.jitter * math.sqrt(2 / len(rounds))
    smallest = find_smallest_number(shift, step, ends)
    if smallest > length:
        return None
    middle = noise.mean + shift / 2
    most = max(CLIP * noise.spread, shift / 2)
    after = [clip(one.list_excess()[one.left : one.left + length], middle, most) for one in rounds]
    steps = [fmean(values) - middle for values in zip(*after, strict=True)]
    sums = [0.0, *accumulate(steps)]
    best = max(range(len(sums)), key=sums.__getitem__)
    if sums[best] < find_least_sum(shift, step, ends):
        return GhostEstimate(tokens=0.0, tokens_interval=(0.0, smallest), smallest=smallest)
    reach = REACH * step**2 / shift + ENDS_Z * ends
    near = [at for at, value in enumerate(sums) if value >= sums[best] - reach]
    pace_s = fmean(fmean(one.gaps[one.left : one.left + best]) for one in rounds)
    return GhostEstimate(
        tokens=best,
        tokens_interval=(near[0], near[-1]),
        seconds=best * pace_s,
        seconds_interval=(near[0] * pace_s, near[-1] * pace_s),
        smallest=smallest,
    )


def find_least_sum(shift: float, step: float, ends: float) -> float:
    """The sum of ghosts exceeds this. ``step`` and ``ends``: the noise of a gap and of both ends of
    a sum, in means over the rounds."""
    return ALARM * step**2 / shift + ALARM_Z * ends


def find_smallest_number(shift: float, step: float, ends: float) -> float:
    """The smallest number of long gaps whose sum exceeds ``find_least_sum`` in 95 of 100 cases: it
    is normal with the mean k shift / 2 and the variance k step²."""
    least = find_least_sum(shift, step, ends)
    root = (POWER_Z * step + math.sqrt((POWER_Z * step) ** 2 + 2 * shift * least)) / shift
    return math.ceil(root * root)


class WitnessNoise(NamedTuple):
    """The quiet gaps around their line."""

    gaps: int
    spread: float
    """A standard deviation that stalls do not change."""
    mean: float
    step: float
    """The noise of a step of the server, which sums keep: the standard deviation per gap."""
    jitter: float
    """The noise of the moment of a chunk: it makes one gap longer and the next one shorter."""


def measure_witness_noise(rounds: Iterable[WitnessRound]) -> WitnessNoise:
    """A gap has the variance step² + 2 jitter², and a sum of n gaps n step² + 2 jitter²."""
    stretches = list[list[float]]()
    for one in rounds:
        excess = one.list_excess()
        stretches += [excess[: one.came], excess[one.tail :]]
    quiet = list(chain.from_iterable(stretches))
    usual = median(quiet)
    spread = max(1.4826 * median(abs(value - usual) for value in quiet), LEAST_NOISE_S)
    clipped = [clip(stretch, usual, CLIP * spread) for stretch in stretches]
    mean = fmean(chain.from_iterable(clipped))
    of_gap = fmean((value - mean) ** 2 for value in chain.from_iterable(clipped))
    sums = list[float]()
    for stretch in clipped:
        begins = range(0, len(stretch) - BATCH + 1, BATCH)
        sums += [sum(stretch[begin : begin + BATCH]) - BATCH * mean for begin in begins]
    of_sum = fmean(value * value for value in sums)
    of_step = max((of_sum - of_gap) / (BATCH - 1), of_sum / BATCH / LEAST_SHARE, LEAST_NOISE_S**2)
    jitter = math.sqrt(max(of_gap - of_step, 0.0) / 2)
    return WitnessNoise(len(quiet), spread, mean, math.sqrt(of_step), jitter)


def clip(values: Iterable[float], around: float, most: float) -> list[float]:
    """Values that are further away than ``most`` count as that far away."""
    return [min(max(value, around - most), around + most) for value in values]
