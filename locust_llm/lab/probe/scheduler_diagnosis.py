"""Scheduler diagnosis: a fixed rule names the scheduler of a server, with the measurements, or
explains why it cannot.

The rule holds for each round of the probe. More than half of the rounds must give the name, and
none another one:

1. ``static``: the prefill of a prompt began after every decoder had ended, and took as long as
   alone.
2. ``disaggregated``: the decoders kept their pace (at least 0.92 of it) at every prompt length, and
   the prompt took as long as alone.
3. ``prefill-first``: at every prompt length one gap of the decoders was nearly all of the time to
   its first token, so one step computed the prompt. A budget above the longest prompt looks the
   same, which the report notes.
4. ``chunked``: several steps computed the prompt, and the decoders got a token in each. The tokens
   of a step are the budget. ``partial prefills`` with k slots also had the first tokens of equal
   prompts k at a time.

Values between the bounds of two of these give "cannot tell". So does every doubt about the
measurement: a client verdict below OK, failures, other traffic, or prompts that hardly take longer
than short ones. The same holds for cases that look alike from outside: several servers behind one
address, one request at a time, or long prompts one by one that let all short ones pass.
"""

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

import msgspec

from locust_llm.text.format import format_count, format_duration

from .probe_measurements import DecoderStall, ProbeMeasurements

STATIC: Final = "static"
PREFILL_FIRST: Final = "prefill-first"
CHUNKED: Final = "chunked"
PARTIAL: Final = "partial prefills"
DISAGGREGATED: Final = "disaggregated"
CANNOT_TELL: Final = "cannot tell"

MIN_UNDISTURBED_PACE: Final = 0.92
"""Decoders keep at least this pace beside a prompt on another machine. On the same GPU the pace is
lower."""
MAX_DISTURBED_PACE: Final = 0.85
"""Decoders below this pace were clearly disturbed."""
MAX_ALONE_RATIO: Final = 1.4
"""Nothing delays a prompt below this ratio of TTFT to TTFT alone."""
MIN_STOPPED_SHARE: Final = 0.9
"""One step computes a prompt if one gap has at least this share of the time in prefill, without up
to two gaps before it."""
MAX_STEP_SHARE: Final = 0.75
"""Several steps compute a prompt if the longest gap has at most this share."""
STEP_ERROR: Final = 0.05
"""This share of the steps may be miscounted: two tokens in one chunk, or a pause for another
reason."""
INDISTINCT_STEP_ERROR: Final = 0.08
"""Without distinct steps, this share of the counted steps may be none."""
EXTRA_GAPS: Final = 2
"""Without distinct steps, two gaps beyond the steps may count: at the arrival of the prompt and at
its end."""
MIN_BURST_STEPS: Final = 1.25
"""Prompts of a burst exceed a step by this ratio, since shorter ones fit into one step and look
side by side."""
MAX_TOGETHER_SHARE: Final = 0.2
"""First tokens of two equal prompts are together if they differ by at most this share of the later
TTFT. Prompts computed one by one differ by about half, or slightly less, as the first one shares
its last step."""
MAX_PASSED_SHARE: Final = 0.5
"""A short request did not wait below this ratio: its TTFT over the remaining prefill of the long
one."""
MAX_FAILED_SHARE: Final = 0.05
"""At most this share of the requests may fail."""
MAX_LOST_SHARE: Final = 0.05
"""The server has other load if stalls take more than this share of the quiet time."""
MAX_REPEAT_RATIO: Final = 1.4
"""Other load delayed a prompt above this ratio of its TTFT alone to the median."""
MAX_SLOW_SHARE: Final = 0.2
"""A larger share of delayed prompts prevents a diagnosis."""
MAX_SINGLE_RATIO: Final = 2.0
"""One prompt above this ratio prevents a diagnosis by itself."""
MAX_TOKENS_PER_CHUNK: Final = 1.2
MAX_MERGED_SHARE: Final = 0.25
"""Gaps do not show steps if more than this share of the chunks came together with the one
before."""
MAX_UNEVEN: Final = 3.0
"""Decoders are on several servers above this ratio of the gaps of the most and the least disturbed
decoder."""
MAX_EVEN: Final = 1.35
"""Above this ratio, undisturbed decoders mean several servers behind one address instead of a
disaggregated one."""
MIN_PREFILL_GAPS: Final = 10.0
"""The prefill of the longest prompt takes at least this many gaps, and halves of a short TTFT. A
shorter one does not show."""


class Diagnosis(msgspec.Struct, frozen=True):
    name: str
    budget: tuple[float, float, float] | None = None
    """A step has this many tokens: (low, about, high)."""
    slots: int | None = None
    """The server computes this many prompts side by side. If a whole burst was computed together,
    this is a lower bound."""
    reasons: tuple[str, ...] = ()
    """Each reason is one sentence with a measurement."""
    missing: tuple[str, ...] = ()
    """Each entry explains why there is no name."""


