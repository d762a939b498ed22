"""Advice: what follows from a probe for whoever runs the server, each with the measurement that it rests on.

Times are medians over the rounds. What is said of a chunk size is linear in its tokens: from a gap without prefill to one
with a step full of a prompt, both measured. What is said of a prefill limit rests on prompts that
came at one moment: whether they are computed one after the other, as behind a limit they would be.
"""

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

import msgspec

from locust_llm.core.text import duration

from .diagnosis import CANNOT_TELL, CHUNKED, DISAGGREGATED, PARTIAL, PREFILL_FIRST, STATIC, Diagnosis
from .symptoms import Crowd, Stall, Symptoms

AFTER: Final = 0.8
"""Prompts that took this share of one after the other, and more, are called that."""
TWICE: Final = 1.5
"""The stall of two prompts, in stalls of one, from which on they stall together."""
HIDDEN: Final = 0.5
"""A prompt that took at most this share of its first time when it came again was not computed again."""
EARLY_S: Final = 0.002
PROMPT: Final = 2000
ANSWER: Final = 200
"""Input and output tokens of the example of a concurrency."""
EXAMPLE: Final = 512
"""A chunk size for servers that have none yet."""


class Advice(msgspec.Struct, frozen=True):
    what: str
    """One sentence."""
    why: str
    """What was measured, and what is reckoned from it."""


def advice(found: Symptoms, diagnosis: Diagnosis, itl_target_s: float | None = None) -> tuple[Advice, ...]:
    """``itl_target_s``: the gap that the decoders should have even beside prompts. Where the scheduler is not known, only
    what the figures say without it."""
    by_name = {
        STATIC: _static,
        PREFILL_FIRST: _stopped,
        CHUNKED: _chunked,
        PARTIAL: _chunked,
        DISAGGREGATED: _disaggregated,
        CANNOT_TELL: _unnamed,
    }
    known = by_name[diagnosis.name](found, diagnosis, itl_target_s) if found.of("stall") else ()
    return (*known, *_caching(found), *_early(found))


def _stopped(found: Symptoms, diagnosis: Diagnosis, target_s: float | None) -> Iterator[Advice]:
    """Prefill-first."""
    longest = found.of("stall", found.longest)
    stall_s, tokens = median(s.longest_s for s in longest), _tokens(longest)
    single, pairs = _single(found), found.of("pair")
    if single and pairs:
        one_s, two_s = median(s.longest_s for s in single), median(s.longest_s for s in pairs)
        if two_s >= TWICE * one_s and (cost := _in_turn(found)):
            yield Advice(
                "Limit the prefills to one at a time (--prefill-concurrency 1): no stall is longer than that of one prompt.",
                f"Two prompts of {_tokens(pairs):,.0f} tokens at one moment stopped the decoders for {duration(two_s)} at a "
                f"stretch, one for {duration(one_s)}; {cost}.",
            )
        elif two_s < TWICE * one_s:
            yield Advice(
                "A prefill limit makes no stall shorter: the stalls of prompts that come together do not add up.",
                f"The longest gap beside two prompts of {_tokens(pairs):,.0f} tokens at one moment was {duration(two_s)}, "
                f"beside one {duration(one_s)}.",
            )
    if found.quiet_s is not None:
        yield from _chunk(tokens, stall_s, found.quiet_s, tokens, target_s, EXAMPLE)
    yield from _users(found)


def _chunked(found: Symptoms, diagnosis: Diagnosis, target_s: float | None) -> Iterator[Advice]:
    """Chunked, and partial prefills."""
    slots = diagnosis.slots or 1
    yield from _limit_of_slots(found, slots)
    longest = found.of("stall", found.longest)
    if diagnosis.budget is not None:
        gap_s, quiet_s = median(s.usual_s for s in longest), median(s.quiet_s for s in longest)
        budget = diagnosis.budget[1]
        yield from _chunk(budget, gap_s, quiet_s, _tokens(longest), target_s, budget / 2)
    yield from _shorts(found)
    if slots == 1:
        yield from _users(found)


