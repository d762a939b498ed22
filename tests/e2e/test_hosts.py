"""Master, workers and server on hosts of their own, which only a relay joins: it delays, drops and
parts. Their clocks are seconds apart and drift. What the server counted is the truth, and the clock
of the machine below them all.
"""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.hosts import SERVICE, Host, Network, network, until, why_not
from support.runs import CHAT, records

from locust_llm.exit_status import ExitStatus
from locust_llm.gate.shares import SILENT_S
from locust_llm.records.outcomes import CUT, OK
from locust_llm.records.record import Record
from locust_llm.wire.worker_messages import GONE_S

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
HTTP, MASTER = 8000, 5557
SHORT: Final = ("--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "10", "--no-probe")
ON_WIRE_S: Final = 5e-3
"""From a stamp to the server's own of the same moment, at most, beside the delays: this machine is
busy."""


class Site:
    """A run over hosts: its master on the first one, the server where it was put."""

    def __init__(self, net: Network, master: Host, server: Host) -> None:
        self.net, self.at, self.server = net, master, server
        self.folder = master.folder / "r"
        self.workers: dict[str, tuple[Host, Popen[bytes]]] = {}

    def serve(self, *words: str) -> None:
        self.net.serve(HTTP, self.server)
        self.net.serve(MASTER, self.at)
        command = (
            "-m",
            "locust_llm.simulator",
            "--host",
            "0.0.0.0",
            "--port",
            str(HTTP),
            "--truth",
            "full",
            *words,
        )
        self.server.start("simulator", sys.executable, *command)
        until(lambda: "listening" in self.server.log("simulator"))

    def direct(self, *words: str, folder: str = "r", workers: int) -> "Popen[bytes]":
        """The master."""
        self.folder = self.at.folder / folder
        command = (
            "-m", "locust", "-f", CHAT, "--headless", "--host", f"{SERVICE}:{HTTP}", "--report-dir",
            str(self.folder),
            *SHORT, *words, "--master", "--master-bind-port", str(MASTER), "--expect-workers",
            str(workers),
        )  # fmt: skip
        self.master = self.at.start(f"master of {folder}", sys.executable, *command)
        return self.master

    def join(self, host: Host) -> "Popen[bytes]":
        """A worker, which does not see the disk of the master: the only one of its host."""
        words = (
            "-m",
            "locust",
            "-f",
            CHAT,
            "--worker",
            "--master-host",
            SERVICE,
            "--master-port",
            str(MASTER),
        )
        worker = host.start("worker", sys.executable, *words, hidden=self.at.folder)
        self.workers[host.label] = host, worker
        return worker

    def rows(self) -> dict[str, dict[str, Any]]:
        """Requests of the load, as the server has them: of one that it got twice the later one."""
        return {row["id"]: row for row in self._every_row()}

    def _every_row(self) -> list[dict[str, Any]]:
        return [
            row for row in self.server.get(HTTP, "/truth")["requests"] if row["id"].count("-") >= 2
        ]

    @property
    def most_prefilling(self) -> int:
        return int(self.server.get(HTTP, "/truth")["max_prefilling"])

    def seen(self, count: int) -> None:
        """Until the server has seen so many requests from now on."""
        before = len(self.rows())
        until(lambda: len(self.rows()) >= before + count, why=self.logs)

    def end(self, seconds: float = 90.0) -> None:
        self.master.wait(seconds)
        for _, worker in self.workers.values():
            worker.wait(seconds)

    def logs(self) -> str:
        return "\n".join(
            host.log(file.name)
            for host in self.net.hosts
            for file in host.folder.iterdir()
            if file.is_file()
        )

    @property
    def run(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "run.json").read_text())["run"])

    def records(self) -> list[Record]:
        """One of each request that the server has seen, none twice; others never came to it, and
        say so. The server has seen twice only what was sent again, as its connection was reset
        while it was being written."""
        got = records(self.folder)
        by_id, rows = {record.id: record for record in got}, self.rows()
        assert len(by_id) == len(got)
        came = Counter(row["id"] for row in self._every_row())
        assert all(count <= 1 + by_id[one].resent for one, count in came.items())
        assert set(rows) - set(by_id) == set(), self.logs()
        assert all(by_id[one].outcome != OK for one in set(by_id) - set(rows))
        return got

    def check_axis(self, got: list[Record], tightest_s: float) -> dict[str, float]:
        """Every stamp is on the master's axis to within what is stated, by the clock below all; and
        what is stated is not more than ``tightest_s``. By worker what is stated."""
        unix_s = time.time() - time.monotonic() + self.at.wrong_s
        stated = {health["worker"]: health["clock_error_s"] for health in self.run["health"]}
        rows = self.rows()
        for record in got:
            host, process = self.workers[record.worker.partition("_")[0]]
            for at in (record.due_at, record.asked_at, record.closed_at):
                off_s = at + record.clock_offset_s - (host.machine_s(at, process) + unix_s)
                assert abs(off_s) <= stated[record.worker] + 1e-3, (host.label, off_s, stated)
            if record.id in rows and record.sent_at is not None:
                arrived = rows[record.id]["arrived_at"] - self.server.ahead_s + unix_s
                sent = record.sent_at + record.clock_offset_s
                assert sent <= arrived + stated[record.worker] + ON_WIRE_S
        (note,) = [note for note in self.run["notes"] if "aligned with the master's clock" in note]
        assert note in (self.folder / "summary.md").read_text().replace("\\", "")
        assert 0 < max(stated.values()) <= tightest_s
        return stated


