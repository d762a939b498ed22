"""Every run ends, and says the truth when it does: real processes, with a deadline each, so that a
hang is a failure."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from support.runs import Server, free_port, records

import locust_llm
from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.wire.worker_messages import GONE_S

SHORT: Final = ("--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "40", "--no-probe")
LOST_S: Final = 20.0
"""A run without workers has ended by then."""
PACKAGE: Final = Path(locust_llm.__file__).parent
full: Final = pytest.mark.full


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_simulator("--ttft-ms", "50", "--itl-ms", "10", "--truth", "full") as url:
        yield Server(url)


class Command:
    """A run as a process of its own session, what it wrote, and what it has left behind."""

    def __init__(self, folder: Path, words: tuple[str, ...], **how: Any) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "locust_llm", *words],
                **{"stdout": log, "stderr": log, "start_new_session": True, "cwd": folder, **how},
            )
        self.began_at = time.monotonic()

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def until(self, true: Callable[[], object], seconds: float = 40.0) -> None:
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.02)

    def sends(self, records: int = 1) -> None:
        """So many records are on the disk."""
        path = self.folder / "r" / "profile_export.jsonl"
        self.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= records)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def ends(self, seconds: float) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds:g} s:\n{self.text}") from None

    def left_behind(self) -> list[int]:
        """Processes of its session."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    os.getsid(process.pid) == self.process.pid
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process.pid)
            except (OSError, psutil.Error):
                continue
        return found


@contextmanager
def command(folder: Path, *words: str, **how: Any) -> Iterator[Command]:
    folder.mkdir(exist_ok=True)
    its = Command(folder, words, **how)
    try:
        yield its
    finally:
        for pid in its.left_behind():
            os.kill(pid, signal.SIGKILL)
        its.process.wait()


def run_words(server: Server, *words: str) -> tuple[str, ...]:
    return ("run", "--headless", "--host", server.url, "--report-dir", "r", *SHORT, *words)


# -- all workers gone ------------------------------------------------------------------------------

