"""Control: the limit holds over all processes at every moment, phases follow each other, every
record is kept once."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gevent
import gevent.event
import msgspec
import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.exports import as_json, span
from support.loop_watch import HELD_S, loop_watched
from support.records import answered, failed
from support.virtual_time import UNIX, VirtualTime, turn

from locust_llm.controller import phases, stage_runner
from locust_llm.controller.report_process import ReportOutcome
from locust_llm.controller.run_controller import Controller
from locust_llm.controller.worker_registry import QUIET_S
from locust_llm.exit_status import ExitStatus, decide_exit_status
from locust_llm.gate.shares import GateStatus, Share
from locust_llm.records.control_message import ControlMessage
from locust_llm.records.journal import Journal
from locust_llm.records.phase_plan import OVER, PROFILING, UNCOUNTED_SHARE, WARMUP
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.report_result import ReportResult, RuleAtLook
from locust_llm.records.run_facts import (
    DecidedRule,
    LimitChange,
    ProcessHealth,
    Run,
    Stage,
    make_run_folder,
    read_run,
)
from locust_llm.records.spans import otlp_json
from locust_llm.records.spans.join_spans import sort_spans
from locust_llm.records.spans.span_counts import SpanCounts
from locust_llm.records.spans.span_times import read_spans
from locust_llm.records.spans.trace_ids import make_trace_id
from locust_llm.server.discovery import Discovery
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.settings.run_options import Settings
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.wire.clock_sync import clock_id, measure_clock_offset_s
from locust_llm.wire.worker_messages import (
    TO_SENDER,
    Ack,
    Arrivals,
    AskAgain,
    Begin,
    Ended,
    EndRun,
    FormLearnt,
    Grant,
    PhaseOver,
    Records,
    ReleaseRequests,
    Renewal,
    SessionCounts,
    Sessions,
    StageBegin,
    StartSpread,
    Status,
    unpack_to_worker,
)


class Sent(NamedTuple):
    message: ControlMessage
    worker: str | None
    """None: everybody."""


class Master:
    """A runner: the workers that are there, what was sent to them, and how the run was ended."""

    def __init__(self, *workers: str) -> None:
        # not before unpatched_locust
        from locust.runners import STATE_RUNNING, WorkerNode, WorkerNodes

        self.clients = WorkerNodes()
        for worker in workers:
            self.clients[worker] = WorkerNode(worker, STATE_RUNNING)
        self.sent: list[Sent] = []
        self.ended: list[str] = []
        self.user_count = 30
        self.state = "running"
        self.target_user_count = 30
        self.asked_users: list[int] = []

    def send_message(self, kind: str, data: bytes, worker: str | None) -> None:
        assert kind == TO_SENDER
        epoch, message, _ = unpack_to_worker(data)
        assert epoch == 7
        self.sent.append(Sent(message, worker))

    def what_was_sent(self) -> list[Sent]:
        sent, self.sent = self.sent, []
        return sent

    def start(self, users: int, spawn_rate: float) -> None:
        self.asked_users.append(users)
        self.user_count = self.target_user_count = users

    def quit(self) -> None:
        self.ended.append("quit")

    def stop(self) -> None:
        self.ended.append("stop")


KEY = "sk-of-the-run-0123456789abcdef"
TENANT = "tenant-secret-0123456789"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Any]:
    """Makes a control that has begun, and ends it."""
    controls = []

    def make(
        runner: Master,
        headless: bool = True,
        on_record_over: Any = lambda record: None,
        options: Any = None,
        time: VirtualTime | None = None,
        **asked: Any,
    ) -> Controller:
        options = options or SimpleNamespace(headless=headless)
        environment: Any = SimpleNamespace(runner=runner, parsed_options=options)
        what = Settings(
            **{"report_dir": str(tmp_path / "run"), "users": 30, "server_metrics": False, **asked}
        )
        control = Controller(
            environment, what, Discovery(model="m"), epoch=7, on_record_over=on_record_over,
            time=None if time is None else time.source,
        )  # fmt: skip
        controls.append(control)
        control.begin()
        turn()
        return control

    yield make
    for control in controls:
        control.close()


def test_the_text_of_a_failure_is_one_line_without_secrets(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may quote what a server has sent, or a header."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    runner = Master("a", "b")
    options = SimpleNamespace(headless=True, header=[f"X-Tenant: {TENANT}"], api_key_file=None)
    control = begun(runner, options=options)
    control.on_status(
        "a", Status(gate=GateStatus(0, 0, 0), failure=f"died: ValueError: \x1b[31m{KEY}\nx")
    )
    why = (
        control.losses.on_begin_failed("b", f"ValueError: {TENANT}\x1b[2J")
        or control.facts().notes[-1]
    )
    for text in (why, control.failure, *control.facts().notes):
        assert text.isprintable()
        assert KEY not in text
        assert TENANT not in text
    assert control.failure == "died: ValueError: *** x"


# -- the limit -------------------------------------------------------------------------------------


def shares_sent(runner: Master) -> list[tuple[str | None, int | None]]:
    return [
        (worker, message.share)
        for message, worker in runner.what_was_sent()
        if isinstance(message, Share)
    ]


def status(used: int = 0, number: int = 0, waiting: int = 0, **more: Any) -> Status:
    return Status(gate=GateStatus(used, waiting, number), **more)


def test_the_limit_is_shared_out_and_each_news_is_answered(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, prefill_concurrency=6)
    assert shares_sent(runner) == [("a", 0), ("b", 0), ("a", 3), ("b", 3)]
    control.on_status("a", status(used=3, number=1, waiting=20))
    assert shares_sent(runner) == [("b", 0)]
    control.on_gate_status("b", GateStatus(used=0, waiting=0, number=2))
    assert shares_sent(runner) == [("a", 6)]
    control.on_status("a", status(used=3, number=3, waiting=20, at=12.5))
    ((answer, to),) = runner.what_was_sent()
    assert isinstance(answer, Renewal)
    assert (answer.share.share, answer.share.limit, answer.at, to) == (6, 6, 12.5, "a")
    assert abs(answer.unix_s - time.time()) < 60
    control.on_status("stranger", status(at=1.0))
    assert runner.what_was_sent() == []


def test_without_a_limit_there_is_no_gate(begun: Any) -> None:
    runner = Master("a")
    control = begun(runner)
    assert shares_sent(runner) == [("a", None)]
    control.on_status("a", status(used=50))
    assert shares_sent(runner) == []


def test_how_many_users_there_are_is_kept_over_time(begun: Any) -> None:
    control = begun(Master("a", "b"))
    for worker, users in (("a", 2), ("b", 1), ("a", 2), ("b", 4), ("a", 0)):
        control.on_status(worker, status(users=users))
    assert [change.users for change in control.facts().users] == [2, 3, 6, 4]


# -- phases ----------------------------------------------------------------------------------------


def kinds_sent(runner: Master) -> list[type[ControlMessage]]:
    return [type(message) for message, _ in runner.what_was_sent()]


def last_count(runner: Master) -> int:
    """Of the grant that was sent last."""
    grant = runner.what_was_sent()[-1].message
    assert isinstance(grant, Grant)
    return grant.count


def test_the_order_comes_before_everything_else_and_is_whole(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, prefill_concurrency=3, random_seed=5)
    sent = runner.what_was_sent()
    assert [(type(message), worker) for message, worker in sent][:4] == [
        (kind, worker) for worker in "ab" for kind in (Begin, Share)
    ]
    assert [message for message, _ in sent if isinstance(message, Begin)] == [
        Begin(
            settings=control.settings, survey=Discovery(model="m"), worker=place,
            folder=str(control.folder.resolve()), clock=clock_id(),
            clock_offset_s=measure_clock_offset_s(),
            trace=control.store.trace,
        )
        for place in (0, 1)
    ]  # fmt: skip
    assert read_run(control.folder).settings == control.settings  # there before the load


def test_warmup_then_profiling_then_the_end(begun: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runner = Master("a")
    control = begun(
        runner,
        prefill_concurrency=5,
        warmup_prefill_concurrency=2,
        warmup_request_count=2,
        request_count=3,
    )
    assert (control.plan.phase, control.limit) == (WARMUP, 2)
    runner.what_was_sent()
    control.allocator.grant_requests("a")
    assert runner.what_was_sent() == [Sent(Grant(WARMUP, 2), "a")]
    control.records.add(answered(100, id="2", phase=WARMUP))
    assert control.plan.phase == WARMUP
    control.records.add(answered(100, id="3", phase=WARMUP))
    turn()
    assert (control.plan.phase, control.limit) == (PROFILING, 5)
    assert kinds_sent(runner) == [Share, StartSpread, AskAgain]
    control.allocator.grant_requests("a")
    assert runner.what_was_sent() == [Sent(Grant(PROFILING, 3), "a")]
    for number in range(3):
        assert runner.ended == []
        control.records.add(answered(100, id=f"p{number}"))
        turn()
    assert (control.plan.phase, runner.ended) == (OVER, ["quit"])
    assert [
        message for message in caplog.messages if "oncurrency" in message or "Warmup" in message
    ] == [
        "Warmup prefill concurrency limited to 2 (session concurrency: 30)",
        "Warmup finished, profiling starts",
        "Prefill concurrency limited to 5 (session concurrency: 30)",
    ]
    facts = control.facts()
    assert [(change.limit, change.phase) for change in facts.limits] == [
        (2, WARMUP),
        (5, PROFILING),
    ]
    assert facts.limits[0].at < facts.profiling_at <= facts.limits[1].at


def test_stages_follow_each_other_and_the_run_ends_with_the_last(
    begun: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stage_runner, "make_reports", lambda folder: ReportOutcome(None))
    monkeypatch.setattr(phases, "HEALTH_S", 0.0)
    runner = Master("a")
    control = begun(
        runner,
        users=None,
        repeats=2,
        request_count=2,
        warmup_request_count=1,
        prefill_concurrency=3,
    )
    control.allocator.grant_requests("a")
    control.records.add(answered(100, id="w", phase=WARMUP))
    for number in (1, 2):
        with gevent.Timeout(5):
            while control.plan.phase != f"profiling {number}":
                turn()
        turn()
        sent = runner.what_was_sent()
        assert Sent(StageBegin(number), "a") in sent
        assert sent[-1] == Sent(AskAgain(f"profiling {number}"), "a")
        control.allocator.grant_requests("a")
        assert runner.what_was_sent() == [Sent(Grant(f"profiling {number}", 2), "a")]
        control.phases.add_health(
            ProcessHealth(worker="a", stage=number, cpu_share=0.1, loop_lag_p99_ms=1.0)
        )
        for request in "xy":
            assert runner.ended == []
            control.records.add(answered(100, id=f"{request}{number}", stage=number))
        control.allocator.grant_requests("a")  # between two stages nothing is granted
        assert last_count(runner) == 0
    with gevent.Timeout(5):
        while not runner.ended:
            turn()
    assert (control.plan.phase, runner.ended) == (OVER, ["quit"])
    facts = control.facts()
    assert [(stage.number, stage.why) for stage in facts.stages] == [(1, "count"), (2, "count")]
    assert facts.sweep_end == "all stages ran"
    for number in (1, 2):
        folder = tmp_path / "run" / "stages" / str(number)
        assert [record.id for record in RecordFile(folder / "profile_export.jsonl")] == [
            f"x{number}",
            f"y{number}",
        ]
        run = read_run(folder)
        assert run.stage == facts.stages[number - 1]
        assert [(change.limit, change.phase) for change in run.limits] == [(3, PROFILING)]
    assert len(list(RecordFile(tmp_path / "run" / "profile_export.jsonl"))) == 5


def test_the_time_of_a_sweep_is_up_in_its_last_stage_too(begun: Any) -> None:
    """Nothing comes back, so the stage never ends by itself."""
    clock, runner = VirtualTime(), Master("a")
    control = begun(runner, time=clock, users=None, sweep="concurrency=4", run_time_s=12.0)
    clock.advance(11.9)
    assert runner.ended == []
    clock.advance(0.2)
    turn()
    assert (runner.ended, control.facts().sweep_end) == (["quit"], "its time was up after 12 s")


def test_a_share_that_came_back_is_offered_again(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, request_count=8)
    control.allocator.grant_requests("a")
    assert [
        message.count for message, _ in runner.what_was_sent() if isinstance(message, Grant)
    ] == [1]
    control.allocator.put_back("a", PROFILING, 1)
    assert runner.what_was_sent() == [Sent(AskAgain(PROFILING), worker) for worker in "ab"]
    counts = []
    for _ in range(9):
        control.allocator.grant_requests("b")
        counts.append(last_count(runner))
    assert counts == [1] * 8 + [0]


def test_who_has_a_share_to_spare_is_asked_for_it_when_there_is_none_left(begun: Any) -> None:
    runner = Master("a", "b", "c")
    control = begun(runner, request_count=2)
    control.allocator.grant_requests("a")
    control.allocator.grant_requests("b")
    runner.what_was_sent()
    control.allocator.grant_requests("c")
    assert [(type(message), worker) for message, worker in runner.what_was_sent()] == [
        (ReleaseRequests, "a"), (ReleaseRequests, "b"), (Grant, "c"),
    ]  # fmt: skip


def test_in_the_web_page_the_end_stops_the_run_and_not_the_process(begun: Any) -> None:
    runner = Master("a")
    control = begun(runner, headless=False, request_count=1)
    control.allocator.grant_requests("a")
    control.records.add(answered(100))
    control.shutdown.begin()
    turn()
    assert runner.ended == ["stop"]


def test_the_ramp_as_the_seed_page_has_it(begun: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runner, time = Master("a", "b"), VirtualTime()
    control = begun(
        runner, time=time, prefill_concurrency=5, prefill_concurrency_ramp_duration=30.0
    )
    shares = shares_sent(runner)
    for _ in range(31):
        for worker in "ab":
            control.on_status(
                worker, status(number=control.phases.limit.shares.share(worker).number)
            )
        shares += shares_sent(runner)
        time.advance(1.0)
    assert "Prefill concurrency ramping from 1 to 5 over 30 seconds" in caplog.messages
    assert control.facts().limits == tuple(
        LimitChange(UNIX + at, limit, PROFILING)
        for at, limit in ((0, 1), (7.5, 2), (15, 3), (22.5, 4), (30, 5))
    )
    # one by one, and some hold none for a while
    assert shares == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]


@pytest.mark.parametrize("end", ["the next phase", "the drain"])
def test_a_ramp_goes_no_further_than_its_phase(begun: Any, end: str) -> None:
    runner, time = Master("a"), VirtualTime()
    control = begun(
        runner,
        time=time,
        warmup_prefill_concurrency=4,
        warmup_prefill_concurrency_ramp_duration=30.0,
        prefill_concurrency=9,
        warmup_request_count=1,
    )
    assert control.limit == 1
    if end == "the next phase":
        control.allocator.grant_requests("a")
        control.records.add(answered(100, phase=WARMUP))
    else:
        del runner.clients["a"]  # nobody to wait for
        drain = gevent.spawn(control.drain)
        time.advance(1.0)  # it is found to be lost
        drain.join(5)
    time.advance(60.0)
    assert control.limit == (9 if end == "the next phase" else 1)


def all_first_failed(control: Controller) -> list[str]:
    return [note for note in control.facts().notes if "each of the first 10" in note]


def record_at(time_s: float, number: int, worker: str, *, ok: bool) -> Record:
    """Admitted and sent then. A refusal is over at once, an answer after 3 s."""
    stamps = {"asked_at": time_s, "admitted_at": time_s, "clock_offset_s": UNIX, "worker": worker}
    name = f"{worker}{number}"
    if ok:
        return answered(3_000, id=name, sent_at=time_s, **stamps)
    return failed(
        "unavailable", id=name, sent_at=time_s, status=503, closed_at=time_s, error="busy", **stamps
    )


def test_a_server_that_only_refuses_what_is_too_much_raises_no_alarm(begun: Any) -> None:
    """Worker a sends 8 requests in second 1, and b 20 in second 1.5 that are refused instantly. While a's are open, and after they ended well, the run has no such note."""
    time = VirtualTime()
    control = begun(Master("a", "b"), time=time)
    time.advance(2.0)
    for number in range(20):
        control.records.add(record_at(1.5, number, "b", ok=False))
    for _ in range(2):
        control.on_status("b", status(at=time.at, admitted=20, over=20))
        assert all_first_failed(control) == []  # nothing is known of a
        control.on_status("a", status(at=time.at, admitted=8))
        assert all_first_failed(control) == []
        time.advance(1.0)
    for number in range(8):
        control.records.add(record_at(1.0, number, "a", ok=True))
    control.on_status("a", status(at=time.at, admitted=8, over=8))
    control.on_status("b", status(at=time.at, admitted=20, over=20))
    assert all_first_failed(control) == []


