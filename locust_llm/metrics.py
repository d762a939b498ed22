"""Metrics: from the columns of a run's requests to its summary; every formula of a table is in this file."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .columns import Columns
from .gaps import Gaps
from .occupancy import gate_use, occupancy
from .record import CANCELLED, CUT, FAILURES, OK
from .run import Health, Run
from .summary import Conditions, Counts, Failure, Row, Summary
from .verdict import Evidence, Verdict, judge

Floats = NDArray[np.float64]

EXPORTED: Final = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
"""The percentiles of AIPerf's exports: always computed, next to those that were asked for."""


class Metric(NamedTuple):
    """A number that each request has, and how to say it."""

    label: str
    tag: str
    unit: str
    column: str
    scale: float
    means: str
    adjusted: bool = False
    """It also exists with failures as +infinity."""


LATENCIES: Final = (
    Metric("Request Latency", "request_latency", "ms", "latency_s", 1e3,
           "last chunk - send; without a stream: end of the answer - send", True),
    Metric("Time to First Token", "time_to_first_token", "ms", "ttft_s", 1e3,
           "first chunk with content, reasoning or a tool call - send, on an open connection", True),
    Metric("Time to First Output Token", "time_to_first_output_token", "ms", "ttfo_s", 1e3,
           "first chunk that is no reasoning - send", True),
    Metric("Inter Token Latency", "inter_token_latency", "ms", "itl_s", 1e3,
           "one number a request: (request latency - TTFT) / (output tokens - tokens of the first chunk); "
           "many tools call it TPOT", True),
    Metric("Inter Chunk Latency", "inter_chunk_latency", "ms", "", 1e3,
           "every gap between neighbouring chunks, pooled over all requests; gaps next to chunks that were read "
           "together with others are left out"),
    Metric("Longest Stall", "longest_stall", "ms", "longest_stall_s", 1e3, "the largest gap of a request", True),
    Metric("Gate Wait", "prefill_gate_wait", "ms", "gate_wait_s", 1e3, "admission by the prefill gate - asking for it"),
    Metric("Schedule Delay", "schedule_delay", "ms", "late_s", 1e3,
           "send - when it was due; what coordinated omission hides"),
    Metric("TTFT from Due", "time_to_first_token_from_due", "ms", "ttft_from_due_s", 1e3,
           "first chunk - when the request was due: what a user would have waited", True),
    Metric("Connect Time", "http_req_connecting", "ms", "connect_s", 1e3,
           "opening a connection, before the request: in no other latency"),
    Metric("TCP Round Trip", "tcp_round_trip", "ms", "rtt_us", 1e-3,
           "the kernel's smoothed round trip of the connection when the answer was over: was it the network?"),
    Metric("Read Lag", "read_lag", "ms", "read_lag_us", 1e-3,
           "the longest time that bytes of the answer lay unread in the kernel: the load generator's own health"),
)  # fmt: skip
PER_USER: Final = Metric(
    "Output Token Throughput per User", "output_token_throughput_per_user", "tokens/s", "itl_s", 1.0,
    "1 / inter token latency, a number a request",
)  # fmt: skip
LENGTHS: Final = (
    Metric("Input Tokens per Request", "input_sequence_length", "tokens", "input_tokens", 1.0, "as the server counted"),
    Metric("Output Tokens per Request", "output_sequence_length", "tokens", "output_tokens", 1.0,
           "as the server counted, reasoning included; else one a chunk, and the report says so"),
    Metric("Cached Tokens per Request", "usage_prompt_cache_read_tokens", "tokens", "cached_tokens", 1.0,
           "input tokens that the server had in its prefix cache"),
    Metric("Reasoning Tokens per Request", "reasoning_token_count", "tokens", "reasoning_tokens", 1.0,
           "output tokens spent on reasoning"),
)  # fmt: skip
DEFINITIONS: Final = {metric.label: metric.means for metric in (*LATENCIES, PER_USER, *LENGTHS)} | {
    "Throughputs": "of successful requests and their tokens, over first send to last end of the phase",
    "Percentiles": "exact, linear interpolation; with failures as +infinity: nearest rank",
    "Failures": "are in no latency above, but in the rate and in the table with failures as +infinity; requests cut by "
                "the end of the run or cancelled on purpose are neither failures nor successes",
}  # fmt: skip
WAITS: Final = frozenset({"prefill_gate_wait", "schedule_delay", "http_req_connecting"})
"""Waits before the send: failed requests had them like any other, so they are in these rows as they are."""
SELDOM: Final = frozenset({"time_to_first_output_token", "usage_prompt_cache_read_tokens", "reasoning_token_count"})
"""Rows that are left out where they say nothing."""


