"""Master and workers as real processes: what the server counted is the truth, whatever became of
the workers.

Nothing here waits for a time to pass but where a time is what is tested; what is done to a run is
done when the server has seen so many requests.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
import zmq
from support import unpatched_locust  # noqa: F401  before the rest
from support.runs import CHAT, ROOT, Server, command, free_port, records

from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.gate.shares import LEASE_S, SILENT_S
from locust_llm.locust_adapter.stop_and_quit import AFTER_STOP_S
from locust_llm.records.record import Record
from locust_llm.wire.worker_messages import GONE_S

SHORT: Final = ("--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "10", "--no-probe")
full: Final = pytest.mark.full


@pytest.fixture(scope="module")
def simulated() -> Iterator[Server]:
    with start_simulator("--truth", "full", "--ttft-ms", "100", "--itl-ms", "5") as url:
        yield Server(url)


@pytest.fixture
def server(simulated: Server) -> Server:
    simulated.reset()
    return simulated


SENT: Final = (
    signal.SIGSTOP,
    signal.SIGSTOP,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGKILL,
)


def seeds(count: int) -> list[Any]:
    """The first in make test-slow, the others with the matrices."""
    return [
        pytest.param(1, marks=pytest.mark.slow),
        *(pytest.param(n, marks=full) for n in range(2, count + 1)),
    ]


MALFORMED: Final = [
    [b""], [b"\xc1"], [b"", b"x"], [msgpack.packb(["stats"])],
    [msgpack.packb(("stats", {}, "peer"))],
    [msgpack.packb(("llm_to_control", b"\x00", "peer"))], [b"\x91" * 100_000],
]  # fmt: skip


class Site:
    """A master and its workers, each with a log."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        words: tuple[str, ...],
        workers: int,
        lossy: tuple[int, float, float] | None,
    ) -> None:
        """``lossy``: seed and shares of a relay between workers and master, see lossy_relay.py."""
        self.server, self.folder, self.port = server, folder, str(free_port())
        self._to_master, self._relay = self.port, None
        if lossy is not None:
            self._to_master = str(free_port())
            path = str(ROOT / "tests" / "support" / "lossy_relay.py")
            self._relay = subprocess.Popen(
                [sys.executable, path, self._to_master, self.port, *map(str, lossy)]
            )
        self.workers: list[subprocess.Popen[bytes]] = []
        wait_for = ("--master", "--master-bind-port", self.port, "--expect-workers", str(workers))
        self.master = self._start(
            "master", *command(server, folder / "r", *words, *SHORT, *wait_for)[3:]
        )
        for _ in range(workers):
            self.join()

    def _start(self, name: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / name).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "locust", *words],
                stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **environment},
                start_new_session=True,
            )  # fmt: skip

    def join(self, locustfile: str = CHAT, **environment: str) -> subprocess.Popen[bytes]:
        """One more worker."""
        name = f"worker{len(self.workers)}"
        words = ("-f", locustfile, "--worker", "--master-port", self._to_master)
        self.workers.append(self._start(name, *words, **environment))
        return self.workers[-1]

    def lose_messages(self) -> None:
        """From now on the relay loses, doubles and delays messages."""
        assert self._relay is not None
        self._relay.send_signal(signal.SIGUSR1)

    def seen(self, count: int) -> None:
        """Until the server has seen so many requests from now on."""
        before = len(self.server.rows())
        self.until(lambda: len(self.server.rows()) >= before + count)

    def until(self, true: Callable[[], object], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until, self.log("master")
            assert self.master.poll() is None or true(), self.log("master")
            time.sleep(0.05)

    def end(self, seconds: float = 90.0) -> None:
        """Until the master and all workers have ended by themselves."""
        self.master.wait(seconds)
        for worker in self.workers:
            worker.wait(seconds)

    def kill(self) -> None:
        """All that is left."""
        for process in (self.master, *self.workers, *filter(None, [self._relay])):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def workers_seen(self) -> Counter[str]:
        return Counter(
            row["id"].rpartition("-")[0].rpartition("-")[0] for row in self.server.rows()
        )

    @property
    def run(self) -> dict[str, Any]:
        return json.loads((self.folder / "r" / "run.json").read_text())["run"]

    def records(self) -> list[Record]:
        """Each of a request that the server has seen, and none twice; and no journal is left."""
        got = records(self.folder / "r")
        ids = [record.id for record in got]
        assert len(set(ids)) == len(ids)
        assert set(ids) <= {row["id"] for row in self.server.rows()}
        assert not (self.folder / "r" / "journal").exists()
        return got


@contextmanager
def site(
    server: Server,
    folder: Path,
    *words: str,
    workers: int,
    lossy: tuple[int, float, float] | None = None,
) -> Iterator[Site]:
    its = Site(server, folder, words, workers, lossy)
    try:
        yield its
    finally:
        its.kill()


def highest_above(server: Server, run: dict[str, Any]) -> int:
    """By how much the prefills at the server were ever above the limit in force, which rises only;
    0 or less is right."""
    offset_s = time.time() - time.monotonic()
    at = [change["at"] for change in run["limits"]]
    limits = [change["limit"] for change in run["limits"]]
    above = [
        prefilling - max(limits[: bisect_right(at, moment + offset_s + 0.001)], default=0)
        for moment, prefilling in server.truth()["prefilling_changes"]
    ]
    return max(above)


def in_use(server: Server) -> float:
    """The share of the slots that were in use, from when all first were until the last request
    came."""
    truth = server.truth()
    changes, limit = truth["prefilling_changes"], truth["max_prefilling"]
    begin = next(at for at, prefilling in changes if prefilling == limit)
    end = max(row["arrived_at"] for row in server.rows())
    used_s = sum(
        prefilling * max(0.0, min(until, end) - max(at, begin))
        for (at, prefilling), (until, _) in pairwise(changes)
    )
    return used_s / (limit * (end - begin))


# -- the limit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "limit"),
    [
        pytest.param(workers, limit, marks=full)  # over two processes: test_run.py
        for workers in (1, 2, 4)
        for limit in (1, 2, 3, 5, 16)
    ],
)
def test_the_limit_holds_and_nobody_starves(
    server: Server, tmp_path: Path, workers: int, limit: int
) -> None:
    words = (
        "-u",
        "20",
        "--prefill-concurrency",
        str(limit),
        "--request-count",
        str(40 + 20 * limit),
    )
    with site(server, tmp_path, *words, workers=workers) as its:
        its.end()
    assert its.master.returncode == 0, its.log("master")
    got = its.records()
    assert len(got) == len(server.rows()) == 40 + 20 * limit
    assert server.truth()["max_prefilling"] == limit
    assert {record.limit for record in got} == {limit}
    waits_s = [record.gate_wait_s or 0.0 for record in got]
    print(
        f"{workers} workers, limit {limit}: {in_use(server):.1%} in use, longest wait "
        f"{max(waits_s):.2f} s",
        end=" ",
    )
    assert len({(record.worker, record.user) for record in got}) == 20  # each user had its turn
    assert len({record.worker for record in got}) == workers


