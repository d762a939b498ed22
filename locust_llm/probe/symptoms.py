"""Symptoms: what the shots of an interference probe amount to: costs of prompts, stalls beside them, who waits for whom.

Everything is a difference of stamps of one process or a count of chunks, so a client that can trust its stamps can
trust this. How many steps of the server a prompt took is counted in the gaps of the decoders beside it (steps.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import msgspec

from locust_llm.core.record import CUT

from .requests import ProbeResult
from .step_count import SAME, counted, evened, surely, threshold, weighty

SERIAL: Final = 1.5
"""Of equal prompts the first that is computed alone is there after 1 share of the time that all take; beside another 2."""
APART: Final = 1.5
"""Shares between two groups: 2 or more; between prompts that are computed one by one there is 1."""
SPREAD: Final = 0.75
"""Shares between the second and the last of a group; what came one by one is a share apart."""
FITS: Final = 0.6
"""A group of k is there after k shares; who came first has less, having been alone for a moment."""
NEARLY: Final = 0.1
PLAIN: Final = 3.0
"""A gap of more than so many times the median is a stall."""


class Alone(msgspec.Struct, frozen=True):
    """What a prompt takes alone."""

    asked_tokens: int
    input_tokens: int
    ttft_s: tuple[float, ...]
    """Each time that it was tried."""

    @property
    def typical_s(self) -> float:
        return median(self.ttft_s)


class Stall(msgspec.Struct, frozen=True):
    """Long prompts that came at one moment, and the decoders beside them."""

    kind: str
    """``stall``: one prompt; ``pair``: two."""
    round: int
    asked_tokens: int
    input_tokens: int
    """Of one of the prompts."""
    ttft_s: float
    """Until the last of the prompts had its first token."""
    meanwhile: float
    """Tokens of the median decoder in that time."""
    steps: float
    """In which the prompts were computed: gaps of the median decoder."""
    surely: float
    """Of these, as many as come after the last two neighbours that look like quiet gaps, if most do not."""
    plain: bool
    """Steps are so long that no other gap is taken for one; else some are counted from before the begin of the prefill."""
    rest: float
    """The share of a step that the last one may have had and yet look like a quiet gap, where steps are plain."""
    longest_s: float
    """The longest gap of the median decoder that overlaps that time: one that got two tokens in one chunk says little."""
    usual_s: float
    """The median gap of the decoders in that time, where steps are plain that of the steps; and before it."""
    quiet_s: float
    decoders: int
    ended: int
    """Decoders that had had their last token by then."""
    after_s: float
    """From the last token of the last decoder to that first token; below 0 where it went on."""
    apart_s: float = 0.0
    """Between the first tokens of the prompts of a pair."""
    uneven: float = 1.0
    """How many times as long the gaps of the most disturbed decoder are as those of the least disturbed."""

    @property
    def pace(self) -> float:
        """Of the decoders meanwhile, as a share of their pace before: about 0 where they stand still, 1 undisturbed."""
        return self.quiet_s / self.usual_s

    @property
    def share(self) -> float:
        """Of the time in prefill that was one gap."""
        return self.longest_s / self.ttft_s


class Behind(msgspec.Struct, frozen=True):
    """A short request that came while a long prompt was in prefill."""

    round: int
    ttft_s: float
    left_s: float
    """How long the long one was still in prefill when the short one was sent."""

    @property
    def waited(self) -> float:
        """The share of that time that the short one waited."""
        return self.ttft_s / self.left_s


class Crowd(msgspec.Struct, frozen=True):
    """Equal prompts that came at one moment: after how long each had its first token, in that order."""

    round: int
    input_tokens: int
    ttft_s: tuple[float, ...]

    @property
    def side_by_side(self) -> int:
        """How many were computed side by side: the size of the first group that came together, if it came as late as so
        many must; 1 where each came after the one before it; 0 where neither fits."""
        share_s = self.ttft_s[-1] / len(self.ttft_s)
        if share_s <= 0:
            return 0
        first = self.ttft_s[0] / share_s
        apart = [i for i, (one, other) in enumerate(pairwise(self.ttft_s), 1) if other - one > APART * share_s]
        for group in (apart[0],) if apart else (len(self.ttft_s), len(self.ttft_s) - 1):
            together = self.ttft_s[group - 1] - self.ttft_s[min(1, group - 1)] < SPREAD * share_s
            if group > 1 and first > FITS * group and together:
                return group
        return 1 if first < (SERIAL if apart else 2) else 0


class Cached(msgspec.Struct, frozen=True):
    """The same prompt twice."""

    input_tokens: int
    first_s: float
    again_s: float
    cached_tokens: int | None = None


class Symptoms(msgspec.Struct, frozen=True):
    """What a probe has seen."""

    shots: int
    failed: int
    episodes: int
    short_s: float | None
    """TTFT of a short prompt, nobody else being there."""
    costs: tuple[Alone, ...] = ()
    quiet_s: float | None = None
    """The mean gap of the decoders when nobody is in prefill."""
    lost: float | None = None
    """The share of that quiet time that went into gaps of more than three times the median of their episode: somebody else's
    doing."""
    decoders: int = 0
    stalls: tuple[Stall, ...] = ()
    behind: tuple[Behind, ...] = ()
    crowds: tuple[Crowd, ...] = ()
    cached: tuple[Cached, ...] = ()
    tokens_a_chunk: float | None = None
    """Of the decoders."""
    shared: float | None = None
    """The share of the decoders' quiet chunks that came together with the one before."""
    early_s: float | None = None
    """How long before the first chunk an event without content came, at most; None: none did."""
    cut: tuple[int, int] | None = None
    """Somebody ended it before its time, in this round (0: before the first one) of so many. None: its timetable was
    through, or it ended as nothing was answered any more."""

    @property
    def longest(self) -> int:
        """The longest prompt that was put beside decoders."""
        return max((stall.asked_tokens for stall in self.stalls if stall.kind == "stall"), default=0)

    def of(self, kind: str, asked_tokens: int | None = None, turn: int | None = None) -> list[Stall]:
        return [
            stall
            for stall in self.stalls
            if stall.kind == kind and turn in (None, stall.round) and asked_tokens in (None, stall.asked_tokens)
        ]

    def alone_s(self, asked_tokens: int) -> float | None:
        """What a prompt of that length takes alone; between the lengths that were tried in proportion."""
        known = [(cost.asked_tokens, cost.typical_s) for cost in self.costs]
        for (few, soon), (many, late) in pairwise(known):
            if few <= asked_tokens <= many:
                return soon + (late - soon) * (asked_tokens - few) / (many - few) if many > few else soon
        return None

    @property
    def token_s(self) -> float | None:
        """Seconds a prefilled token: what the second half of the longest prompt added, by its tokens."""
        if len(self.costs) < 2:
            return None
        half, whole = self.costs[-2:]
        more = whole.input_tokens - half.input_tokens
        return (whole.typical_s - half.typical_s) / more if more > 0 else None


