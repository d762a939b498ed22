"""The report kind of an interference probe: its results from the records, and its findings as a report shows them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import ClassVar

import msgspec

from locust_llm.core.record import Record
from locust_llm.core.run import Run
from locust_llm.core.text import brief, duration, many
from locust_llm.probe.diagnosis import CANNOT_TELL
from locust_llm.probe.requests import ProbeResult, probe_results
from locust_llm.probe.result import ProbeFindings, examine, itl_limit_s, shortest_ttft_s
from locust_llm.slo.client_verdict import Verdict

from .document.blocks import Block, Table, Text
from .document.probe import beside, findings, named, scheduler
from .plots.model import Plot
from .plots.probe import by_length


class ProbeExamination(ProbeFindings, frozen=True, kw_only=True):
    """The findings, and how a report shows them."""

    title: ClassVar[str] = "Interference probe"
    client_advice: ClassVar[str] = "A probe runs in one process: give it a machine that does nothing else."
    chart_heading: ClassVar[str] = "By prompt length"

    def headline(self) -> str:
        return f"Scheduler: {named(self.diagnosis, self.symptoms)}"

    def reasons(self) -> Iterator[Text]:
        return islice(scheduler(self), 1, None)  # the headline has the first

    def blocks(self) -> Iterator[Block]:
        return findings(self)

    def charts(self) -> Iterator[Plot]:
        return by_length(self.symptoms)

    def main_table(self) -> Table | None:
        return beside(self.symptoms)

    def advice_lines(self) -> Iterator[str]:
        return (one.what for one in self.advice)

    def load(self, users: int | None) -> str:
        episodes = many(self.symptoms.episodes, "episode")
        return f"probe: {episodes}, at most {many(users, 'request')} at a time"

    def badge(self) -> tuple[str, str]:
        return self.diagnosis.name, "open" if self.diagnosis.name == CANNOT_TELL else "pass"

    def tiles(self) -> Iterator[tuple[str, str, str]]:
        found = self.symptoms
        name, _, more = named(self.diagnosis, found).partition(", ")
        yield "Scheduler", name, more
        if stalls := found.of("stall", found.longest):
            longest = median(stall.longest_s for stall in stalls)
            yield "Longest gap, median", duration(longest), f"beside a prompt of {found.longest:,} tokens"
        if found.quiet_s is not None:
            yield "Gap without prompts", duration(found.quiet_s), "mean"
        if found.token_s is not None and found.token_s > 0:
            yield "Prefill", brief(1 / found.token_s, digits=3), "prompt tokens per second, alone"


@dataclass(frozen=True)
class Probe:
    """The results of all requests of a probe."""

    results: Sequence[ProbeResult]

    @property
    def compared_ttft_s(self) -> float | None:
        return shortest_ttft_s(self.results)

    def examine(self, run: Run, verdict: Verdict | None) -> ProbeExamination:
        found = examine(self.results, None if verdict is None else verdict.level, itl_limit_s(run.settings.rules))
        return ProbeExamination(**msgspec.structs.asdict(found))


def read_probe(records: Iterable[Record]) -> Probe | None:
    """None: the records are not of a probe."""
    results = probe_results(records)
    return Probe(results) if results else None
