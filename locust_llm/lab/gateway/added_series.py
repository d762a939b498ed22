"""Added series: measures all loads of a run, one after the other. Each load is measured for all
gateways at once, and a gateway takes part until a load is its last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from locust_llm.text.format import format_count

from .added_levels import LevelRun, LevelRunner
from .gateway_result import AddedLevel, AddedTime
from .gateway_text import name_load

SHARE_OF_STREAMS: Final = 0.75
"""Levels of streams get this share of the time, levels of requests/s the rest."""
LEAST_EACH_S: Final = 2.0
"""A level takes so long for each gateway, and for the way without one, at least."""


@dataclass(slots=True)
class GatewaySeries:
    """What was measured of one gateway."""

    without_load: tuple[AddedTime, ...] = ()
    levels: list[AddedLevel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost_chunks: int = 0


def measure_series(
    runner: LevelRunner,
    names: Sequence[str],
    levels: Sequence[int],
    rates: Sequence[float],
    seconds: float,
    tell: Callable[[str], object],
) -> dict[str, GatewaySeries]:
    """The series of each gateway, in about so many seconds. ``tell`` reports what begins."""
    tell("time added to new connections and to embeddings")
    without_load = runner.measure_without_load(names)
    found = {name: GatewaySeries(without_load[name]) for name in names}
    least_s = LEAST_EACH_S * (1 + len(names))
    share = SHARE_OF_STREAMS if rates else 1.0
    each_s = max(least_s, seconds * share / max(1, len(levels)))
    taking = list(names)
    streams_levels = [AddedLevel(streams=streams) for streams in levels]
    for place, level in enumerate(streams_levels):
        if taking:
            tell(f"time added at {name_load(level)}: {', '.join(taking)}")
            runs = runner.measure_streams(level.streams, each_s, taking)
            taking = _add_runs(found, runs, streams_levels[place + 1 :])
    each_s = max(least_s, seconds * (1 - share) / max(1, len(rates)))
    taking = list(names)
    rate_levels = [AddedLevel(requests_per_s=rate) for rate in rates]
    for place, level in enumerate(rate_levels):
        if taking:
            tell(f"time added at {name_load(level)}: {', '.join(taking)}")
            runs = runner.measure_rate(level.requests_per_s, each_s, taking)
            taking = _add_runs(found, runs, rate_levels[place + 1 :])
    return found


def _add_runs(
    found: dict[str, GatewaySeries], runs: dict[str, LevelRun], higher: Sequence[AddedLevel]
) -> list[str]:
    """Returns the gateways for which a higher load is worth its time."""
    for name, run in runs.items():
        series = found[name]
        series.levels.append(run.level)
        series.notes += _tell_run(run, higher)
        series.lost_chunks += run.lost
    return [name for name, run in runs.items() if not run.stop]


def _tell_run(run: LevelRun, higher: Sequence[AddedLevel]) -> list[str]:
    load = name_load(run.level)
    notes = list[str]()
    if run.stop and (higher or not run.beyond):  # the table has what is beyond the limit
        untried = f"; not tried: {', '.join(map(name_load, higher))}" if higher else ""
        notes.append(f"at {load} {run.stop}{untried}")
    if run.lost:
        lost = "1 chunk was" if run.lost == 1 else f"{run.lost} chunks were"
        notes.append(f"at {load} {lost} lost of answers that ended well")
    if run.direct_failed:
        notes.append(
            f"at {load} {format_count(run.direct_failed, 'request')} failed without the gateway: the machine was "
            f"too busy"
        )
    return notes
