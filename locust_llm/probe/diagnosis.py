"""Diagnosis: which scheduler a server has, by a stated rule, with what was measured; or that it cannot be told, and why.

The rule, for each round of the probe by itself (most must say it, and none something else):

1. The prompt's prefill began only when every decoder had ended, and then took what it takes alone: ``static``.
2. The decoders kept their pace (at least 0.92 of it), whatever the length of the prompt, and the prompt took what it takes
   alone: ``disaggregated``.
3. However long the prompt, one gap of the decoders was nearly all of the time until its first token: it is computed in one
   step, ``prefill-first``. That a budget is wider than the longest prompt looks the same; the answer says so.
4. It was computed in several steps, in each of which the decoders got a token: ``chunked``, with a budget of so many
   tokens. Where equal prompts that came together also had their first tokens together, k at a time, it is ``partial
   prefills`` with k slots.

What lies between the bounds of two of these is no name but "cannot tell". So is every doubt about the measurement: a client
verdict below OK, failures, traffic of somebody else, prompts that hardly take longer than short ones. And so is what looks
alike from outside: several servers behind one address, one request at a time, long prompts one by one that let all short
ones pass.
"""

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

import msgspec

from .symptoms import Stall, Symptoms

STATIC: Final = "static"
PREFILL_FIRST: Final = "prefill-first"
CHUNKED: Final = "chunked"
PARTIAL: Final = "partial prefills"
DISAGGREGATED: Final = "disaggregated"
CANNOT_TELL: Final = "cannot tell"

UNDISTURBED: Final = 0.92
"""Pace of decoders beside a prompt that another machine computes; what a GPU computes beside it costs more."""
DISTURBED: Final = 0.85
"""Pace from which down they were disturbed beyond doubt."""
AS_ALONE: Final = 1.4
"""A prompt that nothing holds up takes at most so many times as long as alone."""
STOPPED: Final = 0.9
"""Share of the time in prefill that is one gap, where a prompt is computed in one step; a gap or two before it do not
count."""
SLOWED: Final = 0.75
"""At most that share, where it is computed in several."""
MISCOUNTED: Final = 0.05
"""Share of the steps that may be counted too many or too few: two tokens in one chunk, a pause for other reasons."""
UNPLAIN: Final = 0.08
"""Too many, where they are not plain."""
STRAYS: Final = 2
"""Gaps more than steps, where they cannot be told apart: the one in which the prompt came, the one in which it ended."""
WIDER: Final = 1.25
"""Prompts of a crowd must be so much longer than a step is wide, or several fit into one and look side by side."""
AT_ONCE: Final = 0.2
"""Of the time until the second of two equal prompts had its first token: the first one had its own so late. Of two that are
computed one by one the first one has it after half of that time, or somewhat later, as it shares its last step."""
PASSED: Final = 0.5
"""A short request that waits for less than this share of the time did not wait for the long one."""
FAILED: Final = 0.05
LOST: Final = 0.05
"""Share of quiet time in stalls from which on the server is not ours alone."""
SPREAD: Final = 1.4
"""Of the median: a prompt that took longer, nobody else of ours being there, was held up by somebody else."""
HELD_UP: Final = 0.2
"""Share of such prompts from which on nothing can be told,"""
FAR: Final = 2.0
"""and times the median from which on one is enough."""
TOKENS_A_CHUNK: Final = 1.2
SHARED: Final = 0.25
"""Share of chunks that came together with the one before, from which on their times say nothing of steps."""
UNEVEN: Final = 3.0
"""Decoders of one server are disturbed alike; where the gaps of one are so many times those of another, there are
several."""
ALIKE: Final = 1.35
"""As many times, and the undisturbed ones are of another server than the prompt, rather than of one with machines of its own
for prompts."""
LEAST: Final = 10.0
"""The longest prompt must take so many gaps, and half as many times a short one, to be seen at all."""


class Diagnosis(msgspec.Struct, frozen=True):
    name: str
    budget: tuple[float, float, float] | None = None
    """Tokens of a step: (low, about, high)."""
    slots: int | None = None
    """Prompts computed side by side; where all that came were, at least so many."""
    reasons: tuple[str, ...] = ()
    """What was measured, a sentence each."""
    missing: tuple[str, ...] = ()
    """Why it cannot be told."""


