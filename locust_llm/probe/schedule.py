"""Episodes: the timetable of the interference probe, small experiments one after the other, each sized by what the
last showed.

All of it is pure: ``timetable`` is told what became of the requests of one episode, and says which come in the next. Whoever
sends them does the waiting: a Locust user in real time (probe.py), or a simulator in virtual time (the tests).

1. ``warm``: a short request, twice: how long a first token takes at least.
2. ``alone``: prompts of doubling length, one at a time: what a prompt costs when nobody else is there. Where another one
   would take too long, one that should take about as long as a prompt may.
3. ``quiet``: some short prompts that decode together, one more than will decode beside a prompt: what a gap is when nobody
   is in prefill, and whether a place is left for it.
4. In rounds, so that each figure is seen several times: ``stall`` (a long prompt, of three lengths, beside those who
   decode), ``pair`` (two at the same moment), ``again`` (a long prompt sent a second time: is it cached?), ``behind``
   (short requests after a long one), ``crowd`` (equal prompts at the same moment, nobody decoding: how many are
   computed side by side).
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, NamedTuple

from .requests import Episode, ProbeRequest, ProbeResult
from .symptoms import beside

SHORT_TOKENS: Final = 32
WARM_TOKENS: Final = 48
"""Output of a warm request, from which the first idea of a gap is taken."""
LEAD_GAPS: Final = 30
"""So many gaps the decoders have for themselves before a prompt comes."""
LEAD_S: Final = 0.4
OUTLAST: Final = 1.4
"""Decoders go on for so many times what the prompt would take alone: whoever is computed beside them is done by then."""
STAGGER: Final = 0.15
"""Each decoder outlasts the one before it by this share: whose end a prompt waits for tells places from batches."""
FEW_TOKENS: Final = 4
"""Output of a long prompt: its first token may be no text, which takes another one."""
CROWD_S: Final = 4.0
"""What a crowd should take at least, if prompts of a quarter of the longest are enough for it: who is there a little sooner
than the others must not look as if nobody were computed beside it."""
CROWD_TTFTS: Final = 4
FEWEST: Final = 6
"""A crowd takes no more than so many times the longest that a prompt may, but it has at least so many prompts: three side by
side must leave three others behind."""
HELD: Final = 0.9
"""Pace of decoders that the prompt beside them held up."""
FITS: Final = 0.95
"""Of the longest prompt that was answered: none comes to just the tokens that it should, and the context may end there."""
WORTH: Final = 1.2
"""A prompt that is so many times as long as the longest so far says more."""
WIDER: Final = 2.5
"""Prompts of a crowd, in widths of a step."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the probe may ask of a server."""

    longest_tokens: int = 32_000
    first_tokens: int = 250
    """Its doubles are what is tried: no powers of two, which budgets are, so that a prompt is not just longer than a
    step."""
    most_ttft_s: float = 4.0
    """No prompt is tried that should take longer than that alone: then the whole takes three minutes, rather less."""
    most_output_tokens: int = 8192
    decoders: int = 3
    crowd: int = 8
    rounds: int = 3


class Scale(NamedTuple):
    """What the first episodes showed, by which the others are sized."""

    ttft_s: float
    """Of a short prompt."""
    gap_s: float
    """Between two tokens of a decoder, with the others beside it."""
    longest: int
    """The longest prompt, tokens."""
    alone_s: float
    """What it takes alone."""

    def takes_s(self, tokens: float) -> float:
        """About, and rather too much: shorter prompts cost no more a token than longer ones."""
        return max(self.ttft_s, self.alone_s * tokens / self.longest)

    @property
    def lead_s(self) -> float:
        """Until the decoders have been on their own for a while."""
        return 4 * self.ttft_s + max(LEAD_S, LEAD_GAPS * self.gap_s)


Probe = Generator[Episode, Sequence[ProbeResult], None]


def timetable(bounds: Bounds = Bounds()) -> Probe:
    """Yields an episode, wants to be sent what became of its shots (of those that came to an end), and so on. It ends early
    where a server cannot be probed: the symptoms say what is missing."""
    for turn in range(2):
        warm = yield Episode("warm", turn, (ProbeRequest("short", 0, SHORT_TOKENS, WARM_TOKENS),), 0.5)
    if not (warm and warm[0].ok):
        return
    ttft_s, gap_s = warm[0].ttft_s, _gap_s(warm) or warm[0].ttft_s
    longest, alone_s = yield from _lengths(bounds)
    if longest < 8 * bounds.first_tokens and alone_s < bounds.most_ttft_s / 4:
        return  # refused: its context is too small for prompts of several sizes
    scale = Scale(ttft_s, gap_s, int(FITS * longest), alone_s)
    quiet = yield _quiet(scale, bounds)
    together = _together(quiet)
    if together < 1:
        return
    bounds = _with_decoders(bounds, together)
    scale = scale._replace(gap_s=_gap_s(quiet) or gap_s, ttft_s=max([ttft_s, *(s.ttft_s for s in quiet if s.ok)]))
    for turn in range(1, bounds.rounds + 1):
        yield from _round(turn, scale, bounds)


