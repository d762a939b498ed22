"""What would leave a run without an end: greenlets that fail, a journal that holds no records, a folder that is gone."""

import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.master import Master
from support.records import answered

from locust_llm.__main__ import simulator
from locust_llm.run.control import messages
from locust_llm.run.guarded import guarded
from locust_llm.run.launch import PORT, master_port
from locust_llm.run.worker.outbox import FOLDER, Journal, pack


def test_a_failure_is_passed_on_and_a_kill_is_none() -> None:
    failures: list[str] = []

    def fails(word: str) -> None:
        raise ValueError(word)

    guarded(failures.append, 0.0, fails, "at once")
    guarded(failures.append, 0.01, fails, "later")
    guarded(failures.append, 0.0, gevent.sleep, 100).kill()
    gevent.sleep(0.05)
    assert failures == ["ValueError: at once", "ValueError: later"]


def test_a_journal_gives_its_records_up_to_the_first_that_is_none(tmp_path: Path) -> None:
    """A machine that stopped may have left the length of a record and not its bytes."""
    master = Master(tmp_path, "a")
    (tmp_path / FOLDER).mkdir(exist_ok=True)
    journal = Journal(tmp_path / FOLDER / "a")
    packed = pack(answered(1.0))
    journal.add(1, packed)
    journal.add(2, bytes(len(packed)))
    journal.add(3, packed)
    journal.close(keep=True)
    assert len(master.workers.recover("a")) == 1
    assert master.workers.lost() == []


def test_who_could_not_be_read_meanwhile_has_not_been_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the master's loop is blocked it reads nothing: the wait goes on when it has come round again."""
    monkeypatch.setattr(messages, "HELLO_S", 0.4)
    greeted: set[str] = set()

    waiting = gevent.spawn(messages._expect_hello, None, SimpleNamespace(clients=["a"]), "a", greeted)
    gevent.sleep(0)
    time.sleep(0.6)  # blocked for longer than the wait
    gevent.spawn_later(0.01, greeted.add, "a")  # what was said meanwhile is read now
    with caplog.at_level(logging.ERROR):
        waiting.get(timeout=5)
    assert caplog.text == ""


def run(folder: Path, url: str, *words: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "locust_llm", "run", "--headless", "--host", url, "--no-probe", "--report-dir",
         str(folder), *words],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def test_a_sweep_whose_folder_is_deleted_ends_with_what_there_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with simulator("--ttft-ms", "50", "--itl-ms", "5") as url:
        remover = gevent.get_hub().threadpool.spawn(_remove_later, folder)
        words = ("--sweep", "concurrency=1,2", "--stage-duration", "2..3", "--stage-requests", "5")
        done = run(folder, url, *words, "--output-tokens-mean", "10")
        remover.get()
    assert done.returncode == 6, done.stderr
    assert "has no place for its files" in done.stderr
    assert (folder / "profile_export.jsonl").stat().st_size
    assert "INCOMPLETE" in done.stdout


def _remove_later(folder: Path) -> None:
    until = time.monotonic() + 30
    while not list(folder.glob("stages/1/*.jsonl")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    shutil.rmtree(folder)


LISTENER = """
from locust import events

from locust_llm.locustfiles.run import *


@events.spawning_complete.add_listener
def fails(**kw):
    raise RuntimeError("injected")
"""


def test_an_error_in_a_greenlet_wins_over_a_rule_that_passes(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(LISTENER)
    with simulator("--ttft-ms", "20", "--itl-ms", "1") as url:
        words = ("-f", str(tmp_path / "file.py"), "-u", "8", "-t", "3", "--slo", "ttft p50 < 100s")
        done = run(tmp_path / "run", url, *words)
    assert "SLO FAIL" not in done.stdout
    assert done.returncode == 2


def test_runs_that_start_at_once_do_not_share_a_port() -> None:
    """Where nobody needs to know it."""
    ports = []
    for words in ((), (), ("--master-bind-port", "15557"), ("--master",)):
        options = Namespace(
            processes=2, worker=False, master="--master" in words, master_bind_host="*",
            master_bind_port=int(words[1]) if len(words) > 1 else PORT,
        )  # fmt: skip
        with socket.create_server(("", 0)) as taken:
            master_port(options)
            ports.append((options.master_bind_port, options.master_port, options.master_bind_host))
            assert options.master_bind_port != taken.getsockname()[1]
    (one, _, host), (other, _, _), (given, _, _), (known, _, everywhere) = ports
    assert all(first == second for first, second, _ in ports)
    assert (host, given, everywhere) == ("127.0.0.1", 15557, "*")
    assert PORT not in (one, other)
    assert known == PORT or not free(PORT)


def free(port: int) -> bool:
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False


BROKEN = """
from locust import events

from locust_llm.locustfiles.run import *
from locust_llm.{module} import {kind}


def broken(self, *args, **kw):
    raise RuntimeError("injected")


{kind}.{name} = broken
"""


@pytest.mark.parametrize(
    ("module", "kind", "name", "words"),
    [
        ("run.control.allocator", "Allocator", "deal_out", ("--request-rate", "5")),  # a schedule has no other end
        pytest.param("run.control.phase_runner", "PhaseRunner", "_time_is_up", ("-u", "1"), marks=pytest.mark.full),
        pytest.param("run.control.control", "Control", "flush", ("-u", "1"), marks=pytest.mark.full),
    ],
)
def test_what_breaks_inside_ends_the_run_with_status_2(
    tmp_path: Path, module: str, kind: str, name: str, words: tuple[str, ...]
) -> None:
    """Whatever the rules say of what was sent before."""
    (tmp_path / "file.py").write_text(BROKEN.format(module=module, kind=kind, name=name))
    with simulator("--ttft-ms", "20", "--itl-ms", "1") as url:
        done = run(
            tmp_path / "run", url, "-f", str(tmp_path / "file.py"), "-t", "3", "--slo", "error_rate < 100%", *words
        )
    assert done.returncode == 2, done.stderr
    assert "RuntimeError: injected; the run ends, and its result is incomplete" in done.stderr
    assert os.path.exists(tmp_path / "run" / "run.json")


SWALLOWS = """
import os, signal, sys, time
from pathlib import Path

def swallowing(self, name, path=None, target=None):
    if name == "locust.main":
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            pass

sys.meta_path.insert(0, type("Finder", (), {"find_spec": swallowing})())
from locust_llm.__main__ import main
sys.argv = ["locust-llm", "run", "--help"]
sys.exit(main())
"""


def test_a_signal_while_modules_are_imported_is_not_swallowed() -> None:
    """Some of them catch all exceptions of their imports, and destructors lose them."""
    done = subprocess.run([sys.executable, "-c", SWALLOWS], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (143, "")
