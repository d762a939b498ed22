"""The workers: who is there, what each was given, and what is lost with one, by pencil."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.master import Master
from support.records import answered, failed

# isort: split
from locust.rpc import zmqrpc
from locust.rpc.protocol import Message
from locust.runners import HEARTBEAT_LIVENESS

import gevent

from locust_llm.controller import worker_registry as module
from locust_llm.controller.worker_registry import QUIET_S, WorkerLoss, are_messages_waiting
from locust_llm.records.journal import JOURNALS, Journal
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.wire.worker_messages import GONE_S, Records


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Workers whose connections are closed."""
    closed: set[str] = set()
    monkeypatch.setattr(module, "is_worker_connected", lambda runner, name: name not in closed)
    return closed


def test_places_are_given_once_and_names_are_kept(tmp_path: Path) -> None:
    master = Master(tmp_path, "a", "b")
    assert [master.workers.add(name).place for name in "abc"] == [0, 1, 2]
    master.workers.drop("a")
    assert (master.workers.active(), master.workers.names) == (["b", "c"], ["a", "b", "c"])
    assert master.workers.seen("a") is None


def test_who_is_quiet_gets_no_arrivals_unless_all_are(tmp_path: Path) -> None:
    master = Master(tmp_path, "a", "b")
    for name, users in (("a", 3), ("b", 2)):
        master.workers.seen(name).users = users  # type: ignore[union-attr]
    assert master.workers.users() == {"a": 3, "b": 2}
    master.now += QUIET_S
    master.workers.seen("b")
    assert master.workers.users() == {"b": 2}
    master.now += QUIET_S
    assert master.workers.users() == {"a": 3, "b": 2}  # it is the control that is late


def test_dead_is_whose_connection_is_closed_or_who_left_or_is_silent_too_long(
    tmp_path: Path, cut: set[str]
) -> None:
    master = Master(tmp_path, "a", "b", "c", "d")
    cut |= {"a", "b"}
    master.now += QUIET_S + 0.1
    master.workers.seen("b")  # it has another connection soon
    assert master.workers.lost() == ["a"]
    master.workers.drop("a")
    del master.clients["c"]
    assert master.workers.lost() == ["c"]
    master.workers.add("c").through = True  # it has ended in order
    master.now += GONE_S - QUIET_S - 0.2
    master.workers.seen("b")
    assert master.workers.lost() == []  # the fourth is stopped, perhaps
    master.now += 0.2
    assert master.workers.lost() == ["d"]


def test_locust_takes_a_lost_worker_for_missing_at_its_next_look(tmp_path: Path) -> None:
    """Its look makes a worker whose count of heartbeats is below zero a missing one."""
    master = Master(tmp_path, "a", "b")
    master.workers.mark_missing("a")
    master.workers.mark_missing("gone")
    assert [master.clients[name].heartbeat < 0 for name in "ab"] == [True, False]
    master.clients["a"].heartbeat = -3  # Locust counts on
    master.workers.mark_missing("a")
    assert master.clients["a"].heartbeat == -3


def test_the_last_workers_stay_present_while_all_are_silent(tmp_path: Path) -> None:
    """Locust counts down once a second, and has counted the second down for good."""
    master = Master(tmp_path, "a", "b", "c")
    clients = master.clients
    clients["a"].heartbeat, clients["b"].heartbeat = 0, -1
    del clients["c"]
    master.workers.keep_present()  # they were heard just now: Locust may count
    assert [clients[name].heartbeat for name in "ab"] == [0, -1]
    master.now += QUIET_S
    master.workers.keep_present()
    assert [clients[name].heartbeat for name in "ab"] == [HEARTBEAT_LIVENESS, -1]


def test_what_was_not_sent_is_told_from_what_was_and_has_no_record(tmp_path: Path) -> None:
    master = Master(tmp_path, "a")
    member = master.workers.seen("a")
    assert member is not None
    master.workers.give("a", "warmup", 5)
    master.workers.give("a", "profiling", 10)
    assert master.workers.back("a", "warmup", 5)
    records = [answered(100, id=f"r{n}", admitted_at=10.0) for n in range(3)] + [
        failed("refused", sent_at=None, id="x")
    ]
    batch = Records(1, [format_record_line(record) for record in records])
    assert [taken.record for taken in master.workers.take("a", batch)] == records
    assert master.workers.take("a", batch) == []
    assert master.workers.back("a", "profiling", 4)
    member.admitted = 5  # two are at the server
    loss = master.workers.drop("a")
    assert (loss.unsent, loss.sent, loss.done) == (
        {"profiling": 4, "warmup": 0},
        2,
        {"warmup": 0, "profiling": 6},
    )
    assert not master.workers.back("a", "profiling", 1)  # accounted for already
    assert master.workers.back("handmade", "profiling", 1)


