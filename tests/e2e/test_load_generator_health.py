"""Is it the client or the server? Runs beside programs that really burn the CPU, and C code that
really holds the GIL."""

import ctypes
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import msgspec
import pytest
from support.burners import a_run_against, burners
from support.records import a_run
from support.scripted import Scripted, stream
from support.stamps_truth import check, several

from locust_llm.client.reader import reader_choice
from locust_llm.client.reader.python_reader import PythonReader
from locust_llm.demo_command import start_simulator
from locust_llm.records.run_facts import RECORDS, read_run
from locust_llm.report.load_records import collect_columns
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.write_report_files import remake_reports
from locust_llm.slo.load_generator_health import (
    CPU_WAIT_ADVICE,
    LATE_READ,
    MERGED,
    OK,
    WAITS,
    ClientVerdict,
)
from locust_llm.worker.process_health import THREADS, HealthMonitor

pytestmark = pytest.mark.serial


RULES = (
    "--slo-mode",
    "point",
    "--slo",
    "ttft p50 < 20s",
    "--slo",
    "itl p50 < 1ms",
    "--slo",
    "error_rate < 50%",
)
"""Far from what the simulator does, in either direction."""


@pytest.mark.skipif(
    not any(THREADS.glob("*/schedstat")), reason="this kernel does not count waits for a core"
)
@pytest.mark.full
def test_programs_that_burn_the_cpu_are_named_first_and_decided_rules_stay_decided(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "r"
    with start_simulator("--ttft-ms", "200", "--itl-ms", "20") as url:
        words = ("-u", "100", "-t", "6s", "--output-tokens-mean", "60", *RULES)
        run = a_run_against(url, folder, *words)
        while not (folder / RECORDS).exists():  # its start, too, would take eight times as long
            assert run.poll() is None
            time.sleep(0.05)
        with burners(8 * (os.cpu_count() or 1)):
            # its reports, too, would take as long
            while run.poll() is None and read_run(folder).stopping_at is None:
                time.sleep(0.2)
        run.wait(90)
    summary, read = remake_reports(folder)
    assert summary.client is not None
    (health,) = read.health
    busiest = next(iter(health.other_programs))
    assert busiest.startswith("python")
    assert health.other_programs[busiest] > 0.5
    assert {one.rule: (one.status, one.voided) for one in summary.slos} == {
        "ttft p50 < 20s": ("PASS", False),
        "itl p50 < 1ms": ("FAIL", False),
        "error_rate < 50%": ("PASS", False),
    }
    # the figures may be fine all the same: then nobody is blamed
    if summary.client.level != OK:
        assert re.search(rf"other programs .*\b{busiest} ", summary.client.reasons[0])
        assert summary.client.advice == CPU_WAIT_ADVICE


@pytest.mark.slow
def test_a_quiet_run_of_a_slow_server_is_not_blamed_on_the_client(tmp_path: Path) -> None:
    """Other programs of this machine may be late all the same; but not this client, which has next
    to nothing to do. 2 % of 800 ms are 16 ms."""
    folder = tmp_path / "r"
    with start_simulator("--ttft-ms", "800", "--itl-ms", "200") as url:
        words = ("-u", "20", "--request-count", "40", "--output-tokens-mean", "10")
        run = a_run_against(url, folder, *words)
        assert run.wait(90) == 0
    summary, _ = remake_reports(folder)
    (found,) = summary.evidence
    if (found.cpu_wait_share or 0.0) > WAITS:
        pytest.skip(f"this machine is not quiet: {found.other_programs}")
    assert summary.client == ClientVerdict(OK), summary.figure_errors
    figures = {(one.word, one.stat): one for one in summary.figure_errors}
    assert figures["ttft", "p50"].value > 800
    assert all(one.own <= max(0.02 * one.value, 1.0) for one in figures.values())


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
    monkeypatch.setattr(reader_choice, "kind", PythonReader)
    monkeypatch.setattr(reader_choice, "_reader", None)
    watch = HealthMonitor()
    got = several(
        scripted, "gil", 6, lambda n: stream(40, first_ms=20 + 3 * n, each_ms=20, end_ms=20)
    )
    health = watch.stop("local")
    chunks = 6 * 40
    alone = sum(check(record, timed.sent_ns, row) for record, timed, row in got)
    assert 0 < alone < chunks * 0.9  # some came in the other 50 ms
    run = msgspec.structs.replace(a_run(), health=(health,))
    records = [msgspec.structs.replace(record, worker="local") for record, _, _ in got]
    summary = summarise_run(collect_columns(records), run)
    assert summary.client is not None
    assert summary.client.level != OK
    assert summary.client.signals.keys() & {MERGED, LATE_READ}
    assert health.loop_lag_p99_ms > 20


@pytest.mark.skipif(reader_choice.kind is PythonReader, reason="the native reader was not compiled")
@pytest.mark.usefixtures("holding_the_gil")
def test_beside_code_that_holds_the_gil_the_native_reader_merges_nothing(
    scripted: Scripted,
) -> None:
    got = several(
        scripted, "native", 6, lambda n: stream(40, first_ms=20 + 3 * n, each_ms=20, end_ms=20)
    )
    alone = sum(check(record, timed.sent_ns, row) for record, timed, row in got)
    assert alone > 0.95 * 6 * 40  # the machine may be slow itself
