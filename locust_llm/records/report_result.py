"""Report result: the report process's answer, as JSON on its stdout."""

from typing import Final

import msgspec

from locust_llm.slo.capacity_search import CapacityEstimate, StageEvidence
from locust_llm.slo.load_generator_health import INVALID, OK, ClientVerdict
from locust_llm.text.format import format_duration


class MetricValue(msgspec.Struct, frozen=True):
    """A row of the tables, in its unit."""

    avg: float | None = None
    count: int | None = None
    percentiles: dict[float, float] = {}
    inexact: tuple[str, ...] = ()
    """Which of them the load generator may have too wrong: ``avg``, ``p50``."""


class RuleResult(msgspec.Struct, frozen=True):
    """The result of an SLO rule."""

    rule: str
    status: str
    observed: str = ""
    """The value with its unit, in the digits of the report's table. Empty: there is none."""
    reason: str = ""
    voided: bool = False
    """The load generator's error of the value may be too large for a decision."""


class RuleAtLook(msgspec.Struct, frozen=True):
    """The result of a deciding rule by the records so far."""

    rule: str
    status: str
    reason: str = ""
    interval: str = ""
    """The 95 % interval of its value. Empty: there is none."""

    def __str__(self) -> str:
        return f"{self.rule}, {self.reason}"


RATES_OFF: Final = "~"
"""Before a rate, as in the tables."""


class ReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run or a stage, for the exit status, the next stage and the live page."""

    text: str = ""
    """The console's text: the verdict and its main figures."""
    headline: str = ""
    """The verdict as one sentence."""
    tables: str = ""
    """The whole report as text, for ``--verbose``."""
    annotations: str = ""
    """Commands to the CI of the job, one line each."""
    incomplete: bool = False
    """Records or a part of the report are missing; ``text`` begins with the reason."""
    slo_status: str | None = None
    """PASS, FAIL or INCONCLUSIVE; None without rules."""
    close_to_limit: bool = False
    """The status is INCONCLUSIVE, and each such rule is close to its limit."""
    rules: tuple[RuleResult, ...] = ()
    not_valid: str = ""
    """The published rule that the run breaks, where that has an exit status of its own."""
    client: ClientVerdict | None = None
    """The client verdict; None: not judged."""
    probe: str = ""
    """``named``, ``untold`` or ``broken``. Empty: the run was no probe."""
    token_rate_unit: str = "tokens/s"
    figures: dict[str, MetricValue] = {}
    """The finite values, by AIPerf's tag."""
    has_waits: bool = False
    """A schedule or a gate held requests, so TTFT from due comes first."""
    silence: str = ""
    """A long time without tokens, such as ``no token came for 6 s``. Empty: there was none."""
    rates_off: bool = False
    """The stage is short for its requests, so its rates may be far off (Little's law)."""
    swept: bool = False
    """The run had stages, so latencies are shown for each stage only."""
    findings: tuple[str, ...] = ()
    """The findings of a sweep: why it ended, its knees."""
    stage_evidence: StageEvidence | None = None
    """What a stage shows about the rules. None: nothing."""
    capacity: CapacityEstimate | None = None
    """The highest load within the rules, by all stages so far (``--find-max``)."""

    @property
    def is_client_too_slow(self) -> bool:
        """The load generator's health forbids to use what the next stage depends on: a rule, or
        without rules everything."""
        if self.rules:
            return any(rule.voided for rule in self.rules)
        return self.client is not None and self.client.level == INVALID

    @property
    def throughput(self) -> float | None:
        """Output tokens a second, else requests a second."""
        tokens = self._figure("output_token_throughput").avg
        return self._figure("request_throughput").avg if tokens is None else tokens

    def _figure(self, tag: str) -> MetricValue:
        return self.figures.get(tag, MetricValue())

    def __str__(self) -> str:
        """``TTFT p50 120 ms, p99 450 ms, 812 tokens/s, SLO PASS``"""
        parts = []
        first = (
            ("TTFT from due", "time_to_first_token_from_due")
            if self.has_waits
            else ("TTFT", "time_to_first_token")
        )
        for name, tag in (first, ("ITL", "inter_token_latency")):
            known = self._figure(tag).percentiles
            if 50.0 in known and 99.0 in known:
                p50, p99 = (format_duration(known[p] / 1e3) for p in (50.0, 99.0))
                parts.append(f"{name} p50 {p50}, p99 {p99}")
        if (tokens_per_s := self._figure("output_token_throughput").avg) is not None:
            mark = RATES_OFF * self.rates_off
            parts.append(f"{mark}{tokens_per_s:.0f} {self.token_rate_unit}")
        if self.silence:
            parts.append(self.silence)
        if self.slo_status:
            parts.append(f"SLO {self.slo_status}")
        if self.client is not None and self.client.level != OK:
            parts.append(f"client {self.client.level}")
        return ", ".join(parts) or "no measurement"
