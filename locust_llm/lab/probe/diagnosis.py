"""Diagnosis: the scheduler of a server by a fixed rule, with the measurements; or "cannot tell",
and why.

The rule, for each round of the probe (more than half of the rounds must give the name, and none
another one):

1. ``static``: the prefill of a prompt began only when every decoder had ended, and took as long as
  alone.
2. ``disaggregated``: the decoders kept their pace (at least 0.92 of it) at every prompt length, and
  the prompt took as long
   as alone.
3. ``prefill-first``: at every prompt length one gap of the decoders was nearly all of the time to
  its first token, so the
   prompt was computed in one step. A budget wider than the longest prompt looks the same, which the
   report notes.
4. ``chunked``: the prompt was computed in several steps, in each of which the decoders got a token;
  the tokens of a step are
   the budget. ``partial prefills`` with k slots: the same, and equal prompts sent together had
   their first tokens k
   at a time.

What lies between the bounds of two of these is "cannot tell". So is every doubt about the
measurement: a client verdict below OK, failures, other traffic, prompts that take hardly longer
than short ones. And so is what looks alike from outside: several servers behind one address, one
request at a time, long prompts one by one that let all short ones pass.
"""

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

import msgspec

from locust_llm.text.format import format_count, format_duration

from .measurements import DecoderStall, ProbeMeasurements

STATIC: Final = "static"
PREFILL_FIRST: Final = "prefill-first"
CHUNKED: Final = "chunked"
PARTIAL: Final = "partial prefills"
DISAGGREGATED: Final = "disaggregated"
CANNOT_TELL: Final = "cannot tell"

MIN_UNDISTURBED_PACE: Final = 0.92
"""Pace of decoders beside a prompt that another machine computes; on the same GPU the pace is
lower."""
MAX_DISTURBED_PACE: Final = 0.85
"""Pace of decoders that were clearly disturbed."""
MAX_ALONE_RATIO: Final = 1.4
"""TTFT / TTFT alone of a prompt that nothing delays."""
MIN_STOPPED_SHARE: Final = 0.9
"""Share of the time in prefill that is one gap, where a prompt is computed in one step; without up
to two gaps before it."""
MAX_STEP_SHARE: Final = 0.75
"""The same share, where it is computed in several steps."""
STEP_ERROR: Final = 0.05
"""Share of the steps that may be miscounted: two tokens in one chunk, a pause for another
reason."""
INDISTINCT_STEP_ERROR: Final = 0.08
"""The same share, too many, where steps are not distinct."""
EXTRA_GAPS: Final = 2
"""Gaps beyond the steps, where steps are not distinct: the one in which the prompt came and the one
in which it ended."""
MIN_BURST_STEPS: Final = 1.25
"""Prompt / tokens of a step, in a burst: several shorter ones fit into one step and look side by
side."""
MAX_TOGETHER_SHARE: Final = 0.2
"""Time between the first tokens of two equal prompts, as a share of the later TTFT. Of two computed
one by one it is about half, or somewhat less, as the first one shares its last step."""
MAX_PASSED_SHARE: Final = 0.5
"""TTFT of a short request / remaining prefill of the long one before it: below this it did not
wait."""
MAX_FAILED_SHARE: Final = 0.05
"""Of the requests of a probe."""
MAX_LOST_SHARE: Final = 0.05
"""Share of quiet time in stalls, above which the server has other load."""
MAX_REPEAT_RATIO: Final = 1.4
"""TTFT alone / its median, above which other load delayed the prompt."""
MAX_SLOW_SHARE: Final = 0.2
"""Share of such prompts, above which there is no diagnosis,"""
MAX_SINGLE_RATIO: Final = 2.0
"""and the ratio above which one is enough for that."""
MAX_TOKENS_PER_CHUNK: Final = 1.2
MAX_MERGED_SHARE: Final = 0.25
"""Share of chunks that came together with the one before, above which gaps do not show steps."""
MAX_UNEVEN: Final = 3.0
"""Gaps of the most / least disturbed decoder, above which they are on several servers."""
MAX_ALIKE: Final = 1.35
"""The same ratio, above which undisturbed decoders mean several servers behind one address, not a
disaggregated one."""
MIN_PREFILL_GAPS: Final = 10.0
"""Prefill of the longest prompt in gaps, and in halves of a short TTFT; a shorter one does not
show."""


