"""Command ``locust-llm selftest``: the load generator against the reference server: reported times
beside true ones, and the client verdict."""

import argparse
import re
import resource
import ssl
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain, starmap
from pathlib import Path
from typing import Final

import gevent
import msgspec
from tabulate import tabulate

from locust_llm.accuracy.reference_process import TruthServer, self_signed
from locust_llm.client.connection import Target
from locust_llm.client.reader.open_streams import ReaderFailed
from locust_llm.client.reader.reader_choice import get_open_streams
from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.exit_status import ExitStatus, fail
from locust_llm.gate.gate import Gate
from locust_llm.records.histogram import histogram_percentiles
from locust_llm.records.machine import Machine, detect_machine, format_machine
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.timing_accuracy import (
    Ends,
    ErrorBounds,
    MeasurementAccuracy,
    OrderedValues,
    ReferenceTimes,
    TimingDifferences,
    parse_reference_times,
    percentile_error_ends,
)
from locust_llm.slo.load_generator_health import (
    ClientVerdict,
    FigureError,
    ProcessEvidence,
    judge_figures,
)
from locust_llm.text.console import write_console
from locust_llm.text.format import format_bound, format_error_ends, format_number, name_percentile
from locust_llm.worker.reference_streams import make_reference_request

AGAINST_TRUE: Final = "reported against true times"
"""The cause that a verdict names."""
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)
STREAM_S: Final = 1.0
"""A stream lasts so long. Then its connection carries the next one."""
FILES: Final = 64
"""Open files beside one for each stream."""
MOST_STREAMS: Final = 4000