@dataclass(frozen=True)
class Part:
    """Some of the requests: a mask, as there may be a million and copies would double the memory."""

    requests: pd.DataFrame
    chosen: NDArray[np.bool_]

    def only(self, mask: "pd.Series[bool]") -> "Part":
        return Part(self.requests, self.chosen & mask.to_numpy(np.bool_))

    def outcome(self, *outcomes: str) -> "Part":
        return self.only(self.requests["outcome"].isin(outcomes))

    def count(self, column: str, value: object) -> int:
        return int(((self.requests[column] == value).to_numpy(np.bool_) & self.chosen).sum())

    def __getitem__(self, column: str) -> Floats:
        """The values of a column; NaN where a request has none."""
        return self.requests[column].to_numpy()[self.chosen].astype(np.float64)

    @property
    def size(self) -> int:
        return int(self.chosen.sum())

    def span(self) -> tuple[float, float]:
        """First send and last end or chunk, in Unix seconds (AIPerf's min_request_timestamp and
        max_response_timestamp); NaN of nothing. A request that could not be sent was tried from ``asked_at`` on: a
        server that was down for a while must not shorten the time that throughput is measured over."""
        if not self.size:
            return math.nan, math.nan
        began = np.where(np.isnan(self["sent_at"]), self["asked_at"], self["sent_at"])
        return float(began.min()), float(np.fmax(self["closed_at"], self["last_chunk_at"]).max())


def summarise(columns: Columns, run: Run, broken_lines: int = 0) -> Summary:
    """Everything that the tables of a run say. Only the profiling phase counts, but for ``warmup``."""
    everything = Part(columns.requests, np.ones(len(columns.requests), np.bool_))
    phase = columns.requests["phase"]
    warm, main = everything.only(phase == "warmup"), everything.only(phase == "profiling")
    percentiles = tuple(sorted({*EXPORTED, *run.settings.percentiles}))
    gaps = {name: columns.gaps.get(name, Gaps()) for name in ("profiling", "warmup")}
    found = evidence(main, run.health)
    verdict = judge(found)
    conditions = _conditions(main, run, verdict)
    levels = occupancy(columns.requests, run.limits) if run.limits else None
    return Summary(
        conditions=conditions,
        counts=_counts(main, warm.size, run, broken_lines, gaps["profiling"]),
        rows=_rows(main, gaps["profiling"], percentiles),
        adjusted=_adjusted(main, percentiles) if conditions.failed else (),
        warmup=_rows(warm, gaps["warmup"], percentiles) if warm.size else (),
        failures=_failures(main),
        client=verdict,
        evidence=found,
        gate=gate_use(levels, *main.span()) if levels else None,
    )


def distribution(metric: Metric, values: Floats, percentiles: Sequence[float]) -> Row:
    """The row of one metric; NaN are no values."""
    values = values[~np.isnan(values)] * metric.scale
    row = Row(label=metric.label, tag=metric.tag, unit=metric.unit, count=len(values))
    if not len(values):
        return row
    return msgspec.structs.replace(
        row,
        avg=float(values.mean()),
        min=float(values.min()),
        max=float(values.max()),
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        sum=float(values.sum()),
        percentiles=dict(zip(percentiles, np.percentile(values, percentiles).tolist(), strict=True)),
    )


def adjusted(metric: Metric, values: Floats, failures: int, percentiles: Sequence[float]) -> Row:
    """The row with ``failures`` more values of +infinity: AIPerf's ``adj_<tag>``. Nearest rank: the smallest value
    that at least p % of all are not above, so that nothing is interpolated towards infinity."""
    values = np.sort(values[~np.isnan(values)]) * metric.scale
    count = len(values) + failures
    ranks = [max(math.ceil(round(p / 100 * count, 9)), 1) for p in percentiles]
    return Row(
        label=metric.label,
        tag=f"adj_{metric.tag}",
        unit=metric.unit,
        count=count,
        avg=math.inf,
        min=float(values[0]) if len(values) else math.inf,
        max=math.inf,
        sum=math.inf,
        percentiles={
            p: float(values[rank - 1]) if rank <= len(values) else math.inf
            for p, rank in zip(percentiles, ranks, strict=True)
        },
    )


def scarce(count: int, percentile: float) -> bool:
    """There are too few values for this percentile: under 100 / (100 - p), that is 10 for p90, 100 for p99."""
    return count * (100 - percentile) < 100 - 1e-6