class Diagnosis(msgspec.Struct, frozen=True):
    name: str
    budget: tuple[float, float, float] | None = None
    """Tokens of a step: (low, about, high)."""
    slots: int | None = None
    """Prompts computed side by side; a lower bound, where all that came were."""
    reasons: tuple[str, ...] = ()
    """Measurements, a sentence each."""
    missing: tuple[str, ...] = ()
    """Why there is no name."""


def diagnose_scheduler(measurements: ProbeMeasurements, client: str | None = None) -> Diagnosis:
    """``client``: the client verdict, if there is one."""
    if missing := tuple(_missing(measurements, client)):
        return Diagnosis(CANNOT_TELL, missing=missing)
    rounds = sorted({stall.round for stall in measurements.of("stall")})
    by_round = [_round_diagnosis(measurements, turn) for turn in rounds]
    doubts = [why for name, why in by_round if name == CANNOT_TELL]
    names = [name for name, _ in by_round if name != CANNOT_TELL]
    if len(set(names)) > 1:
        return Diagnosis(
            CANNOT_TELL,
            missing=(f"the rounds do not agree: {', '.join(name for name, _ in by_round)}",),
        )
    if 2 * len(names) <= len(by_round):
        return Diagnosis(CANNOT_TELL, missing=tuple(dict.fromkeys(doubts)))
    name, why = next(diagnosis for diagnosis in by_round if diagnosis[0] != CANNOT_TELL)
    if doubts:
        why += f" ({len(doubts)} of {len(by_round)} rounds gave no name: {doubts[0]})"
    if (
        name == DISAGGREGATED
        and (several := _at_a_time(measurements)) > measurements.decoders - 0.4
    ):
        doubt = (
            f"about {several:.0f} prompts were computed side by side and {measurements.decoders} decoders "
            f"were "
            "undisturbed: this may "
            "also be several servers behind one address (try more --decoders)"
        )
        return Diagnosis(CANNOT_TELL, missing=(doubt,))
    if name != CHUNKED:
        return Diagnosis(name, reasons=(why, *_further(measurements, name)))
    return _several_steps(measurements, why)


def _at_a_time(e: ProbeMeasurements) -> float:
    """Prompts of a burst computed at a time: by their groups, and by the time of all against one by
    one."""
    sooner = [
        len(burst.ttft_s) * (e.alone_s(burst.input_tokens) or 0.0) / burst.ttft_s[-1]
        for burst in e.bursts
        if burst.ttft_s[-1] > 0
    ]
    return max([*sooner, *(burst.side_by_side for burst in e.bursts)], default=0.0)