def diagnose_scheduler(measurements: ProbeMeasurements, client: str | None = None) -> Diagnosis:
    """Names the scheduler. ``client`` is the client verdict, if there is one."""
    if missing := tuple(_list_obstacles(measurements, client)):
        return Diagnosis(CANNOT_TELL, missing=missing)
    rounds = sorted({stall.round for stall in measurements.of("stall")})
    by_round = [_diagnose_round(measurements, turn) for turn in rounds]
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
        and (several := _count_prompts_at_a_time(measurements)) > measurements.decoders - 0.4
    ):
        doubt = (
            f"about {several:.0f} prompts were computed side by side and {measurements.decoders} decoders "
            f"were "
            "undisturbed: this may "
            "also be several servers behind one address (try more --decoders)"
        )
        return Diagnosis(CANNOT_TELL, missing=(doubt,))
    if name != CHUNKED:
        return Diagnosis(name, reasons=(why, *_list_other_measurements(measurements, name)))
    return _diagnose_chunked(measurements, why)


def _count_prompts_at_a_time(measurements: ProbeMeasurements) -> float:
    """Returns how many prompts of a burst are computed at a time, by their groups and by their
    common time."""
    sooner = [
        len(burst.ttft_s) * (measurements.alone_s(burst.input_tokens) or 0.0) / burst.ttft_s[-1]
        for burst in measurements.bursts
        if burst.ttft_s[-1] > 0
    ]
    return max([*sooner, *(burst.side_by_side for burst in measurements.bursts)], default=0.0)


def _list_obstacles(measurements: ProbeMeasurements, client: str | None) -> Iterator[str]:
    if client not in (None, "OK"):
        yield f"the client verdict is {client}, so the timestamps are not reliable"
    if measurements.cut is not None and _too_few(measurements):
        yield f"{_stopped_early(measurements.cut)}: let it finish"
        return
    if measurements.failed > MAX_FAILED_SHARE * measurements.requests:
        yield f"{measurements.failed} of {measurements.requests} requests failed"
    if not measurements.stalls or not measurements.costs or measurements.quiet_s is None:
        yield (
            "no prompt could be measured while decoders run: the server's outputs or its context "
            "are too short"
        )
        return
    longest = measurements.alone_s(measurements.longest) or 0.0
    short_s = measurements.short_s or 0.0
    if longest < MIN_PREFILL_GAPS * max(measurements.quiet_s, short_s / 2):
        yield (
            f"a prompt of {measurements.longest:,} tokens takes {format_duration(longest)}, hardly longer "
            f"than a short one "
            f"({format_duration(short_s)}) or a gap ({format_duration(measurements.quiet_s)}): try longer "
            f"prompts (--longest)"
        )
    again = [cost for cost in measurements.costs if len(cost.ttft_s) > 2]
    attempts = 0
    delayed = 0
    for cost in again:
        attempts += len(cost.ttft_s)
        delayed += sum(ttft_s > MAX_REPEAT_RATIO * cost.typical_s for ttft_s in cost.ttft_s)
    most = max((max(cost.ttft_s) / cost.typical_s for cost in again), default=0.0)
    if delayed > MAX_SLOW_SHARE * attempts or most > MAX_SINGLE_RATIO:
        worst = max(again, key=lambda cost: max(cost.ttft_s) / cost.typical_s)
        yield (
            f"the time of one prompt alone varies: {worst.asked_tokens:,} tokens took "
            f"{format_duration(min(worst.ttft_s))} to "
            f"{format_duration(max(worst.ttft_s))}; the server may have other load, or its machine "
            f"other programs"
        )
    if measurements.lost is not None and measurements.lost > MAX_LOST_SHARE:
        yield (
            f"{measurements.lost:.0%} of the decoders' time without a prompt went into stalls: the server has "
            f"other load, "
            "or is not steady"
        )
    if (
        measurements.tokens_a_chunk is not None
        and measurements.tokens_a_chunk > MAX_TOKENS_PER_CHUNK
    ):
        yield (
            f"a chunk holds {measurements.tokens_a_chunk:.1f} tokens, so steps cannot be counted (vLLM: set "
            f"--stream-interval 1)"
        )
    if measurements.shared is not None and measurements.shared > MAX_MERGED_SHARE:
        yield (
            f"{measurements.shared:.0%} of the chunks came together with the one before: the server, "
            "something on the way, or a busy machine here held them back"
        )
    uneven = [stall for stall in measurements.of("stall") if stall.uneven > MAX_UNEVEN]
    if len(uneven) * 3 > len(measurements.of("stall")):
        yield (
            f"the decoders were disturbed unevenly during {len(uneven)} of "
            f"{len(measurements.of('stall'))} prompts: several servers behind one address? Probe "
            "one of them"
        )
    if _too_few(measurements):
        yield ("not every round has prompts of all three lengths while requests were decoding")


