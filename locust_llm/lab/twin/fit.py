"""Fit: from what was seen of a server to its twin: the model, what is uncertain or unknown in it,
how far to trust it."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from locust_llm.lab.probe.diagnosis import Diagnosis

from .load_metrics import throughput
from .loads import Lengths
from .model import SchedulerSettings
from .model_fit import ModelFit, Progress, fit_model
from .observations import IdleEpisode, ObservedRequest, ObservedStage
from .predict import of_cost
from .trust import check_predictions, held_out, trust
from .twin import Origin, Ranges, Twin, drawn

NUM_LENGTHS: Final = 400
MAX_FAILED_SHARE: Final = 0.05
"""Of the requests of a sweep."""
MIN_GROWTH: Final = 1.1
"""Of the throughput, at the last load of a sweep against the one before; less is saturation."""


def fit_twin(
    said: Diagnosis, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage],
    origin: Origin = Origin(),  # noqa: B008
    *, on_progress: Progress = lambda done, most: None,
) -> Twin:  # fmt: skip
    """``said``: the probe's diagnosis; ``episodes``: of the probe; ``stages``: of a sweep on the
    same server. Raises ValueError of one sentence where there is no twin to be had."""
    if not stages:
        raise ValueError(
            "a twin needs a sweep beside the probe: some loads, from one user to as many as the "
            "server may have"
        )
    used, out = held_out(stages)
    measured = ranges(episodes, stages)
    found = fit_model(said, episodes, used, origin, on_progress=on_progress)
    checks = check_predictions([drawn(found.model, draw) for draw in found.draws], out)
    return Twin(
        model=found.model,
        trust=trust(checks, list(_doubts(stages))),
        ranges=measured,
        origin=msgspec.structs.replace(origin, requests=len(_requests(episodes, stages))),
        intervals=cost_intervals(found),
        unknown=dict(_unknown(found.model.settings, measured)),
        lengths=tuple(sample_lengths(stages)),
        draws=found.draws,
        checks=tuple(checks),
    )


def _doubts(stages: Sequence[ObservedStage]) -> Iterator[str]:
    sent = sum(len(one.requests) + one.failed for one in stages)
    failed = sum(one.failed for one in stages)
    if failed > MAX_FAILED_SHARE * sent:
        yield (
            f"{failed:,} of {sent:,} requests of the sweep failed: what the server does without "
            f"failures was not seen"
        )


def _requests(
    episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage]
) -> list[ObservedRequest]:
    return [
        *(one for some in episodes for one in some.requests),
        *(one for some in stages for one in some.requests),
    ]


def ranges(episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage]) -> Ranges:
    requests = _requests(episodes, stages)
    of_sweep = [one for stage in stages for one in stage.requests]
    users = [one.users for one in stages if one.users]
    rates = [one.rate for one in stages if one.rate]
    return Ranges(
        users=(min(users), max(users)) if users else (0, 0),
        rate=(min(rates), max(rates)) if rates else (0.0, 0.0),
        prompt_tokens=(
            min(one.prompt_tokens for one in requests),
            max(one.prompt_tokens for one in requests),
        ),
        output_tokens=(
            min(one.output_tokens for one in of_sweep),
            max(one.output_tokens for one in of_sweep),
        ),
        saturated=_saturated(stages),
    )


def _saturated(stages: Sequence[ObservedStage]) -> bool:
    ordered = sorted(stages, key=lambda one: (one.rate, one.users))[-2:]
    speeds = [throughput(stage) for stage in ordered]
    if len(speeds) < 2 or not speeds[0] or not speeds[1]:
        return False
    return speeds[1] < MIN_GROWTH * speeds[0]


def cost_intervals(found: ModelFit) -> dict[str, tuple[float, float]]:
    """95% of each cost, from the draws."""
    table = {
        name: [getattr(draw, name) for draw in found.draws] for name in found.draws[0].__struct_fields__
    } if found.draws else {}  # fmt: skip
    return {name: of_cost(values) for name, values in table.items()}


def _unknown(settings: SchedulerSettings, measured: Ranges) -> Iterator[tuple[str, str]]:
    most = (
        f"up to {measured.users[1]} users"
        if measured.users[1]
        else f"up to {measured.rate[1]:g} requests/s"
    )
    if settings.max_num_seqs is None:
        yield "max_num_seqs", f"no limit was seen {most}: none is assumed"
    if settings.kv_tokens is None:
        yield "kv_tokens", f"no limit was seen {most}: none is assumed"
    if settings.policy in ("static", "prefill-first", "mixed"):
        yield (
            "max_num_batched_tokens",
            "wider than every prompt of the probe: a wider one would look the same",
        )
    if not measured.saturated:
        yield "capacity", f"the throughput still grew {most}: beyond that nothing was measured"


def sample_lengths(stages: Sequence[ObservedStage]) -> Lengths:
    """Of the sweep, at most NUM_LENGTHS, evenly."""
    every = [(one.prompt_tokens, one.output_tokens) for stage in stages for one in stage.requests]
    return every[:: max(1, -(-len(every) // NUM_LENGTHS))]