def diagnose(found: Symptoms, client: str | None = None) -> Diagnosis:
    """``client``: the client verdict, if there is one."""
    if missing := tuple(_missing(found, client)):
        return Diagnosis(CANNOT_TELL, missing=missing)
    rounds = sorted({stall.round for stall in found.of("stall")})
    said = [_named(found, turn) for turn in rounds]
    doubts = [why for name, why in said if name == CANNOT_TELL]
    names = [name for name, _ in said if name != CANNOT_TELL]
    if len(set(names)) > 1:
        return Diagnosis(CANNOT_TELL, missing=(f"the rounds do not agree: {', '.join(name for name, _ in said)}",))
    if 2 * len(names) <= len(said):
        return Diagnosis(CANNOT_TELL, missing=tuple(dict.fromkeys(doubts)))
    name, why = next(one for one in said if one[0] != CANNOT_TELL)
    if doubts:
        why += f" (a round of the {len(said)} could not tell: {doubts[0]})"
    if name == DISAGGREGATED and (several := _at_a_time(found)) > found.decoders - 0.4:
        doubt = (
            f"about {several:.0f} prompts were computed side by side, and {found.decoders} decoders were not disturbed: "
            "with so many servers behind one address the prompts may have met none of them (more --decoders would tell)"
        )
        return Diagnosis(CANNOT_TELL, missing=(doubt,))
    if name != CHUNKED:
        return Diagnosis(name, reasons=(why, *_further(found, name)))
    return _several(found, why)


def _at_a_time(e: Symptoms) -> float:
    """Prompts of a crowd that were computed at a time: by their groups, and by how much sooner all were done than one by
    one."""
    sooner = [
        len(crowd.ttft_s) * (e.alone_s(crowd.input_tokens) or 0.0) / crowd.ttft_s[-1]
        for crowd in e.crowds
        if crowd.ttft_s[-1] > 0
    ]
    return max([*sooner, *(crowd.side_by_side for crowd in e.crowds)], default=0.0)


def _missing(e: Symptoms, client: str | None) -> Iterator[str]:
    if client not in (None, "OK"):
        yield f"the client verdict is {client}: these stamps cannot be trusted"
    if e.cut is not None and _few(e):
        yield f"{_ended(e.cut)}: let it come to its end"
        return
    if e.failed > FAILED * e.shots:
        yield f"{e.failed} of {e.shots} requests failed"
    if not e.stalls or not e.costs or e.quiet_s is None:
        yield "no prompt could be put beside decoders: the server answers too little, or its context is too short"
        return
    longest, short_s = e.alone_s(e.longest) or 0.0, e.short_s or 0.0
    if longest < LEAST * max(e.quiet_s, short_s / 2):
        yield (
            f"a prompt of {e.longest:,} tokens takes {longest * 1e3:.0f} ms, hardly longer than a short one "
            f"({short_s * 1e3:.0f} ms) or a gap ({e.quiet_s * 1e3:.1f} ms): longer ones would tell (--longest)"
        )
    again = [cost for cost in e.costs if len(cost.ttft_s) > 2]
    held_up = sum(s > SPREAD * cost.typical_s for cost in again for s in cost.ttft_s)
    most = max((max(cost.ttft_s) / cost.typical_s for cost in again), default=0.0)
    if held_up > HELD_UP * sum(len(cost.ttft_s) for cost in again) or most > FAR:
        worst = max(again, key=lambda cost: max(cost.ttft_s) / cost.typical_s)
        yield (
            f"the same prompt does not take the same time when it is alone: {worst.asked_tokens:,} tokens took "
            f"{min(worst.ttft_s) * 1e3:,.0f} to {max(worst.ttft_s) * 1e3:,.0f} ms; something else was going on"
        )
    if e.lost is not None and e.lost > LOST:
        yield f"{e.lost:.0%} of the decoders' quiet time went into stalls: the server is not ours alone, or not steady"
    if e.tokens_a_chunk is not None and e.tokens_a_chunk > TOKENS_A_CHUNK:
        yield f"a chunk carries {e.tokens_a_chunk:.1f} tokens: steps cannot be counted (--stream-interval 1, if it is vLLM)"
    if e.shared is not None and e.shared > SHARED:
        yield f"{e.shared:.0%} of the chunks came together with the one before: something on the way holds them back"
    uneven = [stall for stall in e.of("stall") if stall.uneven > UNEVEN]
    if len(uneven) * 3 > len(e.of("stall")):
        yield (
            f"the decoders were not disturbed alike beside {len(uneven)} of {len(e.of('stall'))} prompts: several servers "
            "behind one address? Probe one of them"
        )
    if _few(e):
        yield "too few prompts beside decoders came to their first token: not each round has its three lengths"


def _few(e: Symptoms) -> bool:
    """It takes three lengths in each of two rounds."""
    sizes = {stall.asked_tokens for stall in e.of("stall")}
    rounds = {stall.round for stall in e.of("stall")}
    return len(sizes) < 3 or len(rounds) < 2 or any(len(e.of("stall", turn=turn)) < 3 for turn in rounds)


