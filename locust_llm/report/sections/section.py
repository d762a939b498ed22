"""Section: what a file of this folder declares, so that a line in registry.py brings its finding
into run.json and its tables and charts into the report."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from locust_llm.records.record import Record
from locust_llm.records.run import Run
from locust_llm.records.server_metrics import EngineHistory
from locust_llm.report.blocks import Block
from locust_llm.report.charts.model import Plot
from locust_llm.report.charts.timeline import Timeline
from locust_llm.report.columns import RequestColumns

Finding = TypeVar("Finding")


class ReportMaterial(NamedTuple):
    """What a section may use: all that a run left."""

    run: Run
    columns: RequestColumns
    records: Iterable[Record]
    """Those of the columns; they can be read again."""
    history: EngineHistory


class ReportSection(NamedTuple, Generic[Finding]):
    """A part of the report that stands by itself."""

    name: str
    """The key of its finding in run.json."""
    subject: str
    """The note says that this could not be computed, if it fails."""
    finding: type[Finding]
    """A structure, which the schema of run.json describes."""
    find: Callable[[ReportMaterial], Finding | None]
    """None: the run has nothing of the kind, and no such section."""
    make_blocks: Callable[[Finding], Iterator[Block]]
    """Its heading, texts and tables."""
    chart_heading: str = ""
    """Empty: it has no charts."""
    draw: Callable[[Finding, ReportMaterial], Iterable[Plot | Timeline]] = (
        lambda finding, material: ()
    )
    shows_arms: bool = False
    """It is shown of two arms together too, which had different targets."""


AnySection = ReportSection[Any]
