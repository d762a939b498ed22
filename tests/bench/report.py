"""Report: measures the time and the peak memory of a long run's report: ``make bench-report``.
Prints a table, asserts nothing.

Makes two folders of N records by hand (an open loop at 1,000 requests a second behind a gate, 100
chunks each on average, 1% failures), one with profile_export.jsonl and columns, and one as with
--no-jsonl. Then it times ``remake_reports`` in a process of its own, its start and its imports
included: from the lines alone, from the columns beside them, from the columns alone, without the
parts of latencies, and with a span for each request.
"""

import argparse
import heapq
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import psutil
from tabulate import tabulate

from locust_llm.records.profile_export_jsonl import encode_record
from locust_llm.records.record import Record
from locust_llm.records.record_parts import PARTS
from locust_llm.records.record_writer import RecordWriter
from locust_llm.records.run_facts import RECORDS, LimitChange, Run, write_run
from locust_llm.records.server_times import SPANS
from locust_llm.records.spans.span_times import FILE, SpanLine
from locust_llm.settings.run_options import Settings

WHERE: Final = os.environ.get("BENCH_FOLDER")
"""Where the records are written. None: where temporary files are."""
UNIX: Final = 1_700_000_000.0
RATE_PER_S: Final = 1000.0
BLOCK: Final = 10_000
REMAKE: Final = "import sys; from locust_llm.report import write_report_files; {0}write_report_files.remake_reports(sys.argv[1])"
WITHOUT: Final = "write_report_files.attribute_latencies = lambda *words: None; "


def make_id(number: int) -> str:
    """32 hex digits without a pattern, like the ids of a run."""
    return blake2b(number.to_bytes(8), digest_size=16).hexdigest()


def records(count: int, seed: int = 1) -> Iterator[Record]:
    """Yields records in the order of their ends, like a run."""
    open_ones: list[tuple[float, str, Record]] = []
    for record in _sent(count, seed):
        heapq.heappush(open_ones, (record.closed_at, record.id, record))
        while open_ones[0][0] < record.due_at:
            yield heapq.heappop(open_ones)[2]
    yield from (record for _, _, record in sorted(open_ones))


def _sent(count: int, seed: int) -> Iterator[Record]:
    random = np.random.default_rng(seed)
    for first in range(0, count, BLOCK):
        due = (np.arange(first, min(first + BLOCK, count)) / RATE_PER_S).tolist()
        size = len(due)
        ttft_us = (random.lognormal(12.2, 0.6, size)).astype(int).tolist()
        waits = random.exponential(0.05, size).tolist()
        chunks = random.integers(50, 151, size).tolist()
        inputs = random.choice([128, 512, 2048, 16000], size).tolist()
        fails = (random.random(size) < 0.01).tolist()
        for i in range(size):
            us = (ttft_us[i] + random.gamma(4, 5000, chunks[i]).cumsum().astype(int)).tolist()
            sent_at = due[i] + waits[i]
            yield Record(
                id=make_id(first + i),
                user=i,
                user_class="Chat",
                name="chat",
                model="model",
                clock_offset_s=UNIX,
                due_at=due[i],
                asked_at=due[i],
                admitted_at=sent_at,
                sent_at=sent_at,
                freed_at=sent_at + us[0] / 1e6,
                headers_at=sent_at + 0.01,
                closed_at=sent_at + us[-1] / 1e6,
                chunk_us=() if fails[i] else tuple(us),
                first_output=None if fails[i] else 0,
                outcome="reset" if fails[i] else "ok",
                error=f"reset after {i} bytes" if fails[i] else "",
                status=200,
                input_tokens=inputs[i],
                asked_input_tokens=inputs[i],
                output_tokens=None if fails[i] else len(us),
                asked_output_tokens=len(us),
                tokens_from="usage",
                limit=200,
                rtt_us=200,
                read_lag_us=100,
                reads=len(us),
                request_bytes=4000,
                response_bytes=30_000,
            )


