"""Server metrics history: the history of the server's own values during a run, what they add up to,
and what they mean for the run."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from locust_llm.files.regular_file import open_regular
from locust_llm.text.format import format_count

from .server_metrics_parser import DCGM, EngineSample

SERVER_METRICS: Final = "server_metrics.jsonl"
"""The file has a line for each reading of the server's metrics."""
MAX_SAMPLE_BYTES: Final = 2**14
"""A line of the server's metrics has at most so many bytes."""


class EngineHistory:
    """The samples of a run by name, in bounded memory. Above ``most`` samples every second one
    goes, and as many later ones stay away."""

    def __init__(self, most: int = 100_000) -> None:
        self.by_name: dict[str, list[EngineSample]] = defaultdict(list)
        self.names: set[str] = set()
        """The names with samples beside failures."""
        self.engines: dict[str, str] = {}
        """The names of servers (not of GPUs alone) with their sources."""
        self.failures: Counter[str] = Counter()
        """All failed readings by name."""
        self.first_failures: dict[str, EngineSample] = {}
        self.unread = 0
        """The lines of its file that hold no sample."""
        self._most, self._held, self._step = most, 0, 1
        self._seen: Counter[str] = Counter()

    def add(self, sample: EngineSample) -> None:
        name = sample.name
        if sample.failure:
            self.failures[name] += 1
            self.first_failures.setdefault(name, sample)
        else:
            self.names.add(name)
        if sample.engine not in ("", DCGM):
            self.engines.setdefault(name, sample.source)
        self._seen[name] += 1
        if self._seen[name] % self._step:
            return
        self.by_name[name].append(sample)
        self._held += 1
        if self._held > self._most:
            self._step *= 2
            for samples in self.by_name.values():
                del samples[::2]
            self._held = sum(map(len, self.by_name.values()))

    def between(self, name: str, began_at: float, ended_at: float) -> list[EngineSample]:
        """The successful samples of a stretch (Unix seconds), and the one before it, from which its
        counters grow."""
        before = [
            sample for sample in self.by_name[name] if not sample.failure and sample.at < began_at
        ]
        return [*before[-1:], *self.inside(name, began_at, ended_at)]

    def inside(self, name: str, began_at: float, ended_at: float) -> list[EngineSample]:
        """The successful samples of a stretch (Unix seconds). Their counters grow by this stretch
        alone."""
        return [
            sample
            for sample in self.by_name[name]
            if not sample.failure and began_at <= sample.at <= ended_at
        ]

    def list_failures(self, name: str, began_at: float, ended_at: float) -> list[EngineSample]:
        """The failed readings of a stretch (Unix seconds)."""
        return [
            sample
            for sample in self.by_name[name]
            if sample.failure and began_at <= sample.at <= ended_at
        ]


class EngineSummary(msgspec.Struct, frozen=True):
    """The server's values over a stretch of time."""

    engine: str
    samples: int
    running: tuple[float, float] | None
    waiting: tuple[float, float] | None
    kv_used: tuple[float, float] | None
    """(mean, maximum) of these three fields."""
    preemptions: int | None


def summarise_engine_samples(
    samples: Sequence[EngineSample], loaded: Sequence[tuple[float, float]]
) -> EngineSummary | None:
    """``loaded`` has the stretches (Unix seconds) in which requests were sent. None: there is no
    sample under load.

    Levels come from these stretches alone. Counters come from the time between the first sample and
    the last.
    """

    def is_under_load(sample: EngineSample) -> bool:
        return any(begin <= sample.at <= end for begin, end in loaded)

    under_load = list(filter(is_under_load, samples))
    if not under_load:
        return None
    preempted = counter_increase(samples, "preemptions")
    return EngineSummary(
        engine=samples[-1].engine,
        samples=len(under_load),
        running=_level(under_load, "running"),
        waiting=_level(under_load, "waiting"),
        kv_used=_level(under_load, "kv_used"),
        preemptions=None if preempted is None else round(preempted),
    )


def _level(samples: Sequence[EngineSample], field: str) -> tuple[float, float] | None:
    values = [value for sample in samples if (value := getattr(sample, field)) is not None]
    return (sum(values) / len(values), max(values)) if values else None


def counter_increase(samples: Sequence[EngineSample], field: str) -> float | None:
    """The increase of a counter; one that falls restarted with the server."""
    values = [value for sample in samples if (value := getattr(sample, field)) is not None]
    if len(values) < 2:
        return None
    return float(
        sum(after - before if after >= before else after for before, after in pairwise(values))
    )


def histogram_mean(samples: Sequence[EngineSample], what: str) -> tuple[float, int] | None:
    """(mean in seconds, number of values) of a histogram's increase (``queue``, ``prefill``, ...).

    The sum alone may fall a little without a restart, by a duration that two clocks made negative.
    """
    total_s = count = 0.0
    names = f"{what}_s", f"{what}_count"
    both = map(attrgetter(*names), samples)
    known = [pair for pair in both if None not in pair]
    for before, after in pairwise(known):
        restarted = after[1] < before[1]
        total_s += after[0] if restarted else after[0] - before[0]
        count += after[1] if restarted else after[1] - before[1]
    return (max(0.0, total_s) / count, round(count)) if count else None


