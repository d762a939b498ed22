"""Tenant fairness: the service that each received over time, and how evenly: Jain's index, the
service gap; table and chart.

Service is counted as VTC does (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024):
an input token is 1, an output token 2. The input of a request counts at its first chunk, its output
as the chunks come, of failed and cut ones too.

How evenly a server serves shows only while tenants wait for it: one that asks for little gets
little. A tenant waits while one of its requests has been sent and has no chunk; it is backlogged if
it waits through half of the time under load. Jain's index (Jain, Chiu and Hawe, A quantitative
measure of fairness, 1984) is of the service that the backlogged tenants received while all of them
waited: (sum x)^2 / (n sum x^2), 1 for equal ones, 1/n where one has all.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Floats
from locust_llm.report.chart_data.charts_over_time import find_time_axis
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotSeries, round_values
from locust_llm.report.chart_data.time_axis import TIME_GROUP, TimeAxis
from locust_llm.report.document_blocks import (
    INEXACT,
    Block,
    Heading,
    TableBlock,
    TextBlock,
    explain_marks,
    mark_scarce,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable
from locust_llm.settings.ab_arms import BASE
from locust_llm.slo.metric_definitions import ITL, TTFT
from locust_llm.text.format import format_brief, format_duration, format_number, truncate_text
from locust_llm.workload.model_and_tenant_mix import parse_tenant_weights as weights_of

from .section import ReportMaterial, ReportSection

Mask = NDArray[np.bool_]

OUTPUT: Final = 2.0
"""The cost of an output token; an input token is 1."""
BINS: Final = 1000
"""The steps of the time."""
POINTS: Final = 200
"""The points of the kept curves."""
THROUGHOUT: Final = 0.99
"""A tenant waits through a step if it waits for this share of it."""
BACKLOGGED: Final = 0.5
MAX_TENANTS: Final = 100
OTHERS: Final = "(others)"
"""All tenants beyond the first MAX_TENANTS."""
EVENTS: Final = 2**16


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant in the profiling phase. Service and demand are weighted tokens."""

    name: str
    weight: float = 1.0
    """Its entitled share, 1 on average."""
    requests: int
    failed: int
    failure_rate: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    tokens_per_s: float | None
    """The input and output tokens a second that it was served, over the time under load."""
    service: float
    share: float | None
    """Its share of all service."""
    demand: float
    """The tokens that its requests asked for, with failed ones."""
    demand_share: float | None
    waiting: float | None
    """The share of the time under load through which it waited."""
    inexact: tuple[str, ...] = ()
    """``ttft p95``: its values that the load generator may have too wrong."""
    contended_share: float | None = None
    """Its share of the service while all backlogged tenants waited. None: it was not backlogged, or
    alone."""


class TenantService(msgspec.Struct, frozen=True, kw_only=True):
    """What each tenant had received by each moment, and the service gap."""

    at_s: tuple[float, ...]
    """Seconds after the start of the run."""
    received: dict[str, tuple[float, ...]]
    gap: tuple[float, ...]
    """The largest gap of each stretch between two moments."""


class TenantsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The tenants of a run."""

    rows: tuple[TenantRow, ...]
    """The tenants in the order of their service."""
    backlogged: tuple[str, ...]
    contended_s: float
    """How long all of these waited at the same time."""
    jain: float | None
    """The index of their service / weight in this time. None: fewer than two were backlogged, or
    never at the same time."""
    gap: float | None
    """The largest difference that the service / weight of two backlogged tenants grew to, in a
    stretch through which both waited."""
    gap_of: tuple[str, str] | None
    service: TenantService
    under_load_s: float | None = None
    """The time with at least one running request, for tokens/s. None: an older report."""


def jain_index(values: Sequence[float]) -> float | None:
    """(sum x)^2 / (n sum x^2). None: there are no values."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def summarise_tenants(
    requests: RequestTable, run: Run, records: Iterable[Record]
) -> TenantsSummary | None:
    """``requests`` are the columns of ``records``. None: no request has a tenant, or it is a sweep,
    whose stages have their own."""
    swept = run.settings.sweep is not None and run.stage is None
    main = RequestSelection(
        requests, requests.has("phase", PROFILING) & ~requests.has("tenant", "")
    )
    if swept or not main.size:
        return None
    return measure_tenants(
        records,
        run,
        float(main["asked_at"].min()),
        float(main["closed_at"].max()),
    )


