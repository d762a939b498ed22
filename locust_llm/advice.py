"""Advice: what follows from a probe for whoever runs the server, each with the measurement that it rests on.

Times are medians over the rounds. What is said of a chunk size takes a step as a line: it takes what a gap without
prefill takes, and so much more for each token of a prompt in it. What is said of a prefill limit rests on prompts that
came at one moment: whether they are computed one after the other, as behind a limit they would be.
"""

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

import msgspec

from .diagnosis import CANNOT_TELL, CHUNKED, DISAGGREGATED, PARTIAL, PREFILL_FIRST, STATIC, Diagnosis
from .symptoms import Crowd, Stall, Symptoms

AFTER: Final = 0.8
"""Prompts that took this share of one after the other, and more, are called that."""
TWICE: Final = 1.5
"""The stall of two prompts, in stalls of one, from which on they stall together."""
HIDDEN: Final = 0.5
"""A prompt that took at most this share of its first time when it came again was not computed again."""
EARLY_S: Final = 0.002
ANSWER: Final = 200
"""Output tokens of the example of a concurrency."""
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
    return (*by_name[diagnosis.name](found, diagnosis, itl_target_s), *_caching(found), *_early(found))


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
                f"Two prompts of {_tokens(pairs):,.0f} tokens at one moment stopped the decoders for {_ms(two_s)} at a "
                f"stretch, one for {_ms(one_s)}; {cost}.",
            )
        elif two_s < TWICE * one_s:
            yield Advice(
                "A prefill limit makes no stall shorter: the stalls of prompts that come together do not add up.",
                f"The longest gap beside two prompts of {_tokens(pairs):,.0f} tokens at one moment was {_ms(two_s)}, beside "
                f"one {_ms(one_s)}.",
            )
    token_s, quiet_s = found.token_s, found.quiet_s
    if token_s is not None and token_s > 0 and quiet_s is not None:
        size = EXAMPLE if target_s is None else _chunk(target_s - quiet_s, token_s)
        if size >= 1:
            chunk = _round(size)
            yield Advice(
                f"Chunked prefill with steps of about {chunk:,} tokens (vLLM: --enable-chunked-prefill and "
                f"--max-num-batched-tokens {chunk}): gaps of about {_ms(quiet_s + chunk * token_s)}, not of {_ms(stall_s)}.",
                f"A prompt of {tokens:,.0f} tokens stops all decoders for {_ms(stall_s)}; a token more of it costs "
                f"{token_s * 1e6:.3g} \N{MICRO SIGN}s, and a gap without prefill is {_ms(quiet_s)}. In proportion to "
                f"tokens, as for steps that are full{_far(size, found)}.",
            )
        else:
            yield _unreachable(target_s or 0.0, quiet_s)
    yield from _users(found)


def _chunked(found: Symptoms, diagnosis: Diagnosis, target_s: float | None) -> Iterator[Advice]:
    """Chunked, and partial prefills."""
    slots = diagnosis.slots or 1
    yield from _limit_of_slots(found, slots)
    longest = found.of("stall", found.longest)
    gap_s, quiet_s = median(s.usual_s for s in longest), median(s.quiet_s for s in longest)
    if diagnosis.budget is not None and gap_s > quiet_s:
        budget, tokens = diagnosis.budget[1], _tokens(longest)
        a_token_s = (gap_s - quiet_s) / budget
        size = budget / 2 if target_s is None else _chunk(target_s - quiet_s, a_token_s)
        wanted = "Half the chunk size" if target_s is None else f"For gaps of {_ms(target_s)} a chunk size"
        if size < 1:
            yield _unreachable(target_s or 0.0, quiet_s)
        else:
            size = _round(size)
            took_s = tokens * (quiet_s / size + a_token_s)
            yield Advice(
                f"{wanted} of about {size:,} tokens (vLLM: --max-num-batched-tokens {size}, or for long prompts alone "
                f"--long-prefill-token-threshold {size}): gaps of about {_ms(quiet_s + size * a_token_s)} beside a prompt, "
                f"one of {tokens:,.0f} tokens in about {_ms(took_s)}.",
                f"With steps of about {budget:,.0f} tokens the gaps beside a prompt are {_ms(gap_s)}, without one "
                f"{_ms(quiet_s)}, and that prompt took {_ms(median(s.ttft_s for s in longest))}. Gaps in proportion to the "
                f"tokens of a step, each step {_ms(quiet_s)} besides{_far(size, found)}.",
            )
    yield from _shorts(found)
    if slots == 1:
        yield from _users(found)