def _missing(e: ProbeMeasurements, client: str | None) -> Iterator[str]:
    if client not in (None, "OK"):
        yield f"the client verdict is {client}, so the stamps are not reliable"
    if e.cut is not None and _too_few(e):
        yield f"{_stopped_early(e.cut)}: let it finish"
        return
    if e.failed > MAX_FAILED_SHARE * e.requests:
        yield f"{e.failed} of {e.requests} requests failed"
    if not e.stalls or not e.costs or e.quiet_s is None:
        yield (
            "no prompt could be measured beside decoders: the server's answers or its context "
            "are too short"
        )
        return
    longest = e.alone_s(e.longest) or 0.0
    short_s = e.short_s or 0.0
    if longest < MIN_PREFILL_GAPS * max(e.quiet_s, short_s / 2):
        yield (
            f"a prompt of {e.longest:,} tokens takes {format_duration(longest)}, hardly longer "
            f"than a short one "
            f"({format_duration(short_s)}) or a gap ({format_duration(e.quiet_s)}): try longer "
            f"prompts (--longest)"
        )
    again = [cost for cost in e.costs if len(cost.ttft_s) > 2]
    held_up = sum(s > MAX_REPEAT_RATIO * cost.typical_s for cost in again for s in cost.ttft_s)
    most = max((max(cost.ttft_s) / cost.typical_s for cost in again), default=0.0)
    if (
        held_up > MAX_SLOW_SHARE * sum(len(cost.ttft_s) for cost in again)
        or most > MAX_SINGLE_RATIO
    ):
        worst = max(again, key=lambda cost: max(cost.ttft_s) / cost.typical_s)
        yield (
            f"the time of one prompt alone varies: {worst.asked_tokens:,} tokens took "
            f"{format_duration(min(worst.ttft_s))} to "
            f"{format_duration(max(worst.ttft_s))}; the server may have other load, or its machine "
            f"other programs"
        )
    if e.lost is not None and e.lost > MAX_LOST_SHARE:
        yield (
            f"{e.lost:.0%} of the decoders' time without a prompt went into stalls: the server has "
            f"other load, "
            "or is not steady"
        )
    if e.tokens_a_chunk is not None and e.tokens_a_chunk > MAX_TOKENS_PER_CHUNK:
        yield (
            f"a chunk holds {e.tokens_a_chunk:.1f} tokens, so steps cannot be counted (vLLM: set "
            f"--stream-interval 1)"
        )
    if e.shared is not None and e.shared > MAX_MERGED_SHARE:
        yield (
            f"{e.shared:.0%} of the chunks came together with the one before: the server, "
            "something on the way, or a busy machine here held them back"
        )
    uneven = [stall for stall in e.of("stall") if stall.uneven > MAX_UNEVEN]
    if len(uneven) * 3 > len(e.of("stall")):
        yield (
            f"the decoders were disturbed unevenly beside {len(uneven)} of {len(e.of('stall'))} "
            f"prompts: several servers "
            "behind one address? Probe one of them"
        )
    if _too_few(e):
        yield (
            "not every round has prompts of all three lengths beside requests that were decoding "
            "then"
        )


def _too_few(e: ProbeMeasurements) -> bool:
    """Fewer than three lengths in each of two rounds."""
    sizes = {stall.asked_tokens for stall in e.of("stall")}
    rounds = {stall.round for stall in e.of("stall")}
    return (
        len(sizes) < 3
        or len(rounds) < 2
        or any(len(e.of("stall", turn=turn)) < 3 for turn in rounds)
    )


def _stopped_early(cut: tuple[int, int]) -> str:
    number, rounds = cut
    where = f"in round {number} of {rounds}" if number else "before its first round"
    return f"the probe was stopped early, {where}"


def _round_diagnosis(e: ProbeMeasurements, turn: int) -> tuple[str, str]:
    """(the name by this round, why)."""
    stalls = sorted(e.of("stall", turn=turn), key=lambda stall: stall.asked_tokens)
    small, large = stalls[0], stalls[-1]
    tokens = f"{large.input_tokens:,} tokens"
    took = format_duration(large.ttft_s)
    alone = [e.alone_s(stall.asked_tokens) or math.inf for stall in stalls]
    if any(stall.ended for stall in stalls):
        return _after_the_decoders(stalls, alone)
    pace_kept = min(large.pace, median(stall.pace for stall in stalls))
    if pace_kept >= MIN_UNDISTURBED_PACE:
        if (uneven := median(stall.uneven for stall in stalls)) > MAX_ALIKE:
            return CANNOT_TELL, (
                f"most decoders were undisturbed, but the gaps of one were {uneven:.1f} times "
                f"those of another: "
                "several servers "
                "behind one address? Probe one of them"
            )
        if all(stall.ttft_s <= MAX_ALONE_RATIO * s for stall, s in zip(stalls, alone, strict=True)):
            return DISAGGREGATED, (
                f"beside a prompt of {tokens} the decoders kept {large.pace:.0%} of their pace, "
                f"and the prompt took {took} "
                f"({format_duration(alone[-1])} alone)"
            )
        return (
            CANNOT_TELL,
            f"the decoders were undisturbed, but a prompt of {tokens} took {took}: something "
            f"delayed it",
        )
    stopped = all(
        stall.longest_s >= MIN_STOPPED_SHARE * (stall.ttft_s - 2 * stall.quiet_s)
        for stall in stalls
    )
    if stopped and large.steps - small.steps < 1:
        return PREFILL_FIRST, (
            f"a prompt of {tokens} stopped the decoders for {format_duration(large.longest_s)} of "
            f"the {took} to its first "
            "token, one "
            f"of {small.input_tokens:,} for {format_duration(small.longest_s)} of "
            f"{format_duration(small.ttft_s)}: one step"
        )
    if large.share <= MAX_STEP_SHARE and large.steps >= 2:
        if large.pace > MAX_DISTURBED_PACE:
            return (
                CANNOT_TELL,
                f"the decoders kept {pace_kept:.0%} of their pace: neither clearly disturbed nor "
                f"undisturbed",
            )
        return CHUNKED, (
            f"a prompt of {tokens} took {large.steps:.0f} steps and {took}, one of "
            f"{small.input_tokens:,} took "
            f"{small.steps:.0f}; the decoders got a token in each, with gaps of at most "
            f"{format_duration(large.longest_s)}"
        )
    return CANNOT_TELL, (
        f"a prompt of {tokens} was computed in about {large.steps:.0f} steps, the longest "
        f"{large.share:.0%} of its {took}: "
        "neither one step nor several of equal length; try longer prompts (--longest)"
    )


