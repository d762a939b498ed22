"""Findings: what follows from a sweep for whoever runs the server or a gateway before it; one sentence or two each."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from .knee import SLO, at, plain
from .settings import Settings
from .stages import CONCURRENCY
from .summary import Knee, Level

EARLY: Final = 8.0
"""The slope is early up to so many times the lowest stage."""
FIRST: Final = 2.0
"""From a lowest stage above it no early slope can be told: whatever the prompts, a server that is full is slower."""
STEEP: Final = 0.25
FLAT: Final = 0.1
"""Of the slope of log request latency (p50) over log concurrency. In the simulator (Llama-3.1-8B on an H100, from 1 to 8) it
is 0.78 for prompts of 16,000 tokens with 60 out, 0.52 for 8,000 / 100, 0.29 for 3,000 / 100, 0.17 for 1,500 / 100, 0.05 for
550 / 128, 0.02 for 200 / 64. TTFT says less: a prompt that computes alone is as fast as ever, those who decode pay."""
FALLEN: Final = 0.9
"""Below this share of the best one goodput has fallen, while throughput has not."""


def findings(axis: str, levels: Sequence[Level], knees: Sequence[Knee], settings: Settings) -> Iterator[str]:
    """``levels``: in rising order of their values; only those whose load generator was up to it say anything."""
    sound = [level for level in levels if level.sound]
    if axis == CONCURRENCY:
        yield from slope(sound)
    yield from _wasted(axis, sound)
    highest = next((knee.value for knee in knees if knee.rule == SLO), None)
    for level in sound:
        if level.value == highest:
            yield from _gateway(axis, level)
            yield from _cost(axis, level, settings)


def slope(sound: Sequence[Level]) -> Iterator[str]:
    """How fast the median latency grows with the first users: what one request computes holds up the others, the more the
    longer the prompts are; short ones leave headroom. Nothing where that was not measured."""
    early = [
        (level, p50)
        for level in sound
        if level.value <= EARLY * sound[0].value and (p50 := _p50(level, "request_latency")) is not None and p50 > 0
    ]
    if len(early) < 3 or early[0][0].value > FIRST:
        return
    (first, low), (last, high) = early[0], early[-1]
    users, latency = np.log([[level.value, p50] for level, p50 in early]).T
    steepness = float(np.polyfit(users, latency, 1)[0])
    others = (
        f"{name} x{after / before:.2g}"
        for name, tag in (("TTFT", "time_to_first_token"), ("ITL", "inter_token_latency"))
        if (before := _p50(first, tag)) and (after := _p50(last, tag)) is not None
    )
    grown = ", ".join((f"request latency x{high / low:.2g}", *others))
    if steepness >= STEEP:
        what = (
            f"steep (from {STEEP:g}): the prompts are long for this server, or it computes few at a time; each request "
            "holds up the others, so limits belong close to the knee"
        )
    elif steepness < FLAT:
        what = f"flat (below {FLAT:g}): the prompts are short for this server, and there is headroom"
    else:
        what = f"moderate (between {FLAT:g} and {STEEP:g})"
    yield (
        f"Early slope: from {at(CONCURRENCY, first)} to {plain(last.value)} the medians grow, {grown}. The slope of log "
        f"request latency over log concurrency is {steepness:.2f}, {what}."
    )


def _wasted(axis: str, sound: Sequence[Level]) -> Iterator[str]:
    """Where more load still gets as many tokens, and fewer good requests."""
    known = [(level, good) for level in sound if (good := level.goodput_per_s) is not None]
    if not known:
        return
    (best, most), (last, least) = max(known, key=lambda pair: pair[1]), known[-1]
    before, after = _throughput(best), _throughput(last)
    if last.value > best.value and least < FALLEN * most and before and after and after >= FALLEN * before:
        yield (
            f"Beyond {at(axis, best)} goodput falls, from {most:.4g} to {least:.4g} good requests/s at {plain(last.value)}, "
            f"while throughput is {after / before:.0%} of what it was there."
        )


def _gateway(axis: str, level: Level) -> Iterator[str]:
    """What the server did where it was last within the SLO: what a gateway may let through."""
    if level.requests_per_s is None:
        return
    tokens = [
        f"{per_s * 60:.0f} {what} tokens"
        for what, per_s in (("input", level.input_tokens_per_s), ("output", level.output_tokens_per_s))
        if per_s is not None
    ]
    parallel = f", {level.in_flight:.3g} requests in parallel on average" if level.in_flight is not None else ""
    amounts = ", ".join([f"{level.requests_per_s * 60:.4g} requests", *tokens])
    yield f"Limits for a gateway, at the SLO ({at(axis, level)}): {amounts} a minute{parallel}."


def _cost(axis: str, level: Level, settings: Settings) -> Iterator[str]:
    per_s, gpus = level.output_tokens_per_s, settings.gpus
    if not gpus or not per_s:
        return
    cost = ""
    if settings.gpu_hour is not None:
        million = gpus * settings.gpu_hour / 3600 / per_s * 1e6
        cost = f", and a million output tokens cost {million:.4g} (at {settings.gpu_hour:g} for an hour of one)"
    count = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    yield f"At the SLO ({at(axis, level)}), on {count}: {per_s / gpus:.4g} output tokens/s a GPU{cost}."


def _throughput(level: Level) -> float | None:
    """Output tokens a second, else requests a second."""
    return level.requests_per_s if level.output_tokens_per_s is None else level.output_tokens_per_s


def _p50(level: Level, tag: str) -> float | None:
    row = level.latencies.get(tag)
    return None if row is None else row.percentiles.get(50.0)