@full
@pytest.mark.parametrize("workers", [2, 4])
def test_a_ramp_is_followed_by_all_together(server: Server, tmp_path: Path, workers: int) -> None:
    words = ("--prefill-concurrency", "6", "--prefill-concurrency-ramp-duration", "3", "-t", "5s")
    with site(server, tmp_path, "-u", "20", *words, workers=workers) as its:
        its.end()
    assert [change["limit"] for change in its.run["limits"]] == [1, 2, 3, 4, 5, 6]
    assert highest_above(server, its.run) == 0
    assert len(its.records()) == len(server.rows())


# -- work that is shared out -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def patient() -> Iterator[Server]:
    """A server whose first tokens take longer than it takes to share work out, however slow this
    machine is."""
    with start_simulator("--truth", "full", "--ttft-ms", "3000", "--itl-ms", "5") as url:
        yield Server(url)


def senders(its: Site) -> Counter[tuple[str, int]]:
    """How many requests each user sent."""
    return Counter((record.worker, record.user) for record in its.records())


@full
@pytest.mark.parametrize("kind", ["requests", "sessions", "rows"])
def test_as_much_work_as_users_is_begun_by_all_of_them_at_once(
    patient: Server, tmp_path: Path, kind: str
) -> None:
    patient.reset()
    path = tmp_path / "questions.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": f"Question {n}", "output_tokens": 2}) + "\n" for n in range(18)
        )
    )
    words = {
        "requests": ("--request-count", "18"), "sessions": ("--num-sessions", "18"),
        "rows": ("--input-file", str(path)),
    }[kind]  # fmt: skip
    with site(patient, tmp_path, "-u", "18", *words, workers=3) as its:
        its.end()
    assert sorted(senders(its).values()) == [1] * 18
    assert len(patient.rows()) == 18


