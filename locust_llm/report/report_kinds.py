"""Report kinds: a run whose load is an experiment has a report of its own. A table from the kind to
what reads its records.

It is imported when a run of that kind is read, so the report of a load test imports none of them.
"""

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.slo.load_generator_health import ClientVerdict

if TYPE_CHECKING:
    from .chart_data.plot_data import Plot
    from .document_blocks import Block, TableBlock, TextBlock


class Examination(Protocol):
    """The result of an experiment: a structure that run.json holds, and its parts of a report."""

    @property
    def outcome(self) -> str: ...

    @property
    def title(self) -> str:
        """The report's name for the run."""

    @property
    def client_advice(self) -> str:
        """What to do about a load generator that distorted the measurements."""

    @property
    def chart_heading(self) -> str: ...

    def headline(self) -> str:
        """The main finding, without a period."""

    def reasons(self) -> Iterator["TextBlock"]:
        """The lines under the headline."""

    def blocks(self) -> Iterator["Block"]:
        """The tables of the measurements, with their headings."""

    def charts(self) -> Iterator["Plot"]: ...

    def main_table(self) -> "TableBlock | None":
        """The table for the console."""

    def advice_lines(self) -> Iterator[str]: ...

    def load(self, users: int | None) -> str:
        """What was sent, for the table of the conditions."""

    def badge(self) -> tuple[str, str]:
        """(a word for the head of the page, its CSS class)."""

    def tiles(self) -> Iterator[tuple[str, str, str]]:
        """(name, value, detail) of the main values."""


class Experiment(Protocol):
    """The results of all requests of an experiment."""

    @property
    def compared_ttft_s(self) -> float | None:
        """The least TTFT that the findings compare. An error of the load generator is compared with
        it."""

    def examine(self, run: Run, verdict: ClientVerdict | None) -> Examination: ...


ReadExperiment = Callable[[Iterable[Record]], Experiment | None]
"""None: the records are not of this kind."""

REPORT_KINDS: Final = {"probe": "locust_llm.lab.probe.probe_report_kind:read_probe"}
"""The function for each kind, by the session ids' first word, up to the slash."""


def read_experiment(records: Iterable[Record]) -> Experiment | None:
    """The experiment in the records of a run. None: it is a load test, of which only the first
    record is read. ``records`` can be read again."""
    first = next(iter(records), None)
    kind = "" if first is None else first.session.partition("/")[0]
    if kind not in REPORT_KINDS:
        return None
    read: ReadExperiment = pkgutil.resolve_name(REPORT_KINDS[kind])
    return read(records)