def test_a_server_that_fails_from_the_start_raises_the_alarm_with_the_next_statuses(
    begun: Any,
) -> None:
    """Five requests of each worker fail in second 1. Later ones change nothing."""
    time = VirtualTime()
    control = begun(Master("a", "b"), time=time)
    for worker in "ab":
        for number in range(5):
            control.records.add(record_at(1.0, number, worker, ok=False))
    time.advance(1.25)
    control.on_status("a", status(at=1.25, admitted=5, over=5))
    assert all_first_failed(control) == []
    control.on_status("b", status(at=1.25, admitted=5, over=5))
    (note,) = all_first_failed(control)
    assert note.startswith("WARNING: each of the first 10 requests failed: 10 x unavailable: busy")
    time.advance(0.5)
    control.on_status("b", status(at=1.75, admitted=6, over=5))
    assert all_first_failed(control) == [note]


# -- records and the end ---------------------------------------------------------------------------


def test_every_record_is_on_disk_once_and_every_batch_acknowledged(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner)
    runner.what_was_sent()
    records = [answered(100, 120, id=f"r{number}", worker="a") for number in range(3)]
    first, second = (
        Records(first, [format_record_line(record) for record in some])
        for first, some in ((1, records[:2]), (3, records[2:]))
    )
    for batch in (second, first, first, second):
        control.records.take_batch("a", batch)
    assert runner.what_was_sent() == [Sent(Ack(number), "a") for number in (3, 1, 1, 3)]
    control.records.flush()
    assert list(RecordFile(control.folder / "profile_export.jsonl")) == [records[2], *records[:2]]
    assert (control.run_progress.counts, control.run_progress.output_tokens) == ({"ok": 3}, 6)