def _lengths(bounds: Bounds) -> Generator[Episode, Sequence[ProbeResult], tuple[int, float]]:
    """(the longest prompt that was answered, what it took)."""
    longest, alone_s, before_s, next_s = 0, 0.0, 0.0, 0.0
    tokens = bounds.first_tokens
    while tokens <= bounds.longest_tokens and next_s <= bounds.most_ttft_s:
        alone = yield Episode("alone", 0, (ProbeRequest("long", 0, tokens, FEW_TOKENS),), next_s)
        if not (alone and alone[0].ok):
            return longest, alone_s
        before_s, longest, alone_s = alone_s or alone[0].ttft_s, tokens, alone[0].ttft_s
        next_s = alone_s * max(2.0, alone_s / before_s)  # attention makes it grow faster than the length
        tokens *= 2
    tokens = _between(longest, alone_s, before_s, bounds)
    if next_s > bounds.most_ttft_s and tokens > WORTH * longest:
        alone = yield Episode("alone", 0, (ProbeRequest("long", 0, tokens, FEW_TOKENS),), bounds.most_ttft_s)
        if alone and alone[0].ok:
            longest, alone_s = tokens, alone[0].ttft_s
    return longest, alone_s


def _between(longest: int, alone_s: float, before_s: float, bounds: Bounds) -> int:
    """Tokens of a prompt that should take about as long as one may, if time grows on as it did from half the length; in
    quarters, so that two probes of a server try the same lengths."""
    growth = max(1.0, math.log2(alone_s / before_s)) if before_s > 0 else 1.0
    times = (bounds.most_ttft_s / alone_s) ** (1 / growth) if alone_s > 0 else 1.0
    return min(bounds.longest_tokens, int(longest * int(4 * min(2.0, times)) / 4))


def _round(turn: int, scale: Scale, bounds: Bounds) -> Probe:
    """Lengths from short to long and back, in turn: what drifts must not look like an effect of length."""
    sizes = [scale.longest // 4, scale.longest // 2, scale.longest]
    widths: dict[int, float] = {}
    for tokens in sizes if turn % 2 else reversed(sizes):
        yield Episode("alone", turn, (ProbeRequest("long", 0, tokens, FEW_TOKENS),), scale.takes_s(tokens))
        stall = beside((yield _beside(scale, bounds, "stall", turn, (tokens,))))
        if stall is not None and stall.steps > 1 and stall.pace < HELD:  # else these steps computed something else
            widths[tokens] = tokens / (stall.steps - 1)
    # Prompts much longer than a step is wide, or several would share one and look as if computed side by side.
    wider = math.ceil(WIDER * widths[max(widths)]) if widths else scale.longest // 2
    half = scale.longest // 2
    pair = min(scale.longest, max(half, wider))
    yield _beside(scale, bounds, "pair", turn, (pair, pair))
    took_s = scale.takes_s(half)
    for _ in range(2):
        yield Episode("again", turn, (ProbeRequest("long", 0, half, FEW_TOKENS, text=turn),), took_s)
    took_s = scale.takes_s(scale.longest)
    shorts = tuple(ProbeRequest("short", took_s * share, SHORT_TOKENS, FEW_TOKENS) for share in (0.2, 0.4))
    yield Episode("behind", turn, (ProbeRequest("long", 0, scale.longest, FEW_TOKENS), *shorts), took_s)
    share = min(1 / 4, max(1 / 8, CROWD_S / (bounds.crowd * scale.alone_s)))
    crowd = min(scale.longest, max(int(scale.longest * share), wider))
    most = int(CROWD_TTFTS * bounds.most_ttft_s / scale.takes_s(crowd))
    many = min(bounds.crowd, max(FEWEST, most))
    yield Episode("crowd", turn, (ProbeRequest("long", 0, crowd, FEW_TOKENS),) * many, many * scale.takes_s(crowd))


def _quiet(scale: Scale, bounds: Bounds) -> Episode:
    lasts_s = 2 * LEAD_S + LEAD_GAPS * scale.gap_s
    return Episode("quiet", 0, _decoders(bounds.decoders + 1, lasts_s, scale, bounds), lasts_s)


def _beside(scale: Scale, bounds: Bounds, kind: str, turn: int, prompts: tuple[int, ...]) -> Episode:
    """Long prompts at one moment, beside those who decode and outlast them."""
    took_s = sum(map(scale.takes_s, prompts))
    lasts_s = scale.lead_s + OUTLAST * took_s + LEAD_GAPS * scale.gap_s
    longs = [ProbeRequest("long", scale.lead_s, prompt, FEW_TOKENS) for prompt in prompts]
    return Episode(kind, turn, (*_decoders(bounds.decoders, lasts_s, scale, bounds), *longs), lasts_s + took_s)


def _decoders(count: int, lasts_s: float, scale: Scale, bounds: Bounds) -> tuple[ProbeRequest, ...]:
    """The first decodes for so long, each other one longer than the one before it."""
    most = bounds.most_output_tokens / (1 + STAGGER * (count - 1))
    tokens = min(int(most), math.ceil(lasts_s / scale.gap_s))
    return tuple(ProbeRequest("decoder", 0, SHORT_TOKENS, int(tokens * (1 + STAGGER * i))) for i in range(count))


def _with_decoders(bounds: Bounds, together: int) -> Bounds:
    """A place must be left for the prompt."""
    return replace(bounds, decoders=max(1, together - 1))


def _together(came: Sequence[ProbeResult]) -> int:
    """How many had begun before the first of them ended."""
    good = [one for one in came if one.ok]
    ended = min((one.chunk_at[-1] for one in good), default=0.0)
    return sum(one.chunk_at[0] < ended for one in good)


def _gap_s(came: Sequence[ProbeResult]) -> float | None:
    """The mean gap of the median request, by tokens."""
    each = [
        (one.chunk_at[-1] - one.chunk_at[0]) / (one.output_tokens - 1)
        for one in came
        if one.ok and one.output_tokens > 1 and len(one.chunk_at) > 1
    ]
    return median(each) if each else None
