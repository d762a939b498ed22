"""Run summary: the results of a run as frozen data. summarise_metrics.py makes it; tables, exports
and the page show it."""

from typing import Any

import msgspec

from locust_llm.report.answer_results import AnswersUnderLoad
from locust_llm.report.disruption_results import DisruptionEffects
from locust_llm.report.open_loop_delivery import Delivery
from locust_llm.report.other_load import OtherLoad
from locust_llm.report.outages import Outage
from locust_llm.report.report_kinds import Examination
from locust_llm.report.sections.ab_comparison import PairedComparison
from locust_llm.report.sections.benchmark_validity import Validity
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.energy import Energy
from locust_llm.report.sections.interference import PrefillInterference
from locust_llm.report.sections.latency_breakdown import LatencyAttribution
from locust_llm.report.sections.prefill_limit_comparison import PREFILL_LIMITS, LimitComparison
from locust_llm.report.sections.prefix_cache import PrefixCache
from locust_llm.report.sections.speculation import Speculation
from locust_llm.report.summary_rows import (
    FailureGroup,
    GateUse,
    GoodRequests,
    RequestBreakdown,
    Row,
    RunCounts,
    SteadyState,
    SweepSummary,
    TtftGrowth,
)
from locust_llm.slo.capacity_search import CapacityEstimate, StageEvidence
from locust_llm.slo.load_generator_health import ClientVerdict, FigureError, ProcessEvidence
from locust_llm.slo.rules import INCONCLUSIVE, SloResult
from locust_llm.trends.soak_findings import SoakFindings
from locust_llm.trends.soak_readings import SoakReading


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run."""

    conditions: Conditions
    counts: RunCounts
    rows: tuple[Row, ...]
    adjusted: tuple[Row, ...]
    """The latencies with failures as +infinity. Empty: there are no failures."""
    warmup: tuple[Row, ...]
    failures: tuple[FailureGroup, ...]
    client: ClientVerdict | None
    figure_errors: tuple[FigureError, ...] = ()
    """How far each value may be off. The client verdict follows from it."""
    evidence: tuple[ProcessEvidence, ...]
    """What each process measured of itself."""
    uncertified: str = ""
    """Why no reference streams checked the stamps. Empty: some did, or none were expected (older
    runs)."""
    sentinels: int = 0
    """Chunks with known send times that checked the stamps."""
    gate: GateUse | None
    delivery: Delivery | None = None
    """None: a closed loop."""
    breakdowns: tuple[RequestBreakdown, ...] = ()
    """The breakdowns that divide the requests: one input length alone gives none."""
    reading: tuple[Row, ...] = ()
    cancelled: tuple[Row, ...] = ()
    """What cancelled requests had before their cancellation."""
    slos: tuple[SloResult, ...] = ()
    slo_status: str | None = None
    """FAIL if a deciding rule failed, else INCONCLUSIVE if one was, else PASS. None: there are no
    rules."""
    good: GoodRequests | None = None
    steady: SteadyState | None = None
    outages: tuple[Outage, ...] = ()
    """The times without any answer."""
    growth: TtftGrowth | None = None
    """None: there are too few requests, or their prompts are too much alike."""
    interference: PrefillInterference | None = None
    """None: no request decoded, or it was not computed."""
    examination: Examination | None = None
    """The result of an experiment. None: the run is a load test."""
    sweep: SweepSummary | None = None
    """None: there are no stages."""
    stage_evidence: StageEvidence | None = None
    """None: it is no stage, or shows nothing about a rule."""
    capacity: CapacityEstimate | None = None
    """The capacity by a stage of ``--find-max`` and the stages before it."""
    paired: PairedComparison | None = None
    """None: the run has no arms."""
    unread: tuple[str, ...] = ()
    """The first broken lines, with their reasons."""
    answers: AnswersUnderLoad | None = None
    """What the checks of answers found. None: answers were not checked."""
    disruptions: DisruptionEffects | None = None
    """None: the run has no disruptions."""
    soak: SoakFindings | None = None
    """None: the run has no ``--soak``."""
    soak_readings: tuple[SoakReading, ...] = ()
    prefix_cache: PrefixCache | None = None
    speculation: tuple[Speculation, ...] = ()
    waterfall: LatencyAttribution | None = None
    other_load: OtherLoad | None = None
    """None: the server had none, or it is not known."""
    sections: dict[str, Any] = {}
    """The findings of the sections in sections/section_registry.py, by their names."""
    validity: Validity | None = None
    """None: its scenario has no published rules."""
    energy: Energy | None = None
    """None: there are no metrics of the GPUs' power."""
    unmade: tuple[str, ...] = ()
    """The parts of the reports that could not be made, with the reason, one line each."""

    @property
    def inconclusive(self) -> tuple[SloResult, ...]:
        """The results of rules that decide, and are INCONCLUSIVE."""
        return tuple(slo for slo in self.slos if slo.decides and slo.status == INCONCLUSIVE)

    @property
    def close_to_limit(self) -> bool:
        """It is INCONCLUSIVE, and each rule that made it so is close to its limit."""
        return self.slo_status == INCONCLUSIVE and all(
            slo.close_to_limit for slo in self.inconclusive
        )

    @property
    def limits(self) -> LimitComparison | None:
        """None: the run compares no prefill limits."""
        comparison: LimitComparison | None = self.sections.get(PREFILL_LIMITS)
        return comparison

    @property
    def staged(self) -> bool:
        """The run is a sweep of several stages, each with its own reports."""
        return self.sweep is not None and not self.sweep.repeats

    @property
    def swept(self) -> bool:
        """The requests were sent under different loads or limits, or to different arms: their
        common values mean nothing."""
        return self.paired is not None or self.limits is not None or self.staged