def measure_tenants(
    records: Iterable[Record], run: Run, low: float, high: float
) -> TenantsSummary | None:
    """Read the stream once. ``low`` and ``high`` bound the time under load, in Unix seconds. None:
    no request has a tenant."""
    taken = dict[str, _Tenant]()
    isolated = run.settings.isolate
    events = _Events(low, max(high - low, 1e-3) / BINS)
    for record in records:
        if not record.tenant or record.phase != PROFILING or record.outcome == RETRIED:
            continue
        if isolated and record.arm == BASE:  # it was alone
            continue
        name = record.tenant if record.tenant in taken or len(taken) < MAX_TENANTS else OTHERS
        if (tenant := taken.get(name)) is None:
            tenant = taken[name] = _Tenant(len(taken))
        tenant.add(record)
        events.add(tenant.number, record, tenant.served)
    return _tenants(taken, events, run) if taken else None


class _Tenant:
    """The counts of one tenant."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests = self.ok = self.failed = 0
        self.demand = 0.0
        self.served = [0.0, 0.0]
        """Input and output tokens."""
        self.ttfts_s = array("d")
        self.itls_s = array("d")
        self.began = array("d")
        self.ended = array("d")
        """When its requests began to wait, in Unix seconds."""
        self.closed = array("d")
        """When the same requests ended their wait."""

    def add(self, record: Record) -> None:
        self.requests += 1
        self.failed += record.failed
        self.ok += record.outcome == OK
        self.demand += record.input_tokens or record.asked_input_tokens or 0
        self.demand += OUTPUT * (record.output_tokens or record.asked_output_tokens or 0)
        if record.outcome == OK:
            for value, values in ((record.ttft_s, self.ttfts_s), (record.itl_s, self.itls_s)):
                if value is not None:
                    values.append(value)
        if record.sent_at is not None:
            first_at = (
                record.sent_at + record.chunk_us[0] / 1e6 if record.chunk_us else record.closed_at
            )
            self.began.append(record.sent_at + record.clock_offset_s)
            self.ended.append(first_at + record.clock_offset_s)
            self.closed.append(record.closed_unix_s)


class _Events:
    """The tokens as they come, added up in steps of the time, for many requests at once."""

    def __init__(self, low: float, width: float) -> None:
        self.low, self.width = low, width
        self._sums = np.zeros((0, BINS))
        self._clear()

    def add(self, number: int, record: Record, served: list[float]) -> None:
        """``served`` has the tenant's input and output tokens so far."""
        tokens = (
            record.input_tokens
            if record.input_tokens is not None
            else record.asked_input_tokens or 0
        )
        chunk_us = record.chunk_us
        count = len(record.chunk_us)
        if not count:
            if record.outcome == OK:
                self._event(
                    number,
                    record.closed_unix_s,
                    tokens + OUTPUT * (record.output_tokens or 0),
                )
                served[0] += tokens
                served[1] += record.output_tokens or 0
            return
        sent = (record.sent_at or 0.0) + record.clock_offset_s
        self._event(number, sent + chunk_us[0] / 1e6, tokens)
        each = 1.0 if record.output_tokens is None else record.output_tokens / count
        if record.chunk_tokens and sum(chunks for _, chunks in record.chunk_tokens) == count:
            exact = list(map(float, record.tokens_of_chunks))
            self._exact.append((len(self._us), exact))
            each = sum(exact) / count
        self._us.fromlist(list(chunk_us))
        self._rows.append((sent, count, number, each))
        served[0] += tokens
        served[1] += each * count
        if len(self._us) >= EVENTS:
            self._settle()

    def result(self, count: int) -> Floats:
        """Weighted tokens, with a row for each tenant and a column for each step."""
        self._settle()
        return np.vstack([self._sums, np.zeros((count - len(self._sums), BINS))])

    def _clear(self) -> None:
        self._us = array("q")
        self._rows: list[tuple[float, int, int, float]] = []
        """For each request with chunks: (sent, how many, tenant, tokens of each)."""
        self._exact: list[tuple[int, list[float]]] = []
        """(place of the first chunk, tokens of all) of requests whose server counted them."""
        self._events: list[tuple[float, int, float]] = []
        """(when, tenant, how much) of tokens that came at once."""

    def _event(self, number: int, at: float, amount: float) -> None:
        self._events.append((at, number, amount))

    def _settle(self) -> None:
        rows = np.array(self._rows).reshape(-1, 4)
        events = np.array(self._events).reshape(-1, 3)
        if not len(events):
            return
        count = rows[:, 1].astype(np.int64)
        sent, whose, tokens = (np.repeat(rows[:, column], count) for column in (0, 2, 3))
        for first, exact in self._exact:
            tokens[first : first + len(exact)] = exact
        at = np.append(sent + np.frombuffer(self._us, np.int64) / 1e6, events[:, 0])
        step = ((at - self.low) / self.width).astype(np.int64).clip(0, BINS - 1)
        place = np.append(whose, events[:, 1]).astype(np.int64) * BINS + step
        size = max(int(place.max()) // BINS + 1, len(self._sums))
        added = np.bincount(place, np.append(OUTPUT * tokens, events[:, 2]), size * BINS)
        sums: Floats = added.astype(np.float64).reshape(size, BINS)
        sums[: len(self._sums)] += self._sums
        self._sums = sums
        self._clear()


def _tenants(taken: dict[str, _Tenant], events: _Events, run: Run) -> TenantsSummary:
    names = [*taken]
    service = events.result(len(taken))
    edges = (events.low + events.width * np.arange(BINS + 1)).astype(np.float64)
    tenants = taken.values()
    covers = [
        measure_coverage(np.array(tenant.began), np.array(tenant.ended), edges)
        for tenant in tenants
    ]
    cover = np.array(covers) / events.width
    began = np.concatenate([np.array(tenant.began) for tenant in tenants])
    closed = np.concatenate([np.array(tenant.closed) for tenant in tenants])
    under_load = measure_coverage(began, closed, edges)
    waits = cover >= THROUGHOUT
    active_s = float(under_load.sum())
    waited_s = cover.sum(axis=1) * events.width
    waiting = waited_s / active_s if active_s else np.zeros(len(names))
    weight = _weights(names, run.settings.tenant_weight)
    backlogged = [i for i in range(len(names)) if waiting[i] >= BACKLOGGED]
    contended = waits[backlogged].all(axis=0) if len(backlogged) > 1 else np.zeros(BINS, np.bool_)
    received = service[:, contended].sum(axis=1)
    entitled = service / weight[:, None]
    gaps, largest, pair = _gap(entitled, waits, backlogged)
    within = float(received[backlogged].sum())
    total = float(service.sum())
    demand = sum(tenant.demand for tenant in tenants)
    rows = [
        _row(
            name, tenant, float(weight[i]), active_s, service=float(service[i].sum()), total=total,
            demand=demand,
            waiting=float(waiting[i]),
            contended=float(received[i]) / within if i in backlogged and within else None,
        )
        for i, (name, tenant) in enumerate(taken.items())
    ]  # fmt: skip
    return TenantsSummary(
        rows=tuple(sorted(rows, key=lambda row: -row.service)),
        backlogged=tuple(names[i] for i in backlogged),
        contended_s=float(contended.sum() * events.width),
        jain=jain_index((received / weight)[backlogged].tolist()) if within else None,
        gap=largest,
        gap_of=None if pair is None else (names[pair[0]], names[pair[1]]),
        under_load_s=active_s,
        service=_curves(names, service, gaps, edges - run.started_at),
    )


def _weights(names: Sequence[str], text: str | None) -> Floats:
    """The weights with mean 1. A tenant without one gets that mean."""
    try:
        given = weights_of(text, "--tenant-weight") if text else {}
    except ValueError:  # of a run.json that was changed by hand
        given = {}
    known = [given[name] for name in names if name in given]
    middle = sum(known) / len(known) if known else 1.0
    return np.array([given.get(name, middle) / middle for name in names])


def measure_coverage(began: Floats, ended: Floats, edges: Floats) -> Floats:
    """How long at least one of the stretches lasted between each two edges."""
    if not len(began):
        return np.zeros(len(edges) - 1)
    order = np.argsort(began, kind="stable")
    began = began[order]
    until = np.maximum.accumulate(ended[order])
    first = np.append(True, began[1:] > until[:-1])
    starts, ends = began[first], until[np.append(np.flatnonzero(first)[1:] - 1, len(until) - 1)]
    whole = np.append(0.0, np.cumsum(ends - starts))
    at = np.searchsorted(starts, edges, side="right")
    over = np.where(at > 0, np.maximum(ends[np.maximum(at - 1, 0)] - edges, 0.0), 0.0)
    return np.asarray(np.diff(whole[at] - over))


def _gap(
    entitled: Floats, waits: Mask, backlogged: Sequence[int]
) -> tuple[Floats, float | None, tuple[int, int] | None]:
    """(the gap in each step, the largest, the two tenants). It begins anew where one of the two
    does not wait."""
    gaps = np.zeros(entitled.shape[1])
    largest = 0.0
    pair = None
    for i, j in combinations(backlogged, 2):
        both = waits[i] & waits[j]
        if not both.any():
            continue
        grown = np.cumsum(np.where(both, entitled[i] - entitled[j], 0.0))
        before = np.maximum.accumulate(np.where(both, -1, np.arange(len(both))))
        gap = np.where(both, np.abs(grown - np.where(before >= 0, grown[before], 0.0)), 0.0)
        gaps = np.maximum(gaps, gap)
        if pair is None or gap.max() > largest:
            largest = float(gap.max())
            pair = (i, j)
    return gaps, None if pair is None else largest, pair


def _curves(names: Sequence[str], service: Floats, gaps: Floats, edges: Floats) -> TenantService:
    each = BINS // POINTS
    return TenantService(
        at_s=tuple(np.round(edges[::each], 3).tolist()),
        received={
            name: tuple(np.round(np.append(0.0, np.cumsum(row)[each - 1 :: each])).tolist())
            for name, row in zip(names, service, strict=True)
        },
        gap=tuple(np.round(np.append(0.0, gaps.reshape(POINTS, each).max(axis=1))).tolist()),
    )


def _row(
    name: str, tenant: _Tenant, weight: float, active_s: float, *,
    service: float, total: float, demand: float, waiting: float, contended: float | None,
) -> TenantRow:  # fmt: skip
    ttft = list(_percentiles(tenant.ttfts_s, (50, 95)))
    finished = tenant.ok + tenant.failed
    return TenantRow(
        name=name,
        weight=weight,
        requests=tenant.requests,
        failed=tenant.failed,
        failure_rate=tenant.failed / finished if finished else None,
        ttft_p50_s=ttft[0],
        ttft_p95_s=ttft[1],
        itl_p50_s=next(_percentiles(tenant.itls_s, (50,))),
        tokens_per_s=sum(tenant.served) / active_s if active_s else None,
        service=service,
        share=service / total if total else None,
        demand=tenant.demand,
        demand_share=tenant.demand / demand if demand else None,
        waiting=waiting,
        contended_share=contended,
    )


def _percentiles(values: Sequence[float], percentiles: Sequence[float]) -> Iterator[float | None]:
    for p in percentiles:
        yield float(np.percentile(np.array(values), p)) if len(values) else None


NAME: Final = 40
"""The characters of a name."""
NOTE: Final = (
    "Service: weighted tokens, 1 per input token and 2 per output token (VTC, Sheng et al., OSDI "
    "2024), including failed and unfinished requests. Demand: the same for the requested tokens. "
    "Waiting: share of the time under load in which the tenant had a request without a first "
    "token."
)


def make_tenant_blocks(summary: TenantsSummary) -> Iterator[Block]:
    """Makes the blocks of the tenants in the profiling phase."""
    yield Heading("Tenants")
    weighted = len({row.weight for row in summary.rows}) > 1
    times = ("TTFT p50 (ms)", "p95", "ITL p50")
    head = (
        "Tenant",
        "requests",
        "failed",
        *times,
        "tokens/s",
        "service",
        "share",
        "demand",
        "waiting",
    )
    rows = tuple(tuple(_cells(row, weighted)) for row in summary.rows)
    yield TableBlock(head + ("weight",) * weighted, rows)
    yield from explain_marks(rows)
    yield TextBlock(describe_fairness(summary, weighted=weighted))
    if summary.gap is not None and summary.gap_of is not None:
        first, second = (truncate_text(name, NAME) for name in summary.gap_of)
        yield TextBlock(
            f"Service gap between {first} and {second}: at most {format_brief(summary.gap, digits=3)} "
            f"weighted tokens"
            f"{' / weight' * weighted}, while both waited."
        )
    if summary.under_load_s is not None:
        yield TextBlock(
            f"tokens/s: input and output tokens over the {format_duration(summary.under_load_s)} "
            "with a request in flight. Total Token Throughput covers the whole run and successful "
            "requests only, so the sum may differ."
        )
    yield TextBlock(NOTE)


def describe_fairness(tenants: TenantsSummary, *, weighted: bool = False) -> str:
    """Jain's index in a sentence, or why there is none."""
    names = ", ".join(truncate_text(name, NAME) for name in tenants.backlogged)
    if tenants.jain is None:
        if len(tenants.backlogged) > 1:
            return (
                f"No Jain's index: {names} were backlogged, but they never all waited "
                f"throughout a step of {_step(tenants)}."
            )
        sentence = f"only {names} was" if names else "no tenant was"
        return (
            f"No Jain's index: {sentence} backlogged (waiting half of the time or more), so the "
            "server had no choice between tenants."
        )
    rows = [row for row in tenants.rows if row.contended_share is not None]
    got = ", ".join(f"{truncate_text(row.name, NAME)} {row.contended_share:.1%}" for row in rows)
    per = " / weight" * weighted
    return (
        f"Jain's index {tenants.jain:.3f} of service{per} (1: equal, {1 / len(rows):.2g}: one has "
        f"all): in the "
        f"{format_duration(tenants.contended_s)} in which all of {names} waited (whole steps of "
        f"{_step(tenants)}), they received {got}."
    )


def _step(tenants: TenantsSummary) -> str:
    """The length of a step in which waiting tenants are compared."""
    at_s = tenants.service.at_s
    return format_duration((at_s[-1] - at_s[0]) / BINS)


def _cells(row: TenantRow, weighted: bool) -> Iterator[str]:
    yield truncate_text(row.name, NAME)
    yield f"{row.requests:,}"
    yield "-" if row.failure_rate is None else f"{row.failure_rate:.1%}"
    for word, percentile, seconds in (
        ("ttft", 50, row.ttft_p50_s),
        ("ttft", 95, row.ttft_p95_s),
        ("itl", 50, row.itl_p50_s),
    ):
        inexact = INEXACT * (f"{word} p{percentile}" in row.inexact)
        few = mark_scarce(row.requests - row.failed, percentile)
        yield "-" if seconds is None else f"{inexact}{format_number(seconds * 1e3, 4)}{few}"
    yield f"{INEXACT * ('tokens_per_s' in row.inexact)}{format_number(row.tokens_per_s, 4)}"
    yield f"{row.service:,.0f}"
    for share in (row.share, row.demand_share, row.waiting):
        yield "-" if share is None else f"{share:.1%}"
    if weighted:
        yield f"{row.weight:.2f}"


HUES: Final = ("p50", "p95", "p99", "prefill", "decode", "knee", "ok", "limit")
"""The colours of the tenants with the most service. No more are drawn."""


def plot_tenant_service(summary: TenantsSummary, time: TimeAxis) -> Iterator[Plot]:
    """Cumulative service per tenant, and the gap where two waited."""
    shown = summary.rows[: len(HUES)]
    at = round_values(np.array(summary.service.at_s), 6)
    left = (
        f" The {len(shown)} tenants with the most service of {len(summary.rows)}."
        if len(shown) < len(summary.rows)
        else ""
    )
    lines = [
        PlotSeries(row.name, hue, at, list(summary.service.received[row.name]))
        for row, hue in zip(shown, HUES, strict=False)
    ]
    yield Plot(
        title="Service received",
        caption=(
            f"Weighted tokens (input 1, output 2) since the start.{left} On a fair server, the "
            "lines of waiting tenants rise in proportion to their weights."
        ),
        label="Service by tenant: "
        + ", ".join(f"{row.name} {format_brief(row.service, digits=3)}" for row in shown),
        x=time.axis,
        y=PlotAxis(label="weighted tokens", unit="tokens", low=0.0),
        series=tuple(lines),
        group=TIME_GROUP,
    )
    if summary.gap:
        yield Plot(
            title="Service gap",
            caption=(
                "Largest difference between two tenants in service / weight while both wait. It "
                "restarts when one of them has no waiting request."
            ),
            label=f"Service gap over time: at most {format_brief(summary.gap, digits=3)} weighted "
            f"tokens",
            x=time.axis,
            y=PlotAxis(label="weighted tokens", unit="tokens", low=0.0),
            series=(PlotSeries("gap", "stall", at, list(summary.service.gap), kind="area"),),
            group=TIME_GROUP,
            low=True,
        )


# -- section ---------------------------------------------------------------------------------------


def _find(material: ReportMaterial) -> TenantsSummary | None:
    found = summarise_tenants(material.columns.requests, material.run, material.records)
    if found is None or material.inexact.sources is None:
        return found
    return replace(found, rows=tuple(_mark_inexact(row, material) for row in found.rows))


def _mark_inexact(row: TenantRow, material: ReportMaterial) -> TenantRow:
    """A row of several tenants together (``OTHERS``) has no marks."""
    requests = material.columns.requests
    of_tenant = requests.has("tenant", row.name) & requests.has("phase", PROFILING)
    part = RequestSelection(requests, of_tenant)
    wrong = [f"ttft {stat}" for stat in material.inexact.find_stats(TTFT, part, (50.0, 95.0))]
    wrong += [f"itl {stat}" for stat in material.inexact.find_stats(ITL, part, (50.0,))]
    wrong += ["tokens_per_s"] * material.inexact.is_rate_inexact(part)
    return replace(row, inexact=tuple(wrong))


def _draw(tenants: TenantsSummary, material: ReportMaterial) -> Iterator[Plot]:
    return plot_tenant_service(tenants, find_time_axis(material.columns.requests, material.run))


TENANTS: Final = ReportSection(
    name="tenants",
    subject="the service of the tenants",
    finding=TenantsSummary,
    find=_find,
    make_blocks=make_tenant_blocks,
    chart_heading="Service by tenant",
    draw=_draw,
    shows_arms=True,
)
