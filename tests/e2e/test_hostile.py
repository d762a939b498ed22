"""Servers that send without end, or almost nothing: each answer ends in time, in little memory, and
beside good ones."""

import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import gevent
import psutil
import pytest
from support import hostile
from support.hostile import CATALOGUE

from locust_llm.client.connection import Target
from locust_llm.client.reader.reader_choice import get_open_streams
from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.response_chunks import NO_END
from locust_llm.exit_status import ExitStatus
from locust_llm.gate.gate import Gate
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

DEADLINE_S: Final = 20.0
"""Of one answer; no limit of its request is above 4 s, and machines are slow. Later is a hang."""
GREW_MB: Final = 60
FIREHOSES: Final = ("pings", "tokens", "newlines")


@contextmanager
def server(*words: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, hostile.__file__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.communicate(timeout=5)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with server() as port:
        yield port


def ask(
    port: int, name: str, gate: Gate | None = None, tls: ssl.SSLContext | None = None
) -> Record:
    data = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: hostile\r\nX-Hostile: {name}\r\n\r\n".encode()
    )
    request = Request(
        target=Target("127.0.0.1", port, tls), data=data, labels={"id": name}, timeout_s=4.0,
        first_token_timeout_s=1.5,
        gap_timeout_s=3.0, max_response_bytes=8 << 20, max_chunks=3000,
    )  # fmt: skip
    line = UserConnection()
    try:
        return exchange_request(line, gate or Gate(), request, 0.0)
    finally:
        line.close()


def memory_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def check(name: str, record: Record, *, busy: bool = False) -> None:
    """``busy``: so much else is read that a time limit may be over before what ends it is."""
    expected = CATALOGUE[name].outcomes.split()
    timeouts = (
        {"first_token_timeout", "gap_timeout", "timeout"}
        if busy or "timeout" in expected
        else set()
    )
    assert record.outcome in {*expected, *timeouts}, (name, record.outcome, record.error)
    assert record.response_bytes < (8 << 20) + (1 << 18)
    assert len(record.chunk_us) < 3000 + 4000
    if record.outcome == OK:
        assert record.error == NO_END


@pytest.mark.slow
def test_all_of_them_at_once_end_in_time_and_harm_nobody(port: int) -> None:
    ask(port, "good")
    before_mb, gate = memory_mb(), Gate(len(CATALOGUE))
    began = time.monotonic()
    jobs = {name: gevent.spawn(ask, port, name, gate) for name in CATALOGUE}
    good = []
    while not all(job.dead for job in jobs.values()):
        assert time.monotonic() - began < 2 * DEADLINE_S, [
            name for name, job in jobs.items() if not job.dead
        ]
        good.append(ask(port, "good"))
        gevent.sleep(0.1)
    for name, job in jobs.items():
        check(name, job.get(), busy=True)
    assert {record.outcome for record in good} == {OK}
    assert (gate.used, get_open_streams().open_streams, get_open_streams().failure) == (0, 0, "")
    assert memory_mb() - before_mb < GREW_MB


@pytest.mark.full
@pytest.mark.parametrize("name", CATALOGUE)
def test_each_of_them_ends_in_time_and_in_little_memory(port: int, name: str) -> None:
    ask(port, "good")
    before_mb = memory_mb()
    with gevent.Timeout(DEADLINE_S):
        check(name, ask(port, name))
        assert ask(port, "good").outcome == OK
    assert memory_mb() - before_mb < GREW_MB


@pytest.mark.full
@pytest.mark.parametrize("name", FIREHOSES)
def test_a_firehose_over_tls(certificate: Path, name: str) -> None:
    tls = ssl.create_default_context(cafile=str(certificate))
    with server("", str(certificate)) as port, gevent.Timeout(DEADLINE_S):
        assert ask(port, "good", tls=tls).outcome == OK
        before_mb = memory_mb()
        check(name, ask(port, name, tls=tls))
        assert ask(port, "good", tls=tls).outcome == OK
        assert memory_mb() - before_mb < GREW_MB


@pytest.mark.full
@pytest.mark.parametrize("name", FIREHOSES)
def test_a_run_at_a_firehose_ends_in_time_and_in_little_memory(tmp_path: Path, name: str) -> None:
    with server(name) as port, (tmp_path / "log").open("wb") as log:
        began, peak_mb = time.monotonic(), 0.0
        run = psutil.Popen(
            [
                sys.executable, "-m", "locust_llm", "run", "--headless", "--host",
                f"127.0.0.1:{port}", "--model", "m",
                "-u", "4", "-t", "15", "-s", "3", "--request-timeout", "8", "--no-probe",
                "--report-dir", str(tmp_path / "run"),
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            while run.poll() is None and time.monotonic() - began < 45:
                peak_mb = max(peak_mb, run.memory_info().rss / 1e6)
                time.sleep(0.1)
        finally:
            with suppress(psutil.NoSuchProcess):
                run.kill()
        status, took_s = run.wait(), time.monotonic() - began
    # requests failed, or all of them were cut
    assert status in (ExitStatus.FAILED_REQUESTS, ExitStatus.INCOMPLETE), (
        tmp_path / "log"
    ).read_text()
    assert took_s < 25
    assert peak_mb < 300
    assert (tmp_path / "run" / "summary.md").exists()