LOSSES: Final = {
    "while it is on": ("-u", "4"),
    "with a time": ("-u", "4", "-t", "300"),
    "in the warmup": ("-u", "4", "--warmup-duration", "300"),
    "in a sweep": ("--sweep", "concurrency=2..8", "--stage-duration", "100"),
    "in an open loop": ("--request-rate", "5"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "when", ["while it is on", *(pytest.param(one, marks=full) for one in list(LOSSES)[1:])]
)
def test_a_run_that_has_lost_all_its_workers_ends(
    server: Server, tmp_path: Path, when: str
) -> None:
    with command(tmp_path, *run_words(server, "--processes", "2", *LOSSES[when])) as its:
        its.sends()
        for child in its.children():
            child.kill()
        assert its.ends(LOST_S) == ExitStatus.INCOMPLETE, its.text
        assert "all workers were lost" in its.text
        assert (tmp_path / "r" / "report.html").exists()
        assert its.text.index("INCOMPLETE: all workers were lost") < its.text.rindex("Report: ")


@full
def test_so_does_one_that_loses_them_in_its_drain(server: Server, tmp_path: Path) -> None:
    long = ("--output-tokens-mean", "5000", "-s", "100")
    with command(
        tmp_path, *run_words(server, "--processes", "2", "-u", "2", "-t", "3", *long)
    ) as its:
        its.until(lambda: "Time limit reached" in its.text)
        for child in its.children():
            child.kill()
        assert its.ends(LOST_S) == ExitStatus.INCOMPLETE, its.text
        assert "have no record" in its.text


@full
def test_so_does_one_whose_workers_die_before_they_send(server: Server, tmp_path: Path) -> None:
    with command(tmp_path, *run_words(server, "--processes", "2", "-u", "2")) as its:
        its.until(lambda: len(its.children()) == 2)
        for child in its.children():
            child.kill()
        assert its.ends(LOST_S) != 0, its.text


@pytest.mark.slow
def test_so_does_one_of_which_a_worker_dies_before_it_begins(
    server: Server, tmp_path: Path
) -> None:
    """Locust waits for as many as were asked for."""
    with command(tmp_path, *run_words(server, "--processes", "2", "-u", "2")) as its:
        its.until(lambda: len(its.children()) == 2)
        its.children()[0].kill()
        assert its.ends(LOST_S) == ExitStatus.BROKEN, its.text
        assert "1 of 2 worker processes ended before the run began" in its.text
        assert not its.left_behind()


@full
def test_a_web_run_that_has_lost_its_workers_has_its_report(server: Server, tmp_path: Path) -> None:
    words = ("--processes", "2", "--autostart", "--web-port", str(free_port()), "-u", "4")
    words = tuple(word for word in run_words(server, *words) if word != "--headless")
    with command(tmp_path, *words) as its:
        its.sends()
        for child in its.children():
            child.kill()
        its.until(lambda: (tmp_path / "r" / "report.html").exists(), LOST_S)
        its.process.send_signal(signal.SIGTERM)
        assert its.ends(20) == ExitStatus.INCOMPLETE, its.text


# -- the start -------------------------------------------------------------------------------------

RAISING: Final = """
from locust_llm import LLMUser
from locust_llm.controller import run_controller as control
from locust_llm.worker import records_to_master
class Chat(LLMUser):
    from locust import task
    @task
    def ask(self): self.chat("hello")
def raising(*args, **kw):
    raise {error}
{where} = raising
"""
STARTS: Final = {
    "at the start": ("control.Controller.begin", "OverflowError('too large')", ()),
    "on a worker": ("records_to_master.Journal.__init__", "MemoryError()", ("--processes", "2")),
    "on both": ("control.Controller.__init__", "TypeError('no')", ("--processes", "2")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["on a worker", *(pytest.param(where, marks=full) for where in ("at the start", "on both"))],
)
def test_an_error_at_the_start_is_a_refusal(server: Server, tmp_path: Path, where: str) -> None:
    name, error, words = STARTS[where]
    (tmp_path / "raising.py").write_text(RAISING.format(where=name, error=error))
    with command(
        tmp_path, *run_words(server, "-f", "raising.py", "-u", "2", "-t", "300", *words)
    ) as its:
        assert its.ends(30) == ExitStatus.REFUSED, its.text
        (line,) = [line for line in its.text.splitlines() if "The run cannot start" in line]
        assert error.partition("(")[0] in line
        if where == "on a worker":
            assert "worker " in line


# -- by the locustfile -----------------------------------------------------------------------------

ENDING: Final = """
import gevent
from locust import HttpUser, events, task
from locust.exception import StopTest, StopUser
from locust.runners import MasterRunner
from locust_llm import LLMUser
asked = []
def end(environment):
    {way}
class Chat(LLMUser):
    def on_start(self):
        if {where!r} == "on_start":
            end(self.environment)
    def on_stop(self):
        if {where!r} == "on_stop":
            end(self.environment)
    def wait_time(self):
        if {where!r} == "wait_time":
            end(self.environment)
        return 0
    @task
    def ask(self):
        if {where!r} == "on_stop" and len(asked) >= 3:
            raise StopUser
        self.chat("hello", max_tokens=4)
        asked.append(1)
        if {where!r} == "task" and len(asked) == 3:
            end(self.environment)
class Plain(HttpUser):
    fixed_count = 1 if {where!r} == "plain" else 0
    weight = 0
    @task
    def ask(self):
        self.client.get("/v1/models")
        if len(asked) >= 3:
            end(self.environment)
@events.request.add_listener
def over(**kw):
    if {where!r} == "listener" and len(asked) == 3:
        end(runners[0].environment)
@events.worker_report.add_listener
def reported(data, **kw):
    if {where!r} == "master" and data["stats_total"]["num_requests"]:
        end(runners[0].environment)
runners = []
@events.init.add_listener
def begin(runner, **kw):
    runners.append(runner)
"""
QUIT: Final = "environment.runner.quit()"
ENDS: Final = [
    ("task", QUIT, "alone"), ("plain", "raise StopTest('enough')", "alone"),
    ("plain", QUIT, "alone"),
    ("listener", QUIT, "processes"), ("listener", QUIT, "alone"), ("task", QUIT, "processes"),
    ("master", QUIT, "processes"), ("task", "environment.runner.stop()", "alone"),
    ("task", "environment.runner.stop()", "processes"),
    ("task", "raise StopTest('enough')", "alone"),
    ("task", "raise StopTest('enough')", "processes"),
    ("wait_time", "raise StopTest('enough')", "alone"),
    ("on_stop", "raise StopTest('enough')", "alone"),
    ("listener", "raise StopTest('enough')", "alone"),
    ("task", "gevent.spawn(environment.runner.quit)", "alone"),
    ("wait_time", QUIT, "alone"), ("on_stop", QUIT, "processes"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", ["quit", "stop"])
def test_autoquit_follows_a_run_that_its_locustfile_ends(
    server: Server, tmp_path: Path, way: str
) -> None:
    (tmp_path / "ending.py").write_text(
        ENDING.format(where="task", way=f"environment.runner.{way}()")
    )
    words = ("-f", "ending.py", "-s", "5", "--selftest", "off", "--autoquit", "1")
    with command(tmp_path, *in_mode(server, "web", *words)) as its:
        its.ends(30)
        assert (tmp_path / "r" / "report.html").exists(), its.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "way", "mode"), [*ENDS[:2], *(pytest.param(*one, marks=full) for one in ENDS[2:])]
)
def test_a_locustfile_ends_its_run(
    server: Server, tmp_path: Path, where: str, way: str, mode: str
) -> None:
    """As plain Locust does, and with a report."""
    (tmp_path / "ending.py").write_text(ENDING.format(where=where, way=way))
    with command(
        tmp_path, *in_mode(server, mode, "-f", "ending.py", "-s", "5", "--selftest", "off")
    ) as its:
        assert its.ends(30) == ExitStatus.OK, its.text
        assert (tmp_path / "r" / "report.html").exists(), its.text
        assert "have no record" not in its.text
        assert not its.left_behind()


# -- signals ---------------------------------------------------------------------------------------

MODES: Final[dict[str, tuple[str, ...]]] = {
    "alone": (),
    "processes": ("--processes", "2"),
    "web": ("--autostart",),
    "web processes": ("--autostart", "--processes", "2"),
}


def in_mode(server: Server, mode: str, *words: str) -> tuple[str, ...]:
    port = ("--master-bind-port", str(free_port())) if "processes" in mode else ()
    found = run_words(server, "-u", "4", *MODES[mode], *port, *words)
    if "--autostart" not in found:
        return found
    return (*(word for word in found if word != "--headless"), "--web-port", str(free_port()))


SIGNALS: Final = [
    (mode, number, group)
    for mode in MODES
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for group in (False, True)
]
FEW: Final = (("alone", signal.SIGHUP, True), ("alone", signal.SIGTERM, False))
"""SIGINT to two processes is in test_run.py."""


def send(its: Command, number: int, group: bool) -> None:
    os.killpg(its.process.pid, number) if group else its.process.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "number", "group"),
    [pytest.param(*one, marks=() if one in FEW else full) for one in SIGNALS],
)
def test_a_signal_ends_a_run_in_order(
    server: Server, tmp_path: Path, mode: str, number: int, group: bool
) -> None:
    """To the first process, as ``docker stop`` does, or to the whole group, as a terminal does."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, whose children ignore SIGHUP, and so does a run")
    with command(tmp_path, *in_mode(server, mode)) as its:
        its.sends(4)
        send(its, number, group)
        assert its.ends(30) == 0, its.text
        assert (tmp_path / "r" / "report.html").exists()
        assert "have no record" not in its.text
        assert not its.left_behind()


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        pytest.param(mode, number, marks=full)
        for mode in MODES
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ],
)
def test_a_second_one_hurries(server: Server, tmp_path: Path, mode: str, number: int) -> None:
    long = ("--output-tokens-mean", "50000", "-s", "200", "--request-timeout", "500")
    with command(tmp_path, *in_mode(server, mode, *long)) as its:
        its.until(lambda: server.truth()["engine"]["running"] >= 4)
        its.process.send_signal(number)
        time.sleep(1.5)
        assert its.process.poll() is None
        assert (
            its.text.count(
                "waiting up to 200 s for open requests; press Ctrl-C again to cut them off"
            )
            == 1
        )
        its.process.send_signal(number)
        assert its.ends(30) == ExitStatus.INCOMPLETE, its.text  # all are cut: there is no figure
        assert (tmp_path / "r" / "report.html").exists(), its.text
        assert not its.left_behind()


ANY_SIGNAL: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP, signal.SIGSTOP, signal.SIGUSR1,
    signal.SIGKILL,
)  # fmt: skip
DEADLY: Final = (-signal.SIGUSR1, -signal.SIGKILL)
MASTERLESS_S: Final = GONE_S + 25.0
"""Workers whose master was killed have ended by then."""
RUN_S: Final = 7.0
"""From the start of a run of two seconds to its end, about."""


def send_any_signals(its: Command, drawn: random.Random) -> int:
    """To the first process, its children or the whole group; whoever was stopped goes on. How many
    killed a child."""
    deaths = 0
    for _ in range(drawn.randrange(1, 5)):
        if its.process.poll() is not None:
            break
        child = drawn.choice([None, *its.children()])
        number = drawn.choice(
            ANY_SIGNAL[:5] if child is None and drawn.random() < 0.7 else ANY_SIGNAL
        )
        pause_s = drawn.choice((0.02, 0.1, 0.6, 2.5))
        with suppress(psutil.Error):
            if child is not None:
                child.send_signal(number)
                deaths += -number in DEADLY
            else:
                send(its, number, group=drawn.random() < 0.5)
        time.sleep(pause_s)
        with suppress(psutil.Error, OSError):
            os.killpg(its.process.pid, signal.SIGCONT)
            if child is not None:  # the process of the reports has a session of its own
                child.send_signal(signal.SIGCONT)
        time.sleep(drawn.choice((0.0, 0.1, 0.6)))
    return deaths


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param(mode, seed, marks=pytest.mark.slow if seed == 1 else full)
        for mode in ("alone", "processes")
        for seed in range(1, 21)
    ],
)
def test_any_signals_at_any_moment_lose_no_request_silently(
    server: Server, tmp_path: Path, mode: str, seed: int
) -> None:
    """From the import to the report. What the server has seen has a record, or is counted as lost,
    and then the status says so."""
    drawn, users = random.Random(f"{mode} {seed}"), 4
    server.reset()
    with command(tmp_path, *in_mode(server, mode, "-t", "2", "-s", "5")) as its:
        time.sleep(drawn.uniform(0.0, RUN_S))
        killed_children = send_any_signals(its, drawn)
        status = its.ends(60)
        patience_s = MASTERLESS_S if status in DEADLY else 0.0
        until = time.monotonic() + patience_s
        while its.left_behind() and time.monotonic() < until:
            time.sleep(0.5)
        assert not its.left_behind(), its.text
    seen = len(server.rows())
    assert f'File "{PACKAGE}' not in its.text, its.text
    if status in DEADLY and (tmp_path / "r" / "run.json").exists():
        words = [sys.executable, "-m", "locust_llm", "report", "r"]
        made = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert made.returncode in (ExitStatus.OK, ExitStatus.INCOMPLETE), made.stdout + made.stderr
    got = records(tmp_path / "r") if (tmp_path / "r").exists() else []
    assert len({record.id for record in got}) == len(got)
    if not got:
        assert status != ExitStatus.OK, its.text
        return
    lost = json.loads((tmp_path / "r" / "run.json").read_text())["run"]["records_lost"]
    if (
        mode == "processes" or status not in DEADLY
    ):  # else nobody knows what the process had sent in its last second
        slack = (
            users if killed_children or status in DEADLY else 0
        )  # admitted, and killed before it was sent
        assert seen <= len(got) + lost <= seen + slack, its.text
    if status == ExitStatus.OK:
        assert (lost, (tmp_path / "r" / "report.html").exists()) == (0, True), its.text


def reporting(its: Command) -> bool:
    """Whether the process that makes the reports is there."""
    with suppress(psutil.Error):
        children = psutil.Process(its.process.pid).children(recursive=True)
        return any("report" in process.cmdline() for process in children)
    return False


PHASES: Final[dict[str, Callable[[Command, Server], object]]] = {
    "import": lambda its, server: time.sleep(0.3),
    "warmup": lambda its, server: its.until(lambda: server.truth()["engine"]["running"] > 0),
    "profiling": lambda its, server: its.until(lambda: "profiling starts" in its.text),
    "grace": lambda its, server: its.until(lambda: "Time limit reached" in its.text),
    "report": lambda its, server: its.until(lambda: reporting(its)),
}
"""How to wait for it in a run with a warmup of two seconds and a profiling of two, whose answers
take 1.5 s."""
INTERRUPTED: Final = (128 + signal.SIGINT, -signal.SIGINT)
SHOWN: Final = {
    "import": INTERRUPTED,
    "warmup": (ExitStatus.OK, ExitStatus.INCOMPLETE),
    "profiling": (ExitStatus.OK, ExitStatus.INCOMPLETE),
    "grace": (ExitStatus.OK,),
    "report": (ExitStatus.OK,),
}
"""With which statuses it may end."""


LATE: Final = """
import os, signal, sys
from locust_llm.locustfiles.run import *