def _ended(cut: tuple[int, int]) -> str:
    number, rounds = cut
    where = f"in round {number} of {rounds}" if number else "before its first round"
    return f"the probe was ended before its time, {where}"


def _named(e: Symptoms, turn: int) -> tuple[str, str]:
    """(the name that this round gives, why)."""
    stalls = sorted(e.of("stall", turn=turn), key=lambda stall: stall.asked_tokens)
    small, large = stalls[0], stalls[-1]
    tokens, took = f"{large.input_tokens:,} tokens", f"{large.ttft_s * 1e3:,.0f} ms"
    alone = [e.alone_s(stall.asked_tokens) or math.inf for stall in stalls]
    if any(stall.ended for stall in stalls):
        return _after_the_decoders(stalls, alone)
    kept = min(large.pace, median(stall.pace for stall in stalls))
    if kept >= UNDISTURBED:
        if (uneven := median(stall.uneven for stall in stalls)) > ALIKE:
            return CANNOT_TELL, (
                f"most decoders were not disturbed, but the gaps of one were {uneven:.1f} times those of another: "
                "several servers behind one address? Probe one of them"
            )
        if all(stall.ttft_s <= AS_ALONE * s for stall, s in zip(stalls, alone, strict=True)):
            return DISAGGREGATED, (
                f"beside a prompt of {tokens} the decoders kept {large.pace:.0%} of their pace, and the prompt took {took}, "
                f"{alone[-1] * 1e3:,.0f} ms alone"
            )
        return CANNOT_TELL, f"the decoders were not disturbed, yet a prompt of {tokens} took {took}: who was before it?"
    stopped = all(stall.longest_s >= STOPPED * (stall.ttft_s - 2 * stall.quiet_s) for stall in stalls)
    if stopped and large.steps - small.steps < 1:
        return PREFILL_FIRST, (
            f"a prompt of {tokens} stopped the decoders for {large.longest_s * 1e3:,.0f} of the {took} until its first "
            f"token, one of {small.input_tokens:,} for {small.longest_s * 1e3:,.0f} of {small.ttft_s * 1e3:,.0f}: one step"
        )
    if large.share <= SLOWED and large.steps >= 2:
        if large.pace > DISTURBED:
            return CANNOT_TELL, f"the decoders kept {kept:.0%} of their pace: too little to tell from undisturbed"
        return CHUNKED, (
            f"a prompt of {tokens} took {large.steps:.0f} steps and {took}, one of {small.input_tokens:,} took "
            f"{small.steps:.0f}; the decoders got a token in each, none later than {large.longest_s * 1e3:,.0f} ms"
        )
    return CANNOT_TELL, (
        f"a prompt of {tokens} was computed in about {large.steps:.0f} steps, the longest being {large.share:.0%} of its "
        f"{took}: neither one step nor several of like length; longer prompts would tell (--longest)"
    )


def _after_the_decoders(stalls: list[Stall], alone: list[float]) -> tuple[str, str]:
    """A prompt that had its first token only after a decoder had ended."""
    large = stalls[-1]
    if large.decoders == 1:
        return CANNOT_TELL, "only one request runs at a time: of a batch of one nothing can be told"
    if all(stall.ended == stall.decoders for stall in stalls) and all(
        s / AS_ALONE <= stall.after_s <= AS_ALONE * s + stall.quiet_s for stall, s in zip(stalls, alone, strict=True)
    ):
        return STATIC, (
            f"a prompt of {large.input_tokens:,} tokens had its first token {large.after_s * 1e3:,.0f} ms after the last of "
            f"{large.decoders} decoders had ended ({alone[-1] * 1e3:,.0f} ms alone): it was not begun before"
        )
    some = max(stall.ended for stall in stalls)
    return CANNOT_TELL, (
        f"{some} of {large.decoders} decoders had ended before a prompt had its first token, and it did not wait for all of "
        "them as in a batch: it may have waited for a place; fewer decoders, or longer outputs, would tell"
    )


def _several(e: Symptoms, why: str) -> Diagnosis:
    """A prompt is computed in several steps: of how many tokens, and how many prompts at a time?"""
    budget = _budget(e)
    slots, doubt = _slots(e, budget[1])
    if doubt:
        return Diagnosis(CANNOT_TELL, budget, reasons=(why,), missing=(doubt,))
    crowd = e.crowds[-1]
    name, how = CHUNKED, "their first tokens one after the other"
    if slots > 1:
        name, least = PARTIAL, "at least " if slots == len(crowd.ttft_s) else ""
        how = f"{least}{slots} of their first tokens together"
    came = f"{len(crowd.ttft_s)} prompts of {crowd.input_tokens:,} tokens that came together had {how}"
    if not all(crowd.side_by_side for crowd in e.crowds):
        came += f" (in first groups of {_groups(e)})"
    return Diagnosis(name, budget, slots, (why, came, *_further(e, name)))


