"""The death of the thread that reads: nobody waits for it in vain."""

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from support.loop_watch import OwnTime
from support.scripted import Scripted, stream

from locust_llm.client.reader import python_reader, reader_choice
from locust_llm.client.reader.open_streams import DIED, OpenStreams
from locust_llm.client.reader.reader_choice import (
    get_open_streams,
    reader_failure,
    start_new_reader,
)
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.response_chunks import Response
from locust_llm.gate.gate import Gate
from locust_llm.records.outcomes import CLIENT_ERROR, OK
from locust_llm.records.record import Record


def fails(*args: Any, **kw: Any) -> Any:
    raise MemoryError


class Interrupt(BaseException):
    """No Exception."""


def interrupts(*args: Any, **kw: Any) -> Any:
    raise Interrupt


@pytest.fixture(scope="module")
def scripted(each_reader: str) -> Iterator[Scripted]:
    """One for each reader, as its rows go by the names of the requests."""
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def reader(each_reader: str, monkeypatch: pytest.MonkeyPatch) -> OpenStreams:
    """One that may die."""
    monkeypatch.setattr(reader_choice, "_reader", None)
    return get_open_streams()


def ask(server: Scripted, gate: Gate, name: str, steps: list[Any]) -> Record:
    with gevent.Timeout(10):
        return exchange_request(UserConnection(), gate, server.request(name, steps), 0.0)


BOTH = [
    ("_sweep", fails),
    ("_sweep", interrupts),
    ("_process_drops", fails),
    ("_finish", fails),
    ("_run_for_one", fails),
    ("_process", interrupts),
]
OWN: dict[str, list[tuple[str, Any]]] = {
    "python": [("_read", interrupts), ("measure_clock_offset_ns", fails)],
    "native": [],
}
"""In the thread."""


@pytest.mark.parametrize(
    ("each_reader", "where", "how"),
    [(kind, *death) for kind, own in OWN.items() for death in BOTH + own],
    indirect=["each_reader"],
)
def test_who_waits_gets_a_record_and_who_comes_is_refused(
    scripted: Scripted, reader: OpenStreams, monkeypatch: pytest.MonkeyPatch, where: str, how: Any
) -> None:
    gate = Gate(3)
    name = f"death{where}{how.__name__}"
    scripts = [stream(n, cut="stall") for n in range(3)]
    sizes = [
        sum(len(step[1].encode("latin-1")) for step in steps if step[0] == "send")
        for steps in scripts
    ]
    jobs = [
        gevent.spawn(ask, scripted, gate, f"{name}{n}", steps) for n, steps in enumerate(scripts)
    ]
    with gevent.Timeout(10):
        while sorted(one.stream.received_bytes for one in tuple(reader._open)) != sizes:
            gevent.sleep(0.01)
    places: list[Any] = [reader, reader._thread, python_reader]
    monkeypatch.setattr(next(place for place in places if hasattr(place, where)), where, how)
    if where == "_process_drops":
        jobs[0].kill(block=False)
    # there is something to read and to look into
    fourth = gevent.spawn(ask, scripted, Gate(), f"{name}3", stream(2))
    records = [job.get() for job in jobs[where == "_process_drops" :]]
    assert {record.outcome for record in records} == {CLIENT_ERROR}
    assert len(records[-1].chunk_us) == 2  # what had come until then
    assert all(record.error.startswith(DIED) for record in records)
    assert fourth.get().outcome in (OK, CLIENT_ERROR, "malformed")
    watch = OwnTime()
    after = ask(scripted, gate, f"{name}, after", stream(1))
    assert (after.outcome, after.sent_at) == (CLIENT_ERROR, None)
    assert watch.seconds < 1
    assert (gate.used, reader.open_streams, reader_failure()) == (0, 0, after.error)
    monkeypatch.undo()


def test_the_next_run_has_a_reader_of_its_own(
    scripted: Scripted, reader: OpenStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_new_reader()
    assert get_open_streams() is reader
    monkeypatch.setattr(reader, "_process", interrupts)
    assert ask(scripted, Gate(), "last", stream(1, cut="stall")).outcome == CLIENT_ERROR
    start_new_reader()
    assert get_open_streams() is not reader
    assert ask(scripted, Gate(), "first", stream(1)).outcome == OK


def test_an_answer_that_cannot_be_decoded_ends_one_request(
    scripted: Scripted, reader: OpenStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor when it is tried once more, by whoever ends it."""

    def breaks(works: Callable[..., None]) -> Callable[..., None]:
        def broken(self: Response, **more: bool) -> None:
            if any(b"poison" in data for data in self._unframed):
                raise KeyError("oops")
            works(self, **more)

        return broken

    monkeypatch.setattr(Response, "_unframe", breaks(Response._unframe))
    monkeypatch.setattr(Response, "_decode", breaks(Response._decode))
    poisoned = ask(scripted, Gate(), "poisoned", stream(3, word="poison"))
    assert (poisoned.outcome, "KeyError" in poisoned.error) == ("malformed", True)
    assert (ask(scripted, Gate(), "beside", stream(3)).outcome, reader.failure) == (OK, "")
