"""Frames: a master and a worker of Locust listen on, whatever anybody sends; what is in order is
handled."""

import logging
import random
from collections.abc import Iterator
from typing import Any, Final

import locust
import locust.log
from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import MasterRunner, WorkerNode
from locust.stats import setup_distributed_stats_event_listeners

import gevent
import msgpack
import pytest
import zmq.green as zmq
from support import unpatched_locust  # noqa: F401  before the rest

from locust_llm.locust_adapter import wire_frames
from locust_llm.locust_adapter.wire_frames import (
    MAX_LINES,
    TO_MASTER,
    TO_WORKER,
    check_frames,
    find_frame_mistake,
)
from locust_llm.wire.worker_messages import TO_CONTROL, TO_SENDER

check_frames()

ROW = {
    "name": "chat", "method": "POST", "last_request_timestamp": 1.5, "start_time": 1.0,
    "num_requests": 2,
    "num_none_requests": 0, "num_failures": 1, "total_response_time": 30.5, "max_response_time": 20,
    "min_response_time": 10.5,
    "total_content_length": 0, "response_times": {10: 1, 20.5: 1}, "num_reqs_per_sec": {1: 2},
    "num_fail_per_sec": {1: 1},
}  # fmt: skip
ERROR = {
    "method": "POST",
    "name": "chat",
    "error": "no",
    "occurrences": 1,
    "first_seen": 1.0,
    "last_seen": 1.0,
}
REPORT = {
    "stats": [ROW], "stats_total": {**ROW, "name": "Aggregated"}, "errors": {"a": ERROR},
    "user_count": 1,
    "user_classes_count": {"Chat": 1}, "llm": {"more": 1},
}  # fmt: skip
GOOD_TO_MASTER: dict[str, Any] = {
    "client_ready": locust.__version__, "client_stopped": None,
    "exception": {"msg": "m", "traceback": "t"},
    "heartbeat": {"state": "ready", "current_cpu_usage": 1.5, "current_memory_usage": 5},
    "locustfile": {"version": "2.47.0"},
    "logs": {"worker_id": "w", "logs": ["a"]}, "quit": None, "spawning": None,
    "spawning_complete": {"user_classes_count": {"Chat": 1}, "user_count": 1}, "stats": REPORT,
    TO_CONTROL: b"",
}  # fmt: skip
GOOD_TO_WORKER: dict[str, Any] = {
    "ack": {"index": 0}, "heartbeat": None, "quit": None, "reconnect": None,
    "spawn": {
        "timestamp": 1.0, "user_classes_count": {"Chat": 1}, "parsed_options": {"a": [1]},
        "host": None, "stop_timeout": 0,
    },
    "spawning_complete": {"user_count": 1}, "stop": None,
    "update_user_class": {"user_class_name": "Chat"}, TO_SENDER: b"",
}  # fmt: skip
WRONG: list[Any] = [
    None, True, 0, -1, 2**63, 1.5, float("nan"), "", "text", "\x1b[31m\n", b"", b"\xff", [], [1],
    [[]], {}, {"": None},
    {1: 2}, {"stats": []}, {"stats": [{}]}, {"index": "0"}, {"msg": 1, "traceback": None},
    {"state": None},
    {"__datetime__": True}, {"__datetime__": True, "as_str": "no"}, {"version": None},
    {"user_classes_count": []},
]  # fmt: skip


@pytest.mark.parametrize("kind", GOOD_TO_MASTER)
def test_what_workers_send_is_handled(kind: str) -> None:
    assert GOOD_TO_MASTER.keys() == TO_MASTER.keys()
    assert find_frame_mistake(Message(kind, GOOD_TO_MASTER[kind], "w"), TO_MASTER, "w") == ""


@pytest.mark.parametrize("kind", GOOD_TO_WORKER)
def test_what_masters_send_is_handled(kind: str) -> None:
    assert GOOD_TO_WORKER.keys() == TO_WORKER.keys()
    assert find_frame_mistake(Message(kind, GOOD_TO_WORKER[kind], "w"), TO_WORKER) == ""


@pytest.mark.parametrize(("kind", "data", "says"), [
    ("stats", {}, "stats"), ("stats", {**REPORT, "stats": [{}]}, "name"),
    ("heartbeat", None, "heartbeat"),
    ("stats", {**REPORT, "errors": {"a": {}}}, "errors"),
    ("client_ready", 7, "an invalid version"),
    ("spawning_complete", {}, "user_classes_count"), ("exception", "boom", "exception"),
])  # fmt: skip
def test_what_has_other_data_is_not(kind: str, data: Any, says: str) -> None:
    assert says in find_frame_mistake(Message(kind, data, "w"), TO_MASTER, "w")


def test_who_names_another_worker_or_itself_a_path_is_not_heard() -> None:
    assert "another worker" in find_frame_mistake(Message("quit", None, "a"), TO_MASTER, "b")
    for name in ("\x1b[2J", "a\nb", "", "x" * 300, *(f"host{sign}red" for sign in UNSEEN)):
        assert "an unknown name" in find_frame_mistake(Message("quit", None, name), TO_MASTER, name)


UNSEEN: Final = (
    "\x00", "\x07", "\x08", "\t", "\r", "\x0b", "\x0c", "\x1b", "\x1c", "\x7f", "\x85", "\x9b",
    "\u200b", "\u200e", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\U000e0041",
)  # fmt: skip
"""What moves the cursor, ends a line somewhere, or turns the direction of what follows."""