def _slots(e: Symptoms, step_tokens: float) -> tuple[int, str]:
    """(how many prompts are computed at a time; why it cannot be told)."""
    if not e.crowds:
        return 0, "prompts that come together did not all reach their first token"
    if any(crowd.input_tokens < WIDER * step_tokens for crowd in e.crowds):
        return 0, "a step is too wide for the prompts that were tried together: longer ones would tell (--longest)"
    pairs = [pair for pair in e.of("pair") if pair.input_tokens > WIDER * step_tokens]
    paired = {pair.apart_s < AT_ONCE * pair.ttft_s for pair in pairs}
    clear = [crowd.side_by_side for crowd in e.crowds if crowd.side_by_side]
    if len(set(clear)) != 1 or 2 * len(clear) <= len(e.crowds) or len(paired) > 1:
        return (
            0,
            f"equal prompts at one moment came to their first token in first groups of {_groups(e)}: no number of slots",
        )
    slots = clear[0]
    if slots == 1 and e.behind and all(one.waited < PASSED for one in e.behind):
        return 0, (
            "long prompts are computed one after the other, but no short request waited for one: partial prefills with "
            "one place for long prompts, priorities, or an order of their own"
        )
    if slots == 1 and True in paired:
        return 0, "two long prompts came to their first token together, a crowd of equal ones did not"
    return slots, ""


def _groups(e: Symptoms) -> str:
    """``?``: neither one by one nor in groups."""
    return ", ".join(str(crowd.side_by_side or "?") for crowd in e.crowds)


def _budget(e: Symptoms) -> tuple[float, float, float]:
    """Tokens of a step: (low, about, high), from the two longest lengths: what they both allow, each in any round, or in any
    in which steps are plain, if there are some. The guess is in the middle of the last step. Beside the prompt a step has
    the decoders' own tokens, where the budget counts those."""
    low, high, about = 0.0, math.inf, 0.0
    for asked in sorted({stall.asked_tokens for stall in e.of("stall")})[-2:]:
        stalls = e.of("stall", asked)
        stalls = [stall for stall in stalls if stall.plain] or stalls
        ends = [_allowed(stall) for stall in stalls]
        least, most = min(least for least, _ in ends), max(most for _, most in ends)
        if max(low, least) > min(high, most):  # they do not agree: the longest one decides, having the most steps
            low, high = 0.0, math.inf
        low, high = max(low, least), min(high, most)
        strays = 0.0 if stalls[0].plain else STRAYS / 2
        about = median(stall.input_tokens / max(stall.steps - 0.5 - strays, 0.5) for stall in stalls)
    low /= e.tokens_a_chunk or 1  # two steps may have had one chunk
    return low, min(max(about, low), high) + e.decoders, high + e.decoders


def _allowed(stall: Stall) -> tuple[float, float]:
    """Tokens of a step at least, and at most: n tokens in s steps are more than s - 1 steps hold and no more than s do.
    Where steps are not plain, some gaps may have been none, and at the beginning all that decoders got may have been
    steps."""
    if stall.plain:
        miscounted = MISCOUNTED * stall.steps
        few, many = stall.steps - 1 - round(miscounted), stall.steps + max(miscounted, stall.rest)
    else:
        few = stall.surely * (1 - UNPLAIN) - 1 - STRAYS
        many = max(stall.steps, stall.meanwhile) * (1 + MISCOUNTED)
    return stall.input_tokens / max(many, 1), stall.input_tokens / few if few > 0 else math.inf


def _further(e: Symptoms, name: str) -> Iterator[str]:
    """What else was seen, and does not decide."""
    if e.cut is not None:
        yield _ended(e.cut)
    if e.behind and name != STATIC:
        waited = median(one.waited for one in e.behind)
        passed = sum(one.waited < PASSED for one in e.behind)
        if passed == len(e.behind):
            yield f"a short request behind a long prompt did not wait for it ({waited:.0%} of its time)"
        elif passed == 0:
            yield f"a short request behind a long prompt waited for it ({waited:.0%} of its time)"
        else:
            yield f"{passed} of {len(e.behind)} short requests behind a long prompt did not wait for it"
    if name == PREFILL_FIRST:
        yield f"a budget of more than {e.longest:,} tokens a step would look the same"
        if pairs := e.of("pair"):
            got = median(pair.meanwhile for pair in pairs)
            yield f"beside two prompts at one moment the decoders got {got:.0f} token{'' if round(got) == 1 else 's'}"
