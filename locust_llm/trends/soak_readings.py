"""Soak readings: what was read of the server in each interval of a run, one line of soak.jsonl each."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from locust_llm.files.regular_file import open_regular

READINGS: Final = "soak.jsonl"
MAX_LINE_BYTES: Final = 1 << 14
METRICS_SOURCE: Final = "the server's metrics page"
INTERVAL_S: Final = (1.0, 60.0)
MOST_POINTS: Final = 240
"""A series of more readings is reduced to so many points."""


class SoakReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One interval with load. Counts are from the start of the load on."""

    at: float
    """The end of the interval, in Unix seconds."""
    hours: float
    """The time under load until then. Interruptions do not count."""
    part: int = 1
    requests: int = 0
    tokens: int = 0
    """Output tokens."""
    ended: int = 0
    failed: int = 0
    """The requests that ended in this interval, and those that failed."""
    ttft_s: float | None = None
    itl_s: float | None = None
    """Medians over the requests that ended in the interval."""
    memory_bytes: float | None = None
    open_files: float | None = None
    """The lowest values in the interval."""
    kv_free: float | None = None
    """The largest free share of the KV cache in the interval."""
    kv_blocks: float | None = None
    """The number of all its blocks."""
    waiting: float | None = None
    """The mean number of requests in the server's queue."""
    server_started: float | None = None
    """When the server's process started, in any unit. A change means a restart."""
    memory_source: str = ""
    """What memory is read from, without secrets; empty: none is found."""
    memory_limit_bytes: float | None = None
    failed_looks: int = 0
    """So often the process or the command gave no value."""
    failure: str = ""
    """The first reason."""

    @property
    def error_rate(self) -> float | None:
        return self.failed / self.ended if self.ended else None


class SoakQuantityRule(NamedTuple):
    """A quantity that is judged."""

    name: str
    label: str
    unit: str
    """``bytes``, ``s``, ``share`` or a noun."""
    read: Callable[[SoakReading], float | None]
    least_per_hour: float
    """A smaller growth does not matter."""
    relative: bool = False
    """``least_per_hour`` is a share of the value."""
    minima: bool = False
    """Caches fill and are emptied, so the lower edge of the values counts."""
    falls: bool = False
    """A fall is what is feared, not a rise."""
    per_work: bool = False
    """The growth per request and per token is of interest."""
    of_process: bool = False
    """It begins anew with the server's process."""


QUANTITIES: Final = (
    SoakQuantityRule(
        "memory", "memory", "bytes", lambda one: one.memory_bytes, 0.002, relative=True,
        minima=True, per_work=True, of_process=True,
    ),
    SoakQuantityRule(
        "open_files", "open files", "files", lambda one: one.open_files, 1.0, minima=True,
        per_work=True, of_process=True,
    ),
    SoakQuantityRule(
        "kv_free", "free KV cache", "share", lambda one: one.kv_free, 0.002, minima=True,
        falls=True, per_work=True, of_process=True,
    ),
    SoakQuantityRule("ttft", "TTFT p50", "s", lambda one: one.ttft_s, 0.01, relative=True),
    SoakQuantityRule("itl", "ITL p50", "s", lambda one: one.itl_s, 0.01, relative=True),
    SoakQuantityRule("queue", "queue", "requests", lambda one: one.waiting, 0.1),
    SoakQuantityRule("error_rate", "error rate", "share", lambda one: one.error_rate, 0.001),
)  # fmt: skip


def choose_reading_interval_s(length_s: float) -> float:
    """The time between two readings of a soak of this length."""
    least, most = INTERVAL_S
    return min(max(length_s / MOST_POINTS, least), most)


def join_parts(parts: Iterable[Sequence[SoakReading]]) -> list[SoakReading]:
    """The readings of several runs, one after the other, as of one soak."""
    joined = list[SoakReading]()
    for number, readings in enumerate(parts, 1):
        last = joined[-1] if joined else SoakReading(at=0.0, hours=0.0)
        joined += [
            replace(
                one,
                part=number,
                hours=one.hours + last.hours,
                requests=one.requests + last.requests,
                tokens=one.tokens + last.tokens,
            )
            for one in readings
        ]
    return joined


def list_rules(readings: Sequence[SoakReading]) -> tuple[SoakQuantityRule, ...]:
    """The rules for these readings. The KV cache is in blocks where their number is known."""
    known = [one.kv_blocks for one in readings if one.kv_blocks]
    if not known:
        return QUANTITIES
    return tuple(
        _count_blocks(rule, known[-1]) if rule.name == "kv_free" else rule for rule in QUANTITIES
    )


def _count_blocks(rule: SoakQuantityRule, blocks: float) -> SoakQuantityRule:
    return rule._replace(
        label="free KV blocks",
        unit="blocks",
        read=lambda one: None if one.kv_free is None else one.kv_free * blocks,
        least_per_hour=rule.least_per_hour * blocks,
    )


class SoakPoint(NamedTuple):
    """A quantity at a place of the soak."""

    hours: float
    requests: float
    tokens: float
    value: float


def read_readings(folder: Path) -> list[SoakReading]:
    """The readings of a run's folder. A line that was cut off is left out. Empty: there are none.
    Raises OSError."""
    readings = list[SoakReading]()
    decode = msgspec.json.Decoder(SoakReading).decode
    if not (folder / READINGS).exists():
        return readings
    with open_regular(folder / READINGS) as file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                readings.append(decode(line))
            except (ValueError, RecursionError):
                continue
    return readings


def list_points(readings: Sequence[SoakReading], quantity: SoakQuantityRule) -> list[SoakPoint]:
    """The points of a quantity, at most MOST_POINTS. Each is the lowest (highest) of neighbours
    where the edge counts, else their mean."""
    if quantity.of_process:
        readings = select_last_process(readings)
    known = [(one, value) for one in readings if (value := quantity.read(one)) is not None]
    size = -(-len(known) // MOST_POINTS)
    points = []
    for begin in range(0, len(known), max(size, 1)):
        group = known[begin : begin + size]
        values = [value for _, value in group]
        middle = group[len(group) // 2][0]
        points.append(
            SoakPoint(middle.hours, middle.requests, middle.tokens, _reduce(values, quantity))
        )
    return points


def _reduce(values: Sequence[float], quantity: SoakQuantityRule) -> float:
    if not quantity.minima:
        return sum(values) / len(values)
    return max(values) if quantity.falls else min(values)


def select_last_process(readings: Sequence[SoakReading]) -> Sequence[SoakReading]:
    """The readings since the last start of the server's process."""
    begin = 0
    for place, (before, after) in enumerate(pairwise(readings), 1):
        if is_restart(before, after):
            begin = place
    return readings[begin:]


def is_restart(before: SoakReading, after: SoakReading) -> bool:
    known = None not in (before.server_started, after.server_started)
    return known and before.server_started != after.server_started