class SelftestRow(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT or the gaps, in ms by percentile (``p50``)."""

    count: int
    reported: dict[str, float]
    true: dict[str, tuple[float, float]]
    """(lower bound, upper bound) of the true values."""
    plus_minus: dict[str, Ends]
    difference: ErrorBounds

    @property
    def true_errors(self) -> dict[str, Ends]:
        """How much lower, and how much higher, each true percentile is than the reported one at
        most. It is known here; a run has only bounds."""
        return {
            name: (max(0.0, value - self.true[name][0]), max(0.0, self.true[name][1] - value))
            for name, value in self.reported.items()
        }


class SelftestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a self-test."""

    streams: int
    seconds: float
    tls: bool
    chunks: int
    merged_share: float
    cpu_us: float
    """The CPU time of this process for each chunk, in µs."""
    server_cpu_us: float | None
    ttft: SelftestRow | None
    gap: SelftestRow | None
    failures: dict[str, int]
    """Failed streams, by outcome."""
    verdict: ClientVerdict
    machine: Machine


class TimingErrors:
    """Times of one kind, counted by microseconds: reported, possible by the records, and true."""

    def __init__(self) -> None:
        self.reported = Counter[int]()
        self.least = Counter[int]()
        self.most = Counter[int]()
        self.true_least = Counter[int]()
        self.true_most = Counter[int]()

    def row(self, bounds: ErrorBounds) -> SelftestRow:
        def at(counts: Counter[int], p: float) -> float:
            return histogram_percentiles(counts, [p])[0] / 1e3

        least, reported, most = map(_order, (self.least, self.reported, self.most))

        def known(p: float) -> Ends:
            return percentile_error_ends(p, least, reported, most, bounds)

        return SelftestRow(
            count=self.reported.total(),
            reported={name_percentile(p): at(self.reported, p) for p in PERCENTILES},
            true={
                name_percentile(p): (at(self.true_least, p), at(self.true_most, p))
                for p in PERCENTILES
            },
            plus_minus={name_percentile(p): known(p) for p in PERCENTILES},
            difference=bounds,
        )


def _order(counts: Counter[int]) -> OrderedValues:
    values = sorted(counts)
    return OrderedValues([us / 1e3 for us in values], list(accumulate(counts[us] for us in values)))


class SelftestTally:
    """The counts of all streams."""

    def __init__(self) -> None:
        self.differences = TimingDifferences()
        self.ttft = TimingErrors()
        self.gap = TimingErrors()
        self.failures: Counter[str] = Counter()

    def add(self, record: Record, truth: ReferenceTimes | None) -> None:
        if record.outcome != OK or truth is None or len(truth.sends) != len(record.chunk_us):
            self.failures[
                record.outcome if record.outcome != OK else "not the chunks that were sent"
            ] += 1
            return
        self.differences.add(record, truth)
        us = record.chunk_us
        earliest = dict(record.merged)
        sends = truth.sends
        self.ttft.reported[us[0]] += 1
        self.ttft.least[earliest.get(0, us[0])] += 1
        self.ttft.most[us[0]] += 1
        self.ttft.true_least[(sends[0][0] - truth.arrived) // 1000] += 1
        self.ttft.true_most[(sends[0][1] - truth.arrived) // 1000] += 1
        for i in range(1, len(us)):
            if i not in earliest and i - 1 not in earliest:
                self.gap.reported[us[i] - us[i - 1]] += 1
            self.gap.least[max(0, earliest.get(i, us[i]) - us[i - 1])] += 1
            self.gap.most[us[i] - earliest.get(i - 1, us[i - 1])] += 1
            self.gap.true_least[max(0, sends[i][0] - sends[i - 1][1]) // 1000] += 1
            self.gap.true_most[(sends[i][1] - sends[i - 1][0]) // 1000] += 1


def measure_selftest(streams: int, itl_s: float, seconds: float, tls: bool) -> SelftestResult:
    """Stream for ``seconds``. Raises OSError, ReaderFailed, and subprocess.CalledProcessError if no
    certificate can be made."""
    machine = detect_machine()
    tally = SelftestTally()
    _open_files(streams)
    get_open_streams()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = self_signed(folder) if tls else None
        context = ssl.create_default_context(cafile=str(certificate)) if certificate else None
        server = TruthServer(itl_s, certificate=certificate)
        chunks = max(2, min(1000, round(STREAM_S / itl_s)))
        request = make_reference_request(Target("127.0.0.1", server.port, context), chunks)
        began = time.monotonic()
        cpu_s = time.process_time()
        gevent.joinall(
            [gevent.spawn(_stream, request, began + seconds, tally) for _ in range(streams)]
        )
        lasted_s = time.monotonic() - began
        cpu_s = time.process_time() - cpu_s
        server_s = server.close(gevent.sleep)
    return _result(streams, tls, lasted_s, cpu_s, server_s, tally, machine)


def _open_files(streams: int) -> None:
    """Check that this process, and the server's, may open enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
        )


def _stream(request: Request, until: float, tally: SelftestTally) -> None:
    """Run one stream after the other, in a greenlet."""
    line = UserConnection()
    gate = Gate()
    try:
        while time.monotonic() < until:
            record = exchange_request(line, gate, request, 0.0)
            tally.add(
                record,
                None if line.stream is None else parse_reference_times(line.stream.answer.last),
            )
            if record.outcome != OK:
                gevent.sleep(0.1)
    finally:
        line.close()


def _result(
    streams: int,
    tls: bool,
    lasted_s: float,
    cpu_s: float,
    server_s: float | None,
    tally: SelftestTally,
    machine: Machine,
) -> SelftestResult:
    certificate = tally.differences.certificate()
    chunks = tally.differences.chunks
    merged_share = tally.differences.merged / max(chunks, 1)
    ttft = None if certificate.ttft is None else tally.ttft.row(certificate.ttft)
    gap = None if certificate.gap is None else tally.gap.row(certificate.gap)
    return SelftestResult(
        streams=streams, seconds=lasted_s, tls=tls, chunks=chunks, merged_share=merged_share,
        cpu_us=cpu_s / max(chunks, 1) * 1e6,
        server_cpu_us=None if server_s is None else server_s / max(chunks, 1) * 1e6,
        ttft=ttft, gap=gap, failures=dict(tally.failures),
        verdict=_judged(
            certificate, [("ttft", "TTFT", ttft), ("icl", "gaps", gap)], cpu_s / lasted_s
        ), machine=machine,
    )  # fmt: skip


def _judged(
    accuracy: MeasurementAccuracy,
    rows: Sequence[tuple[str, str, SelftestRow | None]],
    cpu_share: float,
) -> ClientVerdict:
    figures = list[FigureError]()
    for word, label, row in rows:
        if row is None:
            continue
        for stat, value in row.reported.items():
            lower, higher = row.true_errors[stat]
            figures.append(
                FigureError(
                    word=word, stat=stat, label=f"{label} {stat}", unit="ms", value=value,
                    lower=lower, higher=higher, causes={AGAINST_TRUE: max(lower, higher)},
                )
            )  # fmt: skip
    evidence = ProcessEvidence(
        worker="selftest", requests=accuracy.streams, cpu_share=cpu_share,
        required=bool(accuracy.missing), uncertified=accuracy.missing,
    )  # fmt: skip
    verdict = judge_figures(figures, [evidence], ("ttft", "icl"))
    assert verdict is not None
    return verdict


def _format_bounds(name: str, bounds: ErrorBounds) -> list[str]:
    each = (bounds.p50_ms, bounds.p95_ms, bounds.p99_ms, bounds.max_ms)
    return [name, *map(format_bound, each), f"{bounds.count:,}"]


def format_selftest(result: SelftestResult) -> str:
    """The result as text for the console."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: SelftestResult) -> Iterator[str]:
    wire = "TLS" if result.tls else "plain HTTP"
    merged = f"{result.merged_share:.2%} of them were read together with others"
    yield f"{result.streams} streams over {wire}, {result.seconds:.1f} s, {result.chunks:,} chunks, {merged}"
    server = (
        ""
        if result.server_cpu_us is None
        else f"; the reference server used {result.server_cpu_us:.1f} µs"
    )
    yield f"{result.cpu_us:.1f} µs of CPU per chunk{server}"
    yield f"{format_machine(result.machine)}; load average before {format_number(result.machine.load)}"
    rows = [
        (name, row)
        for name, row in (("TTFT", result.ttft), ("gaps", result.gap))
        if row is not None
    ]
    if rows:
        yield ""
        yield _table(
            ["ms", *map(name_percentile, PERCENTILES)],
            list(chain.from_iterable(starmap(_figures, rows))),
        )
        yield ""
        yield _table(
            ["reported minus true at most, ms", "p50", "p95", "p99", "max", "count"],
            [_format_bounds(name, row.difference) for name, row in rows],
        )
        yield ""
        yield ("True: all chunks. Bounds: what a run reports, as it cannot see the true times.")
        if result.merged_share:
            yield (
                "Chunks that were read together with others are in no reported gap and in no "
                "difference."
            )
    yield ""
    for outcome, count in result.failures.items():
        yield f"{count} streams failed: {outcome}"
    reasons = "; ".join(result.verdict.reasons)
    yield f"client verdict {result.verdict.level}" + (
        f": {reasons}. {result.verdict.advice}" if reasons else ""
    )


def _figures(name: str, row: SelftestRow) -> Iterator[list[str]]:
    yield [f"{name} reported", *(format_number(value) for value in row.reported.values())]
    yield [f"{name} true", *(f"{low:.2f} to {high:.2f}" for low, high in row.true.values())]
    yield [f"{name} bounds", *map(format_error_ends, row.plus_minus.values())]


def _table(head: list[str], rows: list[list[str]]) -> str:
    return tabulate(
        rows, headers=head, disable_numparse=True, colalign=["left", *["right"] * (len(head) - 1)]
    )


# -- the command -----------------------------------------------------------------------------------


def run_selftest(words: list[str]) -> int:
    """Run the self-test. Returns 0 where the client verdict is OK."""
    parser = argparse.ArgumentParser(
        prog="locust-llm selftest",
        description=(
            "Measure the timing error of the load generator on this machine. It streams from a "
            "local reference server with known send times, and compares reported with true times."
        ),
    )
    parser.add_argument(
        "--streams",
        type=int,
        default=200,
        metavar="N",
        help="number of concurrent streams (default: 200)",
    )
    parser.add_argument(
        "--itl",
        type=_seconds,
        default=0.02,
        metavar="TIME",
        help="time between two chunks of a stream (default: 20ms)",
    )
    parser.add_argument(
        "-t",
        "--run-time",
        type=_seconds,
        default=10.0,
        metavar="TIME",
        help="duration of the test (default: 10s)",
    )
    parser.add_argument(
        "--tls", action="store_true", help="stream over TLS. Needs the openssl command"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(words)
    if not (
        1 <= options.streams <= MOST_STREAMS
        and 0.001 <= options.itl <= 10
        and 1 <= options.run_time <= 3600
    ):
        return fail(f"--streams takes 1 to {MOST_STREAMS}, --itl 1ms to 10s, -t 1s to 1h")
    try:
        result = measure_selftest(options.streams, options.itl, options.run_time, options.tls)
    except ReaderFailed as error:
        return fail(str(error), ExitStatus.BROKEN)
    except (OSError, subprocess.CalledProcessError) as error:
        what = (
            "the openssl command cannot create a TLS certificate"
            if options.tls
            else "the reference server cannot start"
        )
        return fail(f"{what}: {error}")
    write_console(
        msgspec.json.encode(result).decode() + "\n" if options.json else format_selftest(result)
    )
    return ExitStatus.OK if result.verdict.level == "OK" else ExitStatus.FAILED_REQUESTS


def _seconds(text: str) -> float:
    """``20ms``, ``0.02``, ``10s``, ``2m``, ``1h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a time such as 20ms or 10s, got {text!r}")
    return float(match[1]) * {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(match[2], 1.0)