def symptoms(everything: Sequence[ProbeResult]) -> Symptoms:
    """From all shots of a probe, in any order."""
    episodes: defaultdict[int, list[ProbeResult]] = defaultdict(list)
    for one in everything:
        episodes[one.episode].append(one)
    kinds: defaultdict[str, list[list[ProbeResult]]] = defaultdict(list)
    for _, shots in sorted(episodes.items()):
        kinds[shots[0].kind].append(sorted(shots, key=lambda one: one.sent_at))
    stalls = [stall for kind in ("stall", "pair") for shots in kinds[kind] if (stall := beside(shots)) is not None]
    quietly = [_before(shots) for kind in ("quiet", "stall", "pair") for shots in kinds[kind]]
    before = [gap for gaps in quietly for gap in gaps]
    decoders = [
        one for shots in [*kinds["quiet"], *kinds["stall"]] for one in shots if one.role == "decoder" and one.ok
    ]
    return Symptoms(
        shots=len(everything),
        failed=sum(not one.ok for one in everything),
        episodes=len(episodes),
        short_s=min((one.ttft_s for shots in kinds["warm"] for one in shots if one.ok), default=None),
        costs=_alone(kinds["alone"]),
        quiet_s=fmean(before) if before else None,
        lost=_lost(quietly),
        decoders=max((stall.decoders for stall in stalls), default=0),
        stalls=tuple(stalls),
        behind=tuple(one for shots in kinds["behind"] for one in _behind(shots)),
        crowds=tuple(crowd for shots in kinds["crowd"] for crowd in _crowd(shots)),
        cached=tuple(pair for pair in map(_cached, _twice(kinds["again"])) if pair is not None),
        shared=fmean(gap <= SAME * fmean(before) for gap in before) if before else None,
        tokens_a_chunk=fmean(one.tokens_a_chunk for one in decoders) if decoders else None,
        early_s=max(
            (one.ttft_s - one.early_s for one in everything if one.ok and one.early_s is not None), default=None
        ),
        cut=_cut([shots for _, shots in sorted(episodes.items())]),
    )


def _cut(episodes: Sequence[Sequence[ProbeResult]]) -> tuple[int, int] | None:
    """A timetable ends with the crowd of its last round, or with an episode that failed (episodes.py)."""
    last = episodes[-1] if episodes else ()
    rounds = max((one.rounds for one in last), default=0)
    if not rounds:
        return None
    over = (last[0].kind, last[0].round) == ("crowd", rounds) or not all(one.ok for one in last)
    if over and not any(one.outcome == CUT for one in last):
        return None
    return 0 if last[0].kind == "warm" else last[0].round, rounds


def _alone(episodes: Iterable[list[ProbeResult]]) -> tuple[Alone, ...]:
    """By length. One that was tried once, nearly as long as one that was tried again and again, adds nothing."""
    of: defaultdict[int, list[ProbeResult]] = defaultdict(list)
    for one in (one for shots in episodes for one in shots if one.ok):
        of[one.asked_tokens].append(one)
    often = [asked for asked, some in of.items() if len(some) > 1]
    return tuple(
        Alone(asked, round(median(one.input_tokens for one in some)), tuple(one.ttft_s for one in some))
        for asked, some in sorted(of.items())
        if len(some) > 1 or not any(abs(asked - other) < NEARLY * other for other in often)
    )