def _rows(part: Part, gaps: Gaps, percentiles: Sequence[float]) -> tuple[Row, ...]:
    ok, finished = part.outcome(OK), part.outcome(OK, *FAILURES)

    def row(metric: Metric) -> Row:
        if metric.tag == "inter_chunk_latency":
            return _gap_row(metric, gaps, percentiles)
        return distribution(metric, (finished if metric.tag in WAITS else ok)[metric.column], percentiles)

    rows = [row(metric) for metric in _latencies(ok)]
    rows += _throughputs(ok, part.span())
    itl = ok[PER_USER.column]
    rows.append(distribution(PER_USER, 1 / itl[itl > 0], percentiles))
    lengths = [row(metric) for metric in LENGTHS]
    return (*rows, *(length for length in lengths if length.tag not in SELDOM or length.count))


def _latencies(ok: Part) -> Iterator[Metric]:
    """TTFO only where some answer began with reasoning: else it is TTFT again."""
    ttft, ttfo = ok["ttft_s"], ok["ttfo_s"]
    reasoned = bool((ttft != ttfo)[~np.isnan(ttft)].any())
    return (metric for metric in LATENCIES if reasoned or metric.tag not in SELDOM)


def _gap_row(metric: Metric, gaps: Gaps, percentiles: Sequence[float]) -> Row:
    values = zip(percentiles, gaps.percentiles_ms(percentiles), strict=True)
    return Row(
        label=metric.label,
        tag=metric.tag,
        unit=metric.unit,
        count=gaps.count,
        avg=gaps.avg_ms,
        min=gaps.min_ms,
        max=gaps.max_ms,
        std=gaps.std_ms,
        sum=gaps.sum_ms if gaps.count else None,
        percentiles={p: value for p, value in values if value is not None},
    )


def _throughputs(ok: Part, ends: tuple[float, float]) -> list[Row]:
    """Successful requests, and their tokens, over the duration of the phase: AIPerf 0.13's request_throughput,
    output_token_throughput, input_token_throughput, total_token_throughput."""
    duration_s = ends[1] - ends[0]
    tokens_in, tokens_out = (_sum(ok[name]) for name in ("input_tokens", "output_tokens"))
    both = None if tokens_in is None or tokens_out is None else tokens_in + tokens_out

    def row(label: str, tag: str, unit: str, amount: float | None) -> Row:
        return Row(
            label=label, tag=tag, unit=unit, avg=amount / duration_s if amount is not None and duration_s > 0 else None
        )

    return [
        row("Request Throughput", "request_throughput", "requests/s", float(ok.size)),
        row("Output Token Throughput", "output_token_throughput", "tokens/s", tokens_out),
        row("Input Token Throughput", "input_token_throughput", "tokens/s", tokens_in),
        row("Total Token Throughput", "total_token_throughput", "tokens/s", both),
    ]


def _adjusted(part: Part, percentiles: Sequence[float]) -> tuple[Row, ...]:
    ok, failures = part.outcome(OK), part.outcome(*FAILURES).size
    metrics = (metric for metric in _latencies(ok) if metric.adjusted)
    return tuple(adjusted(metric, ok[metric.column], failures, percentiles) for metric in metrics)


def _failures(part: Part) -> tuple[Failure, ...]:
    """Commonest first."""
    failed = part.requests.loc[part.outcome(*FAILURES).chosen, ["outcome", "name", "status", "message"]]
    kinds = failed.groupby(list(failed.columns), observed=True, dropna=False).size()
    rows = [
        Failure(outcome=outcome, name=name, status=None if math.isnan(status) else int(status), count=n, message=first)
        for outcome, name, status, first, n in kinds.reset_index().itertuples(index=False)
    ]
    return tuple(sorted(rows, key=lambda row: -row.count))