@contextmanager
def three(folder: Path, *words: str) -> Iterator[tuple[Site, Host, Host]]:
    """Master; a near host with a worker and the server; and a far one, whose answers take twice as
    long as its requests."""
    with network(folder) as net:
        first = net.host("a", ahead_s=5.5, wrong_s=-7.0)
        near = net.host("b", ahead_s=1000.25, fast=0.0)
        far = net.host("c", ahead_s=-20.25, fast=-150e-6, wrong_s=40.0)
        net.link(near, 0.001, 0.001)
        net.link(far, 0.04, 0.08)
        site = Site(net, first, near)
        site.serve("--ttft-ms", "100", "--itl-ms", "5", *words)
        yield site, near, far


@pytest.mark.slow
def test_three_hosts_keep_one_limit_one_count_and_one_axis(tmp_path: Path) -> None:
    """The far one loses its connections, then its master for longer than its lease, then the server
    for a moment."""
    words = ("--request-rate", "10", "--arrival-pattern", "constant", "--request-count", "100")
    with three(tmp_path) as (site, near, far):
        site.direct("-u", "30", "--prefill-concurrency", "3", *words, workers=2)
        site.join(near)
        site.join(far)
        site.seen(12)
        site.net.drop(far, MASTER)
        site.seen(12)
        site.net.part(far, MASTER)
        time.sleep(SILENT_S + 1.5)  # a prefill of this server takes far less
        site.net.heal(far, MASTER)
        site.seen(12)
        site.net.drop(far, HTTP)
        site.end()
        got = site.records()
        assert site.most_prefilling <= 3
        assert site.run["records_lost"] == 0
        # those of the moment
        assert site.master.returncode == ExitStatus.FAILED_REQUESTS, site.logs()
        assert any("stopped reporting" in note for note in site.run["notes"])
        stated = site.check_axis(got, tightest_s=0.12)
        for record in got:
            assert record.limit == 3
        due = sorted(
            (record.due_at + record.clock_offset_s, stated[record.worker]) for record in got
        )
        assert len(due) == 100  # each arrival once, whatever was on its way
        late_s = [at - due[0][0] - n / 10 for n, (at, _) in enumerate(due)]
        assert not [
            (n, off) for n, off in enumerate(late_s) if abs(off) > 2 * (due[n][1] + due[0][1])
        ]


@pytest.mark.slow
def test_what_is_on_its_way_when_connections_break_is_sent_again(tmp_path: Path) -> None:
    """ZeroMQ makes another connection, and says nothing of the messages that went with the
    first."""
    with three(tmp_path) as (site, near, far):
        site.direct("-u", "12", "--prefill-concurrency", "4", "--request-count", "240", workers=2)
        site.join(near)
        site.join(far)
        for _ in range(8):
            site.seen(20)
            site.net.drop(far, MASTER)
            site.net.drop(near, MASTER)
        site.end()
        assert site.master.returncode == ExitStatus.OK, site.logs()
        assert len(site.records()) == len(site.rows()) == 240
        assert site.most_prefilling <= 4
        assert site.run["records_lost"] == 0


