"""Report kind of an interference probe: reads its results from the records, and shows its findings
in a report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import ClassVar

import msgspec

from locust_llm.lab.probe.episode_requests import ProbeResult, read_probe_results
from locust_llm.lab.probe.probe_findings import (
    ProbeFindings,
    examine_probe,
    itl_limit_s,
    shortest_ttft_s,
)
from locust_llm.lab.probe.probe_report import plot_probe_by_length
from locust_llm.lab.probe.scheduler_diagnosis import CANNOT_TELL
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.chart_data.plot_data import Plot
from locust_llm.report.document_blocks import Block, TableBlock, TextBlock
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.text.format import format_brief, format_count, format_duration

from .probe_report import describe_scheduler, format_diagnosis, make_probe_blocks, make_stall_table


class ProbeExamination(ProbeFindings, frozen=True, kw_only=True):
    """Shows the findings in a report."""

    title: ClassVar[str] = "Interference probe"
    client_advice: ClassVar[str] = (
        "A probe runs in one process: give it a machine that does nothing else."
    )
    chart_heading: ClassVar[str] = "By prompt length"

    def headline(self) -> str:
        return f"Scheduler: {format_diagnosis(self.diagnosis, self.symptoms)}"

    def reasons(self) -> Iterator[TextBlock]:
        return islice(describe_scheduler(self), 1, None)  # the headline has the first

    def blocks(self) -> Iterator[Block]:
        return make_probe_blocks(self)

    def charts(self) -> Iterator[Plot]:
        return plot_probe_by_length(self.symptoms)

    def main_table(self) -> TableBlock | None:
        return make_stall_table(self.symptoms)

    def advice_lines(self) -> Iterator[str]:
        return (advice.what for advice in self.advice)

    def load(self, users: int | None) -> str:
        episodes = format_count(self.symptoms.episodes, "episode")
        return f"probe: {episodes}, at most {format_count(users, 'request')} at a time"

    def badge(self) -> tuple[str, str]:
        return self.diagnosis.name, "open" if self.diagnosis.name == CANNOT_TELL else "pass"

    def tiles(self) -> Iterator[tuple[str, str, str]]:
        measurements = self.symptoms
        name, _, more = format_diagnosis(self.diagnosis, measurements).partition(", ")
        yield "Scheduler", name, more
        if stalls := measurements.of("stall", measurements.longest):
            longest = median(stall.longest_s for stall in stalls)
            yield (
                "Longest gap, median",
                format_duration(longest),
                f"during a prompt of {measurements.longest:,} tokens",
            )
        if measurements.quiet_s is not None:
            yield "Gap without prompts", format_duration(measurements.quiet_s), "mean"
        if measurements.token_s is not None and measurements.token_s > 0:
            yield (
                "Prefill",
                format_brief(1 / measurements.token_s, digits=3),
                "prompt tokens per second, alone",
            )


@dataclass(frozen=True)
class ProbeExperiment:
    results: Sequence[ProbeResult]

    @property
    def compared_ttft_s(self) -> float | None:
        return shortest_ttft_s(self.results)

    def examine(self, run: Run, verdict: ClientVerdict | None) -> ProbeExamination:
        probe_report = examine_probe(
            self.results,
            None if verdict is None else verdict.level,
            itl_limit_s(run.settings.rules),
        )
        return ProbeExamination(**msgspec.structs.asdict(probe_report))


def read_probe(records: Iterable[Record]) -> ProbeExperiment | None:
    """Returns the experiment, or None if the records are not of a probe."""
    results = read_probe_results(records)
    return ProbeExperiment(results) if results else None