def spans(path: Path, count: int, seed: int = 2) -> None:
    """Yields a span per request, like a receiver."""
    random = np.random.default_rng(seed)
    queue_us = random.integers(0, 20_000, count).tolist()
    prefill_us = random.integers(5_000, 60_000, count).tolist()
    encode = msgspec.json.Encoder().encode
    with (path / FILE).open("wb") as file:
        for i, (queue, prefill) in enumerate(zip(queue_us, prefill_us, strict=True)):
            at = UNIX + i / RATE_PER_S
            times = SpanLine(
                id=make_id(i), source=SPANS, queue_us=queue, prefill_us=prefill, decode_us=900_000,
                ttft_us=queue + prefill, e2e_us=queue + prefill + 900_000, arrived_at=at,
            )  # fmt: skip
            file.write(encode(times) + b"\n")


def folders(both: Path, alone: Path, count: int) -> None:
    """Writes a run's folder with so many records as lines and columns, and one as columns alone."""
    end = UNIX + count / RATE_PER_S
    run = Run(
        name=f"{count} requests",
        settings=Settings(
            host="http://server:8000",
            request_rate=RATE_PER_S,
            prefill_concurrency=200,
            slo=("ttft p99 < 2s",),
        ),
        started_at=UNIX,
        profiling_at=UNIX,
        stopping_at=end,
        ended_at=end + 5,
        limits=(LimitChange(UNIX, 200),),
    )
    for path in (both, alone):
        path.mkdir()
        write_run(path, run)
    writers = RecordWriter(both, jsonl=True), RecordWriter(alone, jsonl=False)
    for record in records(count):
        for writer in writers:
            writer.write(encode_record(record))
            writer.pack_rows()
    for writer in writers:
        writer.flush()
        writer.pack_rows(last=True)
        writer.close()


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def remake(path: Path, first: str = "") -> tuple[float, float, float]:
    """Returns (seconds, seconds of CPU, peak memory in MB) of all its processes, observed 50 times
    a second."""
    began = time.perf_counter()
    process = psutil.Popen([sys.executable, "-c", REMAKE.format(first), str(path)])
    peak = 0
    cpu_s = dict[int, float]()
    while process.poll() is None:
        resident = 0
        for one in [process, *children(process)]:
            with suppress(psutil.Error):
                resident += one.memory_info().rss
                cpu_s[one.pid] = sum(one.cpu_times()[:2])
        peak = max(peak, resident)
        time.sleep(0.02)
    assert process.returncode == 0
    return time.perf_counter() - began, sum(cpu_s.values()), peak / 1e6


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def measure(count: int) -> Iterator[tuple[str, ...]]:
    with tempfile.TemporaryDirectory(dir=WHERE) as name:
        both, alone = Path(name, "both"), Path(name, "alone")
        folders(both, alone, count)
        lines = (both / RECORDS).stat().st_size
        columns = bytes_of(both / PARTS)
        (both / PARTS).rename(both / "hidden")
        for what, path, first, size in (
            ("lines", both, "", lines),
            ("lines and columns", both, "", lines + columns),
            ("columns", alone, "", bytes_of(alone / PARTS)),
            ("columns, without latency parts", alone, WITHOUT, bytes_of(alone / PARTS)),
            ("columns, with spans", alone, "", bytes_of(alone / PARTS)),
        ):
            if what == "lines and columns":
                (both / "hidden").rename(both / PARTS)
            if what.endswith("spans"):
                spans(alone, count)
            seconds, cpu_s, peak_mb = remake(path, first)
            page = (path / "report.html").stat().st_size / 1e6
            yield (
                f"{count:,}", what, f"{size / 1e6:,.0f}", f"{seconds:.1f}", f"{cpu_s:.1f}",
                f"{peak_mb:,.0f}", f"{page:.2f}"
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[100_000, 1_000_000])
    head = (
        "requests",
        "",
        "records (MB)",
        "report (s)",
        "of CPU (s)",
        "peak memory (MB)",
        "report.html (MB)",
    )
    rows = list(chain.from_iterable(map(measure, parser.parse_args().counts)))
    print(tabulate(rows, headers=head, disable_numparse=True))


if __name__ == "__main__":
    main()
