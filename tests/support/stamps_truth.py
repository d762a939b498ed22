"""Stamps truth: checks the stamps of streams against the scripted server."""

from collections.abc import Callable
from typing import Any

import gevent
import gevent.os

from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.response_chunks import Response
from locust_llm.gate.gate import Gate
from locust_llm.records.record import Record
from support.scripted import Row, Scripted

CLOCKS_NS = 20_000
"""Wall-clock stamps become monotonic with an offset accurate to 10 µs, and records have whole
microseconds."""
DELIVERY_NS = 2_000_000
"""The kernel stamps an arriving segment. On the loopback device that is usually within the sender's
system call, so within [before, after]. Waiting for a window or for the softirq thread of a busy
machine delays it slightly."""


def run(
    server: Scripted,
    name: str,
    steps: list[Any],
    line: UserConnection | None = None,
    **options: Any,
) -> tuple[Record, Response]:
    """Sends one request without a gate."""
    line = line or UserConnection()
    record = exchange_request(line, Gate(), server.request(name, steps, **options), 0.0)
    assert line.stream is not None
    return record, line.stream


def check(record: Record, sent_ns: int, row: Row) -> int:
    """Checks every statement on a chunk's time, and returns the number of chunks that came
    alone."""
    truth = row.chunks
    assert len(record.chunk_us) == len(truth)
    assert list(record.chunk_us) == sorted(record.chunk_us)
    earliest = dict(record.merged)
    for index, (us, (before, after)) in enumerate(zip(record.chunk_us, truth, strict=True)):
        stamp = sent_ns + us * 1000
        assert before <= stamp + CLOCKS_NS
        if index in earliest:
            assert sent_ns + earliest[index] * 1000 <= after + DELIVERY_NS
        else:
            assert stamp <= after + DELIVERY_NS
    return len(truth) - len(earliest)


def several(
    server: Scripted, prefix: str, count: int, steps: Callable[[int], list[Any]], **options: Any
) -> list[Any]:
    """Sends so many requests at once, and returns (record, stream, row) of each."""
    jobs = [
        gevent.spawn(run, server, f"{prefix}{n}.", steps(n), keep_text=True, **options)
        for n in range(count)
    ]
    gevent.joinall(jobs, raise_error=True)
    rows = server.rows(prefix, count)
    return [(*job.value, *rows[job.value[0].id]) for job in jobs]
