"""Latency breakdown of a run: its requests split, slow ones beside typical ones, the slowest by
themselves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from locust_llm.records.record import OK
from locust_llm.records.run import LimitChange, Run
from locust_llm.records.server_times import ServerTimes
from locust_llm.report.columns import RequestColumns
from locust_llm.report.percentiles import has_too_few_values
from locust_llm.report.sections.latency_parts.model import (
    AFTER_FIRST,
    DECODE,
    DELIVERY,
    NEITHER,
    PREFILL,
    QUEUE,
    REQUESTS,
    SERVER,
    TO_DUE,
    TO_FIRST,
    TTFT,
    LatencyAttribution,
    LatencyBreakdown,
    ServerTime,
)
from locust_llm.report.selection import RequestSelection
from locust_llm.report.server_columns import SOURCES, ReportedColumns
from locust_llm.report.slo.observed import select_requests
from locust_llm.slo.grammar import Rule, parse_rule

from .clock import measure_server_clock
from .parts import NOTHING, split_latencies
from .slow_vs_typical import PARTS_OF, LatencyTable, make_latency_breakdown
from .slowest import Since, find_slowest_requests

PERCENTILES: Final = (99.0, 95.0, 90.0, 75.0)
"""The highest one that there are requests enough for is explained."""
MIN_REPORTED: Final = 0.9
"""Share of the requests for which the server must report its times: below, the mean of its queue
would be that of a part of them."""


def attribute_latencies(
    columns: RequestColumns,
    spans: Mapping[str, ServerTimes],
    run: Run,
    since: Since,
    asked: Sequence[str] = (),
) -> LatencyAttribution | None:
    """``spans``: by request; ``since``: looks up records; ``asked``: further breakdowns, as
    ``ttft{model=a} p95``. None where no request was answered."""
    table, reported = _table(columns, spans, run.limits, few=False)
    here, cut = table.counted, table.split
    if not here.any():
        return None
    breakdowns = list[LatencyBreakdown]()
    left_out = list[str]()
    for rule in _explained(table, run, asked, left_out):
        chosen = select_requests(rule, RequestSelection(table.requests, here.copy())).chosen
        where = str(rule).partition("}")[0].partition("{")[2]
        breakdown = make_latency_breakdown(
            table,
            rule.metric,
            rule.percentile or 50.0,
            f"{{{where}}}" if rule.where else "",
            chosen,
        )
        if breakdown is not None:
            breakdowns.append(breakdown)
        elif rule.where:
            left_out.append(f"too few requests for {rule.metric}{{{where}}}")
    sources = np.bincount(reported.source[here & ~cut.impossible], minlength=len(SOURCES))
    means_ms = {name: float(table.part_ms(name)[here].mean()) for name in (*TO_FIRST, *AFTER_FIRST)}
    means_ms[TTFT] = float(table.requests["ttft_s"].to_numpy(np.float64)[here].mean()) * 1e3
    return LatencyAttribution(
        requests=int(here.sum()),
        choices=int(table.requests["choices"].to_numpy(np.int64)[here].sum()),
        reported={
            name: int(count) for name, count in zip(SOURCES[1:], sources[1:], strict=True) if count
        },
        impossible=int((cut.impossible & here).sum()),
        server=ServerTime(
            basis=REQUESTS if cut.known[here].any() else NEITHER,
            server_ms=means_ms[SERVER] + means_ms[QUEUE] + means_ms[PREFILL],
        ),
        means_ms=means_ms,
        breakdowns=tuple(breakdowns),
        slowest=find_slowest_requests(table, run, since),
        server_clock=measure_server_clock(columns.requests, reported, here & ~cut.impossible),
        proxy=run.proxy,
        left_out=tuple(left_out),
    )


def make_parts_frame(
    columns: RequestColumns, spans: Mapping[str, ServerTimes], run: Run
) -> pd.DataFrame:
    """A row a request, in the order of ``columns.requests``: each part in seconds, ``total_s`` to
    the first token (or the end, without one), ``reported`` by what, and ``impossible``. Parts after
    the first token are NaN of requests without one."""
    table, reported = _table(columns, spans, run.limits, few=True)
    found: dict[str, object] = {"total_s": table.split.total_us / 1e6}
    for name in (*TO_FIRST, *AFTER_FIRST):
        found[f"{name}_s"] = table.part_ms(name) / 1e3
    found["reported"] = pd.Categorical.from_codes(reported.source, categories=pd.Index(SOURCES))
    found["impossible"] = table.split.impossible
    return pd.DataFrame(found)


def _table(
    columns: RequestColumns,
    spans: Mapping[str, ServerTimes],
    limits: Sequence[LimitChange],
    *,
    few: bool,
) -> tuple[LatencyTable, ReportedColumns]:
    """``limits``: of the gate; ``few``: what the server reports counts, however few requests it
    reports it for."""
    requests = columns.requests
    reported = columns.server.reported(spans)
    counted = (
        ((requests["phase"] == "profiling") & (requests["outcome"] == OK)).to_numpy(np.bool_)
        & ~np.isnan(requests["ttft_s"].to_numpy(np.float64))
    )  # fmt: skip
    cut = split_latencies(requests, reported, limits)
    if not few and (cut.known[counted] != NOTHING).sum() < MIN_REPORTED * counted.sum():
        unknown = split_latencies(requests, reported.without_queue_and_prefill(), limits)
        cut = replace(unknown, impossible=cut.impossible)
    latency_s, ttft_s = (requests[name].to_numpy(np.float64) for name in ("latency_s", "ttft_s"))
    total_ms = np.maximum(latency_s - ttft_s, 0.0) * 1e3
    told_ms = np.where(cut.impossible, np.nan, reported.decode_us) / 1e3
    decode_ms = np.fmin(total_ms, told_ms)
    after_ms = {
        DECODE: np.where(np.isnan(total_ms), np.nan, decode_ms),
        DELIVERY: total_ms - decode_ms,
    }
    return LatencyTable(requests, cut, after_ms, ~np.isnan(told_ms), counted), reported


def _explained(
    table: LatencyTable, run: Run, asked: Sequence[str], left_out: list[str]
) -> Iterator[Rule]:
    """TTFT from due at the highest percentile that there are requests for; the percentiles of
    rules; what was asked for."""
    count = int(table.counted.sum())
    highest = next((p for p in PERCENTILES if not has_too_few_values(count, p)), None)
    rules = [] if highest is None else [parse_rule(f"{TO_DUE} p{highest:g} < 1s")]
    rules += [rule for rule in run.settings.rules.by_text.values() if not rule.staged]
    for text in asked:
        try:
            rules.append(parse_explained_metric(text))
        except ValueError as error:
            left_out.append(str(error))
    seen = set[tuple[str, object, object]]()
    for rule in rules:
        key = rule.metric, rule.percentile, rule.where
        if rule.metric in PARTS_OF and rule.percentile is not None and key not in seen:
            seen.add(key)
            yield rule


def parse_explained_metric(text: str) -> Rule:
    """The rule whose metric, selectors and percentile are to be explained: ``ttft{model=a} p95``.
    Raises ValueError."""
    no_parts = f"{text}: only percentiles of {', '.join(PARTS_OF)} have parts"
    try:
        rule = parse_rule(f"{text} < 1s")
    except ValueError as error:
        why = str(error).partition(": ")[2]
        raise ValueError(no_parts if why.startswith("unknown unit") else f"{text}: {why}") from None
    if rule.metric not in PARTS_OF or rule.percentile is None:
        raise ValueError(no_parts)
    return rule