class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), write=os.write):
        for number in NUMBERS:
            kill(me, number)
        write(2, b"signals came")

sys.late = Late()
""".replace("NUMBERS", str(tuple(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))))
"""Sends the signals when Python takes its modules down, when its own handlers are gone."""


@pytest.mark.slow
def test_a_signal_after_the_report_is_printed_leaves_the_status_of_the_run(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    words = ("-f", "late.py", "-u", "1", "--request-count", "3", "--selftest", "off")
    with command(tmp_path, *run_words(server, *words, "--slo", "error_rate > 90%")) as its:
        assert its.ends(30) == ExitStatus.RULE_FAILED, its.text
        assert its.text.rstrip().endswith("signals came")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", MODES)
@full
def test_ctrl_c_in_each_phase_leaves_nothing(
    server: Server, tmp_path: Path, mode: str, phase: str
) -> None:
    words = ("--warmup-duration", "2", "-t", "2", "--output-tokens-mean", "150")
    with command(tmp_path, *in_mode(server, mode, *words)) as its:
        PHASES[phase](its, server)
        os.killpg(its.process.pid, signal.SIGINT)
        assert its.ends(20) in SHOWN[phase], its.text
        assert "Traceback" not in its.text
        assert (tmp_path / "r" / "report.html").exists() == (phase != "import"), its.text
        assert not its.left_behind(), its.text


AT_THE_START: Final = [("alone", at_s) for at_s in (0.02, 0.05, 0.1, 0.15, 0.2, 0.4)] + [
    ("processes", 0.8)
]


@pytest.mark.parametrize(
    ("mode", "after_s"),
    [pytest.param(*one, marks=() if one == ("alone", 0.1) else full) for one in AT_THE_START],
)
def test_ctrl_c_at_the_start_ends_it_without_a_traceback(
    server: Server, tmp_path: Path, mode: str, after_s: float
) -> None:
    """Python itself has the first moments: what it says then names no file of ours."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip(
            "these tests run in the background of a script, whose children ignore SIGINT until "
            "they handle it"
        )
    with command(tmp_path, *in_mode(server, mode)) as its:
        time.sleep(after_s)
        os.killpg(its.process.pid, signal.SIGINT)
        # 1 is Python's own, before it has read its modules
        assert its.ends(15) in (*INTERRUPTED, 1), its.text
        assert f'File "{PACKAGE}' not in its.text, its.text
        assert not (tmp_path / "r").exists()
        assert not its.left_behind(), its.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_load_is_told_in_one_line(tmp_path: Path, number: int) -> None:
    """The server takes the connection of the checks, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ("run", "--headless", "--host", host, "-u", "1", "-t", "5", "--report-dir", "r")
        with command(tmp_path, *words) as its:
            silent.settimeout(60)
            connection, _ = silent.accept()
            its.process.send_signal(number)
            assert its.ends(15) == 128 + number, its.text
            connection.close()
            line = (
                f"locust-llm: {signal.Signals(number).name} ended the run before its load, so "
                "nothing was measured"
            )
            assert its.text.count(line) == 1, its.text
            assert "Traceback" not in its.text
            assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("number", "after_s"),
    [
        pytest.param(number, after_s, marks=full)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for after_s in (0.5, 2.0, 6.0)
    ],
)
def test_the_demo_ends_with_its_simulator(tmp_path: Path, number: int, after_s: float) -> None:
    before = {process.pid for process in psutil.process_iter()}
    with command(tmp_path, "demo", "-t", "60") as its:
        time.sleep(after_s)
        its.process.send_signal(number)
        its.ends(40)
        time.sleep(0.2)
        left = [
            process.pid
            for process in psutil.process_iter(["cmdline", "cwd"])
            if process.pid not in before and process.info["cwd"] == str(tmp_path)
        ]
        assert not left


# -- standard output -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["closed", *(pytest.param(how, marks=full) for how in ("head", "full disk"))]
)
def test_a_run_goes_on_when_nobody_reads_what_it_writes(
    server: Server, tmp_path: Path, how: str
) -> None:
    words = run_words(server, "-u", "2", "-t", "1")
    line = " ".join([f"'{sys.executable}'", "-m", "locust_llm", *words])
    shell = {
        "head": f"{{ {line}; echo $? > status; }} 2>&1 | head -1",
        "closed": f"{line} >&- 2>&-; echo $? > status",
        "full disk": f"{line} > /dev/full 2>&1; echo $? > status",
    }[how]
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True
    )
    assert (tmp_path / "status").read_text().strip() == "0", done.stderr
    assert (tmp_path / "r" / "report.html").exists()


# -- what the result lacks -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_that_was_deleted_is_made_anew_and_said(server: Server, tmp_path: Path) -> None:
    with command(
        tmp_path, *run_words(server, "-u", "4", "-t", "2", "--slo", "error_rate < 50%")
    ) as its:
        its.sends()
        for path in (tmp_path / "r").iterdir():
            path.unlink()
        (tmp_path / "r").rmdir()
        assert its.ends(30) == ExitStatus.INCOMPLETE, its.text
        assert "INCOMPLETE: the report folder r was deleted during the run" in its.text
        assert (tmp_path / "r" / "profile_export.jsonl").read_bytes().count(b"\n") > 5
        assert (tmp_path / "r" / "report.html").exists()


# -- all processes killed --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_whose_processes_are_all_killed_has_the_records_of_its_workers(
    server: Server, tmp_path: Path
) -> None:
    """The master first, so that its workers keep what they cannot deliver. What the server has
    answered to the end has a record, or is counted as lost."""
    server.reset()
    with command(tmp_path, *run_words(server, "--processes", "2", "-u", "4")) as its:
        its.sends(4)
        workers = its.children()
        its.process.kill()
        written = len(records(tmp_path / "r"))
        time.sleep(2)
        for worker in workers:
            worker.kill()
    made = subprocess.run(
        [sys.executable, "-m", "locust_llm", "report", "r"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode == ExitStatus.INCOMPLETE, made.stderr
    assert "the run did not finish" in made.stdout
    got = [record.id for record in records(tmp_path / "r")]
    assert len(got) > written
    assert len(set(got)) == len(got)
    run = json.loads((tmp_path / "r" / "run.json").read_text())["run"]
    assert len(got) + run["records_lost"] == len(server.rows())