def test_the_records_of_a_status_are_acknowledged_by_its_answer(begun: Any) -> None:
    """They are on the disk then, whoever sent them. A worker that takes no part gets no answer, and
    its records are acknowledged alone; damaged ones are not."""
    runner = Master("a", "b")
    control = begun(runner)
    runner.what_was_sent()
    lines = [format_record_line(answered(100, id=f"r{n}", worker="a")) for n in range(4)]
    for at, batch in ((12.5, Records(1, lines[:2])), (12.75, Records(1, lines[:2])), (13.0, None)):
        control.on_status("a", status(at=at, records=batch))
    control.on_status("b", status(at=13.0, records=Records(1, [lines[2][:-1]])))
    answers = [(sent.message.at, sent.message.recorded) for sent in runner.what_was_sent()]
    assert answers == [(12.5, 1), (12.75, 1), (13.0, 0), (13.0, 0)]
    control.on_status("stranger", status(at=13.0, records=Records(5, lines[3:])))
    assert runner.what_was_sent() == [Sent(Ack(5), "stranger")]
    file = control.folder / "profile_export.jsonl"
    assert file.read_bytes().splitlines() == [lines[0], lines[1], lines[3]]


@pytest.mark.parametrize(
    ("workers", "next_s"), [(1, 0.25), (125, 0.25), (200, 0.4), (250, 0.5), (1000, 0.5)]
)
def test_many_workers_send_fewer_statuses_each(begun: Any, workers: int, next_s: float) -> None:
    """500 a second in all, but each worker two a second, as one that is silent for a second gets
    no arrivals."""
    runner = Master(*map(str, range(workers)))
    control = begun(runner)
    runner.what_was_sent()
    control.on_status("0", status(at=12.5))
    (answer,) = (
        sent.message for sent in runner.what_was_sent() if isinstance(sent.message, Renewal)
    )
    assert answer.next_s == next_s
    assert 2 * answer.next_s <= QUIET_S


@pytest.mark.parametrize(
    ("settings", "elapsed_s", "done", "how_far"),
    [
        ({"run_time_s": 60.0}, 6.94, 0, "after 6.9 of 60 s"),
        ({"run_time_s": 60.0}, 59.8, 0, ""),
        ({"request_count": 30}, 3.0, 12, "after 12 of 30 requests"),
        ({"request_count": 30}, 3.0, 30, ""),
        ({"num_sessions": 5}, 3.0, 0, "after 3.0 s, before its end"),
        ({}, 3.0, 0, ""),
    ],
)
def test_how_far_a_run_was_that_somebody_stopped(
    begun: Any, settings: dict[str, Any], elapsed_s: float, done: int, how_far: str
) -> None:
    control = begun(Master("a"), **settings)
    control.run_progress.profiled["ok"] = done
    control.store.began_profiling_at = time.time() - elapsed_s
    gevent.spawn(control.drain)
    turn()
    assert control.facts().stopped_early == how_far


def test_a_run_was_stopped_at_the_signal_and_not_when_its_end_begins(begun: Any) -> None:
    """The signal came after 7.1 s, and the process, without CPU, begins to drain after 8.6 s. Of
    four arrivals a second 29 were due by the signal, the first one at once."""
    clock = VirtualTime()
    control = begun(
        Master("a"), time=clock, users=None, run_time_s=30.0, request_rate=4.0,
        arrival_pattern="constant",
    )  # fmt: skip
    clock.advance(1.0)
    began_at = control.store.profiling_at
    clock.advance(began_at - UNIX + 7.1 - clock.at)
    control.shutdown.note_asked()
    clock.advance(1.5)
    control.shutdown.note_asked()
    gevent.spawn(control.drain)
    turn()
    facts = control.facts()
    assert facts.stopped_early == "after 7.1 of 30 s"
    assert facts.stopping_at == pytest.approx(began_at + 7.1)
    assert facts.offer is not None
    assert (facts.offer.due, facts.offer.duration_s) == (29, pytest.approx(7.1))


def test_a_run_whose_time_is_up_was_stopped_then_and_not_when_its_end_begins(begun: Any) -> None:
    clock = VirtualTime()
    control = begun(Master("a"), time=clock, run_time_s=12.0)
    began_at = control.store.profiling_at
    clock.advance(12.1)
    clock.advance(0.6)
    gevent.spawn(control.drain)
    turn()
    stopping_at = control.facts().stopping_at
    assert stopping_at is not None
    assert 12.0 <= stopping_at - began_at <= 12.2


