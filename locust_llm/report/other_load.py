"""Other load: the requests that the server had beside the run's, by its own metrics."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from locust_llm.records.run_facts import Run, find_loaded_times
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.gate_occupancy import Occupancy
from locust_llm.report.load_records import RequestColumns

MIN_READINGS: Final = 3
MIN_OTHERS_OF_FEW: Final = 2.0
"""In fewer readings at least so many are named: a gauge may still have a request of the time before
the load."""
MIN_OTHERS: Final = 0.5
MIN_SHARE: Final = 0.1
"""The least mean share of others' requests in the server. A smaller one is not named."""
STALE_S: Final = 2.0
"""Some servers update their gauges only after this time."""
READING_S: Final = 0.5
"""A reading takes so long."""


class OtherLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The means over the readings of one server."""

    others: float
    """At least so many in it were not sent by this run: of its own requests the most that were in
    flight around a reading are taken off."""
    in_server: float
    """All requests in it, running or waiting."""
    of_one_reading: bool = False


def measure_other_load(
    history: EngineHistory, columns: RequestColumns, levels: Occupancy, run: Run
) -> OtherLoad | None:
    """None: there is no such load, or it is not known, as where requests went to several
    servers."""
    if len(history.engines) != 1 or len(run.settings.hosts) > 1 or run.arms:
        return None
    (name,) = history.engines
    end = run.stopping_at or run.ended_at or float("inf")
    readings = list[EngineSample]()
    for begin, until in find_loaded_times(run.stages, (run.profiling_at, end)):
        inside = history.inside(name, begin, until)
        readings += [sample for sample in inside if sample.running is not None]
    if not readings or not len(levels.at):
        return None
    sequences = _count_sequences(columns)
    references = 1 if run.settings.check_answers else 0
    in_server = [(sample.running or 0.0) + (sample.waiting or 0.0) for sample in readings]
    others = [
        max(0.0, count - sequences * (_count_own(levels, sample) + lost) - references)
        for count, sample, lost in zip(
            in_server, readings, _count_lost(columns, readings, run), strict=True
        )
    ]
    found = OtherLoad(
        others=float(np.mean(others)),
        in_server=float(np.mean(in_server)),
        of_one_reading=len(readings) == 1,
    )
    least = MIN_OTHERS if len(readings) >= MIN_READINGS else MIN_OTHERS_OF_FEW
    few = found.others < least or found.others < MIN_SHARE * found.in_server
    return None if few else found


def _count_lost(
    columns: RequestColumns, readings: Sequence[EngineSample], run: Run
) -> Iterator[int]:
    """The requests of lost workers that may have been in the server, for each reading. A request
    came at most the longest latency before its worker was lost, and the server may work on it for
    as long as it does not notice. What was lost at an unknown time may always have been there."""
    requests = columns.requests
    latency_s = requests.floats("closed_at") - requests.floats("sent_at")
    longest_s = float(latency_s[~np.isnan(latency_s)].max(initial=0.0))
    measured = sum(loss.requests for loss in run.worker_losses if not loss.in_warmup)
    untimed = max(0, run.records_lost - measured)
    for sample in readings:
        until = sample.at + READING_S + longest_s
        yield untimed + sum(loss.requests for loss in run.worker_losses if loss.at <= until)


def _count_sequences(columns: RequestColumns) -> int:
    """The most that a request of the run can be in the server: one for each choice, or input."""
    each = (columns.requests.latest(name) for name in ("choices", "inputs"))
    return max([1, *(int(most) for most in each if not math.isnan(most))])


def _count_own(levels: Occupancy, sample: EngineSample) -> int:
    """The most requests of the run that were in the server at a time of the reading."""
    begin = max(int(np.searchsorted(levels.at, sample.at - STALE_S, side="right")) - 1, 0)
    end = int(np.searchsorted(levels.at, sample.at + READING_S, side="right"))
    sent = levels.used[begin:end] + levels.decoding[begin:end]
    return int(sent.max(initial=0))
