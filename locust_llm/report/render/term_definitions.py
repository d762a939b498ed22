"""Term definitions: what the page's terms mean, and by which names the page shows them.
static/term_tips.js puts each definition beside its term."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report.sections.run_summary import Summary
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    DEFINITIONS,
    GATE_WAIT,
    LATENCY,
    METRICS,
    OUTPUT_LABELS,
    TTFT_FROM_DUE,
)
from locust_llm.text.format import capitalise_sentence

OTHER_NAMES: Final = {
    LATENCY.label: ("latency",),
    "Longest Stall": ("stall",),
    GATE_WAIT.label: ("gate p95",),
    TTFT_FROM_DUE.label: ("from due",),
    "Throughputs": (
        "output tokens",
        "output tokens per second",
        "requests per second",
        "output token throughput",
        "request throughput",
        "input token throughput",
        "total token throughput",
    ),
    "Failures": ("failed",),
}
"""Names in tiles, charts and the heads of tables, by the term."""

Definition = tuple[str, str]
"""(term, meaning)."""


def list_definitions(summary: Summary, run: Run) -> tuple[Definition, ...]:
    """The terms of this run's page: metrics, then the measures of its rules that are no metrics."""
    absent = () if run.settings.generates else OUTPUT_LABELS
    metrics = ((term, means) for term, means in DEFINITIONS.items() if term not in absent)
    return (*metrics, *dict(_define_measures(summary, run)).items())


def _define_measures(summary: Summary, run: Run) -> Iterator[Definition]:
    rules = run.settings.rules.by_text
    for result in summary.slos:
        rule = rules.get(result.rule)
        if rule is None:
            continue
        measure = BY_WORD[rule.metric]
        if measure.metric is None and measure.means:
            yield capitalise_sentence(measure.spoken_name), measure.means


def make_definition_id(term: str) -> str:
    """``means-time-to-first-token``: the element with the definition."""
    return "means-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def name_terms(definitions: Iterable[Definition]) -> dict[str, str]:
    """The id of the definition by each name that the page shows."""
    spoken: dict[str, tuple[str, ...]] = {
        metric.label: (metric.short, metric.spoken or metric.word.replace("_", " "))
        for metric in METRICS
    }
    ids = dict[str, str]()
    for term, _ in definitions:
        names = chain((term,), spoken.get(term, ()), OTHER_NAMES.get(term, ()))
        ids |= dict.fromkeys(filter(None, names), make_definition_id(term))
    return ids
