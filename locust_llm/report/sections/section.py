"""Section: what a file of this folder declares. A line in section_registry.py then brings its
finding into run.json and its tables and charts into the report."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.report.answer_results import AnswersUnderLoad
from locust_llm.report.chart_data.plot_data import Plot
from locust_llm.report.chart_data.timeline import Timeline
from locust_llm.report.disruption_results import DisruptionEffects
from locust_llm.report.document_blocks import Block
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.slo_evidence.inexact_values import NONE_INEXACT, InexactValues
from locust_llm.trends.soak_findings import SoakFindings
from locust_llm.trends.soak_readings import SoakReading

Finding = TypeVar("Finding")


class ReportMaterial(NamedTuple):
    """All data of a run that a section may use."""

    run: Run
    columns: RequestColumns
    records: Iterable[Record]
    """The records of the columns. They can be read again."""
    history: EngineHistory
    answers: AnswersUnderLoad | None = None
    """What the checks of answers found, as the rules use it too."""
    inexact: InexactValues = NONE_INEXACT
    """Which values the load generator may have too wrong."""
    disruptions: DisruptionEffects | None = None
    """What the commands of ``--disrupt`` did. None: there were none."""
    soak: SoakFindings | None = None
    """None: the run has no ``--soak``."""
    soak_readings: Sequence[SoakReading] = ()


class ReportSection(NamedTuple, Generic[Finding]):
    """A part of the report that stands by itself."""

    name: str
    """The key of its finding in run.json."""
    subject: str
    """The note names this if the section fails."""
    finding: type[Finding]
    """The type of its finding, which the schema of run.json describes."""
    find: Callable[[ReportMaterial], Finding | None]
    """None: the run has no such section."""
    make_blocks: Callable[[Finding], Iterator[Block]]
    """Its heading, texts and tables."""
    chart_heading: str = ""
    """Empty: it has no charts."""
    draw: Callable[[Finding, ReportMaterial], Iterable[Plot | Timeline]] = (
        lambda finding, material: ()
    )
    shows_arms: bool = False
    """It is also shown for two arms together, which had different targets."""


AnySection = ReportSection[Any]
