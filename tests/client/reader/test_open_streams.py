"""The reader's clock against a server that knows the truth, and everything that may happen to a
stream on its way."""

import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import gevent.os
import pytest
from gevent import GreenletExit
from support.scripted import Scripted, chunked, delta, event, send, stream, whole
from support.stamps_truth import check, run, several

from locust_llm.client import connection as connection_module
from locust_llm.client.connection import Connection
from locust_llm.client.reader.kernel_clock_offset import measure_clock_offset_ns
from locust_llm.client.reader.reader_choice import get_open_streams
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.response_chunks import Response
from locust_llm.gate.gate import Gate
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("each_reader")]


@pytest.fixture(scope="module")
def scripted(each_reader: str) -> Iterator[Scripted]:
    """One for each reader, as its rows go by the names of the requests."""
    server = Scripted()
    yield server
    server.close()


@pytest.fixture(scope="module")
def scripted_tls(each_reader: str, certificate: Path) -> Iterator[Scripted]:
    server = Scripted(str(certificate))
    yield server
    server.close()


@pytest.fixture
def burning() -> Iterator[None]:
    """A greenlet that does not let go of the loop for 50 ms of every 100."""

    def burn() -> None:
        while True:
            until = time.perf_counter() + 0.05
            while time.perf_counter() < until:
                pass
            gevent.sleep(0.05)

    burner = gevent.spawn(burn)
    yield
    burner.kill()


def test_every_stamp_lies_in_the_servers_interval(scripted: Scripted) -> None:
    got = several(scripted, "idle", 6, lambda n: stream(40, first_ms=20, each_ms=5, end_ms=20))
    alone = sum(check(record, timed.sent_ns, row) for record, timed, row in got)
    assert alone > 60  # of 240; the others came together, on a machine as busy as that
    assert {record.clock for record, _, _ in got} == {"kernel"}
    assert sum(record.bad_stamps for record, _, _ in got) == 0


@pytest.mark.usefixtures("burning")
def test_every_stamp_lies_there_beside_a_greenlet_that_burns(scripted: Scripted) -> None:
    got = several(scripted, "burn", 6, lambda n: stream(40, first_ms=20, each_ms=5, end_ms=20))
    alone = sum(check(record, timed.sent_ns, row) for record, timed, row in got)
    assert alone > 20


@pytest.mark.usefixtures("burning")
def test_events_that_go_out_in_parts_claim_nothing_wrong(scripted: Scripted) -> None:
    """Also inside µ and inside the chunked framing; a chunk that came with a part of the next is
    marked.

    Not so where nothing but framing came with it, the end of its own or the beginning of the next:
    nobody sends that by itself, and none of these sizes does.
    """
    part = len(chunked(event(delta(content="µ0 "))))
    for size, pause_ms in ((30, 0.3), (51, 0.5), (70, 0.0)):
        assert part % size > 2
        steps = stream(10, each_ms=2, end_ms=20, split=size, split_ms=pause_ms)
        got = several(scripted, f"split{size}-", 3, dict.fromkeys(range(3), steps).__getitem__)
        for record, timed, row in got:
            check(record, timed.sent_ns, row)
            assert record.outcome == OK
            assert "".join(timed.answer.text or ()) == "".join(f"µ{n} " for n in range(10))


def test_several_chunks_in_one_send_are_merged_and_marked(scripted: Scripted) -> None:
    record, timed = run(scripted, "batch", stream(9, each_ms=15, end_ms=15, batch=3))
    check(record, timed.sent_ns, scripted.row("batch"))
    assert [index for index, _ in record.merged] == list(range(9))
    for first in (0, 3, 6):
        assert len({record.chunk_us[first + n] for n in range(3)}) == 1
        assert len({record.merged[first + n] for n in range(3)}) == 3
        assert len({record.merged[first + n][1] for n in range(3)}) == 1
    assert record.ttft_is_upper_bound
    assert record.sharp_gaps_us == ()


