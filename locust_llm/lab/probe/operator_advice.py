"""Operator advice: gives the server's operator advice, each with its measurement.

Times are medians over the rounds. Advice on a chunk size is linear in its tokens, from a gap
without prefill to a gap with a full step of a prompt. Both are measured. Advice on a prefill limit
uses bursts: it depends on whether prompts sent together are computed one by one, as behind a limit.
"""

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

import msgspec

from locust_llm.records.record import MIN_EARLY_S
from locust_llm.text.format import format_brief, format_duration

from .probe_measurements import BurstResult, DecoderStall, ProbeMeasurements
from .scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    DISAGGREGATED,
    PARTIAL,
    PREFILL_FIRST,
    STATIC,
    Diagnosis,
)

MIN_SERIAL_SHARE: Final = 0.8
"""Prompts are computed one by one above this ratio: the time of a burst over the time of its
prompts one by one."""
MIN_PAIR_RATIO: Final = 1.5
"""Stalls add up above this ratio: the stall of two prompts over the stall of one."""
MAX_CACHED_RATIO: Final = 0.5
"""A prompt was cached below this ratio: the TTFT of the second time over the first."""
EXAMPLE_INPUT_TOKENS: Final = 2000
EXAMPLE_OUTPUT_TOKENS: Final = 200
"""The example of a concurrency has this output length."""
EXAMPLE_CHUNK_TOKENS: Final = 512
"""This is the suggested chunk size for servers without chunks."""


class Advice(msgspec.Struct, frozen=True):
    what: str
    """This is one sentence."""
    why: str
    """This gives the measurement and the computation."""


def derive_advice(
    measurements: ProbeMeasurements, diagnosis: Diagnosis, itl_target_s: float | None = None
) -> tuple[Advice, ...]:
    """``itl_target_s`` is the desired gap of decoders beside prompts. An unknown scheduler gets
    only advice that does not depend on it."""
    by_name = {
        STATIC: _advise_static,
        PREFILL_FIRST: _advise_prefill_first,
        CHUNKED: _advise_chunked,
        PARTIAL: _advise_chunked,
        DISAGGREGATED: _advise_disaggregated,
        CANNOT_TELL: _advise_unknown,
    }
    known: Iterable[Advice] = ()
    if measurements.of("stall"):
        known = by_name[diagnosis.name](measurements, diagnosis, itl_target_s)
    return (*known, *_advise_caching(measurements), *_advise_early_events(measurements))


def _advise_prefill_first(
    measurements: ProbeMeasurements, diagnosis: Diagnosis, target_s: float | None
) -> Iterator[Advice]:
    """Advises a prefill-first server."""
    longest = measurements.of("stall", measurements.longest)
    stall_s = median(stall.longest_s for stall in longest)
    tokens = _median_tokens(longest)
    single = _stalls_of_one_prompt(measurements)
    pairs = measurements.of("pair")
    if single and pairs:
        one_s = median(stall.longest_s for stall in single)
        two_s = median(stall.longest_s for stall in pairs)
        if two_s >= MIN_PAIR_RATIO * one_s and (cost := _describe_serial_burst(measurements)):
            yield Advice(
                "Limit prefills to one at a time (--prefill-concurrency 1): no stall is then "
                "longer than the stall of one prompt.",
                f"Two prompts of {_median_tokens(pairs):,.0f} tokens sent together stopped the decoders "
                f"for {format_duration(two_s)}, one "
                f"for {format_duration(one_s)}; {cost}.",
            )
        elif two_s < MIN_PAIR_RATIO * one_s:
            yield Advice(
                "A prefill limit does not shorten stalls: the stalls of prompts sent together do "
                "not add up.",
                f"The longest gap during two prompts of {_median_tokens(pairs):,.0f} tokens sent "
                f"together was {format_duration(two_s)}, during one {format_duration(one_s)}.",
            )
    if measurements.quiet_s is not None:
        yield from _advise_chunk_size(
            tokens, stall_s, measurements.quiet_s, tokens, target_s, EXAMPLE_CHUNK_TOKENS
        )
    yield from _advise_users(measurements)


def _advise_chunked(
    measurements: ProbeMeasurements, diagnosis: Diagnosis, target_s: float | None
) -> Iterator[Advice]:
    """Advises a server with chunks or partial prefills."""
    slots = diagnosis.slots or 1
    yield from _advise_limit_by_slots(measurements, slots)
    longest = measurements.of("stall", measurements.longest)
    if diagnosis.budget is not None:
        gap_s = median(stall.usual_s for stall in longest)
        quiet_s = median(stall.quiet_s for stall in longest)
        budget = diagnosis.budget[1]
        yield from _advise_chunk_size(
            budget, gap_s, quiet_s, _median_tokens(longest), target_s, budget / 2
        )
    yield from _advise_short_requests(measurements)
    if slots == 1:
        yield from _advise_users(measurements)


