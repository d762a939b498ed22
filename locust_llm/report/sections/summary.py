"""Summary: what a run amounts to, as frozen data; summarise.py makes it, tables, exports and the
page show it."""

from typing import Any

import msgspec

from locust_llm.report.delivery import Delivery
from locust_llm.report.kinds import Examination
from locust_llm.report.other_load import OtherLoad
from locust_llm.report.outages import Outage
from locust_llm.report.rows import (
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
from locust_llm.report.sections.ab import PairedComparison
from locust_llm.report.sections.best_limit import PREFILL_LIMITS, LimitComparison
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.energy import Energy
from locust_llm.report.sections.interference import PrefillInterference
from locust_llm.report.sections.latency_parts import LatencyAttribution
from locust_llm.report.sections.prefix_cache import PrefixCache
from locust_llm.report.sections.published import Validity
from locust_llm.report.sections.speculation import Speculation
from locust_llm.slo.capacity import CapacityEstimate, StageEvidence
from locust_llm.slo.client_verdict import ClientVerdict, FigureError, ProcessEvidence
from locust_llm.slo.rules import INCONCLUSIVE, SloResult


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run amounts to."""

    conditions: Conditions
    counts: RunCounts
    rows: tuple[Row, ...]
    adjusted: tuple[Row, ...]
    """Latencies with failures as +infinity; empty without failures."""
    warmup: tuple[Row, ...]
    failures: tuple[FailureGroup, ...]
    client: ClientVerdict | None
    figure_errors: tuple[FigureError, ...] = ()
    """By how much each figure may be off, which the client verdict follows from."""
    evidence: tuple[ProcessEvidence, ...]
    """What each process measured of itself."""
    uncertified: str = ""
    """Why no sentinel streams checked the stamps; empty where some did, or where none were to be
    expected (older runs)."""
    sentinels: int = 0
    """Chunks with known send times that checked the stamps."""
    gate: GateUse | None
    delivery: Delivery | None = None
    """None: a closed loop."""
    breakdowns: tuple[RequestBreakdown, ...] = ()
    """Only those that divide: by one input length alone there is none."""
    reading: tuple[Row, ...] = ()
    cancelled: tuple[Row, ...] = ()
    """What requests that were cancelled on purpose had until then."""
    slos: tuple[SloResult, ...] = ()
    slo_status: str | None = None
    """FAIL if a rule that decides failed, else INCONCLUSIVE if one was, else PASS; None without
    rules."""
    good: GoodRequests | None = None
    steady: SteadyState | None = None
    outages: tuple[Outage, ...] = ()
    """When nothing answered."""
    growth: TtftGrowth | None = None
    """None: too few requests, or prompts too much alike, to tell."""
    interference: PrefillInterference | None = None
    """None: no request decoded, or it was not computed."""
    examination: Examination | None = None
    """What an experiment found; None: the run is a load test."""
    sweep: SweepSummary | None = None
    """None: no stages."""
    stage_evidence: StageEvidence | None = None
    """None: it is no stage, or says nothing about a rule."""
    capacity: CapacityEstimate | None = None
    """Of a stage of ``--find-max``, with those before it."""
    paired: PairedComparison | None = None
    """None: the run has no arms."""
    unread: tuple[str, ...] = ()
    """Of the first broken lines, which it is and why."""
    prefix_cache: PrefixCache | None = None
    speculation: tuple[Speculation, ...] = ()
    waterfall: LatencyAttribution | None = None
    other_load: OtherLoad | None = None
    """None: the server had none, or nobody knows."""
    sections: dict[str, Any] = {}
    """By their name, what the sections of sections/registry.py found."""
    validity: Validity | None = None
    """None: its scenario has no published rules."""
    energy: Energy | None = None
    """None: no metrics of the GPUs' power."""
    unmade: tuple[str, ...] = ()
    """What could not be made of the reports, and why: one line each."""

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
        """A sweep of several stages, each with reports of its own."""
        return self.sweep is not None and not self.sweep.repeats

    @property
    def swept(self) -> bool:
        """Its requests were sent under different loads or limits, or to different arms: what they
        have together says nothing."""
        return self.paired is not None or self.limits is not None or self.staged