def _conditions(part: Part, run: Run, verdict: Verdict | None) -> Conditions:
    ok, failed = part.outcome(OK), part.outcome(*FAILURES).size
    start, end = part.span()
    settings = run.settings
    return Conditions(
        simulated=run.simulated or bool(part["simulated"].any()),
        server=settings.host,
        server_software=run.server,
        model=run.model or settings.model or "",
        streaming=settings.streaming,
        users=settings.users,
        processes=settings.processes,
        prefill_limit=settings.prefill_concurrency,
        prefill_ramp_s=settings.prefill_concurrency_ramp_duration,
        asked_input_tokens=_mean(ok["asked_input_tokens"]),
        input_tokens=_mean(_where_asked(ok, "input_tokens")),
        input_deviation=_less_one(_share(ok["input_tokens"], ok["asked_input_tokens"])),
        asked_output_tokens=_mean(ok["asked_output_tokens"]),
        output_tokens=_mean(_where_asked(ok, "output_tokens")),
        output_deviation=_less_one(_share(ok["output_tokens"], ok["asked_output_tokens"])),
        cached_share=_share(ok["cached_tokens"], ok["input_tokens"]),
        duration_s=None if math.isnan(end - start) else end - start,
        requests=part.size,
        succeeded=ok.size,
        failed=failed,
        failure_rate=failed / (ok.size + failed) if ok.size + failed else None,
        cut=part.outcome(CUT).size,
        cancelled=part.outcome(CANCELLED).size,
        clock=_clock(ok),
        client_verdict=None if verdict is None else verdict.level,
    )


def evidence(part: Part, healths: Iterable[Health]) -> tuple[Evidence, ...]:
    """What each process knows of its own lateness: from the records that it made, and from its own watch.

    ``part``: the requests to be judged, those of a run or of a stage; ``healths``: of the processes over the same time,
    one each at most. A row a process that has requests there.
    """
    health = {h.worker: h for h in healths}
    workers = part.requests["worker"].astype(str)
    names = sorted(set(workers[part.chosen])) or sorted(health)
    return tuple(_evidence_of(name, part.only(workers == name), health.get(name)) for name in names)


def _evidence_of(worker: str, part: Part, health: Health | None) -> Evidence:
    ok = part.outcome(OK)
    chunks = float(ok["chunks"].sum())
    return Evidence(
        worker=worker,
        requests=part.size,
        ttft_p99_ms=_p99_ms(ok["ttft_s"]),
        ttft_p99_least_ms=_p99_ms(ok["ttft_soonest_s"]),
        merged_share=float(ok["merged"].sum()) / chunks if chunks else None,
        read_lag_p99_ms=_p99_ms(ok["read_lag_us"] / 1e6),
        send_lag_p99_ms=_p99_ms(part["sent_at"] - part["admitted_at"]),
        loop_lag_p99_ms=None if health is None else health.loop_lag_p99_ms,
        cpu_share=None if health is None else health.cpu_share,
        cpu_wait_share=None if health is None else health.cpu_wait_share,
    )


def _p99_ms(seconds: Floats) -> float | None:
    known = seconds[~np.isnan(seconds)]
    return float(np.percentile(known, 99)) * 1e3 if len(known) else None


def _where_asked(ok: Part, column: str) -> Floats:
    """Of the requests that asked for a length, where there are any: the mean stands beside what was asked."""
    asked = ~np.isnan(ok[f"asked_{column}"])
    return ok[column][asked] if asked.any() else ok[column]


def _clock(ok: Part) -> str:
    """Whose stamps: ``kernel``, ``thread``, or the shares of both."""
    if not ok.size:
        return ""
    kernel = ok.count("clock", "kernel") / ok.size
    return "kernel" if kernel == 1 else "thread" if kernel == 0 else f"kernel {kernel:.1%}, thread {1 - kernel:.1%}"


def _counts(part: Part, warmup: int, run: Run, broken_lines: int, gaps: Gaps) -> Counts:
    ok = part.outcome(OK)
    return Counts(
        warmup=warmup,
        never_sent=int(np.isnan(part["sent_at"]).sum()),
        turned_away=run.turned_away,
        records_lost=run.records_lost,
        broken_lines=broken_lines,
        chunks=int(ok["chunks"].sum()),
        merged_chunks=int(ok["merged"].sum()),
        ttft_upper_bounds=int(ok["ttft_is_upper_bound"].sum()),
        not_streamed=ok.count("streamed", False),
        tokens_from_usage=ok.count("tokens_from", "usage"),
        tokens_from_chunks=ok.count("tokens_from", "chunks"),
        tokens_unknown=ok.count("tokens_from", ""),
        gaps_left_out=int(np.maximum(ok["chunks"] - 1, 0).sum()) - gaps.count,
        gaps_exact=gaps.exact,
        retransmits=int(np.nansum(part["retransmits"])),
    )


def _share(of: Floats, total: Floats) -> float | None:
    """Sum over sum, over the requests of which both are known."""
    known = ~(np.isnan(of) | np.isnan(total))
    whole = float(total[known].sum())
    return float(of[known].sum()) / whole if whole else None


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _sum(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else None