@pytest.mark.parametrize(
    ("whose", "stretches"), [("server", [(1.0, 3.0), (6.0, 8.0)]), ("base", [(1.0, 3.0)])]
)
def test_the_servers_own_metrics_are_of_the_time_in_which_it_had_load(
    begun: Any, whose: str, stretches: list[tuple[float, float]]
) -> None:
    """Two blocks with a pause between them; of two servers the base has no load in the
    candidate's."""
    asked: list[object] = []
    poller = SimpleNamespace(
        whose=whose,
        close=lambda: None,
        remarks=lambda loaded, limit: asked.append(loaded) or iter(()),
    )
    store = begun(Master("a")).store
    store.poller = poller
    blocks = [
        Stage(number=1, value=1, began_at=1.0, ended_at=3.0, arm="base"),
        Stage(number=2, value=2, began_at=6.0, ended_at=8.0, arm="candidate"),
    ]
    store.facts(stages=tuple(blocks))
    store.began_profiling_at, store.stopping_at = 1.0, 9.0
    store.facts()
    assert asked == [stretches, [(1.0, 9.0)]]


def test_a_second_signal_ends_the_wait_for_open_requests(begun: Any) -> None:
    control = begun(Master("a"), run_time_s=60.0)
    gevent.spawn(control.drain)
    turn()
    assert control.facts().cut_at is None
    control.cut_open()
    first = control.facts().cut_at
    assert first is not None
    assert control.store.stopping_at <= first <= time.time()
    control.cut_open()
    assert control.facts().cut_at == first
    control.shutdown.over.set()
    later = begun(Master("a"), run_time_s=60.0)
    later.shutdown.over.set()  # the reports are being made: nothing is open
    later.cut_open()
    assert later.facts().cut_at is None


def test_a_run_that_ends_by_itself_was_not_stopped(begun: Any) -> None:
    control = begun(Master("a"), run_time_s=60.0)
    control.shutdown.begun = True  # as its time was up, or a rule was broken
    gevent.spawn(control.drain)
    turn()
    assert control.facts().stopped_early == ""


def test_the_drain_waits_for_those_that_are_there(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner)
    runner.what_was_sent()
    drain = gevent.spawn(control.drain)
    turn()
    assert kinds_sent(runner) == [EndRun, EndRun]
    control.losses.on_ended("a", Ended(turned_away=2, missed=3))
    turn()
    assert not drain.ready()
    del runner.clients["b"]  # the other one died
    drain.join(timeout=5)
    assert drain.ready()
    health = ProcessHealth(worker="b", cpu_share=0.5, loop_lag_p99_ms=1.0, clock_error_s=0.02)
    # it was given up before
    control.losses.on_ended("b", Ended(turned_away=1, records=4, missed=5, health=health))
    facts = control.facts()
    assert (facts.turned_away, facts.records_lost, control.allocator.missed) == (3, 0, 3)
    assert facts.health == (health,)
    assert facts.stopping_at is not None
    control.drain()  # once is enough
    assert kinds_sent(runner) == []


def test_who_stops_a_run_reads_what_it_waits_for(begun: Any) -> None:
    line = begun(Master("a"), stop_timeout_s=12.5).open_line()
    assert line == (
        "The run ends: waiting up to 12.5 s for open requests; press Ctrl-C again to cut them off"
    )


@pytest.mark.parametrize("phase", [WARMUP, PROFILING])
def test_a_worker_that_is_lost_in_the_warmup_takes_nothing_measured_with_it(
    begun: Any, phase: str
) -> None:
    """It had sent four requests, of which one has a record. Of the warmup's three the run tells,
    and no result lacks them; a late record of one of them changes nothing."""
    counts = {WARMUP: 50, PROFILING: 1}
    control = begun(Master("a", "b"), warmup_request_count=counts[phase], request_count=50)
    if phase == PROFILING:
        control.allocator.grant_requests("b")
        control.records.add(answered(100, id="w", worker="b", phase=WARMUP))
        turn()
    assert control.plan.phase == phase
    sent = [
        format_record_line(answered(100, id=f"r{n}", worker="a", phase=phase, admitted_at=10.0))
        for n in range(2)
    ]
    control.allocator.grant_requests("a")
    control.on_status("a", status(admitted=4))
    control.records.take_batch("a", Records(1, sent[:1]))
    control.losses.lose("a")
    facts = control.facts()
    lost = 3 if phase == PROFILING else 0
    assert (facts.records_lost, control.store.incomplete) == (lost, lost > 0)
    (loss,) = facts.worker_losses
    assert (loss.requests, loss.in_warmup) == (3, phase == WARMUP)
    (note,) = [note for note in facts.notes if "worker a was lost" in note]
    assert (" in the warmup: 3 requests that it had sent have no record" in note) == (lost == 0)
    control.records.take_batch("a", Records(2, sent[1:]))
    assert control.facts().records_lost == max(0, lost - 1)


def test_what_has_ended_runs_nothing_whatever_its_last_status_was(begun: Any) -> None:
    control = begun(Master("a"))
    control.run_progress.update("a", used=1, waiting=2, decoding=3)
    assert control.run_progress.inside == 6
    control.losses.on_ended("a", Ended())
    assert control.run_progress.inside == 0


def test_a_client_verdict_changes_from_the_one_that_was_shown_last(begun: Any) -> None:
    """The last records, which come with the end, may have made another one since."""
    control = begun(Master("a"))
    assert control.facts().client_live is None
    control.run_progress.shown_client = ClientVerdict("INVALID", ("late",))
    assert control.facts().client_live == ClientVerdict("INVALID", ("late",))


@pytest.mark.parametrize(("came", "journaled", "lost"), [
    (range(1, 5), None, 0),  # all of them, and no acknowledgement reached the worker
    (range(1, 5), range(1, 5), 0), (range(1, 3), range(1, 5), 0), ((1, 4), (1, 2), 1), ((), (), 4),
    (range(1, 3), None, 2),
])  # fmt: skip
def test_records_that_came_are_not_lost_whatever_became_of_their_acknowledgement(
    begun: Any, came: Any, journaled: Any, lost: int
) -> None:
    """The worker has made four."""
    control = begun(Master("a"))
    made = {
        n: format_record_line(answered(100, id=f"r{n}", worker="a", admitted_at=10.0))
        for n in range(1, 5)
    }
    for number in came:
        for _ in range(2):  # one of them was sent again
            control.records.take_batch("a", Records(number, [made[number]]))
    if journaled is not None:
        journal = Journal(control.folder / "journal" / "a")
        for number in journaled:
            journal.add(number, made[number])
    drain = gevent.spawn(control.drain)
    turn()
    control.losses.on_ended("a", Ended(records=4))
    drain.join(timeout=5)
    assert control.facts().records_lost == lost
    assert control.run_progress.counts.total() == 4 - lost
    assert not (control.folder / "journal").exists()


@pytest.mark.parametrize("how", ["lost", "ended"])
def test_a_long_journal_does_not_hold_the_event_loop(begun: Any, how: str) -> None:
    """A worker that could not reach its master for hours may have written gigabytes, and other
    workers are there."""
    runner = Master("a", "b")
    control = begun(runner)
    journal = Journal(control.folder / "journal" / "a")
    for number in range(1, 3001):
        journal.add(
            number,
            format_record_line(
                answered(*range(100, 500), id=f"r{number}", worker="a", admitted_at=10.0)
            ),
        )
    journal.count(admitted=3001, begun=0, ended=0)
    with loop_watched() as held:
        if how == "lost":
            del runner.clients["a"]
        else:
            control.losses.on_ended("a", Ended(records=3001))
            control.losses.on_ended("a", Ended(records=3001))  # it is not counted twice
        wait_for(lambda: any("recovered from its disk" in note for note in control.facts().notes))
    assert max(held) < 2 * HELD_S  # in one piece it takes 300 ms and more
    facts = control.facts()
    assert (control.run_progress.counts.total(), facts.records_lost) == (3000, 1)
    (note,) = [note for note in facts.notes if "recovered from its disk" in note]
    assert (
        "1 request that it had sent has no record, 3000 records were recovered from its disk"
        in note
    )