@full
def test_users_that_processes_cannot_share_evenly_have_each_their_own_rate(
    server: Server, tmp_path: Path
) -> None:
    words = ("-u", "7", "--user-centric-rate", "35", "--request-count", "70")
    with site(server, tmp_path, *words, workers=3) as its:
        its.end()
    assert its.master.returncode == 0, its.log("master")
    assert sorted(senders(its).values()) == [10] * 7
    due = sorted(record.due_at + record.clock_offset_s for record in its.records())
    assert max(abs(at - due[0] - n / 35) for n, at in enumerate(due)) < 1e-3


@full
@pytest.mark.parametrize("workers", [2, 4])
def test_a_trace_over_several_processes_is_sent_at_its_times_each_row_once(
    server: Server, tmp_path: Path, workers: int
) -> None:
    rows = ({"timestamp": n * 20, "input_length": 60, "output_length": n + 1} for n in range(100))
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with site(
        server, tmp_path, "-u", "40", "--fixed-schedule", "--input-file", str(path), workers=workers
    ) as its:
        its.end()
    got = sorted(its.records(), key=lambda record: record.asked_output_tokens or 0)
    assert [record.asked_output_tokens for record in got] == list(range(1, 101))
    at = [record.due_at + record.clock_offset_s for record in got]
    assert max(abs(moment - at[0] - n / 50) for n, moment in enumerate(at)) < 1e-3
    assert len({record.worker for record in got}) == workers


# -- loss ------------------------------------------------------------------------------------------


def check_loss(its: Site) -> list[Record]:
    """What has no record is what the report calls lost, and the reports are there."""
    got = its.records()
    assert len(its.server.rows()) - len(got) == its.run["records_lost"]
    limit = its.run["settings"]["prefill_concurrency"]
    assert limit is None or its.server.truth()["max_prefilling"] <= limit
    # on a busy machine a worker that was stopped may be given up as well
    counts = re.findall(
        r"was lost .*: (\d+) requests? (?:that it had sent )?ha(?:ve|s) no record",
        "\n".join(its.run["notes"]),
    )
    assert counts
    arrived = re.findall(r"(\d+) records? of lost workers arrived", "\n".join(its.run["notes"]))
    found = sum(map(int, counts)) - sum(map(int, arrived))
    assert found == its.run["records_lost"], its.run["notes"]
    assert (its.folder / "r" / "report.html").exists()
    return got