# -- diagnosis -------------------------------------------------------------------------------------

FULL_SHARE: Final = 0.95
_MEMORY: Final = re.compile(
    r"out of memory|\bOOM\b|OutOfMemory|failed to allocate|no available memory for the cache", re.I
)


SERVER: Final = "server"
BASE: Final = "base"
"""The arm whose metrics are read: the base of two servers that are compared."""


def describe_server_history(
    history: EngineHistory,
    loaded: Sequence[tuple[float, float]],
    prefill_limit: int | None,
    *,
    whose: str = SERVER,
    simulated: bool = False,
    of_stage: bool = False,
) -> Iterator[str]:
    """What the metrics show of the stretches (Unix seconds) in which requests were sent. For
    several replicas it leaves out the values, which the charts show.

    ``of_stage``: failed readings outside of these stretches belong to other stages. ``simulated``: the engine is the simulator, whatever the names of its metrics. ``whose``: the
    server whose page it is.
    """
    began_at, ended_at = loaded[0][0], loaded[-1][1]
    for name, source in history.engines.items():
        summary = summarise_engine_samples(history.between(name, began_at, ended_at), loaded)
        if summary is not None and simulated:
            summary = replace(summary, engine="simulator")
        remarks = diagnose_server(summary, prefill_limit, whose=SERVER if source else whose)
        for number, sentence in enumerate(remarks):
            if len(history.engines) == 1:
                yield sentence
            elif number:
                yield f"{sentence} ({name})"
    for name, first in history.first_failures.items():
        source = first.source or f"the {whose}"
        count = history.failures[name]
        if of_stage:
            failed = history.list_failures(name, began_at, ended_at)
            count = len(failed)
            first = next(iter(failed), first)
        if count:
            yield (
                f"WARNING: {format_count(count, 'reading')} of the metrics of "
                f"{source} failed, the first with {first.failure}."
            )


def diagnose_server(
    summary: EngineSummary | None, prefill_limit: int | None = None, *, whose: str = SERVER
) -> Iterator[str]:
    """The server's own metrics and what follows from them, each in one or two sentences."""
    if summary is None:
        return
    yield from _levels(summary, whose)
    full = f"up to {summary.kv_used[1]:.0%} full" if summary.kv_used is not None else "full"
    if summary.preemptions:
        limit = (
            f" The prefill limit of {prefill_limit} does not limit decoding requests: lower it and "
            "the number of users (-u)."
            if prefill_limit
            else " Try fewer users (-u), --prefill-concurrency, shorter outputs or a larger KV "
            "cache."
        )
        yield (
            f"WARNING: the {whose} preempted {format_count(summary.preemptions, 'request')}: its "
            f"KV cache was {full}. Preempted requests are computed again, which causes "
            f"stalls.{limit}"
        )
    elif summary.kv_used is not None and summary.kv_used[1] >= FULL_SHARE:
        yield (
            f"The {whose}'s KV cache was {full}. With slightly more load it would preempt requests "
            "or let them wait."
        )


def advise_on_memory(message: str, prefill_limit: int | None) -> str:
    """The advice for a failure that reports the server out of memory. Empty: another failure."""
    if not _MEMORY.search(message):
        return ""
    limit = f" despite the prefill limit of {prefill_limit}" if prefill_limit else ""
    return (
        f"WARNING: the server ran out of memory{limit}, in prefill or in decode: lower "
        f"--prefill-concurrency and the number "
        "of users (-u)."
    )


def _levels(summary: EngineSummary, whose: str) -> Iterator[str]:
    """The gauges at the readings. Unlike the records, they do not count requests on the way or in
    the front end."""
    parts = []
    for name, level, form, most in (
        ("running", summary.running, "{:.1f}", "{:.0f}"),
        ("waiting", summary.waiting, "{:.1f}", "{:.0f}"),
        ("KV cache", summary.kv_used, "{:.0%}", "{:.0%}"),
    ):  # fmt: skip
        if level is not None:
            parts.append(f"{name} {form.format(level[0])} (at most {most.format(level[1])})")
    if summary.preemptions is not None:
        parts.append(f"preemptions {summary.preemptions}")
    if not parts:
        return
    of = (
        f"{summary.engine}, means of {format_count(summary.samples, 'reading')} while the load was "
        f"on"
    )
    remarks = (
        ["Running and waiting count only the requests in its scheduler."]
        if summary.running is not None
        else []
    )
    yield " ".join([f"The {whose}'s own metrics ({of}): {', '.join(parts)}.", *remarks])


def read_history(folder: Path) -> EngineHistory:
    """The server's metrics over the run, for a stage over its run. Empty where there are none.
    Raises OSError."""
    history = EngineHistory()
    path = next(
        (
            path
            for path in (folder / SERVER_METRICS, folder.parent.parent / SERVER_METRICS)
            if path.exists()
        ),
        None,
    )
    if path is None or (path.parent != folder and folder.parent.name != "stages"):
        return history
    decode = msgspec.json.Decoder(EngineSample).decode
    with open_regular(path) as file:
        while line := file.readline(MAX_SAMPLE_BYTES):
            try:
                history.add(decode(line))
            except (ValueError, RecursionError):
                history.unread += line.endswith(b"\n")  # the last one may be half written
    return history
