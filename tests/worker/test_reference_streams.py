"""Reference streams beside a load, with a real truth server; and what they never touch."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest

from locust_llm.client.reader.reader_choice import reads_so_far
from locust_llm.settings.selftest_modes import AUTO, OFF
from locust_llm.worker import reference_streams
from locust_llm.worker.reference_streams import ReferenceStreams


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_streams, "GAP_S", 0.01)
    monkeypatch.setattr(reference_streams, "AFTER_S", 0.0)
    monkeypatch.setattr(reference_streams, "LEAST_S", 0.0)


@pytest.mark.slow
def test_a_certificate_of_a_run_and_of_a_stage() -> None:
    before = reads_so_far()
    sentinels = ReferenceStreams(plenty())
    sentinels.begin(AUTO, None)
    wait_for(sentinels, 20)
    sentinels.begin_stage()
    assert sentinels.stage().missing
    wait_for(sentinels, 40)
    server = sentinels._server
    assert server is not None
    stage, run = sentinels.stage(), sentinels.end()
    assert run.ttft is not None
    assert run.gap is not None
    assert stage.streams < run.streams
    assert run.chunks == reference_streams.CHUNKS * run.streams
    assert 0 < run.ttft.p50_ms < 5  # it is 0.05; a machine may be busy
    assert reads_so_far() - before == sentinels.most_reads
    assert not Path(f"/proc/{server.pid}").exists()


def plenty() -> Callable[[], float]:
    """A clock by which the load takes a second of CPU at each look."""
    return map(float, count()).__next__


@pytest.mark.slow
def test_they_take_no_more_than_their_share_of_the_cpu() -> None:
    """The first 12 are free; the load has taken 3 s of CPU, and 1.5 % of that is 15 streams of 3
    ms."""
    spent_s = 0.0
    sentinels = ReferenceStreams(lambda: spent_s)
    sentinels.begin(AUTO, None)
    wait_for(sentinels, 12)
    gevent.sleep(0.5)
    assert sentinels._asked == 12
    spent_s = 3.0
    wait_for(sentinels, 15)
    gevent.sleep(0.5)
    assert sentinels._asked == 15
    sentinels.end()


def wait_for(sentinels: ReferenceStreams, streams: int) -> None:
    with gevent.Timeout(20):
        while sentinels._run.streams < streams:
            gevent.sleep(0.01)


def test_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinels = ReferenceStreams()
    sentinels.begin(OFF, None)
    assert "off" in sentinels.end().missing
    sentinels.begin(AUTO, None)
    assert sentinels.end().missing  # nothing had begun
    monkeypatch.setattr(reference_streams, "LEAST_S", 5.0)
    sentinels.begin(AUTO, 4.0)
    assert not sentinels._greenlets
    assert "shorter than 5 s" in sentinels.end().missing


def test_a_server_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*how: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(reference_streams, "TruthServer", no_process)
    sentinels = ReferenceStreams()
    sentinels.begin(AUTO, None)
    gevent.sleep(0.05)
    assert "no more processes" in sentinels.end().missing


def test_a_server_that_dies_is_no_reason_to_fail() -> None:
    sentinels = ReferenceStreams()
    sentinels.begin(AUTO, None)
    wait_for(sentinels, 1)
    assert sentinels._server is not None
    sentinels._server.close(gevent.sleep)
    sentinels._server = None
    with gevent.Timeout(20):
        while not sentinels._missing:
            gevent.sleep(0.01)
    assert "refused" in sentinels.end().missing


def test_reads_that_the_reader_holds_are_not_the_loads() -> None:
    """Of a stream of 8 chunks, 3 reads were taken, and the reader may hold the rest and the head."""
    sentinels = ReferenceStreams()
    stream = SimpleNamespace(stamps=[1, 2, 3])
    sentinels._lines = [SimpleNamespace(stream=stream), SimpleNamespace(stream=None)]  # type: ignore[list-item]
    assert sentinels.most_reads == 12
    stream.stamps *= 5
    assert sentinels.most_reads == 15