def _limit_of_slots(found: Symptoms, slots: int) -> Iterator[Advice]:
    single, pairs = _single(found), found.of("pair")
    gaps = ""
    if single and pairs:
        one_s, two_s = median(s.usual_s for s in single), median(s.usual_s for s in pairs)
        gaps = f" Gaps beside two prompts are {_ms(two_s)}, beside one {_ms(one_s)}: a limit changes them little."
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
        f"A prompt of {_tokens(stalls):,.0f} tokens waited {_ms(waited_s)} until the decoders had ended, then took "
        f"{_ms(median(s.after_s for s in stalls))}; their gaps were not disturbed.",
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
            f"Expect gaps of {_ms(stall_s)} beside prompts of {_tokens(stalls):,.0f} tokens, whatever the scheduler is.",
            f"That was the longest gap of a decoder ({_ms(min(s.longest_s for s in stalls))} to "
            f"{_ms(max(s.longest_s for s in stalls))}); {_ms(found.quiet_s)} without prefill. Alone such a prompt takes "
            f"{_ms(alone_s)}.",
        )


def _shorts(found: Symptoms) -> Iterator[Advice]:
    if not found.behind:
        return
    waited, took_s = median(one.waited for one in found.behind), median(one.ttft_s for one in found.behind)
    if waited >= AFTER and found.short_s is not None:
        yield Advice(
            "Give short requests a way of their own (another server, or partial prefills where the server has them).",
            f"A short request behind a prompt of {found.longest:,} tokens waited {waited:.0%} of its time: TTFT "
            f"{_ms(took_s)}, {_ms(found.short_s)} alone.",
        )


def _users(found: Symptoms) -> Iterator[Advice]:
    """The asymptotic bound of a closed loop: a user's round without waiting, over its time in the bottleneck (Denning and
    Buzen, The operational analysis of queueing network models, 1978)."""
    alone_s, quiet_s = found.alone_s(found.longest), found.quiet_s
    if not alone_s or not quiet_s or not _in_turn(found):
        return
    users = 1 + ANSWER * quiet_s / alone_s
    yield Advice(
        f"Above about {users:.0f} users with prompts of {found.longest:,} and answers of {ANSWER} tokens, prompts queue "
        "for each other's prefill: more concurrency adds TTFT, not throughput.",
        f"Such a prompt takes {_ms(alone_s)}, and prompts are computed one after the other; {ANSWER} gaps of "
        f"{_ms(quiet_s)} are {_ms(ANSWER * quiet_s)}. A first guess: gaps grow with the streams, which moves it up.",
    )


def _caching(found: Symptoms) -> Iterator[Advice]:
    pairs = [pair for pair in found.cached if pair.again_s <= HIDDEN * pair.first_s]
    if pairs and 2 * len(pairs) > len(found.cached):
        first_s, again_s = median(p.first_s for p in pairs), median(p.again_s for p in pairs)
        yield Advice(
            "Measure with prompts that do not repeat, or know that they do: the server has a prefix cache.",
            f"A prompt of {pairs[0].input_tokens:,} tokens took {_ms(first_s)}, and {_ms(again_s)} when it came again.",
        )


def _early(found: Symptoms) -> Iterator[Advice]:
    if found.early_s is not None and found.early_s >= EARLY_S:
        yield Advice(
            "Do not compare TTFT with a tool that takes the first event for the first token.",
            f"An event without content came up to {_ms(found.early_s)} before the first token: it would be too low by that.",
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
        f"{_ms(crowd.ttft_s[-1])}, {crowd.ttft_s[-1] / alone_s:.1f} times as long as one alone"
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


def _chunk(room_s: float, a_token_s: float) -> float:
    return room_s / a_token_s


def _far(size: float, found: Symptoms) -> str:
    return "" if size <= found.longest else f"; longer prompts than {found.longest:,} tokens were not tried"


def _unreachable(target_s: float, quiet_s: float) -> Advice:
    return Advice(
        f"No chunk size gives gaps of {_ms(target_s)}: fewer streams at a time might.",
        f"Without any prefill the gaps are {_ms(quiet_s)}.",
    )


def _round(tokens: float) -> int:
    """Two significant digits; 512 and other powers of two as they are."""
    whole = max(1, round(tokens))
    if whole & (whole - 1) == 0:
        return whole
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return max(1, whole // unit * unit)


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