def test_a_run_does_not_end_before_a_long_journal_is_read(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = begun(Master("a"))
    read, go_on = gevent.event.Event(), gevent.event.Event()
    recover = control._workers.recover

    def slowly(worker: str) -> Iterator[Any]:
        for records in recover(worker):
            read.set()
            go_on.wait()
            yield records

    monkeypatch.setattr(control._workers, "recover", slowly)
    journal = Journal(control.folder / "journal" / "a")
    for number in (1, 2):
        journal.add(
            number, format_record_line(answered(100, id=f"r{number}", worker="a", admitted_at=10.0))
        )
    drain = gevent.spawn(control.drain)
    turn()
    control.losses.on_ended("a", Ended(records=3))
    read.wait(timeout=5)
    control.cut_open()
    control.shutdown.within(0.0)
    gevent.sleep(0.3)
    assert not drain.ready()
    go_on.set()
    drain.join(timeout=5)
    assert drain.ready()
    assert (control.run_progress.counts.total(), control.facts().records_lost) == (2, 1)


def test_what_a_lost_worker_had_goes_to_the_others_and_the_rest_is_counted(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, request_count=16, prefill_concurrency=4)
    control.allocator.grant_requests("a")
    control.allocator.grant_requests("a")
    granted = sum(message.count for message, _ in runner.sent if isinstance(message, Grant))
    assert granted == 3  # an eighth of 16, an eighth of 14
    journal = Journal(control.folder / "journal" / "a")
    journal.add(1, format_record_line(answered(100, id="made", worker="a", admitted_at=10.0)))
    journal.count(admitted=2, begun=0, ended=0)  # and one is at the server
    runner.what_was_sent()
    del runner.clients["a"]
    wait_for(lambda: control.facts().records_lost)
    # all of it is b's
    assert [message.share for message, _ in runner.sent if isinstance(message, Share)][-1] == 4
    assert runner.sent[-1] == Sent(AskAgain(PROFILING), "b")
    counts = []
    for _ in range(14):
        control.allocator.grant_requests("b")
        counts.append(last_count(runner))
    assert sum(counts) == 14  # 16, less the one that was made and the one that is lost
    facts = control.facts()
    assert (facts.records_lost, facts.workers) == (1, ("a", "b"))
    (note,) = [note for note in facts.notes if "was lost" in note]
    assert "1 request that it had sent has no record, 1 record was recovered from its disk" in note
    control.records.flush()
    assert [record.id for record in RecordFile(control.folder / "profile_export.jsonl")] == ["made"]
    # it was not dead after all
    control.records.add(answered(100, id="late", worker="a", admitted_at=10.0))
    assert control.facts().records_lost == 0


def test_a_worker_that_leaves_in_order_leaves_its_share(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, request_count=16)
    control.allocator.grant_requests("a")
    control.losses.on_ended("a", Ended())
    facts = control.facts()
    assert facts.records_lost == 0
    assert any("worker a left" in note for note in facts.notes)
    assert control.plan.left == 16


# -- the folder ------------------------------------------------------------------------------------


def test_a_run_never_writes_into_the_folder_of_another(tmp_path: Path) -> None:
    asked = Settings(report_dir=str(tmp_path / "here" / "run"))
    folders = []
    for _ in range(3):
        folders.append(make_run_folder(asked, "m"))
        (folders[-1] / "profile_export.jsonl").touch()
    assert folders == [tmp_path / "here" / name for name in ("run", "run-2", "run-3")]


def test_the_present_folder_may_hold_a_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert make_run_folder(Settings(report_dir="."), "m") == Path(".")
    Path("profile_export.jsonl").touch()
    assert make_run_folder(Settings(report_dir="."), "m").resolve() == tmp_path / "here-2"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("/models/my model.gguf", "my_model.gguf"),
        ("..", ".."),
        ("", "model"),
        (None, "model"),
    ],
)
def test_by_default_a_folder_has_the_name_of_time_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str | None, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: {"%Y%m%d-%H%M%S": "20300102-030405"}[form])
    folder = make_run_folder(Settings(), model)
    assert folder == Path("reports") / f"20300102-030405-{name}"
    assert folder.is_dir()


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_run_folder(Settings(report_dir=str(tmp_path / "file" / "run")), "m")


# -- open loops, sessions, users -------------------------------------------------------------------


def wait_for(true: Any) -> None:
    with gevent.Timeout(10):
        while not true():
            gevent.sleep(0.01)


def test_arrivals_are_dealt_out_and_the_run_ends_when_all_are_back(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, request_rate=100.0, arrival_pattern="constant", request_count=6)
    control.allocator.grant_requests("a")
    assert runner.sent[-1] == Sent(Grant(PROFILING, 0), "a")
    wait_for(lambda: control.plan.left == 0)
    dealt = {
        worker: message
        for message, worker in runner.what_was_sent()
        if isinstance(message, Arrivals)
    }
    assert set(dealt) == {"a", "b"}
    assert sorted(at_s for message in dealt.values() for at_s, *_ in message.arrivals) == [
        n / 100 for n in range(6)
    ]
    for number in range(6):
        assert runner.ended == []
        control.records.add(answered(100, id=str(number)))
        turn()
    assert runner.ended == ["quit"]
    control.allocator.dispatcher._clock = lambda: time.monotonic() + 60  # the last one has been due
    drain = gevent.spawn(control.drain)
    turn()
    for worker in "ab":
        control.losses.on_ended(worker, Ended())
    drain.join(5)
    offer = control.facts().offer
    assert offer is not None
    assert (offer.due, round(offer.duration_s, 3)) == (6, 0.06)


def test_users_are_added_for_arrivals_that_find_none_free_up_to_the_most(begun: Any) -> None:
    runner = Master("a")
    runner.user_count = 1
    control = begun(runner, users=None, request_rate=5.0, max_users=10)
    control.on_status("a", status(unreserved=4))
    turn()
    assert runner.asked_users == [5]
    control.on_status("a", status(unreserved=0))
    control.on_status("a", status(unreserved=20))
    control.on_status("a", status(unreserved=20))
    control.on_status("a", status(unreserved=20))
    turn()
    assert runner.asked_users[-1] == 10
    assert max(runner.asked_users) == 10
    control.on_status("a", status(unreserved=20))
    assert [note for note in control.facts().notes if "--max-users" in note] != []


def test_a_number_of_users_that_was_asked_for_stays(begun: Any) -> None:
    runner = Master("a")
    control = begun(runner, request_rate=5.0)
    control.on_status("a", status(unreserved=4))
    turn()
    assert runner.asked_users == []


def test_the_warmup_may_have_fewer_users(begun: Any) -> None:
    runner = Master("a")
    control = begun(runner, warmup_concurrency=3, warmup_request_count=1)
    turn()
    assert runner.asked_users == [3]
    control.allocator.grant_requests("a")
    control.records.add(answered(100, id="w", phase=WARMUP))
    turn()
    assert runner.asked_users == [3, 30]