def test_what_comes_together_after_a_silence_came_after_it(scripted: Scripted) -> None:
    """Two batches of three chunks after a second of silence each, as of a server that stood still:
    none of them can have come in it, but for what the thread needs on a busy machine."""
    steps = stream(6, first_ms=1000, each_ms=1000, end_ms=15, batch=3)
    record, timed = run(scripted, "silence", steps)
    check(record, timed.sent_ns, scripted.row("silence"))
    assert [index for index, _ in record.merged] == list(range(6))
    late_us = [record.chunk_us[index] - earliest for index, earliest in record.merged]
    assert max(late_us) < 300_000


def test_where_the_kernel_gives_no_stamps_the_threads_clock_serves(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no such option: the kernel refuses it
    monkeypatch.setattr(connection_module, "SO_TIMESTAMPNS", 30_000)
    record, timed = run(scripted, "unstamped", stream(10, each_ms=5, end_ms=10))
    assert (record.outcome, record.clock, record.bad_stamps) == (OK, "thread", 0)
    for us, (before, _) in zip(record.chunk_us, scripted.row("unstamped").chunks, strict=True):
        assert before <= timed.sent_ns + us * 1000  # never early; late by what the thread needed


def test_the_end_of_a_connection_needs_no_stamp(scripted: Scripted) -> None:
    record, _ = run(scripted, "until-close", stream(3, frame="close"))
    assert (record.outcome, record.clock) == (OK, "kernel")


# -- the wall clock is set -------------------------------------------------------------------------


def test_the_offset_of_two_clocks() -> None:
    now = [1000]

    def wall() -> int:
        return now[0] + 5_000_000

    def monotonic() -> int:
        now[0] += 100
        return now[0]

    assert abs(measure_clock_offset_ns(wall, monotonic) - 5_000_000) <= 50
    slow = iter(
        [30_000, 50_000, 700, 25_000, *[40_000] * 5]
    )  # held up between the two readings, but for the third time

    def held_up() -> int:
        now[0] += next(slow)
        return now[0] + 5_000_000

    assert abs(measure_clock_offset_ns(held_up, monotonic) - 5_000_000) <= 1000


# -- TLS, IPv6 -------------------------------------------------------------------------------------


def context(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def test_over_tls_the_stamps_are_the_kernels_too(scripted_tls: Scripted, certificate: Path) -> None:
    tls = context(certificate)
    line = UserConnection()
    for number in range(3):
        name = f"tls{number}"
        steps = stream(10, first_ms=20, each_ms=5, end_ms=10)
        record, timed = run(scripted_tls, name, steps, line, port="tls", tls=tls)
        assert (record.outcome, record.clock) == (OK, "kernel")
        assert check(record, timed.sent_ns, scripted_tls.row(name)) > 3
        gevent.sleep(0.02)  # session tickets and the like may come in
    assert record.connect_s is None
    assert len({scripted_tls.row(f"tls{number}").connection for number in range(3)}) == 1


def test_tls_with_parts_and_bursts_and_a_large_body(
    scripted_tls: Scripted, certificate: Path
) -> None:
    tls = context(certificate)
    for number, steps in enumerate(
        [stream(10, split=33), stream(300, each_ms=0, batch=100), stream(5, frame="close")]
    ):
        name = f"tls-odd{number}"
        record, timed = run(scripted_tls, name, steps, port="tls", tls=tls)
        assert record.outcome == OK
        check(record, timed.sent_ns, scripted_tls.row(name))
    large = [*stream(2), *[["linger", 10.0]] * 100_000]
    record, _ = run(scripted_tls, "tls-large", large, port="tls", tls=tls)
    assert (record.outcome, record.request_bytes > 1_500_000) == (OK, True)


def test_a_tls_server_that_says_goodbye_gets_a_new_connection(
    scripted_tls: Scripted, certificate: Path
) -> None:
    tls = context(certificate)
    line = UserConnection()
    for number, steps in enumerate(
        [
            [*stream(2), ["close"]],  # close_notify right behind the answer, often in the same read
            [*stream(2), ["linger", 0.05]],  # some time after it
            stream(2),
        ]
    ):
        record, _ = run(scripted_tls, f"bye{number}", steps, line, port="tls", tls=tls)
        assert record.outcome == OK
        assert record.connect_s is not None
        gevent.sleep(0.2)


def test_tls_that_breaks_is_a_failure(scripted_tls: Scripted, certificate: Path) -> None:
    record, _ = run(
        scripted_tls, "tls-cut", stream(3, cut="reset"), port="tls", tls=context(certificate)
    )
    assert (record.outcome, len(record.chunk_us)) == ("reset", 3)
    request = scripted_tls.request(
        "tls-stranger", stream(3), port="tls", tls=ssl.create_default_context()
    )
    record = exchange_request(UserConnection(), Gate(), request, 0.0)
    assert (record.outcome, record.sent_at) == ("tls", None)


def test_ipv6(scripted: Scripted) -> None:
    if "ipv6" not in scripted.ports:
        pytest.skip("this machine has no IPv6 loopback")
    record, timed = run(scripted, "ipv6", stream(5, end_ms=10), port="ipv6")
    assert (record.outcome, record.clock) == (OK, "kernel")
    check(record, timed.sent_ns, scripted.row("ipv6"))


# -- many streams, killed ones, forks --------------------------------------------------------------


def test_five_hundred_streams_at_once_share_nothing(scripted: Scripted) -> None:
    got = several(
        scripted,
        "many",
        500,
        lambda n: stream(n % 4 + 1, first_ms=300, each_ms=60, end_ms=30, word=f"{n}:"),
    )
    alone = 0
    for number, (record, timed, row) in enumerate(got):
        assert record.outcome == OK
        assert record.output_tokens == number % 4 + 1
        assert "".join(timed.answer.text) == "".join(
            f"{number}:{n} " for n in range(number % 4 + 1)
        )
        alone += check(record, timed.sent_ns, row)
    assert alone > 0
    assert get_open_streams().open_streams == 0


def test_a_killed_greenlet_gives_its_record_and_the_server_sees_the_close(
    scripted: Scripted,
) -> None:
    line = UserConnection()
    job = gevent.spawn(run, scripted, "killed", stream(500, each_ms=10), line)
    until(lambda: line.stream is not None and len(line.stream.stamps) > 5)
    job.kill()
    assert isinstance(job.value, GreenletExit)
    record: Record = job.value.record
    assert record.outcome == "cut"
    assert 1 <= len(record.chunk_us) < 500
    assert (line.connection, get_open_streams().open_streams) == (None, 0)
    row = scripted.row("killed")
    assert row.end == "gone"
    assert row.ended < (record.closed_at + 2) * 1e9


def test_a_greenlet_that_is_killed_again_and_again_gives_one_record(scripted: Scripted) -> None:
    line = UserConnection()
    job = gevent.spawn(run, scripted, "rekilled", stream(2, cut="stall"), line)
    until(lambda: line.stream is not None and line.stream.first_seen)
    for _ in range(3):
        job.kill(block=False)
        gevent.sleep(0)
    job.join()
    assert job.value.record.outcome == "cut"
    assert get_open_streams().open_streams == 0


def until(true: Callable[[], object], patience_s: float = 10.0) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end
        gevent.sleep(0.001)


def added(server: Scripted, name: str, steps: list[Any]) -> Any:
    """A request that is on its way without an exchange: (reader, reading)."""
    request = server.request(name, steps)
    connection = Connection(request.target)
    reader, timed = get_open_streams(), Response(time.monotonic_ns())
    reading = reader.add(connection, timed)
    connection.send(request.pieces)
    return reader, reading


def test_a_drop_that_comes_with_the_end_changes_nothing(scripted: Scripted) -> None:
    reader, reading = added(scripted, "late-drop", stream(3))
    end = time.monotonic() + 10
    # the loop does not turn: the end is not told yet
    while not reading.stream.over and time.monotonic() < end:
        time.sleep(0.001)
    assert not reading.ended.is_set()
    reader.drop(reading, "cut", "too late")
    reader.drop(reading, "cut", "and twice")
    reading.ended.wait()
    gevent.sleep(0.01)
    assert reading.stream.finish() == (OK, "")
    reading.connection.close()


def test_a_drop_that_comes_first_wins(scripted: Scripted) -> None:
    reader, reading = added(scripted, "drop", stream(3, first_ms=300))
    reader.drop(reading, "cut", "given up")
    reading.ended.wait()
    assert reading.stream.finish() == ("cut", "given up")
    gevent.sleep(0.4)
    assert reading.stream.answer.chunk_reads == []
    reading.connection.close()


def test_a_mistake_of_ours_ends_one_request_not_the_thread(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, took = Response.append_read, Response.append_reads

    def broken(self: Response, stamp_ns: int, since_ns: int, data: bytes) -> bool:
        if b"poison" in data:
            raise KeyError("oops")
        return arrived(self, stamp_ns, since_ns, data)

    def broken_too(self: Response, stamps: bytes, since: bytes, data: list[bytes]) -> None:
        if b"poison" in b"".join(data):
            raise KeyError("oops")
        took(self, stamps, since, data)

    monkeypatch.setattr(Response, "append_read", broken)
    monkeypatch.setattr(Response, "append_reads", broken_too)
    good, bad = several(
        scripted, "poisoned", 2, lambda n: stream(5, each_ms=5, word="poison" if n else "fine")
    )
    assert good[0].outcome == OK
    assert (bad[0].outcome, "KeyError" in bad[0].error) == ("malformed", True)
    assert run(scripted, "after", stream(1))[0].outcome == OK


def test_a_hook_that_raises_ends_nobody_elses_request(scripted: Scripted) -> None:
    def hook(*_: Any) -> None:
        raise KeyError("a hook of the user's")

    def hooked() -> Record:
        return exchange_request(
            UserConnection(), Gate(1), scripted.request("hooked", stream(2, first_ms=30)), 0.0, hook
        )

    jobs = [gevent.spawn(hooked), gevent.spawn(run, scripted, "beside", stream(2, first_ms=30))]
    gevent.sleep(0.015)
    time.sleep(0.1)  # the loop stands still, so both ends come in one piece of news
    gevent.joinall(jobs, timeout=10)
    assert jobs[0].value.outcome == OK
    assert jobs[1].value[0].outcome == OK


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_three_hundred_mixed_requests_leave_no_descriptor(scripted: Scripted) -> None:
    scripts = [
        stream(2), stream(2, cut="close"), stream(2, cut="reset"), whole({"error": "no"}, 500),
        stream(1, error="no"),
        stream(2, cut="stall"), [send(b"garbage\r\n\r\n"), ["close"]], stream(2, frame="close"),
        [["reset"]],
    ]  # fmt: skip

    def user(number: int) -> None:
        line = UserConnection()
        for turn in range(10):
            steps = scripts[(number + turn) % len(scripts)]
            run(
                scripted,
                f"fd{number}-{turn}.",
                steps,
                line,
                timeout_s=0.05 if ["stall"] in steps else 5,
            )
        line.close()

    def thirty() -> None:
        gevent.joinall([gevent.spawn(user, number) for number in range(30)], raise_error=True)
        gevent.sleep(0.05)  # gevent closes in the next turn of its loop

    thirty()
    before = descriptors()
    thirty()
    assert descriptors() == before
    assert get_open_streams().open_streams == 0


def test_a_forked_child_gets_a_reader_of_its_own(scripted: Scripted) -> None:
    run(scripted, "parent", stream(1))
    ours = get_open_streams()
    out, into = os.pipe()
    child = gevent.os.fork()
    if child == 0:  # no pytest from here on
        said = b"failed"
        try:
            record, timed = run(scripted, "child", stream(3))
            theirs = get_open_streams()
            if record.outcome == OK and len(timed.stamps) and theirs is not ours:
                said = b"fine"
        finally:
            os.write(into, said)
            os._exit(0)
    os.close(into)
    try:
        assert gevent.os.tp_read(out, 10) == b"fine"
    finally:
        os.close(out)
        with suppress(ChildProcessError):  # gevent's loop may have waited for it already
            os.waitpid(child, 0)
    assert scripted.row("child").end == "played"
    # and the child took nothing of ours with it
    record, _ = run(scripted, "parent-again", stream(3))
    assert record.outcome == OK
    assert get_open_streams() is ours


def test_a_greenlet_that_computes_cannot_hold_the_thread_up_for_a_tokens_time() -> None:
    get_open_streams()
    assert sys.getswitchinterval() <= 0.001
