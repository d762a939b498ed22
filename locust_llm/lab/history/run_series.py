"""Run series: the runs of one workload in time show what changed in their metrics, and what else
changed with it."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from locust_llm.lab.history.history_entry import KEY_FIGURES, KeyFigure
from locust_llm.text.format import format_count, format_signed
from locust_llm.trends.change_points import (
    LEAST,
    SCORES,
    LevelChange,
    find_level_changes,
    measure_resemblance,
)

from .history_entry import HistoryEntry

ENOUGH: Final = min(SCORES)
"""Fewer runs cannot show a change."""
BESIDE: Final = (
    ("commit", "commit"), ("branch", "branch"), ("server", "server"), ("host", "host"),
    ("machine", "load generator"),
)  # fmt: skip


class RunSeries(NamedTuple):
    """Holds the runs of one workload, the oldest first."""

    workload: str
    conditions: str
    entries: tuple[HistoryEntry, ...]

    @property
    def has_several_hosts(self) -> bool:
        """Returns whether the runs have several addresses, so that each must be named."""
        return len({entry.host for entry in self.entries if entry.host}) > 1

    def of(self, figure: KeyFigure) -> tuple[HistoryEntry, ...]:
        """Returns the runs that count and have the metric."""
        return tuple(
            entry for entry in self.entries if not entry.left_out and figure.name in entry.figures
        )


class FigureChange(NamedTuple):
    """Describes a change of a metric between two runs."""

    figure: KeyFigure
    change: LevelChange
    last: HistoryEntry
    """This run is the last one before the change."""
    first: HistoryEntry
    """This run is the first one after the change."""

    @property
    def better(self) -> bool:
        return (self.change.shift > 0) == self.figure.rises

    @property
    def size(self) -> str:
        """Formats the relative size of the change, such as ``+12.3%``."""
        relative = self.change.relative
        return (
            format_signed(100 * relative, 1, "%")
            if relative is not None
            else self.figure.format_value(self.change.shift, 3)
        )

    @property
    def other_changes(self) -> str:
        """Names what else changed, such as ``with it: commit a1b2 to c3d4``."""
        beside = "; ".join(self.list_other_changes())
        return f"with it: {beside}" if beside else "no other recorded condition changed with it"

    @property
    def description(self) -> str:
        """Describes the change, such as ``(worse) from NAME on: 412 ms to 463 ms, shift +40.1 ms to
        +58.2 ms (95%); with it: ...``."""
        change = self.change
        format_figure = self.figure.format_value
        ends = " to ".join(
            f"{'+' if end > 0 else ''}{format_figure(end, 3)}" for end in (change.low, change.high)
        )
        levels = f"{format_figure(change.before, 3)} to {format_figure(change.after, 3)}"
        word = "better" if self.better else "worse"
        return f"({word}) from {self.first.folder} on: {levels}, shift {ends} (95%); {self.other_changes}"

    def __str__(self) -> str:
        return f"{self.figure.label} {self.size} {self.description}"

    def list_other_changes(self) -> Iterator[str]:
        """Yields the other differences between the last run before and the first run after the
        change."""
        for name, title in BESIDE:
            old = getattr(self.last, name)
            new = getattr(self.first, name)
            if old != new:
                yield f"{title} {shorten_run_name(old, name)} to {shorten_run_name(new, name)}"
        for key in sorted(self.last.labels.keys() | self.first.labels.keys()):
            old = self.last.labels.get(key, "")
            new = self.first.labels.get(key, "")
            if old != new:
                yield f"{key} {old or 'none'} to {new or 'none'}"


def shorten_run_name(value: str, name: str) -> str:
    return (value[:10] if name == "commit" else value) or "unknown"


def group_series(entries: Sequence[HistoryEntry]) -> list[RunSeries]:
    """Groups runs by workload; the one with the latest run comes last."""
    by_workload = dict[str, list[HistoryEntry]]()
    for entry in entries:
        by_workload.setdefault(entry.workload, []).append(entry)
    groups = sorted(by_workload.items(), key=lambda item: item[1][-1].started)
    return [RunSeries(workload, ran[-1].conditions, tuple(ran)) for workload, ran in groups]


def find_figure_changes(
    series: RunSeries, figure: KeyFigure, least: float = LEAST
) -> list[FigureChange]:
    """Finds the changes of a figure, first to last."""
    ran = series.of(figure)
    changes = find_level_changes([entry.figures[figure.name] for entry in ran], least)
    return [FigureChange(figure, change, ran[change.at - 1], ran[change.at]) for change in changes]


def all_turns(series: RunSeries, least: float = LEAST) -> list[FigureChange]:
    """Lists the changes of every key figure, in the order of time."""
    changes = chain.from_iterable(
        find_figure_changes(series, figure, least) for figure in KEY_FIGURES
    )
    return sorted(changes, key=lambda turn: turn.first.started)


def explain_doubts(
    series: RunSeries, figure: KeyFigure, changes: Sequence[FigureChange]
) -> Iterator[str]:
    """Yields the limits of the search that a reader must know."""
    ran = series.of(figure)
    if len(ran) < ENOUGH:
        yield (
            f"{format_count(len(ran), 'run')} of {figure.label}: finding a change requires at least "
            f"{ENOUGH}"
        )
        return
    if near := measure_resemblance(
        [entry.figures[figure.name] for entry in ran], [turn.change.at for turn in changes]
    ):
        yield (
            f"{figure.label}: neighbouring runs resemble each other (correlation {near:.2f}): only "
            f"larger changes are marked, and more marks are random"
        )
