"""The worker, where it is on a host of its own: what it does before it knows what time it is
there."""

from types import SimpleNamespace
from typing import Any

from locust.env import Environment

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.records import answered

from locust_llm.gate.request_seconds import RequestSeconds
from locust_llm.gate.shares import Share
from locust_llm.server.discovery import Discovery
from locust_llm.settings.run_options import Settings
from locust_llm.wire.clock_sync import measure_clock_offset_s
from locust_llm.wire.worker_messages import (
    Arrivals,
    Begin,
    Renewal,
    RequestsWanted,
    unpack_to_control,
)
from locust_llm.worker import worker_context as worker_module
from locust_llm.worker.send_permits import Permit
from locust_llm.worker.worker_context import WorkerContext


@pytest.fixture
def sent() -> list[bytes]:
    return []


@pytest.fixture
def sender(sent: list[bytes]) -> WorkerContext:
    environment = Environment()
    runner: Any = SimpleNamespace(send_message=lambda kind, data: sent.append(data))
    environment.runner = runner
    return WorkerContext(environment, Settings(), shared=True)


def begin(sender: WorkerContext, **what: Any) -> None:
    settings = Settings(host="http://server", selftest="off", request_rate=5.0)
    assert sender.begin(7, Begin(settings=settings, survey=Discovery(model="m"), **what))


def test_arrivals_wait_until_the_clock_is_known(sender: WorkerContext) -> None:
    """The master's wall clock, and so the axis of the run, is an hour ahead of this one's."""
    begin(sender, clock="of another machine", clock_offset_s=1.0)
    arrivals = Arrivals("profiling", 5000.0, [(0.5, None, None, "")])
    sender.add_arrivals(arrivals)
    assert sender.permits.unreserved(float("inf")) == 0
    sender.renew(
        Renewal(Share(2, 1), at=100.0, unix_s=measure_clock_offset_s() + 3700.0 + 0.0, heard=0)
    )
    assert sender.permits.unreserved(float("inf")) == 1
    assert sender.clock_offset_s != measure_clock_offset_s()
    due_at = sender.permits.take(1).due_at
    assert due_at == pytest.approx(5000.5 - sender.clock_offset_s)


def test_what_must_come_is_sent_again_when_the_control_has_not_had_it(
    sender: WorkerContext, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(sender)
    now = [100.0]
    monkeypatch.setattr(sender._outgoing, "_clock", lambda: now[0])
    sender._want()
    assert unpack_to_control(sent[-1]) == (7, RequestsWanted(), 1)
    now[0] += 2.0
    for heard, count in ((0, 2), (1, 2)):
        sender.renew(Renewal(Share(2, 1), at=100.0, unix_s=5000.0, heard=heard))
        now[0] += 2.0
        assert len([data for data in sent if unpack_to_control(data)[2] == 1]) == count


def test_a_first_chunk_behind_the_timeout_was_never_decoding(sender: WorkerContext) -> None:
    """The record of a request that was given up has it all the same."""
    sender.first_chunk("a", 0.1, 0.1)
    for number in range(5):
        sender.finished(answered(50, id=f"late-{number}", outcome="first_token_timeout"))
    assert sender.status().decoding == 1
    sender.finished(answered(5, 10, id="a"))
    assert sender.status().decoding == 0


def test_a_status_has_the_waits_for_first_tokens_from_due_on(
    sender: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 10 s: a token of one that was due at 4 s came after 5.5 s; two that were due at 7 s wait,
    one of them without a user; one ended without a token, and one is due later."""
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: 10.0))
    for request_id, due_at in (("a", 4.0), ("b", 7.0), ("c", 7.0), ("d", 10.5)):
        sender.await_first_chunk(request_id, due_at)
    sender.permits.arrive([Permit("profiling", 7.0), Permit("profiling", 10.2)])
    sender.first_chunk("a", 0.1, 5.5)
    sender.await_no_longer("c")
    status = sender.status()
    assert (status.ttfts_s, status.ttfts_from_due_s) == ([0.1], [5.5])
    assert status.awaited == {300: 2}
    assert sender.status().ttfts_from_due_s == []


def test_a_status_has_the_time_of_all_requests_in_flight(
    sender: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two decode from 1 s on, one of them to 3 s: at 4 s that is 2 + 3 s."""
    now = [0.0]
    monkeypatch.setattr(sender, "_decoding_seconds", RequestSeconds(lambda: now[0]))
    now[0] = 1.0
    sender.first_chunk("a", 0.1, 0.1)
    sender.first_chunk("b", 0.1, 0.1)
    now[0] = 3.0
    sender.finished(answered(5, 10, id="a"))
    now[0] = 4.0
    assert sender.status().request_s == (0.0, 0.0, 5.0)