def _advise_limit_by_slots(measurements: ProbeMeasurements, slots: int) -> Iterator[Advice]:
    single = _stalls_of_one_prompt(measurements)
    pairs = measurements.of("pair")
    gaps = ""
    if single and pairs:
        one_s = median(stall.usual_s for stall in single)
        two_s = median(stall.usual_s for stall in pairs)
        gaps = (
            f" Gaps during two prompts are {format_duration(two_s)}, during one "
            f"{format_duration(one_s)}: a limit hardly changes them."
        )
    if slots > 1 and measurements.bursts:
        burst = measurements.bursts[-1]
        yield Advice(
            f"Use --prefill-concurrency {slots}: a lower limit leaves capacity unused, with a "
            f"higher one prompts "
            "wait in the "
            "server.",
            f"Of {len(burst.ttft_s)} prompts of {burst.input_tokens:,} tokens sent together "
            f"{burst.side_by_side} had their "
            f"first tokens together.{gaps}",
        )
    elif slots == 1 and (cost := _describe_serial_burst(measurements)):
        yield Advice(
            "A prefill limit of 2 costs no throughput (--prefill-concurrency 2: one prompt is "
            "computed, the next is ready); the wait for a prefill slot replaces the wait in the "
            "server.",
            f"{cost[0].upper()}{cost[1:]}.{gaps}",
        )


def _advise_disaggregated(
    measurements: ProbeMeasurements, diagnosis: Diagnosis, target_s: float | None
) -> Iterator[Advice]:
    stalls = measurements.of("stall", measurements.longest)
    pace = median(stall.pace for stall in stalls)
    tokens = _median_tokens(stalls)
    cost = f"; {turns}" if (turns := _describe_serial_burst(measurements)) else ""
    yield Advice(
        "A prefill limit changes TTFT and not ITL: choose it by TTFT, one prompt for each prefill "
        "instance.",
        f"During a prompt of {tokens:,.0f} tokens the decoders kept {pace:.0%} of their "
        f"speed{cost}.",
    )
    yield from _advise_users(measurements)


def _advise_static(
    measurements: ProbeMeasurements, diagnosis: Diagnosis, target_s: float | None
) -> Iterator[Advice]:
    stalls = measurements.of("stall", measurements.longest)
    waited_s = median(stall.ttft_s - stall.after_s for stall in stalls)
    yield Advice(
        "Use continuous batching, or keep outputs short: TTFT includes the longest output of the "
        "batch before. A "
        "prefill limit "
        "does not change ITL here.",
        f"A prompt of {_median_tokens(stalls):,.0f} tokens waited {format_duration(waited_s)} until the "
        f"decoders had ended, then took "
        f"{format_duration(median(stall.after_s for stall in stalls))}; their gaps were undisturbed.",
    )


def _advise_unknown(
    measurements: ProbeMeasurements, diagnosis: Diagnosis, target_s: float | None
) -> Iterator[Advice]:
    """Advises a server with an unknown scheduler."""
    alone_s = measurements.alone_s(measurements.longest)
    stalls = [stall for stall in measurements.of("stall", measurements.longest) if not stall.ended]
    if not stalls or alone_s is None or measurements.quiet_s is None:
        return
    stall_s = median(stall.longest_s for stall in stalls)
    if stall_s > 2 * measurements.quiet_s:
        yield Advice(
            f"Expect gaps of {format_duration(stall_s)} during prompts of "
            f"{_median_tokens(stalls):,.0f} tokens, whatever the scheduler.",
            f"That was the longest gap of a decoder "
            f"({format_duration(min(stall.longest_s for stall in stalls))} to "
            f"{format_duration(max(stall.longest_s for stall in stalls))}); "
            f"{format_duration(measurements.quiet_s)} without prefill. Alone the "
            f"prompt takes {format_duration(alone_s)}.",
        )


def _advise_short_requests(measurements: ProbeMeasurements) -> Iterator[Advice]:
    if not measurements.behind:
        return
    waited = median(queued.waited for queued in measurements.behind)
    took_s = median(queued.ttft_s for queued in measurements.behind)
    if waited >= MIN_SERIAL_SHARE and measurements.short_s is not None:
        yield Advice(
            "Separate short requests from long ones (another server, or partial prefills where the "
            "server has them).",
            f"A short request behind a prompt of {measurements.longest:,} tokens waited for "
            f"{waited:.0%} of that prompt's remaining prefill: TTFT {format_duration(took_s)}, and "
            f"{format_duration(measurements.short_s)} alone.",
        )


def _advise_users(measurements: ProbeMeasurements) -> Iterator[Advice]:
    """Computes the asymptotic bound of a closed loop: a user's round without waiting, over its time
    in the bottleneck (Denning and Buzen, The operational analysis of queueing network models,
    1978)."""
    alone_s = measurements.alone_s(EXAMPLE_INPUT_TOKENS)
    quiet_s = measurements.quiet_s
    if not alone_s or not quiet_s or not _describe_serial_burst(measurements):
        return
    users = 1 + EXAMPLE_OUTPUT_TOKENS * quiet_s / alone_s
    yield Advice(
        f"Above about {format_brief(users, digits=2)} users with prompts of "
        f"{EXAMPLE_INPUT_TOKENS:,} and outputs of {EXAMPLE_OUTPUT_TOKENS} tokens, prompts wait for "
        "each other's prefill: more concurrency adds TTFT, not throughput.",
        f"Such a prompt takes {format_duration(alone_s)}, and prompts are computed one by one; "
        f"{EXAMPLE_OUTPUT_TOKENS} gaps of "
        f"{format_duration(quiet_s)} are {format_duration(EXAMPLE_OUTPUT_TOKENS * quiet_s)}. A "
        f"first estimate: "
        "gaps grow with the streams, which raises it.",
    )