def test_so_many_sessions_and_the_end_when_the_last_is_over(begun: Any) -> None:
    runner = Master("a", "b")
    control = begun(runner, num_sessions=40)
    runner.what_was_sent()
    for worker in "ab":
        control.allocator.grant_sessions(worker)
    assert runner.what_was_sent() == [
        Sent(Sessions(PROFILING, [None] * 32), "a"), Sent(Sessions(PROFILING, [None] * 8), "b"),
    ]  # fmt: skip
    control.allocator.grant_requests("a")
    control.on_status("a", status(sessions=SessionCounts(PROFILING, 32, 31)))
    control.on_status("b", status(sessions=SessionCounts(PROFILING, 8, 0)))
    control.allocator.grant_sessions("a")
    assert runner.what_was_sent()[-1] == Sent(Sessions(PROFILING, [], last=True), "a")
    control.on_status("a", status(sessions=SessionCounts(PROFILING, 32, 32)))
    assert control.plan.phase == PROFILING
    control.on_status("b", status(sessions=SessionCounts(PROFILING, 8, 8)))
    assert Sent(PhaseOver(PROFILING), "b") in runner.sent
    assert runner.ended == []
    grant = UNCOUNTED_SHARE
    control.allocator.put_back("a", PROFILING, grant)  # what the sender has left of its share
    turn()
    assert (control.plan.phase, runner.ended) == (OVER, ["quit"])


def exit_status_of(control: Controller) -> int | None:
    """That of a run without an end has no records either, which is another matter."""
    return decide_exit_status(control.outcome()._replace(incomplete=False))


@pytest.mark.parametrize(
    ("result", "status"),
    [(ReportResult(slo_status="PASS"), 0), (ReportResult(slo_status="FAIL"), 3),
     # no verdict on rules is no pass
     (ReportResult(slo_status="INCONCLUSIVE"), 4), (ReportResult(), 4), (None, 4)],
)  # fmt: skip
def test_the_exit_status_follows_what_the_report_says_of_the_rules(
    begun: Any, result: ReportResult | None, status: int
) -> None:
    control = begun(Master("a"), slo=("ttft p95 < 1s",))
    control.store.result = result
    assert exit_status_of(control) == status


@pytest.mark.parametrize(
    ("inconclusive", "near", "far"),
    [("warn", 0, 0), ("pass", 0, 0), ("close", 0, 4), ("fail", 4, 4)],
)
def test_what_is_inconclusive_may_end_with_0(
    begun: Any, inconclusive: str, near: int, far: int
) -> None:
    control = begun(Master("a"), slo=("ttft p95 < 1s",), inconclusive=inconclusive)
    for found, status in (
        (ReportResult(slo_status="INCONCLUSIVE", close_to_limit=True), near),
        (ReportResult(slo_status="INCONCLUSIVE"), far),
        (ReportResult(slo_status="FAIL"), 3),
        (None, 4),
    ):
        control.store.result = found
        assert exit_status_of(control) == status


@pytest.mark.parametrize(
    ("probe", "status"), [("named", 0), ("untold", 4), ("broken", None), ("", None)]
)
def test_the_exit_status_of_a_probe(begun: Any, probe: str, status: int | None) -> None:
    control = begun(Master("a"))
    control.store.result = ReportResult(probe=probe)
    assert exit_status_of(control) == status


def test_without_rules_the_exit_status_is_locusts(begun: Any) -> None:
    assert exit_status_of(begun(Master("a"))) is None


# -- changed by hand --------------------------------------------------------------------------------


def limits_of(control: Controller) -> list[int | None]:
    return [change.limit for change in control.facts().limits]


def test_the_gate_is_turned_at_once_and_it_is_said(begun: Any) -> None:
    control = begun(Master("a", "b"), prefill_concurrency=4)
    assert control.by_hand.change_limit(9) == "prefill limit changed by hand from 4 to 9"
    assert control.by_hand.change_limit(None) == "prefill limit changed by hand from 9 to no limit"
    control.by_hand.change_limit(2)
    assert (control.limit, limits_of(control)) == (2, [4, 9, None, 2])
    notes = [note for note in control.facts().notes if "by hand" in note]
    assert len(notes) == 3
    assert notes[0].startswith("prefill limit changed by hand from 4 to 9, ")
    assert "s after the start, in profiling" in notes[0]


def test_a_run_without_a_gate_gets_one(begun: Any) -> None:
    control = begun(Master("a"))
    assert limits_of(control) == []
    control.by_hand.change_limit(5)
    # that there was none before needs no word
    assert (control.limit, limits_of(control)) == (5, [5])


def test_the_gate_is_turned_in_a_ramp_from_where_it_is(begun: Any) -> None:
    time = VirtualTime()
    control = begun(Master("a"), time=time, prefill_concurrency=6)
    control.by_hand.change_limit(3, 6.0)
    time.advance(5.9)
    assert limits_of(control) == [6, 6, 5, 4]
    time.advance(0.1)
    assert limits_of(control) == [6, 6, 5, 4, 3]
    control.on_status("a", status(used=8))
    control.by_hand.change_limit(None)
    control.by_hand.change_limit(7, 1.0)  # from no gate: from as many as are in prefill
    time.advance(1.0)
    assert limits_of(control)[-3:] == [None, 8, 7]


def test_a_new_turn_ends_the_ramp_before_it(begun: Any) -> None:
    time = VirtualTime()
    control = begun(
        Master("a"), time=time, prefill_concurrency=9, prefill_concurrency_ramp_duration=8.0
    )
    control.by_hand.change_limit(5)
    time.advance(60.0)
    assert limits_of(control) == [1, 5]


@pytest.mark.parametrize(
    ("asked", "limit", "ramp_s", "line"),
    [
        ({}, 0, None, "--prefill-concurrency must be at least 1, got 0"),
        ({}, 31, None, "--prefill-concurrency 31 is above the 30 users"),
        ({}, 3, -1.0, "--prefill-concurrency-ramp-duration must be above 0 seconds, got -1"),
        ({}, None, 2.0, "--prefill-concurrency-ramp-duration has nothing to ramp"),
        ({"streaming": False}, 3, None, "--prefill-concurrency needs --streaming"),
    ],
)
def test_a_turn_that_cannot_be_is_refused(
    begun: Any, asked: dict[str, Any], limit: int | None, ramp_s: float | None, line: str
) -> None:
    control = begun(Master("a", "b"), **asked)
    with pytest.raises(ValueError, match=line):
        control.by_hand.change_limit(limit, ramp_s)
    assert limits_of(control) == []


def test_a_gate_that_is_not_there_to_be_turned(begun: Any) -> None:
    control = begun(Master("a"), sweep="prefill-concurrency=1,2", users=9)
    assert control.plan.phase == PROFILING
    with pytest.raises(ValueError, match="block by block"):
        control.by_hand.change_limit(3)
    ending = begun(Master("a"), prefill_concurrency=3)
    ending.shutdown.begin()
    with pytest.raises(ValueError, match="sent now"):
        ending.by_hand.change_limit(2)


def test_users_are_changed_by_hand_where_nothing_else_says_how_many(begun: Any) -> None:
    control = begun(Master("a"), prefill_concurrency=4)
    assert control.by_hand.change_users(12)
    assert control.facts().notes[-1].startswith("users changed by hand from 30 to 12, ")
    with pytest.raises(ValueError, match="--prefill-concurrency 4 is above the 3 users"):
        control.by_hand.change_users(3)
    assert not begun(Master("a"), users=None, request_rate=5.0).by_hand.change_users(12)
    assert not begun(Master("a"), repeats=2, request_count=4).by_hand.change_users(12)