class Peer:
    """A socket with the name of a worker."""

    def __init__(self, port: int, name: bytes) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, name)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.name = name.decode("utf-8", "replace")

    def says(self, kind: Any, data: Any, name: Any = None) -> None:
        self.socket.send(msgpack.packb((kind, data, self.name if name is None else name)))


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[MasterRunner]:
    monkeypatch.setattr(locust.log, "unhandled_greenlet_exception", False)
    monkeypatch.setattr(wire_frames, "_lines", 0)
    environment = Environment(user_classes=[])
    runner = environment.create_master_runner("127.0.0.1", 0)
    setup_distributed_stats_event_listeners(environment.events, environment.stats)
    yield runner
    runner.greenlet.kill(block=False)
    runner.server.close(linger=0)


def joins(master: MasterRunner, name: str) -> bool:
    """A worker that comes now is heard."""
    peer = Peer(master.server.port, name.encode())
    peer.says("client_ready", locust.__version__)
    for _ in range(200):
        if name in master.clients:
            return True
        gevent.sleep(0.02)
    return False


def raw_messages(drawn: random.Random) -> list[list[bytes]]:
    good = [
        msgpack.packb((kind, data, "evil"))
        for kind, data in GOOD_TO_MASTER.items()
        if kind not in ("quit",)
    ]
    made = [
        [b""], [b"", b""], [b"\xc1"], [b"\xff" * 100], [b"{}"], [msgpack.packb(None)],
        [msgpack.packb([])],
        [msgpack.packb(["stats"])], [msgpack.packb(["stats", None, "evil", 4])],
        [msgpack.packb({"a": 1, "b": 2, "c": 3})],
        [msgpack.packb("abc")], [b"\xdd\xff\xff\xff\xff"], [b"\x91" * 100_000],
        [b"\x91" * 1_000 + b"\xc0"],
        [b"\xdf\x00\x0f\xff\xff" + b"\xc0" * 1000], [msgpack.packb((["a"], None, "evil"))],
        [msgpack.packb(("stats", None, None))], [msgpack.packb(("stats", None, ["evil"]))],
        [b"x"] * 50,
    ]  # fmt: skip
    for _ in range(30):
        frame = bytearray(drawn.choice(good))
        for _ in range(drawn.randrange(1, 6)):
            frame[drawn.randrange(len(frame))] = drawn.randrange(256)
        made.append([bytes(frame[: drawn.randrange(1, len(frame) + 1)])])
    return made


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 30))]
)
def test_a_master_listens_on_whatever_comes(
    seed: int, master: MasterRunner, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = random.Random(seed)
    evil = Peer(master.server.port, b"evil")
    names: list[Any] = ["evil", "evil", "evil", "other", "", None, 5, b"evil", ["evil"]]
    with caplog.at_level(logging.WARNING):
        for parts in raw_messages(drawn):
            evil.socket.send_multipart(parts)
        for kind in [*TO_MASTER, "unknown", "\x1b[2J", 7, None, ["a"]]:
            for data in WRONG:
                if kind != "quit":
                    evil.says(kind, data, drawn.choice(names))
        strange = Peer(master.server.port, b"\xff\xfe\x1b[31m")
        strange.says("client_ready", "2.47")
        nasty = Peer(master.server.port, b"\x1b[31mred\n::error::")
        nasty.says("client_ready", locust.__version__)
        nasty.socket.send(b"\xc1")
        for sign in drawn.sample(UNSEEN, 5):
            unseen = Peer(master.server.port, f"host{sign}red{drawn.random()}".encode())
            unseen.says("client_ready", locust.__version__)
            unseen.says("exception", {"msg": f"a{sign}b", "traceback": f"c{sign}d"})
            unseen.socket.send(b"\xc1")
        assert joins(master, "good")
    assert not locust.log.unhandled_greenlet_exception
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert all(client.id.isprintable() for client in master.clients.values())
    assert "Traceback" not in caplog.text
    assert len(caplog.records) < MAX_LINES + 200  # what Locust has of workers that come and go


def test_what_a_handler_cannot_do_does_not_end_the_listening(
    master: MasterRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the exit status has it."""

    def broken() -> None:
        raise RuntimeError

    monkeypatch.setattr(master, "check_stopped", broken)
    peer = Peer(master.server.port, b"w")
    peer.says("logs", {"worker_id": "w", "logs": []})
    for _ in range(100):
        gevent.sleep(0.02)
        if locust.log.unhandled_greenlet_exception:
            break
    assert locust.log.unhandled_greenlet_exception
    monkeypatch.undo()
    assert joins(master, "good")


@pytest.mark.parametrize(("missed", "then"), [(3, 3), (0, 3), (-1, -1)])
def test_every_message_is_a_sign_of_life(master: MasterRunner, missed: int, then: int) -> None:
    """A heartbeat may wait behind it. Who is missing already stays so until Locust's next look."""
    client = master.clients["w"] = WorkerNode("w")
    client.heartbeat = missed
    master.handle_message("w", Message("spawning", None, "w"))
    assert client.heartbeat == then


def test_a_frame_that_is_too_large_ends_its_own_connection(master: MasterRunner) -> None:
    evil = Peer(master.server.port, b"evil")
    evil.socket.send(bytes((1 << 26) + 1))
    assert joins(master, "good")
    assert "evil" not in master.clients
