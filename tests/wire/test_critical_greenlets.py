"""What would leave a run without an end: greenlets that fail, a journal that holds no records, a
folder that is gone."""

import logging
import socket
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.master import Master
from support.records import answered

from locust_llm.controller import messages_from_workers
from locust_llm.locust_adapter.ports import PORT, set_master_port
from locust_llm.records.journal import JOURNALS, Journal
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.wire.critical_greenlets import spawn_critical


def test_a_failure_is_passed_on_and_a_kill_is_none() -> None:
    failures: list[str] = []

    def fails(word: str) -> None:
        raise ValueError(word)

    spawn_critical(failures.append, 0.0, fails, "at once")
    late = spawn_critical(failures.append, 0.01, fails, "later")
    spawn_critical(failures.append, 0.0, gevent.sleep, 100).kill()
    assert gevent.wait([late], timeout=30)
    gevent.sleep(0)  # its end is passed on in the next turn of the loop
    assert failures == ["ValueError: at once", "ValueError: later"]


def test_a_journal_gives_its_records_up_to_the_first_that_is_none(tmp_path: Path) -> None:
    """A machine that stopped may have left the length of a record and not its bytes."""
    master = Master(tmp_path, "a")
    (tmp_path / JOURNALS).mkdir(exist_ok=True)
    journal = Journal(tmp_path / JOURNALS / "a")
    packed = format_record_line(answered(1.0))
    journal.add(1, packed)
    journal.add(2, bytes(len(packed)))
    journal.add(3, packed)
    journal.close(keep=True)
    assert len([*master.workers.recover("a")]) == 1
    assert master.workers.lost() == []


def test_who_could_not_be_read_meanwhile_has_not_been_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the master's loop is blocked it reads nothing: the wait goes on when it has come round
    again."""
    monkeypatch.setattr(messages_from_workers, "HELLO_S", 0.1)
    greeted: set[str] = set()

    waiting = gevent.spawn(
        messages_from_workers._expect_hello, None, SimpleNamespace(clients=["a"]), "a", greeted
    )
    gevent.sleep(0)
    time.sleep(0.2)  # blocked for longer than the wait
    gevent.spawn_later(0.01, greeted.add, "a")  # what was said meanwhile is read now
    with caplog.at_level(logging.ERROR):
        waiting.get(timeout=5)
    assert caplog.text == ""


def test_a_greeting_that_may_wait_at_the_master_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand workers greet at once. Each look finds messages that nobody has read yet, up to
    the greeting."""
    monkeypatch.setattr(messages_from_workers, "HELLO_S", 0.001)
    greeted: set[str] = set()
    looks = []

    def look(runner: object) -> bool:
        looks.append(runner)
        if len(looks) == 30:
            greeted.add("a")
        return True

    monkeypatch.setattr(messages_from_workers, "are_messages_waiting", look)
    with caplog.at_level(logging.ERROR):
        messages_from_workers._expect_hello(
            None,  # type: ignore[arg-type]
            SimpleNamespace(clients=["a"]),
            "a",
            greeted,
        )
    assert len(looks) == 30
    assert caplog.text == ""


def test_runs_that_start_at_once_do_not_share_a_port() -> None:
    """Where nobody needs to know it."""
    ports = []
    for words in ((), (), ("--master-bind-port", "15557"), ("--master",)):
        options = Namespace(
            processes=2, worker=False, master="--master" in words, master_bind_host="*",
            master_bind_port=int(words[1]) if len(words) > 1 else PORT,
        )  # fmt: skip
        with socket.create_server(("", 0)) as taken:
            set_master_port(options)
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