def test_the_rate_of_a_steady_schedule_is_changed_by_hand(begun: Any) -> None:
    """From 5/s to 15/s: what is drawn comes three times as fast. A refused change changes nothing,
    and a closed loop has no rate."""
    control = begun(Master("a"), users=None, request_rate=5.0)
    assert control.by_hand.rate == 5
    done = control.by_hand.change_rate(15.0)
    assert done == "request rate changed by hand from 5/s to 15/s"
    assert (control.by_hand.rate, control.allocator.rate_factor.value) == (15, 3)
    assert [change.per_s for change in control.facts().rates] == [15]
    with pytest.raises(ValueError, match="request-rate"):
        control.by_hand.change_rate(-1.0)
    assert control.by_hand.rate == 15
    closed = begun(Master("a"), users=4)
    assert closed.by_hand.rate is None
    with pytest.raises(ValueError, match="no constant request rate"):
        closed.by_hand.change_rate(5.0)


def test_every_record_is_passed_on_once_it_is_kept(begun: Any) -> None:
    passed: list[str] = []
    control = begun(Master("a"), on_record_over=lambda record: passed.append(record.id))
    control.records.add(answered(100, id="x"))
    control.records.add(answered(100, id="y", phase=WARMUP))
    assert passed == ["x", "y"]


# -- phases in virtual time ------------------------------------------------------------------------


def keep_alive(control: Controller, time: VirtualTime) -> None:
    """The only worker reports each second."""

    def report() -> None:
        while True:
            control.on_status("a", status())
            time.sleep(1.0)

    gevent.spawn(report)


def test_the_load_of_a_warmup_of_ten_seconds_goes_on_for_twenty(begun: Any) -> None:
    runner, time = Master("a"), VirtualTime()
    control = begun(runner, time=time, warmup_duration=10.0, run_time_s=20.0, prefill_concurrency=3)
    keep_alive(control, time)
    control.allocator.grant_requests("a")
    time.advance(9.9)
    assert PhaseOver not in kinds_sent(runner)
    runner.what_was_sent()
    time.advance(0.2)
    sent = runner.what_was_sent()  # again what is not acknowledged
    assert Sent(PhaseOver(WARMUP), "a") in sent
    assert Sent(AskAgain(PROFILING), "a") in sent
    spread = [one.message for one in sent if isinstance(one.message, StartSpread)]
    assert {start.phase for start in spread} == {WARMUP}
    assert control.plan.phase == PROFILING
    control.allocator.grant_requests("a")
    assert last_count(runner) == UNCOUNTED_SHARE
    control.allocator.put_back("a", WARMUP, UNCOUNTED_SHARE - 2)
    control.records.add(answered(100, phase=WARMUP))
    control.records.add(answered(100))
    time.advance(5.0)
    facts = control.facts()
    assert (control.plan.phase, facts.warmup_went_on) == (PROFILING, True)
    assert facts.profiling_at == UNIX + 10
    assert [(change.at - UNIX, change.limit, change.phase) for change in facts.limits] == [
        (0, 3, WARMUP),
        (10, 3, PROFILING),
    ]
    assert [start.phase for start in facts.starts] == [WARMUP]
    time.advance(14.8)
    assert runner.ended == []
    time.advance(0.2)
    assert runner.ended == ["quit"]


def test_the_arrivals_of_a_warmup_go_on_without_a_gap(begun: Any) -> None:
    """One each half second, by two schedules: of 4 s, and then of 3 s."""
    runner, time = Master("a"), VirtualTime()
    control = begun(
        runner, time=time, warmup_duration=4.0, run_time_s=3.0, request_rate=2.0,
        arrival_pattern="constant", users=5,
    )  # fmt: skip
    keep_alive(control, time)
    runner.user_count = 5
    time.advance(12.0)
    dealt = [sent.message for sent in runner.sent if isinstance(sent.message, Arrivals)]
    due = {  # what is not acknowledged is sent again
        round(arrivals.started_at + at_s, 6): arrivals.phase
        for arrivals in dealt
        for at_s, *_ in arrivals.arrivals
    }
    first = min(due)
    assert [at - first for at in sorted(due)] == pytest.approx([i / 2 for i in range(14)])
    assert [due[at] for at in sorted(due)] == [WARMUP] * 8 + [PROFILING] * 6
    assert control.facts().profiling_at == UNIX + 4.5  # half a second for the first requests
    assert PhaseOver not in [type(sent.message) for sent in runner.sent]


def test_a_ramp_of_the_limit_goes_on_with_the_load(begun: Any) -> None:
    runner, time = Master("a"), VirtualTime()
    control = begun(
        runner, time=time, warmup_duration=10.0, prefill_concurrency=5,
        prefill_concurrency_ramp_duration=20.0,
    )  # fmt: skip
    keep_alive(control, time)
    time.advance(11.0)
    assert control.plan.phase == PROFILING
    assert 1 < control.limit < 5
    time.advance(10.0)
    assert control.limit == 5


def test_a_warmup_of_another_load_ends_before_profiling_begins(begun: Any) -> None:
    runner, time = Master("a"), VirtualTime()
    control = begun(
        runner, time=time, warmup_duration=10.0, run_time_s=20.0, prefill_concurrency=3,
        warmup_prefill_concurrency=1,
    )  # fmt: skip
    keep_alive(control, time)
    control.allocator.grant_requests("a")
    time.advance(9.9)
    assert PhaseOver not in kinds_sent(runner)
    time.advance(0.2)
    assert Sent(PhaseOver(WARMUP), "a") in runner.what_was_sent()
    control.allocator.grant_requests("a")
    assert last_count(runner) == 0
    time.advance(5.0)
    assert control.plan.phase == WARMUP  # the requests that it has are not back
    assert control.phase_s == pytest.approx(15.1)
    control.allocator.put_back("a", WARMUP, UNCOUNTED_SHARE)
    turn()
    assert control.plan.phase == PROFILING
    assert control.facts().profiling_at == UNIX + time.at
    assert control.phase_s == 0
    time.advance(19.9)
    assert control.phase_s == pytest.approx(19.9)
    assert runner.ended == []
    time.advance(0.2)
    assert runner.ended == ["quit"]


@pytest.mark.parametrize(("look_s", "ended_at"), [(15.0, 40.0), (0.5, 15.5)])
def test_a_look_takes_no_time_from_the_end(
    begun: Any, monkeypatch: pytest.MonkeyPatch, look_s: float, ended_at: float
) -> None:
    """Looks are at 10, 15, 22.5, 33.75 and 40 s; the first one finds a rule open, the second would
    end the run, when it is over."""
    runner, time = Master("a"), VirtualTime()
    rule = "ttft p95 < 1s"
    passed = RuleAtLook(rule, "PASS", interval="190ms to 210ms")
    found = iter([[RuleAtLook(rule, "INCONCLUSIVE", "why")], *[[passed]] * 9])

    def look(folder: Path, run: Run) -> list[RuleAtLook]:
        time.sleep(look_s)
        return next(found)

    monkeypatch.setattr(phases, "find_rules_at_look", look)
    control = begun(
        runner, time=time, run_time_s=10.0, until_decided_s=40.0, slo=("ttft p95 < 1s",)
    )
    keep_alive(control, time)
    control.allocator.grant_requests("a")
    time.advance(ended_at - 0.1)
    assert runner.ended == []
    time.advance(0.2)
    assert runner.ended == ["quit"]
    decided = look_s < 1
    assert decided == any(
        note.startswith("Every SLO was decided") for note in control.facts().notes
    )
    kept = DecidedRule(rule=rule, status="PASS", interval="190ms to 210ms", after_s=15.0)
    assert control.facts().decided_rules == (kept,) * decided