def _advise_caching(measurements: ProbeMeasurements) -> Iterator[Advice]:
    pairs = [
        pair for pair in measurements.cached if pair.again_s <= MAX_CACHED_RATIO * pair.first_s
    ]
    if pairs and 2 * len(pairs) > len(measurements.cached):
        first_s = median(pair.first_s for pair in pairs)
        again_s = median(pair.again_s for pair in pairs)
        yield Advice(
            "Use prompts that do not repeat, unless you mean to measure it: the server has a "
            "prefix cache.",
            f"A prompt of {pairs[0].input_tokens:,} tokens took {format_duration(first_s)}, and "
            f"{format_duration(again_s)} the second "
            "time.",
        )


def _advise_early_events(measurements: ProbeMeasurements) -> Iterator[Advice]:
    if measurements.early_s is not None and measurements.early_s >= MIN_EARLY_S:
        yield Advice(
            "Do not compare TTFT with tools that count the first event as the first token.",
            f"An event without content came up to {format_duration(measurements.early_s)} before the "
            f"first token: their TTFT is "
            "lower by that.",
        )


def _describe_serial_burst(measurements: ProbeMeasurements) -> str:
    """Describes the burst in one sentence if prompts are computed one by one. Empty: they are
    not."""
    bursts = [
        (burst, share)
        for burst in measurements.bursts
        if (share := _serial_share(burst, measurements)) is not None
    ]
    if not bursts or median(share for _, share in bursts) < MIN_SERIAL_SHARE:
        return ""
    burst, _ = bursts[-1]
    alone_s = measurements.alone_s(burst.input_tokens) or math.nan
    return (
        f"{len(burst.ttft_s)} prompts of {burst.input_tokens:,} tokens sent together had the last "
        f"first token after "
        f"{format_duration(burst.ttft_s[-1])}, {burst.ttft_s[-1] / alone_s:.1f} times the "
        f"time of one alone"
    )


def _serial_share(burst: BurstResult, measurements: ProbeMeasurements) -> float | None:
    """Returns the time of a burst over the time of its prompts one by one, or None if unknown."""
    alone_s = measurements.alone_s(burst.input_tokens)
    return None if not alone_s else burst.ttft_s[-1] / (len(burst.ttft_s) * alone_s)


def _stalls_of_one_prompt(measurements: ProbeMeasurements) -> list[DecoderStall]:
    """Returns the stalls of one prompt at the length of the pairs."""
    pairs = measurements.of("pair")
    return measurements.of("stall", pairs[0].asked_tokens) if pairs else []


def _median_tokens(stalls: list[DecoderStall]) -> float:
    return median(stall.input_tokens for stall in stalls)


def _advise_chunk_size(
    step: float, gap_s: float, quiet_s: float, tokens: float, target_s: float | None, usual: float
) -> Iterator[Advice]:
    """A step of ``step`` tokens takes ``gap_s``, a step without a prompt ``quiet_s``. Steps in
    between lie on the line through both, or slightly below it: parts of a step overlap until one of
    them takes all of its time."""
    if gap_s <= quiet_s:
        return
    a_token_s = (gap_s - quiet_s) / step
    size = usual if target_s is None else (target_s - quiet_s) / a_token_s
    if size < 1:
        yield Advice(
            f"No chunk size gives gaps of {format_duration(target_s or 0.0)}: try fewer streams at "
            f"a time.",
            f"Without any prefill the gaps are {format_duration(quiet_s)}.",
        )
        return
    size = _round(size)
    wanted = "Shorter gaps take"
    if target_s is not None:
        wanted = f"Gaps of {format_duration(target_s)} take"
    if size > step:
        wanted = f"Gaps of {format_duration(target_s or gap_s)} allow"
        beyond = "Extrapolated in proportion to tokens: real gaps may be longer."
    else:
        beyond = (
            "Interpolated in proportion to tokens: real gaps may be shorter; check with "
            "another probe."
        )
    yield Advice(
        f"{wanted} chunks of about {size:,} tokens (vLLM: --max-num-batched-tokens {size}, or for "
        f"long prompts alone --long-prefill-token-threshold {size}): about "
        f"{format_duration(quiet_s + size * a_token_s)} during a prompt, and "
        f"{format_duration(tokens * (quiet_s / size + a_token_s))} for one of {tokens:,.0f} tokens.",
        f"With steps of about {step:,.0f} tokens the gaps during a prompt are "
        f"{format_duration(gap_s)}, without one {format_duration(quiet_s)}. {beyond}",
    )


def _round(tokens: float) -> int:
    """Rounds down to two significant digits, and keeps powers of two."""
    whole = max(1, round(tokens))
    if whole & (whole - 1) == 0:
        return whole
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return max(1, whole // unit * unit)
