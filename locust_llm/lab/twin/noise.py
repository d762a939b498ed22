"""Noise: how unlike equal steps of a server are at the client, from the gaps of decoders."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import numpy as np

from .model import Noise, ServerModel
from .observations import IdleEpisode, ObservedRequest
from .replay import replay_episodes

USUAL: Final = (0.4, 1.6)
"""Gap / median of a single step; above it two tokens came in one chunk, or the server paused."""
PAUSE: Final = 3.5
"""The same, above which it is a pause."""
MIN_PAUSES: Final = 3
"""With fewer nothing can be said of them."""
LONG: Final = 0.5
"""Of the longest gap beside a prompt: a step of the prompt."""
MIN_LONG: Final = 8
"""Steps of prompts, to tell how unlike these are,"""
MORE_ALIKE: Final = 1.5
"""and by what factor they must be more alike than those of decoders."""


def noise(episodes: Sequence[IdleEpisode], model: ServerModel | None = None) -> Noise:
    """``model``: what a step of a prompt is held against; None: all steps are taken for as unlike
    as those of decoders.

    A gap is a step, and by how much its chunk is later than the one before: ``g_k = s_k + e_k -
    e_(k-1)``. So twice the covariance of neighbours is taken from the variance to have that of the
    steps, and what was taken is the chunks'."""
    every = list(_quiet(episodes))
    streams = [gaps for stream in every for gaps in stream]
    if not any(len(gaps) > 2 for gaps in streams):
        return Noise()
    usual = median(gap for gaps in streams for gap in gaps)
    off = [[gap / usual - 1 for gap in gaps] for gaps in streams]
    single = [one for gaps in off for one in gaps if _is_single(one)]
    pairs = [
        one * other
        for gaps in off
        for one, other in pairwise(gaps)
        if _is_single(one) and _is_single(other)
    ]
    variance = float(np.var(single))
    middle = fmean(single)
    chunks = min(max(0.0, middle**2 - fmean(pairs)), variance / 2) if pairs else 0.0
    alone = [stream[0] for stream in every]  # a pause is everybody's
    pauses = [gap - usual for gaps in alone for gap in gaps if gap > PAUSE * usual]
    enough = len(pauses) >= MIN_PAUSES
    quiet = [
        one for episode in episodes if episode.kind in ("quiet", "warm") for one in episode.requests
    ]
    short = math.sqrt(math.log1p(variance - 2 * chunks))
    long = _long(episodes, model) if model else None
    sigma = long if long is not None and long * MORE_ALIKE < short else short
    return Noise(
        step_sigma=sigma,
        step_s=math.sqrt(short**2 - sigma**2) * usual,
        chunk_s=math.sqrt(chunks) * usual,
        merged=1
        - sum(len(one.token_at) for one in quiet) / max(1, sum(one.output_tokens for one in quiet)),
        pause_s=median(pauses) if enough else 0.0,
        pause_every_s=sum(map(sum, alone)) / len(pauses) if enough else 0.0,
    )


def _long(episodes: Sequence[IdleEpisode], model: ServerModel) -> float | None:
    """Standard deviation of the logarithm of a prompt's step: measured / replayed, step by step, by
    their median absolute deviation, as some meet a pause. None: there are too few."""
    replay = replay_episodes(model, episodes)
    at = 0
    off = list[float]()
    for episode in episodes:
        prompts = range(at + len(episode.requests) - episode.beside, at + len(episode.requests))
        if episode.beside and at < prompts[0]:
            said = _long_gaps(
                replay.token_at[at], replay.sent_at[prompts[0]], replay.first_at[prompts[-1]]
            )
            first = max(one.token_at[0] for one in episode.requests[-episode.beside :])
            decoder = episode.requests[0]
            measured = _long_gaps(
                decoder.token_at, episode.requests[-episode.beside].sent_at, first
            )
            if len(said) == len(measured):
                off += [math.log(one / other) for one, other in zip(measured, said, strict=True)]
        at += len(episode.requests)
    if len(off) < MIN_LONG:
        return None
    middle = median(off)
    return 1.4826 * median(abs(one - middle) for one in off)


def _long_gaps(token_at: Sequence[float], begin: float, end: float) -> list[float]:
    """The gaps of a decoder that end in this time and are as long as a prompt's step."""
    gaps = [
        later - sooner
        for sooner, later in pairwise(token_at)
        if begin < later <= end + (later - sooner) / 2
    ]
    return [gap for gap in gaps if gap > LONG * max(gaps)]


def _is_single(off: float) -> bool:
    return USUAL[0] < 1 + off < USUAL[1]


def _quiet(episodes: Sequence[IdleEpisode]) -> Iterator[list[list[float]]]:
    """The gaps of the decoders of each episode, while all decode and no prompt is computed."""
    for episode in episodes:
        decoders = episode.requests[: len(episode.requests) - episode.beside]
        if episode.kind in ("quiet", "stall", "pair") and decoders:
            begin = max(one.token_at[0] for one in decoders)
            end = min(one.token_at[-1] for one in decoders)
            if episode.beside:
                end = min(end, episode.requests[-episode.beside].sent_at)
            yield [_gaps(one, begin, end) for one in decoders]


def _gaps(one: ObservedRequest, begin: float, end: float) -> list[float]:
    at = [moment for moment in one.token_at if begin < moment <= end]
    return [later - sooner for sooner, later in pairwise(at)]