def _after_the_decoders(stalls: list[DecoderStall], alone: list[float]) -> tuple[str, str]:
    """A prompt that had its first token only after a decoder had ended."""
    large = stalls[-1]
    if large.decoders == 1:
        return CANNOT_TELL, "only one request runs at a time, so nothing is disturbed"
    if all(stall.ended == stall.decoders for stall in stalls) and all(
        s / MAX_ALONE_RATIO <= stall.after_s <= MAX_ALONE_RATIO * s + stall.quiet_s
        for stall, s in zip(stalls, alone, strict=True)
    ):
        return STATIC, (
            f"a prompt of {large.input_tokens:,} tokens had its first token "
            f"{format_duration(large.after_s)} after the last of "
            f"{large.decoders} decoders had ended ({format_duration(alone[-1])} alone): its "
            f"prefill began only then"
        )
    most_ended = max(stall.ended for stall in stalls)
    return CANNOT_TELL, (
        f"{most_ended} of {large.decoders} decoders had ended before a prompt had its first token, but "
        f"not all of them as with a "
        "static batch: it may have waited for a free slot; try fewer --decoders"
    )


def _several_steps(e: ProbeMeasurements, why: str) -> Diagnosis:
    """Budget and slots of a server that computes a prompt in several steps."""
    budget = _budget(e)
    slots, doubt = _slots(e, budget[1])
    if doubt:
        return Diagnosis(CANNOT_TELL, budget, reasons=(why,), missing=(doubt,))
    burst = e.bursts[-1]
    name, how = CHUNKED, "their first tokens one by one"
    if slots > 1:
        name = PARTIAL
        least = "at least " if slots == len(burst.ttft_s) else ""
        how = f"{least}{slots} of their first tokens together"
    measured = (
        f"{len(burst.ttft_s)} prompts of {burst.input_tokens:,} tokens sent together had {how}"
    )
    if not all(burst.side_by_side for burst in e.bursts):
        measured += f" (first groups of {_groups(e)})"
    return Diagnosis(name, budget, slots, (why, measured, *_further(e, name)))


def _slots(e: ProbeMeasurements, step_tokens: float) -> tuple[int, str]:
    """(prompts computed at a time; why that is unknown)."""
    if not e.bursts:
        return 0, "not all prompts of a burst got a first token"
    if any(burst.input_tokens < MIN_BURST_STEPS * step_tokens for burst in e.bursts):
        return (
            0,
            "a step holds too many tokens for the prompts of a burst: try longer prompts "
            "(--longest)",
        )
    pairs = [pair for pair in e.of("pair") if pair.input_tokens > MIN_BURST_STEPS * step_tokens]
    paired = {pair.apart_s < MAX_TOGETHER_SHARE * pair.ttft_s for pair in pairs}
    clear = [burst.side_by_side for burst in e.bursts if burst.side_by_side]
    if len(set(clear)) != 1 or 2 * len(clear) <= len(e.bursts) or len(paired) > 1:
        return (
            0,
            f"equal prompts sent together had first tokens in first groups of {_groups(e)}: no "
            f"number of slots",
        )
    slots = clear[0]
    if slots == 1 and e.behind and all(queued.waited < MAX_PASSED_SHARE for queued in e.behind):
        return 0, (
            "long prompts are computed one by one, but no short request waited for one: partial "
            "prefills with one slot for "
            "long prompts, priorities, or another order"
        )
    if slots == 1 and True in paired:
        return 0, "two long prompts had their first tokens together, a burst of equal ones did not"
    return slots, ""


