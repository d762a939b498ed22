"""Between runs: runs of one workload on one server differ from one another, which the folders
beside a run or its repeats show. A difference of two single runs should exceed this spread."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from locust_llm.records.run_facts import RUN, read_run
from locust_llm.report.run_comparison import Comparison, ComparisonLine, RunPair
from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.slo.student_t import find_student_t
from locust_llm.text.format import format_count

from .history_entry import BY_NAME, HistoryEntry, UnreadableRun, read_entry

LEAST: Final = 4
"""Fewer runs give no spread."""
MOST: Final = 50
"""At most this many of the last runs beside the base are read."""
SHOWN: Final = ("ttft_p50", "ttft_p95", "itl_p50", "output_tokens_per_s")
"""The sentence names the spread of these metrics only. Differences of all metrics are checked."""


class RunSpread(NamedTuple):
    """Describes how much runs of the same workload differ from one another."""

    runs: int
    source: str
    """This names the kind of runs, such as ``repeats of the base``."""
    reach: dict[str, float]
    """95 % of two runs differ by at most this share, by the names of the key metrics."""
    not_counted: int = 0
    """So many other runs in the folder of the base are not like it, or have no metrics."""


def add_run_spread(comparison: Comparison) -> Comparison:
    """Adds the spread between runs to a comparison."""
    base = Path(comparison.base)
    spread = measure_run_spread(base, [Path(pair.folder) for pair in comparison.runs])
    pairs = (
        replace(pair, between_runs=describe_run_spread(spread, pair)) for pair in comparison.runs
    )
    return replace(comparison, runs=tuple(pairs))


def measure_run_spread(base: Path, others: Sequence[Path]) -> RunSpread:
    """Measures the spread of the runs beside the base with its workload and server. ``others`` are
    left out, as their server may have changed. If there are too few, the repeats of the base
    count."""
    try:
        like = read_entry(base, base.name)
    except (OSError, UnreadableRun):
        return RunSpread(0, "", {})
    beside = list(_read_runs_beside(base, others))
    entries = [
        entry
        for entry in (like, *beside)
        if _is_like(entry, like) and entry.figures and not entry.left_out
    ]
    if len(entries) >= LEAST:
        return RunSpread(len(entries), "runs of this workload on this server", _reach(entries))
    repeats = list(_read_repeats(base))
    if len(repeats) >= LEAST:
        return RunSpread(len(repeats), "repeats of the base", _reach(repeats))
    return RunSpread(len(entries), "", {}, len(beside) + 1 - max(len(entries), 1))


def describe_run_spread(spread: RunSpread, pair: RunPair) -> str:
    """Describes the spread in one or two sentences, or with nothing if the workloads differ."""
    if pair.other_work:
        return ""
    if not spread.reach:
        return _describe_unknown_spread(spread)
    differing = [line for line in pair.lines if line.word.split()[-1] in ("better", "worse")]
    within = [line.label for line in differing if _is_within(line, spread)]
    shown = ", ".join(
        f"{spread.reach[name]:.1%} in {BY_NAME[name].label}"
        for name in SHOWN
        if name in spread.reach
    )
    text = f"Two {spread.source} differ by up to {shown} (95%, from {spread.runs})."
    if within:
        text += (
            f" Within this variation: {', '.join(within)}. Run both again, or use locust-llm ab."
        )
    return text


def _describe_unknown_spread(spread: RunSpread) -> str:
    unknown = "The variation between runs of this server is unknown"
    advice = "Run both again, or use locust-llm ab."
    if spread.runs >= LEAST:
        return f"{unknown}: no metric differs between {spread.runs} {spread.source}. {advice}"
    more = format_count(LEAST - spread.runs, "more run")
    others = format_count(spread.not_counted, "run")
    not_counted = "compared runs"
    if spread.not_counted:
        not_counted += f", and {others} with another server or workload, or without metrics"
    return (
        f"{unknown}: it needs {more} of this workload in the folder of the base. "
        f"Not counted: {not_counted}. {advice}"
    )


def _is_within(line: ComparisonLine, spread: RunSpread) -> bool:
    """Returns whether the difference of the two runs is within the spread."""
    reach = spread.reach.get(f"{line.metric}_{line.stat}" if line.stat else line.metric)
    if reach is None or line.base is None or line.value is None or min(line.base, line.value) <= 0:
        return False
    return abs(math.log(line.value / line.base)) <= math.log1p(reach)


def _is_like(other_entry: HistoryEntry, like: HistoryEntry) -> bool:
    return (
        other_entry.workload == like.workload
        and other_entry.host == like.host
        and other_entry.server == like.server
    )


def _read_runs_beside(base: Path, others: Sequence[Path]) -> Iterator[HistoryEntry]:
    """Yields the last runs in the parent folder of the base. Nothing is written there."""
    leave_out = {folder.resolve() for folder in (base, *others)}
    try:
        files = [file for file in base.resolve().parent.glob(f"*/{RUN}") if file.is_file()]
        files.sort(key=lambda file: file.stat().st_mtime)
    except OSError:
        return
    folders = [file.parent for file in files if file.parent.resolve() not in leave_out]
    yield from _read_entries(folders[-MOST:])


def _read_repeats(base: Path) -> Iterator[HistoryEntry]:
    try:
        repeats = read_run(base).settings.repeats
    except (OSError, ValueError):
        return
    if repeats > 1:
        folders = [base / "stages" / str(number) for number in range(1, repeats + 1)]
        yield from (repeat for repeat in _read_entries(folders) if not repeat.left_out)


def _read_entries(folders: Sequence[Path]) -> Iterator[HistoryEntry]:
    for folder in folders:
        try:
            yield read_entry(folder, folder.name)
        except (OSError, UnreadableRun):
            continue


def _reach(entries: Sequence[HistoryEntry]) -> dict[str, float]:
    """Computes the spread by Student's t from the standard deviation of the logarithms. The
    difference of two further runs has twice their variance."""
    reaches = {}
    for name in BY_NAME:
        values = [entry.figures[name] for entry in entries if entry.figures.get(name, 0.0) > 0]
        if len(values) >= LEAST:
            spread = float(np.log(values).std(ddof=1))
            if not spread:  # one run in several folders
                continue
            reaches[name] = math.expm1(
                find_student_t(len(values) - 1, TAIL) * math.sqrt(2) * spread
            )
    return reaches