def test_records_of_a_lost_worker_that_come_after_all_are_none_that_are_lost(
    tmp_path: Path,
) -> None:
    """Some of them it had sent after its last status: those were not counted as lost, and make up
    for no other's loss."""
    master = Master(tmp_path, "a", "b")
    for name, admitted in (("a", 1), ("b", 1)):
        master.workers.seen(name).admitted = admitted  # type: ignore[union-attr]
        assert master.workers.drop(name).sent == 1
    came = [answered(100, id=f"r{n}", worker="a", admitted_at=10.0) for n in range(3)]
    refused = failed("refused", sent_at=None, id="x", worker="a")  # it never came to the gate
    assert [master.workers.found(record) for record in (refused, *came)] == [
        False,
        True,
        False,
        False,
    ]
    assert [*master.workers.remarks()] == ["4 records of lost workers arrived after all"]


def test_the_journal_of_a_dead_worker_is_read_and_removed(tmp_path: Path) -> None:
    master = Master(tmp_path, "a", "b")
    for name in "ab":
        journal = Journal(tmp_path / JOURNALS / name)
        for serial in (1, 2, 3):
            journal.add(
                serial, format_record_line(answered(100, id=f"{name}{serial}", admitted_at=10.0))
            )
        journal.count(admitted=4, begun=6, ended=5)
    master.workers.take(
        "a", Records(2, [format_record_line(answered(100, id="a2", admitted_at=10.0))])
    )
    assert [[taken.record.id for taken in records] for records in master.workers.recover("a")] == [
        ["a1"],
        [],
        ["a3"],
    ]
    loss: Any = master.workers.drop("a")
    assert isinstance(loss, WorkerLoss)
    assert (loss.sent, loss.sessions) == (1, (6, 5))
    master.workers.remove_journal("a")
    assert [path.name for path in (tmp_path / JOURNALS).iterdir()] == ["b"]
    assert len([*master.workers.recover("b")]) == 3
    master.workers.remove_journal("b")
    assert not (tmp_path / JOURNALS).exists()
    assert [*master.workers.recover("b")] == []  # there is none, or it is on another machine


def test_how_well_the_clocks_agree_is_said_where_there_are_several(tmp_path: Path) -> None:
    master = Master(tmp_path, "a", "b", "c")
    assert [*master.workers.remarks()] == []
    for name, error_s in (("a", 0.0), ("b", 0.0004), ("c", 0.0012)):
        master.workers.note_clock(name, error_s)
    master.workers.drop("c")  # its records are there
    (remark,) = master.workers.remarks()
    assert remark.startswith(
        "the times of 2 workers on other machines are aligned with the master's clock to within "
        "1.2 ms. "
    )


def test_whose_messages_may_wait_at_the_master_is_not_lost(
    tmp_path: Path, cut: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that is behind hears everybody late. What came before is read first, so silence
    counts up to the last moment at which nothing waited."""
    waiting = True
    monkeypatch.setattr(module, "are_messages_waiting", lambda runner: waiting)
    master = Master(tmp_path, "a", "b")
    cut.add("b")
    for _ in range(100):
        master.now += 1.0
        assert master.workers.lost() == []
    waiting = False
    master.workers.seen("a")
    assert master.workers.lost() == ["b"]
    waiting = True
    master.now += GONE_S + 0.1
    assert master.workers.lost() == ["b"]
    waiting = False
    assert master.workers.lost() == ["a", "b"]


def test_a_look_for_messages_wakes_who_waits_for_them() -> None:
    """ZeroMQ has signalled the message to the look, and signals it to nobody else."""
    server = zmqrpc.Server("127.0.0.1", 0)
    client = zmqrpc.Client("127.0.0.1", server.port, "w")
    runner = SimpleNamespace(server=server)
    got = gevent.spawn(server.recv_from_client)
    try:
        gevent.sleep(0.1)  # it waits
        client.send(Message("hello", None, "w"))
        until = time.monotonic() + 5
        while not are_messages_waiting(runner) and time.monotonic() < until:
            time.sleep(0.01)  # the event loop stands still
        assert got.get(timeout=5)[0] == "w"
    finally:
        got.kill()
        client.close()
        server.close(linger=0)


@pytest.mark.parametrize(("held_s", "lost"), [(0.0, ["a", "b"]), (20.0, []), (1.0, ["a", "b"])])
def test_who_was_stopped_itself_has_not_heard_the_others(
    tmp_path: Path, held_s: float, lost: list[str]
) -> None:
    """Twenty seconds without a word are the end of a worker, unless the master did nothing in them
    either."""
    master = Master(tmp_path, "a", "b")
    master.now += 20.0
    master.workers.excuse(held_s)
    assert master.workers.lost() == lost


def test_processes_as_people_see_them(tmp_path: Path) -> None:
    """The second has reported nothing for 3 s. One that has ended all that it had is not silent."""
    master = Master(tmp_path, "a", "b", "c")
    for name, users in (("a", 8), ("b", 7), ("c", 0)):
        master.workers.seen(name).users = users  # type: ignore[union-attr]
    master.workers.seen("c").through = True  # type: ignore[union-attr]
    master.now += 3
    master.workers.seen("a")
    assert master.workers.processes() == [(1, 8, None, 0.0), (2, 7, None, 3.0)]