def _groups(e: ProbeMeasurements) -> str:
    """``?``: neither one by one nor in groups."""
    return ", ".join(str(burst.side_by_side or "?") for burst in e.bursts)


def _budget(e: ProbeMeasurements) -> tuple[float, float, float]:
    """Tokens of a step: (low, about, high), from the two longest lengths: the range that both
    allow, each in any round, or in any in which steps are distinct. The estimate is in the middle
    of the last step. A step also has the tokens of the decoders, where the budget counts those."""
    low, high, about = 0.0, math.inf, 0.0
    for asked in sorted({stall.asked_tokens for stall in e.of("stall")})[-2:]:
        stalls = e.of("stall", asked)
        stalls = [stall for stall in stalls if stall.plain] or stalls
        ends = [_allowed(stall) for stall in stalls]
        least = min(least for least, _ in ends)
        most = max(most for _, most in ends)
        # they do not agree: the longest one decides, having the most steps
        if max(low, least) > min(high, most):
            low, high = 0.0, math.inf
        low = max(low, least)
        high = min(high, most)
        strays = 0.0 if stalls[0].plain else EXTRA_GAPS / 2
        about = median(
            stall.input_tokens / max(stall.steps - stall.doubtful - 0.5 - strays, 0.5)
            for stall in stalls
        )
    low /= e.tokens_a_chunk or 1  # two steps may have had one chunk
    return low, min(max(about, low), high) + e.decoders, high + e.decoders


def _allowed(stall: DecoderStall) -> tuple[float, float]:
    """(least, most) tokens of a step: n tokens in s steps are more than s - 1 steps hold, and at
    most what s hold. A doubtful step may be one or not. Where steps are not distinct, some of the
    gaps may be no steps, and all tokens of the decoders may be."""
    if stall.plain:
        miscounted = STEP_ERROR * stall.steps
        few = stall.steps - stall.doubtful - 1 - round(miscounted)
        many = stall.steps + max(miscounted, stall.rest)
    else:
        few = stall.surely * (1 - INDISTINCT_STEP_ERROR) - 1 - EXTRA_GAPS
        many = max(stall.steps, stall.meanwhile) * (1 + STEP_ERROR)
    return stall.input_tokens / max(many, 1), stall.input_tokens / few if few > 0 else math.inf


def _further(e: ProbeMeasurements, name: str) -> Iterator[str]:
    """Measurements that do not decide."""
    if e.cut is not None:
        yield _stopped_early(e.cut)
    if e.behind and name != STATIC:
        waited = median(queued.waited for queued in e.behind)
        passed = sum(queued.waited < MAX_PASSED_SHARE for queued in e.behind)
        if passed == len(e.behind):
            yield (
                f"a short request behind a long prompt did not wait for it ({waited:.0%} of its "
                f"remaining prefill)"
            )
        elif passed == 0:
            yield (
                f"a short request behind a long prompt waited for it ({waited:.0%} of its "
                f"remaining prefill)"
            )
        else:
            yield (
                f"{passed} of {len(e.behind)} short requests behind a long prompt did not wait "
                f"for it"
            )
    if name in (CHUNKED, PARTIAL) and (
        paused := sum(stall.doubtful > 0 for stall in e.of("stall"))
    ):
        yield (
            f"beside {paused} of {len(e.of('stall'))} prompts the decoders had a gap that may be a "
            f"step, or a pause of the "
            "server or its machine: the range allows for both"
        )
    if name == PREFILL_FIRST:
        yield f"a budget of more than {e.longest:,} tokens per step would look the same"
        if pairs := e.of("pair"):
            got = median(pair.meanwhile for pair in pairs)
            yield (
                f"beside two prompts sent together the decoders got "
                f"{format_count(round(got), 'token')}"
            )