def _too_few(measurements: ProbeMeasurements) -> bool:
    """Returns whether two rounds with three lengths each are missing."""
    sizes = {stall.asked_tokens for stall in measurements.of("stall")}
    rounds = {stall.round for stall in measurements.of("stall")}
    return (
        len(sizes) < 3
        or len(rounds) < 2
        or any(len(measurements.of("stall", turn=turn)) < 3 for turn in rounds)
    )


def _stopped_early(cut: tuple[int, int]) -> str:
    number, rounds = cut
    where = f"in round {number} of {rounds}" if number else "before its first round"
    return f"the probe was stopped early, {where}"


def _diagnose_round(measurements: ProbeMeasurements, turn: int) -> tuple[str, str]:
    """Returns the name by this round, and the reason."""
    stalls = sorted(measurements.of("stall", turn=turn), key=lambda stall: stall.asked_tokens)
    small = stalls[0]
    large = stalls[-1]
    tokens = f"{large.input_tokens:,} tokens"
    took = format_duration(large.ttft_s)
    alone = [measurements.alone_s(stall.asked_tokens) or math.inf for stall in stalls]
    if any(stall.ended for stall in stalls):
        return _diagnose_after_decoders(stalls, alone)
    pace_kept = min(large.pace, median(stall.pace for stall in stalls))
    if pace_kept >= MIN_UNDISTURBED_PACE:
        if (uneven := median(stall.uneven for stall in stalls)) > MAX_EVEN:
            return CANNOT_TELL, (
                f"most decoders were undisturbed, but the gaps of one were {uneven:.1f} times "
                f"the gaps of another: several servers "
                "behind one address? Probe one of them"
            )
        if all(
            stall.ttft_s <= MAX_ALONE_RATIO * alone_s
            for stall, alone_s in zip(stalls, alone, strict=True)
        ):
            return DISAGGREGATED, (
                f"during a prompt of {tokens} the decoders kept {large.pace:.0%} of their pace, "
                f"and the prompt took {took} ({format_duration(alone[-1])} alone)"
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


def _diagnose_after_decoders(stalls: list[DecoderStall], alone: list[float]) -> tuple[str, str]:
    """Diagnoses a prompt whose first token came after a decoder had ended."""
    large = stalls[-1]
    if large.decoders == 1:
        return CANNOT_TELL, "only one request runs at a time, so nothing is disturbed"
    if all(stall.ended == stall.decoders for stall in stalls) and all(
        alone_s / MAX_ALONE_RATIO <= stall.after_s <= MAX_ALONE_RATIO * alone_s + stall.quiet_s
        for stall, alone_s in zip(stalls, alone, strict=True)
    ):
        return STATIC, (
            f"a prompt of {large.input_tokens:,} tokens had its first token "
            f"{format_duration(large.after_s)} after the last of "
            f"{large.decoders} decoders had ended ({format_duration(alone[-1])} alone): its "
            f"prefill began only then"
        )
    most_ended = max(stall.ended for stall in stalls)
    return CANNOT_TELL, (
        f"{most_ended} of {large.decoders} decoders had ended before a prompt had its first token, "
        "but not all as with a static batch. The prompt may have waited for a free slot: try "
        "fewer --decoders"
    )


def _diagnose_chunked(measurements: ProbeMeasurements, why: str) -> Diagnosis:
    """Finds budget and slots of a server that computes a prompt in several steps."""
    budget = _estimate_budget(measurements)
    slots, doubt = _count_slots(measurements, budget[1])
    if doubt:
        return Diagnosis(CANNOT_TELL, budget, reasons=(why,), missing=(doubt,))
    burst = measurements.bursts[-1]
    name = CHUNKED
    how = "their first tokens one by one"
    if slots > 1:
        name = PARTIAL
        least = "at least " if slots == len(burst.ttft_s) else ""
        how = f"{least}{slots} of their first tokens together"
    measured = (
        f"{len(burst.ttft_s)} prompts of {burst.input_tokens:,} tokens sent together had {how}"
    )
    if not all(burst.side_by_side for burst in measurements.bursts):
        measured += f" (first groups of {_list_groups(measurements)})"
    return Diagnosis(
        name, budget, slots, (why, measured, *_list_other_measurements(measurements, name))
    )


def _count_slots(measurements: ProbeMeasurements, step_tokens: float) -> tuple[int, str]:
    """Returns the number of prompts computed at a time, and the reason if it is unknown."""
    if not measurements.bursts:
        return 0, "not all prompts of a burst got a first token"
    if any(burst.input_tokens < MIN_BURST_STEPS * step_tokens for burst in measurements.bursts):
        return (
            0,
            "a step holds too many tokens for the prompts of a burst: try longer prompts "
            "(--longest)",
        )
    pairs = [
        pair
        for pair in measurements.of("pair")
        if pair.input_tokens > MIN_BURST_STEPS * step_tokens
    ]
    paired = {pair.apart_s < MAX_TOGETHER_SHARE * pair.ttft_s for pair in pairs}
    clear = [burst.side_by_side for burst in measurements.bursts if burst.side_by_side]
    if len(set(clear)) != 1 or 2 * len(clear) <= len(measurements.bursts) or len(paired) > 1:
        return (
            0,
            f"equal prompts sent together had first tokens in first groups of {_list_groups(measurements)}, so the "
            f"number of slots is unknown",
        )
    slots = clear[0]
    if (
        slots == 1
        and measurements.behind
        and all(queued.waited < MAX_PASSED_SHARE for queued in measurements.behind)
    ):
        return 0, (
            "long prompts are computed one by one, but no short request waited for one. Possible: "
            "partial prefills with one slot for long prompts, priorities, or another order"
        )
    if slots == 1 and True in paired:
        return (
            0,
            "two long prompts had their first tokens together, but a burst of equal ones did not",
        )
    return slots, ""


def _list_groups(measurements: ProbeMeasurements) -> str:
    """Lists the first groups of the bursts. ``?``: neither one by one nor in groups."""
    return ", ".join(str(burst.side_by_side or "?") for burst in measurements.bursts)


def _estimate_budget(measurements: ProbeMeasurements) -> tuple[float, float, float]:
    """Estimates the tokens of a step: (low, about, high). The range fits the two longest lengths,
    in the rounds with distinct steps if there are any. The estimate assumes the middle of the last
    step. The budget may include the decoders' tokens."""
    low = 0.0
    high = math.inf
    about = 0.0
    for length in sorted({stall.asked_tokens for stall in measurements.of("stall")})[-2:]:
        stalls = measurements.of("stall", length)
        stalls = [stall for stall in stalls if stall.plain] or stalls
        ends = [_bound_step_tokens(stall) for stall in stalls]
        least = min(least for least, _ in ends)
        most = max(most for _, most in ends)
        # they do not agree: the longest one decides, having the most steps
        if max(low, least) > min(high, most):
            low = 0.0
            high = math.inf
        low = max(low, least)
        high = min(high, most)
        extra_gaps = 0.0 if stalls[0].plain else EXTRA_GAPS / 2
        about = median(
            stall.input_tokens / max(stall.steps - stall.doubtful - 0.5 - extra_gaps, 0.5)
            for stall in stalls
        )
    low /= measurements.tokens_a_chunk or 1  # two steps may have had one chunk
    return low, min(max(about, low), high) + measurements.decoders, high + measurements.decoders


def _bound_step_tokens(stall: DecoderStall) -> tuple[float, float]:
    """Returns the least and the most tokens of a step. n tokens in s steps exceed s - 1 steps, and
    fit into s. A doubtful step may be a pause. Without distinct steps, some gaps may be no steps,
    or all tokens of the decoders may be steps."""
    if stall.plain:
        miscounted = STEP_ERROR * stall.steps
        few = stall.steps - stall.doubtful - 1 - round(miscounted)
        many = stall.steps + max(miscounted, stall.rest)
    else:
        few = stall.surely * (1 - INDISTINCT_STEP_ERROR) - 1 - EXTRA_GAPS
        many = max(stall.steps, stall.meanwhile) * (1 + STEP_ERROR)
    return stall.input_tokens / max(many, 1), stall.input_tokens / few if few > 0 else math.inf


def _list_other_measurements(measurements: ProbeMeasurements, name: str) -> Iterator[str]:
    """Yields measurements that do not decide the name."""
    if measurements.cut is not None:
        yield _stopped_early(measurements.cut)
    if measurements.behind and name != STATIC:
        waited = median(queued.waited for queued in measurements.behind)
        passed = sum(queued.waited < MAX_PASSED_SHARE for queued in measurements.behind)
        if passed == len(measurements.behind):
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
                f"{passed} of {len(measurements.behind)} short requests behind a long prompt did not wait "
                f"for it"
            )
    if name in (CHUNKED, PARTIAL) and (
        paused := sum(stall.doubtful > 0 for stall in measurements.of("stall"))
    ):
        yield (
            f"during {paused} of {len(measurements.of('stall'))} prompts the decoders had a gap "
            "that may be a step or a pause of the server. The range allows for both"
        )
    if name == PREFILL_FIRST:
        yield f"a budget of more than {measurements.longest:,} tokens per step would look the same"
        if pairs := measurements.of("pair"):
            got = median(pair.meanwhile for pair in pairs)
            yield (
                "during two prompts sent together the decoders got "
                f"{format_count(round(got), 'token')}"
            )