def _limit_of_slots(found: Symptoms, slots: int) -> Iterator[Advice]:
    single, pairs = _single(found), found.of("pair")
    gaps = ""
    if single and pairs:
        one_s, two_s = median(s.usual_s for s in single), median(s.usual_s for s in pairs)
        gaps = f" Gaps beside two prompts are {duration(two_s)}, beside one {duration(one_s)}: a limit changes them little."
    if slots > 1 and found.crowds:
        crowd = found.crowds[-1]
        yield Advice(
            f"A prefill limit below {slots} leaves room of the server unused, a limit above it lets prompts wait there "
            f"(--prefill-concurrency {slots}).",
            f"Of {len(crowd.ttft_s)} prompts of {crowd.input_tokens:,} tokens at one moment {crowd.side_by_side} had their "
            f"first token together.{gaps}",
        )
    elif slots == 1 and (cost := _in_turn(found)):
        yield Advice(
            "A prefill limit of 2 costs no throughput (--prefill-concurrency 2: one is computed, the next is there); what "
            "waits at the gate would have waited in the server.",
            f"{cost[0].upper()}{cost[1:]}.{gaps}",
        )


def _disaggregated(found: Symptoms, diagnosis: Diagnosis, target_s: float | None) -> Iterator[Advice]:
    stalls = found.of("stall", found.longest)
    pace, tokens = median(s.pace for s in stalls), _tokens(stalls)
    cost = f"; {turns}" if (turns := _in_turn(found)) else ""
    yield Advice(
        "A prefill limit sets TTFT and leaves ITL as it is: choose it by TTFT, one prompt for each prefill instance.",
        f"Beside a prompt of {tokens:,.0f} tokens the decoders kept {pace:.0%} of their pace{cost}.",
    )
    yield from _users(found)


def _static(found: Symptoms, diagnosis: Diagnosis, target_s: float | None) -> Iterator[Advice]:
    stalls = found.of("stall", found.longest)
    waited_s = median(s.ttft_s - s.after_s for s in stalls)
    yield Advice(
        "Use continuous batching, or keep outputs short: TTFT waits for the longest output of the batch before. A prefill "
        "limit does nothing for ITL here.",
        f"A prompt of {_tokens(stalls):,.0f} tokens waited {duration(waited_s)} until the decoders had ended, then took "
        f"{duration(median(s.after_s for s in stalls))}; their gaps were not disturbed.",
    )


def _unnamed(found: Symptoms, diagnosis: Diagnosis, target_s: float | None) -> Iterator[Advice]:
    """What holds whatever the scheduler is."""
    alone_s = found.alone_s(found.longest)
    stalls = [s for s in found.of("stall", found.longest) if not s.ended]
    if not stalls or alone_s is None or found.quiet_s is None:
        return
    stall_s = median(s.longest_s for s in stalls)
    if stall_s > 2 * found.quiet_s:
        yield Advice(
            f"Expect gaps of {duration(stall_s)} beside prompts of {_tokens(stalls):,.0f} tokens, whatever the scheduler "
            "is.",
            f"That was the longest gap of a decoder ({duration(min(s.longest_s for s in stalls))} to "
            f"{duration(max(s.longest_s for s in stalls))}); {duration(found.quiet_s)} without prefill. Alone such a "
            f"prompt takes {duration(alone_s)}.",
        )


def _shorts(found: Symptoms) -> Iterator[Advice]:
    if not found.behind:
        return
    waited, took_s = median(one.waited for one in found.behind), median(one.ttft_s for one in found.behind)
    if waited >= AFTER and found.short_s is not None:
        yield Advice(
            "Give short requests a way of their own (another server, or partial prefills where the server has them).",
            f"A short request behind a prompt of {found.longest:,} tokens waited {waited:.0%} of its time: TTFT "
            f"{duration(took_s)}, {duration(found.short_s)} alone.",
        )


def _users(found: Symptoms) -> Iterator[Advice]:
    """The asymptotic bound of a closed loop: a user's round without waiting, over its time in the bottleneck (Denning and
    Buzen, The operational analysis of queueing network models, 1978)."""
    alone_s, quiet_s = found.alone_s(PROMPT), found.quiet_s
    if not alone_s or not quiet_s or not _in_turn(found):
        return
    users = 1 + ANSWER * quiet_s / alone_s
    yield Advice(
        f"Above about {users:.0f} users with prompts of {PROMPT:,} and answers of {ANSWER} tokens, prompts queue "
        "for each other's prefill: more concurrency adds TTFT, not throughput.",
        f"Such a prompt takes {duration(alone_s)}, and prompts are computed one after the other; {ANSWER} gaps of "
        f"{duration(quiet_s)} are {duration(ANSWER * quiet_s)}. A first guess: gaps grow with the streams, "
        "which moves it up.",
    )