@pytest.mark.slow
def test_neither_a_killed_nor_a_stopped_worker_changes_the_count_or_the_limit(
    server: Server, tmp_path: Path
) -> None:
    """One is killed, another one is stopped for longer than its lease, and the third goes on alone
    meanwhile."""
    count = 320  # the third has work for longer than the silence lasts
    words = ("-u", "12", "--prefill-concurrency", "4", "--request-count", str(count))
    with site(server, tmp_path, *words, workers=3) as its:
        its.seen(30)
        killed, stopped, third = its.workers
        killed.kill()
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(SILENT_S + 1.5)  # a prefill of this server takes far less
        its.seen(1)
        assert third.poll() is None
        stopped.send_signal(signal.SIGCONT)
        its.end()
    lost = its.run["records_lost"]
    assert its.master.returncode == (ExitStatus.INCOMPLETE if lost else ExitStatus.OK), its.log(
        "master"
    )
    got = check_loss(its)
    assert len(got) + lost == count
    assert any("stopped reporting" in note for note in its.run["notes"])
    assert {record.limit for record in got} == {4}


@full
def test_a_killed_worker_takes_nothing_of_the_count_with_it(server: Server, tmp_path: Path) -> None:
    words = ("-u", "12", "--prefill-concurrency", "4", "--request-count", "100")
    with site(server, tmp_path, *words, workers=3) as its:
        its.seen(30)
        its.workers[0].kill()
        its.end()
    lost = its.run["records_lost"]
    assert its.master.returncode == (ExitStatus.INCOMPLETE if lost else ExitStatus.OK), its.log(
        "master"
    )
    assert len(check_loss(its)) + lost == 100


@full
@pytest.mark.parametrize("pattern", ["constant", "poisson"])
def test_a_schedule_loses_only_what_the_killed_worker_had(
    server: Server, tmp_path: Path, pattern: str
) -> None:
    words = (
        "-u",
        "30",
        "--request-rate",
        "40",
        "--arrival-pattern",
        pattern,
        "--random-seed",
        "7",
        "-t",
        "12s",
    )
    with site(server, tmp_path, *words, workers=3) as its:
        its.seen(80)
        killed_at = time.time()
        its.workers[0].kill()
        its.end()
    got = check_loss(its)
    due = sorted(record.due_at + record.clock_offset_s for record in got)
    assert all(later - sooner > 1e-7 for sooner, later in pairwise(due))  # each arrival once
    offer = its.run["offer"]
    assert len(got) + its.run["records_lost"] + offer["never_started"] == offer["due"]
    if pattern == "constant":
        zero = due[0]
        places = {round((at - zero) * 40) for at in due}
        assert all(abs((at - zero) * 40 - round((at - zero) * 40)) < 1e-3 for at in due)
        missing = [zero + place / 40 for place in range(max(places)) if place not in places]
        assert all(killed_at - 1.5 <= at <= killed_at + 5.0 for at in missing)


@full
def test_a_dataset_loses_only_what_the_killed_worker_had_begun(
    server: Server, tmp_path: Path
) -> None:
    rows = ({"prompt": f"Question number {n}", "output_tokens": n % 20 + 1} for n in range(200))
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("-u", "12", "--prefill-concurrency", "4", "--input-file", str(path))
    with site(server, tmp_path, *words, workers=3) as its:
        its.seen(40)
        its.workers[0].kill()
        its.end()
    got = check_loss(its)
    (begun,) = re.findall(r"(\d+) sessions ended with it", " ".join(its.run["notes"])) or ["0"]
    assert len(got) + int(begun) == 200  # the rest went to the others, each row once
    assert len({record.session for record in got}) == len(got)


