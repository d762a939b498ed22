"""Where slow requests spend their time, end to end: delays are found where they were planted, and
spans of any kind leave a run as it is.

Each figure is compared with what the simulator knows of the same run, by medians.
"""

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
import requests
from support.delaying_proxy import delaying_proxy
from support.exports import as_protobuf, span
from support.runs import free_port, records

from locust_llm.demo_command import start_simulator
from locust_llm.records.outcomes import OK
from locust_llm.records.run_facts import Run, read_run
from locust_llm.report.sections.latency_breakdown import LatencyAttribution

pytestmark = pytest.mark.slow

# some 100 ms
PROMPT = ("--synthetic-input-tokens-mean", "3500", "--synthetic-input-tokens-stddev", "0")
"""Of each request."""


class Found:
    """What a run left, and what the server knows of its requests."""

    def __init__(self, folder: Path, said: str, truth: dict[str, Any]) -> None:
        self.folder, self.said = folder, said
        self.run: Run = read_run(folder)
        self.waterfall = msgspec.convert(
            msgspec.json.decode((folder / "run.json").read_bytes())["waterfall"], LatencyAttribution
        )
        ids = {record.id for record in records(folder)}
        self.truth = [row for row in truth["requests"] if row["id"] in ids and row["parts"]]

    def true_ms(self, part: str) -> float:
        return 1e3 * median(row["parts"][part] for row in self.truth)

    def typical_ms(self, part: str) -> float:
        """Of the requests around the median of TTFT from due."""
        return sum(one.typical_ms for one in self.waterfall.breakdowns[0].parts if one.name == part)

    @property
    def longest(self) -> str:
        return max(self.waterfall.breakdowns[0].parts, key=lambda part: part.typical_ms).name


@contextmanager
def a_server(port: int, *words: str) -> Iterator[str]:
    with start_simulator(
        "--truth", "full", "--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces", *words
    ) as url:
        yield url