def beside(shots: Sequence[ProbeResult]) -> Stall | None:
    """Of one episode; None unless all the prompts did what they should, and a decoder that was decoding by then."""
    longs = [one for one in shots if one.role == "long"]
    if not longs or not all(one.ok for one in longs):
        return None
    sent_at, first_at = min(one.sent_at for one in longs), max(one.chunk_at[0] for one in longs)
    decoders = [
        one
        for one in shots
        if one.role == "decoder"
        and one.ok
        and one.chunk_at[0] < sent_at < one.chunk_at[-1]
        and (one.whole or one.chunk_at[-1] > first_at)
    ]
    before = _before(shots)
    if not decoders or not before:
        return None
    quiet_s = median(before)
    if not (quiet_s > 0 and first_at > sent_at):  # most chunks came together with others: no gap says anything
        return None
    meanwhile = [[b - a for a, b in pairwise(one.chunk_at) if b > sent_at and a < first_at] for one in decoders]
    longest_s = median(max(gaps, default=0.0) for gaps in meanwhile)
    heavy = [weighty(gaps) for gaps in meanwhile]
    each = [evened(gaps, quiet_s) for gaps in meanwhile]
    least_s, plain = threshold([gap for gaps in each for gap in gaps], quiet_s, median(heavy))
    found = [counted(gaps, quiet_s, least_s) for gaps in each]
    steps = [gap for gaps in found for gap in gaps]
    usual_s = median(steps) if steps else first_at - sent_at
    return Stall(
        kind=longs[0].kind,
        round=longs[0].round,
        asked_tokens=longs[0].asked_tokens,
        input_tokens=longs[0].input_tokens,
        ttft_s=first_at - sent_at,
        meanwhile=median(one.tokens_a_chunk * sum(sent_at < at <= first_at for at in one.chunk_at) for one in decoders),
        steps=median(map(len, found)),
        surely=median(surely(gaps, quiet_s) for gaps in found),
        uneven=max(heavy) / max(min(heavy), quiet_s / 2),
        plain=plain,
        longest_s=longest_s,
        rest=max(0.0, least_s - quiet_s) / (usual_s - quiet_s) if usual_s > quiet_s else 0.0,
        usual_s=usual_s,
        quiet_s=quiet_s,
        decoders=len(decoders),
        ended=sum(one.chunk_at[-1] < first_at for one in decoders),
        after_s=first_at - max(one.chunk_at[-1] for one in decoders),
        apart_s=first_at - min(one.chunk_at[0] for one in longs),
    )


def _before(shots: Sequence[ProbeResult]) -> list[float]:
    """The gaps of decoders while all of them decode and no long prompt has come."""
    decoders = [one for one in shots if one.role == "decoder" and one.ok]
    if not decoders:
        return []
    begin = max(one.chunk_at[0] for one in decoders)
    end = min((one.sent_at for one in shots if one.role == "long"), default=min(one.chunk_at[-1] for one in decoders))
    return [b - a for one in decoders for a, b in pairwise(one.chunk_at) if begin <= a and b <= end]


def _lost(episodes: Sequence[Sequence[float]]) -> float | None:
    """Each by its own median: a server that is now faster and now slower loses nothing."""
    whole_s = sum(map(sum, episodes))
    if not whole_s > 0:
        return None
    usual = [median(gaps) if gaps else 0.0 for gaps in episodes]
    return sum(gap - s for gaps, s in zip(episodes, usual, strict=True) for gap in gaps if gap > PLAIN * s) / whole_s


def _behind(shots: Sequence[ProbeResult]) -> Iterable[Behind]:
    long = next((one for one in shots if one.role == "long" and one.ok), None)
    for one in shots:
        if long is not None and one.role == "short" and one.ok and one.sent_at < long.chunk_at[0]:
            yield Behind(one.round, one.ttft_s, long.chunk_at[0] - one.sent_at)


def _crowd(shots: Sequence[ProbeResult]) -> Iterable[Crowd]:
    if len(shots) > 1 and all(one.ok for one in shots):
        began = min(one.sent_at for one in shots)
        yield Crowd(shots[0].round, shots[0].asked_tokens, tuple(sorted(one.chunk_at[0] - began for one in shots)))


def _twice(episodes: Sequence[list[ProbeResult]]) -> Iterable[tuple[ProbeResult, ProbeResult]]:
    """Of each round the first and the second time."""
    for first, second in pairwise(episodes):
        if first and second and first[0].round == second[0].round:
            yield first[0], second[0]


def _cached(pair: tuple[ProbeResult, ProbeResult]) -> Cached | None:
    first, again = pair
    if not (first.ok and again.ok):
        return None
    return Cached(first.asked_tokens, first.ttft_s, again.ttft_s, again.cached_tokens)