def _caching(found: Symptoms) -> Iterator[Advice]:
    pairs = [pair for pair in found.cached if pair.again_s <= HIDDEN * pair.first_s]
    if pairs and 2 * len(pairs) > len(found.cached):
        first_s, again_s = median(p.first_s for p in pairs), median(p.again_s for p in pairs)
        yield Advice(
            "Measure with prompts that do not repeat, or know that they do: the server has a prefix cache.",
            f"A prompt of {pairs[0].input_tokens:,} tokens took {duration(first_s)}, and {duration(again_s)} when it came "
            "again.",
        )


def _early(found: Symptoms) -> Iterator[Advice]:
    if found.early_s is not None and found.early_s >= EARLY_S:
        yield Advice(
            "Do not compare TTFT with a tool that takes the first event for the first token.",
            f"An event without content came up to {duration(found.early_s)} before the first token: it would be too "
            "low by that.",
        )


def _in_turn(found: Symptoms) -> str:
    """That prompts are computed one after the other, with its figures; empty where they are not."""
    crowds = [(crowd, share) for crowd in found.crowds if (share := _serial(crowd, found)) is not None]
    if not crowds or median(share for _, share in crowds) < AFTER:
        return ""
    crowd, _ = crowds[-1]
    alone_s = found.alone_s(crowd.input_tokens) or math.nan
    return (
        f"{len(crowd.ttft_s)} prompts of {crowd.input_tokens:,} tokens at one moment had their last first token after "
        f"{duration(crowd.ttft_s[-1])}, {crowd.ttft_s[-1] / alone_s:.1f} times as long as one alone"
    )


def _serial(crowd: Crowd, found: Symptoms) -> float | None:
    """Of the time that its prompts would take one after the other, how much they took; None: nobody knows."""
    alone_s = found.alone_s(crowd.input_tokens)
    return None if not alone_s else crowd.ttft_s[-1] / (len(crowd.ttft_s) * alone_s)


def _single(found: Symptoms) -> list[Stall]:
    """One prompt of the length that pairs have."""
    return [stall for pair in found.of("pair")[:1] for stall in found.of("stall", pair.asked_tokens)]


def _tokens(stalls: list[Stall]) -> float:
    return median(stall.input_tokens for stall in stalls)


def _chunk(
    step: float, gap_s: float, quiet_s: float, tokens: float, target_s: float | None, usual: float
) -> Iterator[Advice]:
    """A step of ``step`` tokens takes ``gap_s``, one without a prompt ``quiet_s``. What is between lies near the line of
    the two or somewhat below it: parts of a step overlap until one of them fills all of its time."""
    if gap_s <= quiet_s:
        return
    a_token_s = (gap_s - quiet_s) / step
    size = usual if target_s is None else (target_s - quiet_s) / a_token_s
    if size < 1:
        yield Advice(
            f"No chunk size gives gaps of {duration(target_s or 0.0)}: fewer streams at a time might.",
            f"Without any prefill the gaps are {duration(quiet_s)}.",
        )
        return
    size = _round(size)
    wanted = "Smaller gaps take" if target_s is None else f"Gaps of {duration(target_s)} take"
    if size > step:
        wanted = f"Gaps of {duration(target_s or gap_s)} leave room for"
        beyond = "In proportion to tokens beyond what was measured: true gaps may be longer."
    else:
        beyond = "In proportion to tokens between these two; true gaps may be shorter, which another probe tells."
    yield Advice(
        f"{wanted} chunks of about {size:,} tokens (vLLM: --max-num-batched-tokens {size}, or for long prompts alone "
        f"--long-prefill-token-threshold {size}): about {duration(quiet_s + size * a_token_s)} beside a prompt, and "
        f"{duration(tokens * (quiet_s / size + a_token_s))} for one of {tokens:,.0f} tokens.",
        f"With steps of about {step:,.0f} tokens the gaps beside a prompt are {duration(gap_s)}, without one "
        f"{duration(quiet_s)}. {beyond}",
    )


def _round(tokens: float) -> int:
    """Two significant digits; 512 and other powers of two as they are."""
    whole = max(1, round(tokens))
    if whole & (whole - 1) == 0:
        return whole
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return max(1, whole // unit * unit)