def test_a_stage_is_closed_in_its_time_and_the_next_one_waits_for_its_last_request(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_runner, "make_reports", lambda folder: ReportOutcome(None))
    monkeypatch.setattr(phases, "HEALTH_S", 0.0)
    runner, time = Master("a"), VirtualTime()
    control = begun(runner, time=time, users=4, repeats=2, run_time_s=30.0)
    keep_alive(control, time)
    control.allocator.grant_requests("a")
    time.advance(29.9)
    assert PhaseOver not in kinds_sent(runner)
    time.advance(5.1)
    assert Sent(PhaseOver("profiling 1"), "a") in runner.what_was_sent()
    control.allocator.put_back("a", "profiling 1", UNCOUNTED_SHARE)
    time.advance(1.0)
    assert control.plan.phase == "profiling 2"
    (stage,) = control.facts().stages
    # from then on nothing new was sent
    assert (stage.began_at, stage.ended_at) == (UNIX, UNIX + 30.0)


def test_a_silent_worker_loses_its_share_after_four_seconds_and_its_place_after_fifteen(
    begun: Any,
) -> None:
    runner, time = Master("a", "b"), VirtualTime()
    control = begun(runner, time=time, prefill_concurrency=4)
    for _ in range(60):
        time.advance(0.25)
        control.on_status(
            "b", status(number=control.phases.limit.shares.share("b").number, at=time.at)
        )
    notes = [note for note in control.facts().notes if "worker a" in note]
    assert len(notes) == 1
    assert "stopped reporting 0.0 s after the start" in notes[0]  # it never did
    assert control.phases.limit.shares.share("b").share == 4
    time.advance(0.5)
    assert any("worker a was lost (last heard 0.0 s" in note for note in control.facts().notes)


def test_a_run_whose_workers_are_all_silent_is_not_stopped_by_locust(begun: Any) -> None:
    """Locust counts the heartbeats of a worker down once a second, and stops the run when the count
    of the last one is below zero. Here both are lost after 15 s, and the run ends at 18 s."""
    runner, time = Master("a", "b"), VirtualTime()
    control = begun(runner, time=time)
    for _ in range(17):
        time.advance(1.0)
        assert not control.shutdown.begun
        assert max(client.heartbeat for client in runner.clients.all) >= 0
        for client in runner.clients.all:
            client.heartbeat -= 1
    time.advance(1.0)
    assert control.shutdown.begun
    assert any("all workers were lost" in gap for gap in control.store.missing)


def test_users_of_a_lost_worker_are_gone_from_its_last_message_on(begun: Any) -> None:
    """Two workers of four users. One is silent from 10.0 s on, and found lost 15 s later."""
    runner, time = Master("a", "b"), VirtualTime()
    control = begun(runner, time=time)
    while time.at < 26.0:
        time.advance(0.25)
        for worker in ("a", "b") if time.at <= 10.0 else ("b",):
            control.on_status(worker, status(users=4, at=time.at))
    changes = [(change.at - UNIX, change.users) for change in control.facts().users]
    assert changes == [(0.25, 4), (0.25, 8), (10.0, 4)]
    assert any(
        "worker a was lost (last heard 10.0 s after the start" in n for n in control.facts().notes
    )


def test_arrivals_go_out_a_second_ahead_and_stop_when_the_phase_is_closed(begun: Any) -> None:
    runner, time = Master("a"), VirtualTime()
    control = begun(runner, time=time, request_rate=10.0, arrival_pattern="constant")
    time.advance(2.55)  # the schedule began at 0.5
    sent = runner.what_was_sent()
    dealt = [
        at_s
        for message, _ in sent
        if isinstance(message, Arrivals)
        for at_s, *_ in message.arrivals
    ]
    assert dealt == pytest.approx([n / 10 for n in range(len(dealt))])
    assert 3.0 <= len(dealt) / 10 <= 3.1
    control.allocator.close(PROFILING)
    time.advance(5.0)
    assert kinds_sent(runner) == [PhaseOver]


def test_what_breaks_in_a_greenlet_of_the_control_ends_the_run(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: Any, limit: int | None) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr("locust_llm.gate.shares.GateShares.set_limit", breaks)
    runner = Master("a")
    control = begun(runner, prefill_concurrency=4)
    turn()
    assert runner.ended == ["quit"]
    assert exit_status_of(control) == ExitStatus.BROKEN
    assert "the run controller: RuntimeError: injected" in control.facts().notes[0]


# -- spans -----------------------------------------------------------------------------------------


def test_spans_of_the_run_are_joined_to_its_records(begun: Any, tmp_path: Path) -> None:
    """The trace of the run goes to each process; what comes is in its folder and in its facts."""
    runner = Master("a")
    control = begun(runner, otlp_receiver="127.0.0.1:0")
    trace = control.facts().trace
    assert [
        sent.message.trace for sent in runner.what_was_sent() if isinstance(sent.message, Begin)
    ] == [trace]
    exported = as_json(
        span(make_trace_id(trace, "r1"), queue=0.25), span(make_trace_id("0" * 16, "r1"), queue=1.0)
    )
    control.store.spans.take(
        msgspec.json.encode(sort_spans(otlp_json.decode_otlp_json(exported), trace))
    )
    for one in (answered(id="r1"), answered(id="r2")):
        control.records.add(one)
    control.store.spans.hurry()
    assert [*control.store.spans.finish(time.monotonic)] == [
        "spans: 1 of 2 requests have a span (1 of other traces)"
    ]
    assert control.facts().spans == SpanCounts(requests=2, joined=1, received=2, other_traces=1)
    assert read_spans(control.folder).times["r1"].queue_us == 250_000
    assert begun(Master("a"), traceparent=False).facts().trace == ""
    with pytest.raises(ValueError, match="--otlp-receiver takes ADDR:PORT"):
        begun(Master("a"), otlp_receiver="http://here", report_dir=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_the_form_that_processes_learn_is_noted_once(begun: Any) -> None:
    control = begun(Master("a", "b"))
    options, length = RequestForm(("stream_options",)), RequestForm((), "max_completion_tokens")
    for side in ("", "", "base", "candidate"):
        control.on_form_learnt(FormLearnt(side, options, "HTTP 400: no stream_options."))
    control.on_form_learnt(FormLearnt("", length, "HTTP 400: no max_tokens"))
    for number in range(100):  # a worker that is none of ours
        control.on_form_learnt(
            FormLearnt("", RequestForm(("x",) * number, "y" * number), "z\n" * 9999)
        )
    notes = [note for note in control.facts().notes if "refuses" in note]
    leave = "requests leave it out, and if a response has no usage, each chunk counts as one token"
    assert notes[:3] == [
        f"the server refuses stream_options (HTTP 400: no stream_options): {leave}",
        f"candidate: the server refuses stream_options (HTTP 400: no stream_options): {leave}",
        "the server refuses max_tokens (HTTP 400: no max_tokens): requests use "
        "max_completion_tokens instead, as with --max-tokens-field max_completion_tokens",
    ]
    assert len(notes) < 20
    assert all(len(note) < 5_000 and note.isprintable() for note in notes)


def test_answers_that_were_not_checked_are_noted(begun: Any) -> None:
    control = begun(Master("a", "b"))
    control.losses.on_ended("a", Ended(unchecked_answers=2))
    control.losses.on_ended("b", Ended(unchecked_answers=1))
    (note,) = [note for note in control.facts().notes if "schemas" in note]
    assert note.startswith("WARNING: 3 answers could not be checked against their schemas in time")


def test_all_moments_count_from_the_first_send(begun: Any) -> None:
    """The users take 0.3 s to send. Of two requests the second one ends first."""
    time = VirtualTime()
    control = begun(Master("a"), time=time)
    keep_alive(control, time)
    assert control.facts().started_at == UNIX
    time.advance(10.0)
    control.records.add(answered(100, sent_at=0.5, clock_offset_s=UNIX))
    control.records.add(answered(2000, sent_at=0.3, clock_offset_s=UNIX))
    assert control.store.since_start() == "9.7 s after the start"
    facts = control.facts()
    assert (facts.started_at, facts.profiling_at) == (UNIX + 0.3, UNIX + 0.3)