@full
@pytest.mark.parametrize("words", [("--request-count", "250"), ("-t", "12s")])
def test_a_stopped_worker_comes_back_and_nothing_is_lost_or_sent_twice(
    server: Server, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with site(server, tmp_path, "-u", "12", "--prefill-concurrency", "4", *words, workers=2) as its:
        its.seen(30)
        its.workers[0].send_signal(signal.SIGSTOP)
        time.sleep(5)  # beyond its lease, and what the control waits for
        its.workers[0].send_signal(signal.SIGCONT)
        its.end()
    assert its.master.returncode == 0, its.log("master")
    got = its.records()
    assert len(got) == len(server.rows())
    assert server.truth()["max_prefilling"] <= 4
    assert its.run["records_lost"] == 0
    if words[0] == "--request-count":
        assert len(got) == 250
    assert any("stopped reporting" in note for note in its.run["notes"])


@pytest.mark.slow
def test_workers_that_are_all_silent_for_a_while_come_back_and_nothing_is_lost(
    server: Server, tmp_path: Path
) -> None:
    """Locust would stop the run after four seconds without any worker."""
    words = ("-u", "4", "--request-count", "100")
    with site(server, tmp_path, *words, workers=2) as its:
        its.seen(15)
        for worker in its.workers:
            worker.send_signal(signal.SIGSTOP)
        time.sleep(8)
        for worker in its.workers:
            worker.send_signal(signal.SIGCONT)
        its.end()
    assert its.master.returncode == 0, its.log("master")
    assert len(its.records()) == len(server.rows()) == 100
    assert its.run["records_lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_master_whose_workers_go_before_the_run_waits_for_others(
    server: Server, tmp_path: Path, number: int
) -> None:
    """Locust would end the run that has not begun, and hear no other worker."""
    with site(server, tmp_path, "-u", "4", "--request-count", "20", workers=2) as its:
        its.workers[1].kill()  # it has not joined yet
        its.until(lambda: "1 of 2 connected" in its.log("master"))
        its.workers[0].send_signal(number)
        its.until(lambda: its.log("master").count("0 of 2 connected") > AFTER_STOP_S + 1)
        for _ in range(2):
            its.join()
        its.end()
    assert its.master.returncode == 0, its.log("master")
    assert len(its.records()) == 20


@pytest.mark.parametrize("seed", seeds(6))
def test_messages_that_are_lost_doubled_and_late_lose_no_record(
    server: Server, tmp_path: Path, seed: int
) -> None:
    """In both directions: an acknowledgement that does not come is no record that is lost."""
    words = ("-u", "8", "--prefill-concurrency", "3", "--request-count", "150", "-t", "60")
    with site(server, tmp_path, *words, workers=2, lossy=(seed, 0.05 * seed, 0.1)) as its:
        its.seen(1)
        its.lose_messages()
        its.end()
    assert server.truth()["max_prefilling"] <= 3
    assert len(its.records()) + its.run["records_lost"] == len(server.rows())
    assert its.run["records_lost"] == 0
    assert its.master.returncode == 0, its.log("master")


@pytest.mark.parametrize("seed", seeds(12))
def test_whatever_signals_come_each_request_has_a_record_or_is_lost(
    server: Server, tmp_path: Path, seed: int
) -> None:
    """Processes are stopped and go on, are asked to end, or are killed, in any order; then all that
    is left is."""
    drawn, users = random.Random(seed), 6
    with site(server, tmp_path, "-u", str(users), "-t", "60", workers=3) as its:
        its.seen(10)
        for _ in range(drawn.randrange(2, 6)):
            process = drawn.choice([its.master, *its.workers])
            process.send_signal(drawn.choice(SENT))
            time.sleep(drawn.choice([0.1, 0.5, 2.0, SILENT_S + 1]))
            process.send_signal(signal.SIGCONT)
            time.sleep(drawn.choice([0.1, 1.0]))
        killed = its.master.poll() is not None and its.master.returncode < 0
        if its.master.poll() is None:
            its.master.send_signal(signal.SIGTERM)
        its.end()
    if killed:
        words = [sys.executable, "-m", "locust_llm", "report", str(tmp_path / "r")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == ExitStatus.INCOMPLETE, done.stdout
    got = records(tmp_path / "r")
    assert len({record.id for record in got}) == len(got)
    seen, known = len(server.rows()), len(got) + its.run["records_lost"]
    assert seen <= known <= seen + users  # one that was killed may have admitted what it never sent
    assert all(
        "Traceback" not in path.read_text()
        for path in (tmp_path / "master", *tmp_path.glob("worker*"))
    )


@full
def test_a_machine_that_is_stopped_for_a_while_loses_nothing(
    server: Server, tmp_path: Path
) -> None:
    """Master and workers, as of a container that is paused, for longer than either waits for the
    other."""
    with site(server, tmp_path, "-u", "8", "-t", f"{GONE_S + 15:g}", workers=2) as its:
        its.seen(20)
        everybody = (its.master, *its.workers)
        for process in everybody:
            process.send_signal(signal.SIGSTOP)
        time.sleep(GONE_S + 5)
        for process in everybody:
            process.send_signal(signal.SIGCONT)
        its.end()
    assert its.master.returncode == 0, its.log("master")
    assert len(its.records()) == len(server.rows())
    assert its.run["records_lost"] == 0
    assert not any("stopped reporting" in note for note in its.run["notes"])


@pytest.mark.full
def test_a_worker_that_joins_takes_its_part(server: Server, tmp_path: Path) -> None:
    with site(server, tmp_path, "-u", "12", "--prefill-concurrency", "4", workers=1) as its:
        its.seen(20)
        its.join()
        its.until(lambda: len(its.workers_seen()) == 2 and min(its.workers_seen().values()) >= 20)
        its.master.send_signal(signal.SIGINT)
        its.end()
    assert its.master.returncode == 0, its.log("master")
    assert len(its.records()) == len(server.rows())
    assert server.truth()["max_prefilling"] == 4


@full
def test_without_a_master_nothing_new_is_sent_and_no_record_is_lost(
    server: Server, tmp_path: Path
) -> None:
    with site(server, tmp_path, "-u", "12", "--prefill-concurrency", "4", workers=2) as its:
        its.seen(40)
        killed_at = time.monotonic()
        its.master.kill()
        its.end(seconds=GONE_S + 40)
        assert [worker.returncode for worker in its.workers] == [1, 1]
    sent_at = max(row["arrived_at"] for row in server.rows())
    assert sent_at - killed_at < LEASE_S + 1
    assert len(its.records()) == len(server.rows())
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", "report", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TTFT (ms)" in done.stdout
    assert "the master has not answered" in its.log("worker0")


@full
def test_a_worker_that_is_asked_to_end_hands_everything_over(
    server: Server, tmp_path: Path
) -> None:
    words = ("-u", "12", "--prefill-concurrency", "4", "--request-count", "200")
    with site(server, tmp_path, *words, workers=2) as its:
        its.seen(40)
        its.workers[0].terminate()
        its.end()
    assert len(its.records()) == len(server.rows()) == 200
    assert its.run["records_lost"] == 0


# -- the end ---------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize(
    "processes", [(), ("--processes", "2")], ids=["one process", "two processes"]
)
def test_autostart_and_autoquit_end_in_order(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    words = (
        "-u",
        "8",
        "--prefill-concurrency",
        "3",
        "-t",
        "2s",
        "--autostart",
        "--autoquit",
        "1",
        *processes,
        *SHORT,
    )
    page = ("--web-host", "127.0.0.1", "--web-port", str(free_port()))
    headed = [
        word for word in command(server, tmp_path / "r", *words, *page) if word != "--headless"
    ]
    done = subprocess.run(headed, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "r")) == len(server.rows())
    assert (tmp_path / "r" / "report.html").exists()


# -- clocks ----------------------------------------------------------------------------------------

ELSEWHERE: Final = """
import time
import locust_llm.wire.clock_sync
locust_llm.wire.clock_sync.clock_id = lambda: "another machine"
true = time.time
time.time = lambda: true() + 1000.0
"""


@full
def test_a_worker_whose_clock_is_wrong_is_on_the_masters_timeline(
    server: Server, tmp_path: Path
) -> None:
    """It runs on this machine, so the stamps of the server tell; but it does not know that."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sitecustomize.py").write_text(ELSEWHERE)
    path = os.pathsep.join(
        filter(None, [str(tmp_path / "elsewhere"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    words = (
        "-u",
        "12",
        "--request-rate",
        "40",
        "--arrival-pattern",
        "constant",
        "--request-count",
        "120",
    )
    with site(server, tmp_path, *words, workers=1) as its:
        its.join(PYTHONPATH=path)
        its.end()
    assert its.master.returncode == 0, its.log("master")
    offset_s = time.time() - time.monotonic()
    rows = {row["id"]: row for row in server.rows()}
    got = its.records()
    assert len(got) == 120
    for record in got:
        assert record.sent_at is not None
        said = record.sent_at + record.clock_offset_s - offset_s
        assert abs(said - rows[record.id]["arrived_at"]) < 30  # and not 1,000 s
    (note,) = [note for note in its.run["notes"] if "aligned with the master's clock" in note]
    assert note.startswith(
        "the times of 1 worker on other machines are aligned with the master's clock to within "
    )
    assert sorted(health["clock_error_s"] > 0 for health in its.run["health"]) == [False, True]
    due = sorted(record.due_at + record.clock_offset_s for record in got)
    assert max(abs(at - due[0] - n / 40) for n, at in enumerate(due)) < 0.05


# -- bad input -------------------------------------------------------------------------------------

VERSION: Final = """
import importlib.metadata as metadata
true = metadata.version
metadata.version = lambda name: "9.9.9" if name == "locust-llm" else true(name)
"""
PLAIN: Final = """
from locust import HttpUser, task

class ChatUser(HttpUser):
    @task
    def ask(self):
        self.client.get("/v1/models")
"""


@pytest.mark.full
def test_workers_that_do_not_belong_are_refused_by_name_and_the_run_goes_on(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(VERSION)
    (tmp_path / "plain.py").write_text(PLAIN)
    path = os.pathsep.join(
        filter(None, [str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")])
    )
    with site(server, tmp_path, "-u", "4", workers=1) as its:
        its.seen(8)
        another_version = its.join(PYTHONPATH=path)
        another_file = its.join(str(ROOT / "locustfiles" / "mixed.py"))
        without = its.join(str(tmp_path / "plain.py"))
        for worker in (another_version, another_file, without):
            worker.wait(60)
        its.seen(8)
        its.master.send_signal(signal.SIGINT)
        its.end()
    assert (another_version.returncode, another_file.returncode) == (
        ExitStatus.REFUSED,
        ExitStatus.REFUSED,
    )
    said = its.log("master")
    assert "is refused: its locust-llm is 9.9.9, the master's is " in said
    assert "is refused: its locustfile is mixed.py (" in said
    assert "the master's is chat.py (" in said
    assert "no handshake within" in said
    assert "the master refuses this worker: its locust-llm is 9.9.9" in its.log("worker1")
    assert len(its.records()) == len(server.rows())
    assert len({record.worker for record in its.records()}) == 1


# -- whoever can reach the port --------------------------------------------------------------------


@pytest.mark.slow
def test_a_master_that_is_sent_what_is_no_message_ends_with_all_its_records(
    server: Server, tmp_path: Path
) -> None:
    """Malformed frames, from before its first worker comes until the end."""
    context, drawn = zmq.Context(), random.Random(4)
    with site(server, tmp_path, "-u", "4", "--request-count", "40", "-t", "60", workers=2) as its:
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(f"tcp://127.0.0.1:{its.port}")
        while its.master.poll() is None:
            peer.send_multipart(drawn.choice(MALFORMED))
            time.sleep(0.01)
        its.end()
        assert its.master.returncode == ExitStatus.OK, its.log("master")
        assert len(its.records()) == 40
        assert its.run["records_lost"] == 0
        assert "Traceback" not in its.log("master")
    peer.close()
    context.destroy()