def load(folder: Path, to: str, url: str, port: int, *words: str) -> Found:
    """``to``: where the requests go; ``url``: the simulator's own."""
    command = [
        sys.executable, "-m", "locust_llm", "run", "--headless", "--host", to, "--no-probe",
        "--report-dir", str(folder),
        "--otlp-receiver", f"127.0.0.1:{port}", *words,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return Found(folder, said, requests.get(f"{url}/truth", timeout=10).json())


def test_a_delay_of_the_network_is_the_networks(tmp_path: Path) -> None:
    """25 ms each way, by a proxy; prompts of some 7 ms, so that nothing else is as long."""
    port = free_port()
    with a_server(port) as url, delaying_proxy(int(url.rpartition(":")[2]), 0.025) as proxy:
        found = load(tmp_path / "r", f"localhost:{proxy}", url, port, "-u", "1", "--request-count",
            "40",
                     "--output-tokens-mean", "2")  # fmt: skip
    assert found.longest == "network", found.waterfall.breakdowns[0].parts
    # a sleep is never shorter than asked for, and on a busy machine longer
    assert 50 <= found.typical_ms("network") <= 50 + 25
    assert found.typical_ms("queue") < 10
    assert found.waterfall.reported == {"spans": 40}


def test_a_wait_in_the_gate_is_the_gates(tmp_path: Path) -> None:
    """One prefill at a time, and two users: each waits for the other's."""
    port = free_port()
    with a_server(port) as url:
        found = load(tmp_path / "r", url, url, port, "-u", "2", "-t", "4s", "--prefill-concurrency",
            "1", *PROMPT,
                     "--output-tokens-mean", "1")  # fmt: skip
    held = 1e3 * median(row["first_at"][0] - row["arrived_at"] for row in found.truth)
    assert 80 < held < 200
    assert abs(found.typical_ms("gate") - held) < 0.25 * held
    assert found.typical_ms("queue") < 10


def test_a_wait_in_the_servers_queue_is_the_queues_and_its_clock_does_not_matter(
    tmp_path: Path,
) -> None:
    """One sequence at a time of 200 ms, four users, and a server whose clock is an hour ahead: three
    are before each, and on a busy machine at least one."""
    port = free_port()
    with a_server(port, "--max-num-seqs", "1", "--clock-offset", "3600") as url:
        found = load(tmp_path / "r", url, url, port, "-u", "4", "-t", "5s", *PROMPT,
            "--output-tokens-mean", "14",
                     "--output-tokens-stddev", "0")  # fmt: skip
    queue = found.true_ms("queue")
    assert 150 < queue < 750
    assert found.longest == "queue", found.waterfall.breakdowns[0].parts
    assert abs(found.typical_ms("queue") - queue) < 0.05 * queue
    assert abs(found.typical_ms("prefill") - found.true_ms("own_prefill")) < 0.1 * found.true_ms(
        "own_prefill"
    )
    assert found.typical_ms("gate") < 5
    assert found.waterfall.impossible == 0
    clock = found.waterfall.server_clock
    assert clock is not None
    assert abs(clock.ahead_s - 3600) <= clock.within_s + 0.001
    assert clock.within_s < 0.05
    said = re.search(
        r"The server's clock is ([\d,.]+) s ahead of this machine's \(± ([\d.]+) ms\)",
        (found.folder / "summary.md").read_text(),
    )
    assert said is not None
    within_s = float(said[2]) / 1e3
    assert within_s == pytest.approx(clock.within_s, rel=0.01)
    assert abs(float(said[1].replace(",", "")) - clock.ahead_s) <= within_s


class Relay(ThreadingHTTPServer):
    """Stands between the simulator and the receiver: passes each export on twice, ``delay_s`` after
    it came."""

    daemon_threads = True

    def __init__(self, to: str, delay_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _RelayConnection)
        self.to, self.delay_s = to, delay_s
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _RelayConnection(BaseHTTPRequestHandler):
    server: Relay

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        threading.Timer(
            self.server.delay_s, self.twice, [body, self.headers["Content-Type"]]
        ).start()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def twice(self, body: bytes, kind: str) -> None:
        for _ in range(2):
            requests.post(self.server.to, body, headers={"Content-Type": kind}, timeout=20)

    def log_message(self, format: str, *values: Any) -> None:
        """Nowhere."""


def noise(to: str, over: threading.Event, sent: Counter[str]) -> None:
    """Spans of another trace, up to 10,000 a second, and now and then what is no export."""
    protobuf, connection = {"Content-Type": "application/x-protobuf"}, requests.Session()
    others = as_protobuf(*(span("0" * 31 + "1", queue=0.25) for _ in range(500)))
    while not over.wait(0.05):
        try:
            connection.post(to, others, headers=protobuf, timeout=20)
            sent["other_traces"] += 500
            if sent["other_traces"] % 5_000 == 0:
                connection.post(to, b"\xff" * 100, headers=protobuf, timeout=20)
                sent["malformed"] += 1
        except requests.ConnectionError:  # the run has not begun, or is over
            continue


def test_spans_that_come_twice_and_late_among_many_others_leave_the_run_as_it_is(
    tmp_path: Path,
) -> None:
    port, over, sent = free_port(), threading.Event(), Counter[str]()
    to = f"http://127.0.0.1:{port}/v1/traces"
    with Relay(to, 1.5) as relay, a_server(relay.server_address[1]) as url:
        other = threading.Thread(target=noise, args=(to, over, sent))
        other.start()
        try:
            found = load(
                tmp_path / "r", url, url, port, "-u", "4", "-t", "4s", "--output-tokens-mean", "10"
            )
        finally:
            over.set()
            other.join()
    good, counts = (
        [record for record in records(found.folder) if record.outcome == OK],
        found.run.spans,
    )
    assert len(good) == len(records(found.folder)) > 50
    assert counts is not None
    assert (counts.requests, counts.joined) == (len(good), len(good))
    assert 0 < counts.twice <= len(good)  # those of the last exports may come behind the end
    assert counts.late > 0
    assert 10_000 < counts.other_traces <= sent["other_traces"] + 500
    assert 0 < counts.malformed <= sent["malformed"] + 1
    assert found.waterfall.reported == {"spans": found.waterfall.requests}
    assert found.waterfall.impossible == 0


def test_spans_that_never_come_hold_the_end_up_for_a_while_and_are_said(tmp_path: Path) -> None:
    with start_simulator("--truth", "full") as url:
        found = load(tmp_path / "r", url, url, free_port(), "-u", "1", "--request-count", "5")
    assert "Waiting up to 6 s for the spans of 5 requests: none has arrived so far" in found.said
    assert "no request has a span (none arrived)" in " ".join(found.said.lower().split())
    assert found.waterfall.reported == {}
    assert found.waterfall.server_clock is None
