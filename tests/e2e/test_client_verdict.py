"""Is it the client or the server? Runs beside programs that really burn the CPU, and C code that
really holds the GIL."""

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import msgspec
import numpy as np
import pytest
from support.burners import a_run_against, burners
from support.scripted import Scripted, stream
from support.stamps_truth import check, several

from locust_llm.client.reader import process_reader
from locust_llm.client.reader.python_reader import PythonReader
from locust_llm.demo import start_simulator
from locust_llm.records.storage import RECORDS, read_run
from locust_llm.report.build import remake_reports
from locust_llm.report.columns import collect_columns
from locust_llm.report.selection import RequestSelection
from locust_llm.report.summarise import collect_evidence
from locust_llm.slo.client_verdict import (
    CPU_WAIT,
    CPU_WAIT_ADVICE,
    INVALID,
    OK,
    ClientVerdict,
    judge_client,
)
from locust_llm.worker.health import THREADS, HealthMonitor

pytestmark = pytest.mark.serial


@pytest.mark.skipif(
    not any(THREADS.glob("*/schedstat")), reason="this kernel does not count waits for a core"
)
@pytest.mark.full
def test_programs_that_burn_the_cpu_are_what_the_verdict_names(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator("--ttft-ms", "200", "--itl-ms", "20") as url:
        run = a_run_against(url, folder, "-u", "100", "-t", "4s", "--output-tokens-mean", "60")
        while not (folder / RECORDS).exists():  # its start, too, would take eight times as long
            assert run.poll() is None
            time.sleep(0.05)
        with burners(8 * (os.cpu_count() or 1)):
            # its reports, too, would take as long
            while run.poll() is None and read_run(folder).stopping_at is None:
                time.sleep(0.2)
        run.wait(90)
    summary, _ = remake_reports(folder)
    assert summary.client is not None
    assert summary.client.level != OK
    assert any(CPU_WAIT in reason for reason in summary.client.reasons), summary.evidence
    assert summary.client.advice == CPU_WAIT_ADVICE
    said = folder.with_suffix(".out").read_text()
    assert f"CLIENT {summary.client.level}" in said
    assert CPU_WAIT_ADVICE in " ".join(said.split())  # lines are wrapped


@pytest.mark.slow
def test_a_slow_server_is_not_blamed_on_the_client(tmp_path: Path) -> None:
    """Other programs of this machine may be late all the same; but not this client, which has next
    to nothing to do."""
    folder = tmp_path / "r"
    with start_simulator("--ttft-ms", "800", "--itl-ms", "20") as url:
        run = a_run_against(
            url, folder, "-u", "20", "--request-count", "20", "--output-tokens-mean", "10"
        )
        assert run.wait(90) == 0
    summary, _ = remake_reports(folder)
    (found,) = summary.evidence
    assert found.ttft_p99_ms is not None
    assert found.ttft_p99_ms > 800
    assert found.cpu_share is not None
    idle = msgspec.structs.replace(
        found, cpu_wait_share=None, loop_lag_p99_ms=None, read_lag_p99_ms=None, send_lag_p99_ms=None
    )
    assert judge_client([idle]) == ClientVerdict(
        OK
    )  # 0.8 s of TTFT, no chunk merged, little CPU: nothing of it is the client's


# -- code that holds the GIL -----------------------------------------------------------------------


@pytest.fixture
def holding_the_gil() -> Iterator[None]:
    """C code that holds the GIL for 50 ms of every 100, as a listener of a locustfile may: no
    thread of Python runs."""
    usleep = ctypes.PyDLL(None).usleep  # a CDLL would let go of the GIL

    def hold() -> None:
        while True:
            usleep(50_000)
            gevent.sleep(0.05)

    holder = gevent.spawn(hold)
    yield
    holder.kill()


@pytest.mark.usefixtures("holding_the_gil")
def test_beside_code_that_holds_the_gil_chunks_merge_and_claim_nothing_wrong(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    # that in C does not wait for the lock: see the next test
    monkeypatch.setattr(process_reader, "kind", PythonReader)
    monkeypatch.setattr(process_reader, "_reader", None)
    watch = HealthMonitor()
    got = several(
        scripted, "gil", 6, lambda n: stream(40, first_ms=20 + 3 * n, each_ms=20, end_ms=20)
    )
    health = watch.stop("local")
    chunks = 6 * 40
    alone = sum(check(record, timed.sent_ns, row) for record, timed, row in got)
    assert 0 < alone < chunks * 0.9  # some came in the other 50 ms
    requests = collect_columns(
        [msgspec.structs.replace(record, worker="local") for record, _, _ in got]
    ).requests
    part = RequestSelection(requests, np.ones(len(requests), np.bool_))
    from_records, whole = (
        judge_client(collect_evidence(part, ())),
        judge_client(collect_evidence(part, [health])),
    )
    assert from_records is not None
    assert from_records.level == INVALID
    assert any("merged" in reason for reason in from_records.reasons)
    assert health.loop_lag_p99_ms > 20
    assert whole is not None
    assert whole.level == INVALID


@pytest.mark.skipif(
    process_reader.kind is PythonReader, reason="the native reader was not compiled"
)
@pytest.mark.usefixtures("holding_the_gil")
def test_beside_code_that_holds_the_gil_the_native_reader_merges_nothing(
    scripted: Scripted,
) -> None:
    got = several(
        scripted, "native", 6, lambda n: stream(40, first_ms=20 + 3 * n, each_ms=20, end_ms=20)
    )
    alone = sum(check(record, timed.sent_ns, row) for record, timed, row in got)
    assert alone > 0.95 * 6 * 40  # the machine may be slow itself