@pytest.mark.slow
def test_a_network_that_is_parted_for_twenty_seconds_costs_no_record(tmp_path: Path) -> None:
    """Longer than either end waits for the other: the far worker is given up, ends, and still hands
    over what it has. Its work went to the other one meanwhile."""
    words = (
        "-u",
        "10",
        "--prefill-concurrency",
        "4",
        "--request-count",
        "600",
        "--request-rate",
        "15",
    )
    with three(tmp_path) as (site, near, far):
        site.direct(*words, workers=2)
        site.join(near)
        worker = site.join(far)
        site.seen(60)
        site.net.part(far, MASTER)
        time.sleep(20.0)
        assert site.most_prefilling <= 4
        site.net.heal(far, MASTER)
        worker.wait(40)
        assert worker.returncode == ExitStatus.FAILED_REQUESTS
        assert "the master has not answered for 15 s: this worker ends" in far.log("worker")
        site.seen(15)
        site.end()
        got = site.records()
        assert len(got) == len(site.rows())
        assert site.run["records_lost"] == 0, site.logs()
        notes = " ".join(site.run["notes"])
        assert "was lost" in notes
        assert "of lost workers arrived after all" in notes
        assert site.most_prefilling <= 4
        site.check_axis(got, tightest_s=0.12)


GRACE_S: Final = 12
"""Of a pod: from SIGTERM to SIGKILL."""


@pytest.mark.slow
def test_an_evicted_worker_costs_no_record(tmp_path: Path) -> None:
    """As a node that is drained does it: SIGTERM, and SIGKILL after the grace, while answers take
    longer than either."""
    words = (
        "-u",
        "10",
        "--prefill-concurrency",
        "4",
        "-t",
        "14s",
        "--stop-timeout",
        "4",
        "--output-tokens-mean",
        "1500",
    )
    with three(tmp_path) as (site, near, far):
        site.direct(*words, workers=2)
        site.join(near)
        worker = site.join(far)
        site.seen(10)
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(GRACE_S)
        except TimeoutExpired:
            worker.kill()
        site.end()
        assert worker.returncode != -signal.SIGKILL
        got = site.records()
        assert {record.outcome for record in got if record.worker.startswith("c_")} == {CUT}
        assert site.run["records_lost"] == 0
        assert len(got) == len(site.rows())
        assert site.most_prefilling <= 4
        assert any("left" in note for note in site.run["notes"])


@pytest.mark.full
def test_workers_of_a_dead_master_keep_what_it_lacks_and_a_new_one_begins_anew(
    tmp_path: Path,
) -> None:
    """They do not go over to the next master at the same address: they end, and say where their
    records are."""
    with three(tmp_path) as (site, near, far):
        site.direct("-u", "10", "--prefill-concurrency", "4", workers=2)
        old = [site.join(near), site.join(far)]
        site.seen(40)
        site.master.kill()
        site.master.wait()
        site.net.drop(near, MASTER)
        site.net.drop(far, MASTER)
        site.direct(
            "-u",
            "6",
            "--prefill-concurrency",
            "4",
            "--request-count",
            "60",
            folder="again",
            workers=2,
        )
        for worker in old:
            worker.wait(GONE_S + 60)
            assert worker.returncode == ExitStatus.FAILED_REQUESTS
        first = site.rows()
        kept = {}
        for host in (near, far):
            assert "the master has not answered for 15 s: this worker ends" in host.log("worker")
            folder = host.folder / "reports" / "r"
            if "could not be delivered, and are in reports/r/profile_export.jsonl" in host.log(
                "worker"
            ):
                kept |= {record.id: record for record in records(folder)}
            assert not (folder / "journal").exists()
        there = {record.id for record in records(site.at.folder / "r")}
        assert there | set(kept) == set(first)
        assert kept
        assert site.most_prefilling <= 4
        site.join(near)
        site.join(far)
        site.end()
        assert site.master.returncode == ExitStatus.OK, site.logs()
        new = {record.id for record in records(site.folder)}
        assert len(new) == 60
        assert new == set(site.rows()) - set(first)
