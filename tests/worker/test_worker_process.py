"""A worker without its master: its records go into the run's file, if that is nobody's any more."""

from support import unpatched_locust  # noqa: F401  before the rest

# isort: split
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from locust.env import Environment

import gevent
import pytest
from support.records import answered

from locust_llm.controller.worker_registry import QUIET_S
from locust_llm.gate.shares import GateStatus, Share
from locust_llm.records.journal import lock_file
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.settings.run_options import Settings
from locust_llm.wire.worker_messages import (
    TO_CONTROL,
    Records,
    Renewal,
    Status,
    ToControl,
    unpack_to_control,
)
from locust_llm.worker import worker_process as module
from locust_llm.worker.records_to_master import RecordOutbox
from locust_llm.worker.worker_process import BEHIND_S, append_lost_records, deliver_records

FIRST, SECOND = answered(100, id="1"), answered(200, id="2")


def test_a_worker_that_the_master_sent_away_too_early_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locust kills the loop that reads, then starts the rest; it looks for a silent master only
    after a heartbeat."""
    monkeypatch.setattr(module, "spawn_critical", lambda *what: None)
    sent: list[str] = []
    environment = Environment()
    runner = SimpleNamespace(
        client_id="w", last_heartbeat_timestamp=None, register_message=lambda *a, **kw: None,
        send_message=lambda kind, data: sent.append(kind), stop=None, stop_users=None, quit=None,
        environment=environment,
    )  # fmt: skip
    before = time.time()
    module.start_worker(environment, runner, Settings())
    assert before <= runner.last_heartbeat_timestamp <= time.time()
    runner.last_heartbeat_timestamp = 1.0
    module.start_worker(environment, runner, Settings())
    assert (runner.last_heartbeat_timestamp, sent) == (1.0, [TO_CONTROL] * 2)


def test_a_worker_that_cannot_send_its_status_any_more_says_why() -> None:
    """The control ends the run then, with status 2."""
    sent: list[tuple[int, ToControl, int]] = []
    environment = Environment()
    runner: Any = SimpleNamespace(
        client_id="w",
        user_count=3,
        send_message=lambda kind, data: sent.append(unpack_to_control(data)),
    )
    environment.runner = runner
    module._Worker(environment, runner, Settings()).fail("RuntimeError: injected")
    ((epoch, status, _),) = sent
    assert isinstance(status, Status)
    assert (epoch, status.failure, status.users) == (0, "RuntimeError: injected", 3)


def make_worker(sent: list[ToControl]) -> module._Worker:
    """Makes a worker whose messages to the master go into ``sent``."""
    environment = Environment()
    runner: Any = SimpleNamespace(
        client_id="w",
        user_count=0,
        send_message=lambda kind, data: sent.append(unpack_to_control(data)[1]),
    )
    environment.runner = runner
    return module._Worker(environment, runner, Settings())


def test_a_gate_without_a_lease_asks_for_one_at_once() -> None:
    """An urgent report is the gate's alone, and is not answered; without a lease it is a whole
    status, which is."""
    sent: list[ToControl] = []
    worker = make_worker(sent)
    worker.receive(Renewal(Share(1, 1), at=0.0, unix_s=0.0, next_s=1000.0))
    sender, reporter = worker.sender, gevent.spawn(worker.report)

    def report() -> type[ToControl]:
        before = len(sent)
        sender.urgent.set()
        with gevent.Timeout(10):
            while len(sent) == before:
                gevent.sleep(0.001)
        return type(sent[-1])

    try:
        assert sender.gate.lapsed
        assert [report(), report()] == [Status, Status]
        sender.gate.lapses_at = math.inf
        assert report() is GateStatus
    finally:
        reporter.kill()


def test_a_status_takes_the_records_along_and_its_answer_acknowledges_them() -> None:
    """And a master that is behind with its answers gets fewer statuses, within the second after
    which it takes a worker for silent."""
    sent: list[ToControl] = []
    worker = make_worker(sent)
    worker._busy = True
    worker.outbox.add(FIRST)
    reporter = gevent.spawn(worker.report)
    gevent.idle()
    reporter.kill()
    (status,) = sent
    assert isinstance(status, Status)
    assert status.records == Records(1, [format_record_line(FIRST)])
    assert status.at is not None
    assert worker.outbox.waiting == 1
    intervals = []
    for behind_s in (0.0, 0.2, 0.6, 100.0):
        worker.receive(Renewal(Share(1, 1), at=status.at - behind_s, unix_s=0.0, next_s=0.5))
        intervals.append(round(worker._choose_interval_s(), 6))
    assert intervals == [0.5, 0.5, 0.6, BEHIND_S]
    assert BEHIND_S < QUIET_S
    assert worker.outbox.waiting == 1
    worker.receive(Renewal(Share(1, 1), at=status.at, unix_s=0.0, recorded=1))
    assert worker.outbox.waiting == 0


@pytest.mark.parametrize(
    "before",
    [
        b"",
        format_record_line(FIRST) + b"\n",
        format_record_line(FIRST)[:50],
        format_record_line(FIRST),
    ],
)
def test_records_are_added_each_on_a_line_of_its_own(tmp_path: Path, before: bytes) -> None:
    """Also where the master was killed in the middle of a line."""
    path = tmp_path / "records"
    path.write_bytes(before)
    there = [FIRST] * (len(before) >= len(format_record_line(FIRST)))
    # another worker had it too, or the master did and died before it could say so
    for _ in range(2):
        assert append_lost_records([SECOND, *there], path)
        assert list(RecordFile(path)) == [*there, SECOND]
    assert path.read_bytes().endswith(b"}\n")


def test_the_file_of_a_run_that_is_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_S", 0.0)
    path = tmp_path / "records"
    path.touch()
    held = lock_file(path)
    assert held is not None
    assert not append_lost_records([FIRST], path)
    os.close(held)
    assert append_lost_records([FIRST], path)
    # the run's folder is on another machine
    assert not append_lost_records([FIRST], tmp_path / "elsewhere")


@pytest.mark.parametrize(("answers", "left"), [(6, 0), (3, 3), (0, 6)])
def test_a_late_master_has_time_while_it_acknowledges(
    monkeypatch: pytest.MonkeyPatch, answers: int, left: int
) -> None:
    """A master that acknowledges a record at each of ``answers`` looks, and then none."""
    monkeypatch.setattr("locust_llm.worker.records_to_master.BATCH_RECORDS", 1)
    sent: list[Records] = []
    outbox = RecordOutbox(sent.append)
    for number in range(6):
        outbox.add(answered(100, id=str(number)))
    rounds: list[float] = []
    acknowledged: list[int] = []

    def sleep(seconds: float) -> None:
        if len(acknowledged) < answers:
            acknowledged.append(sent[len(acknowledged)].number)
            outbox.acknowledged(acknowledged[-1])
        else:
            time_is_up[-1].cancel()
            raise time_is_up[-1]

    time_is_up: list[gevent.Timeout] = []

    class Round(gevent.Timeout):
        def __init__(self, seconds: float, exception: bool) -> None:
            super().__init__(None, exception)
            rounds.append(seconds)
            time_is_up.append(self)

    fake = SimpleNamespace(sleep=sleep, Timeout=Round)
    monkeypatch.setattr(module, "gevent", fake)
    deliver_records(outbox, 10.0)
    assert outbox.waiting == left
    # a round for each record that was taken, and the last one without any
    assert rounds == [10.0] * (answers + (answers < 6))
