"""When the native reader decrypts: of an answer under way only what may be its end is looked at
soon."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.socket
import pytest
from support.scripted import chunked, delta, event, head
from support.tls_pair import pair

from locust_llm.client.connection import ask_for_stamps
from locust_llm.client.reader import native_reader
from locust_llm.client.reader import open_streams as reader_module
from locust_llm.client.reader.open_streams import HIDDEN_ENDS, OpenStream, OpenStreams
from locust_llm.client.response_chunks import Response

pytestmark = pytest.mark.skipif(
    native_reader.Reader is None, reason="the native reader was not compiled"
)

FAR_NS = 3600 * 10**9
TOKEN = chunked(event(delta(content="a" * 40)))
LAST = b"0\r\n\r\n"
HIDDEN = chunked(event(delta("stop"))) + LAST
"""The end of the answer in a record that is as long as others."""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStreams]:
    """It has all the time of the world, but for what shows."""
    for name in ("TLS_PATIENCE_NS", "QUIET_NS", "WAITED_NS"):
        monkeypatch.setattr(reader_module, name, FAR_NS)
    assert native_reader.Reader is not None
    reader = OpenStreams(native_reader.Reader())
    yield reader
    reader.stop()


@contextmanager
def answering(
    reader: OpenStreams, certificate: Path
) -> Iterator[tuple[OpenStream, Callable[[bytes], None]]]:
    """An answer after its first two tokens, and what sends more of it, in one record, until that
    was read."""
    tls = pair(certificate)
    with gevent.socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        ours = gevent.socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        theirs.setsockopt(6, 1, 1)
        ask_for_stamps(ours)
        connection: Any = SimpleNamespace(fd=ours.fileno(), tls=tls.client)
        reading = reader.add(connection, Response(time.monotonic_ns()))

        def say(data: bytes) -> None:
            before = reader.reads
            theirs.sendall(tls.says(data))
            wait_for(lambda: reader.reads > before)

        say(head(Transfer_Encoding="chunked") + TOKEN)
        wait_for(lambda: reading.end_shows is not None)
        say(TOKEN)
        wait_for(lambda: len(reading.stream.stamps) == 2)  # the longest so far
        yield reading, say


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        gevent.sleep(0.0005)


def test_tokens_wait_and_an_end_that_shows_does_not(reader: OpenStreams, certificate: Path) -> None:
    with answering(reader, certificate) as (reading, say):
        for _ in range(5):
            say(TOKEN)
        gevent.sleep(0.02)
        assert len(reading.stream.stamps) < 7
        say(LAST)
        assert reading.ended.wait(10)
        assert (len(reading.stream.stamps), reading.stream.frame.complete) == (8, True)


def test_an_end_behind_the_last_token_in_its_record_shows_too(
    reader: OpenStreams, certificate: Path
) -> None:
    with answering(reader, certificate) as (reading, say):
        say(TOKEN + LAST)
        assert reading.ended.wait(10)


def test_after_an_end_that_did_not_show_none_waits_for_long(
    reader: OpenStreams, certificate: Path
) -> None:
    assert 64 < len(HIDDEN) <= len(TOKEN)
    with answering(reader, certificate) as (reading, say):
        say(HIDDEN)
        assert not reading.ended.wait(0.05)
        reader._sweep(time.monotonic_ns() + 2 * FAR_NS)
        reader._thread.sweep(0, 0)
        assert reading.ended.wait(10)
    for _ in range(2):
        with answering(reader, certificate) as (reading, say):
            say(HIDDEN)
            assert reading.ended.wait(10)
        assert reader._impatient == HIDDEN_ENDS
    with answering(reader, certificate) as (reading, say):
        say(LAST)
        assert reading.ended.wait(10)
    assert reader._impatient == HIDDEN_ENDS - 1
