"""Capacity: how many sequences run at once, and how many tokens the KV cache holds, where the sweep
went beyond it."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from .cost_fit import Array
from .model import SchedulerSettings, ServerModel
from .observations import ObservedRequest, ObservedStage
from .replay import replay_stage

BEYOND: Final = 1.2
"""Users / sequences that ran at once, in a stage that shows a limit."""
MORE_SEQS: Final = (0, 1, 2, 4)
MORE_TOKENS: Final = (0.95, 1.0, 1.05, 1.1, 1.2)
"""Tried, beside what was seen to run: those in prefill are not seen."""
BETTER: Final = 0.5
"""A limit is taken where it leaves at most this share of the distance that there is without."""
KV_GAIN: Final = 0.8
"""A KV cache must leave less than this share of what a limit on sequences leaves: that is a flag of
every server, and noise makes either look better."""
LEAST: Final = 0.05
"""And where that distance is more than this, and more than at the loads that no limit touches: mean
of the logarithms of said / measured TTFT. Users who wait for the prompts before theirs look as if
they waited for a place, and a limit then mends what a model is off by anyway."""


def limited(model: ServerModel, stages: Sequence[ObservedStage]) -> SchedulerSettings:
    """The settings, with the limit that explains the waits of the stages best; as they are, where
    none is needed, or the server has told its own."""
    if model.settings.max_num_seqs:
        return model.settings
    users = [stage for stage in stages if stage.users]
    loaded = [stage for stage in users if _running(stage)[0] * BEYOND < stage.users]
    if not loaded:
        return model.settings
    without = _ttft_distance(model, loaded)
    if without < max(
        LEAST, _ttft_distance(model, [stage for stage in users if stage not in loaded])
    ):
        return model.settings
    tried = [
        (_ttft_distance(model.with_settings(settings), loaded), settings)
        for settings in _tried(model.settings, loaded)
    ]
    least, settings = min(tried, key=lambda one: one[0] / (KV_GAIN if one[1].kv_tokens else 1.0))
    return settings if least < BETTER * without else model.settings


def _tried(
    settings: SchedulerSettings, loaded: Sequence[ObservedStage]
) -> Iterator[SchedulerSettings]:
    seqs = max(_running(stage)[0] for stage in loaded)
    tokens = max(_running(stage)[1] for stage in loaded)
    for more in MORE_SEQS:
        yield msgspec.structs.replace(settings, max_num_seqs=seqs + more)
    for share in MORE_TOKENS:
        yield msgspec.structs.replace(settings, kv_tokens=int(share * tokens))


def _running(stage: ObservedStage) -> tuple[int, float]:
    """How many decoded, and with how many tokens in all of their contexts: above it for a tenth of
    the time only."""
    moments = np.linspace(stage.requests[0].sent_at, stage.requests[-1].sent_at, 400)
    counts = np.zeros(len(moments))
    tokens = np.zeros(len(moments))
    for one in stage.requests:
        here = (moments >= one.token_at[0]) & (moments < one.token_at[-1])
        counts += here
        tokens += here * (one.prompt_tokens + _output(one, moments))
    return int(np.percentile(counts, 90)), float(np.percentile(tokens, 90))


def _output(one: ObservedRequest, moments: Array) -> Array:
    at = np.array(one.token_at)
    return np.asarray(
        np.searchsorted(at, moments, side="right") * one.tokens_a_chunk, dtype=np.float64
    )


def _ttft_distance(model: ServerModel, loaded: Sequence[ObservedStage]) -> float:
    off = []
    for stage in loaded:
        said = replay_stage(model, stage).ttft_s
        measured = np.array([one.ttft_s for one in stage.requests])
        quantiles = (25, 50, 75, 95)
        off.append(np.log(np.percentile(said, quantiles) / np.percentile(measured, quantiles)))
    return float(np.abs(np.concatenate(off)).mean()) if off else 0.0
