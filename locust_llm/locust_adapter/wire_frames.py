"""Wire frames: what comes over Locust's wire is checked before Locust uses it, as one exception
there ends the listening.

Anyone who can reach a master's port can send anything to it. A frame that is no message, lacks the
data of its type, or claims another sender is named in the log and left out. The run goes on.
"""

import logging
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import locust.log
from locust.rpc import zmqrpc
from locust.rpc.protocol import Message, decode
from locust.runners import HEARTBEAT_LIVENESS, MasterRunner, WorkerRunner

import msgpack
import msgspec
import zmq

from locust_llm.client.event_loop_yields import yield_to_event_loop
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text
from locust_llm.wire.handshake import NAME_LENGTH
from locust_llm.wire.worker_messages import TO_CONTROL, TO_SENDER

logger = logging.getLogger("locust_llm")

MAX_FRAME_BYTES: Final = 1 << 26
"""The largest frame to a master: twice the longest record. ZeroMQ closes a connection with a
larger one."""
MAX_ITEMS: Final = 1 << 17
"""The most items of a list or a table in Locust's own messages."""
MAX_LINES: Final = 50
"""The most log lines about ignored messages."""
TURN_S: Final = 0.005
"""Locust takes message after message while there are any. After so long the event loop has a
turn."""


class MalformedFrame(msgpack.exceptions.ExtraData):  # type: ignore[misc]
    """The frame is no message. Locust expects this exception and goes on listening."""

    def __init__(self) -> None:
        super().__init__(None, b"")


# -- what the data of Locust's messages must be; more fields may be there --------------------------


Word = Annotated[str, msgspec.Meta(pattern=r"\A[\w.+ -]{0,60}\Z")]
"""A text that Locust writes to its log."""


class _Row(msgspec.Struct):
    name: str
    method: str
    start_time: float
    num_requests: int
    num_none_requests: int
    num_failures: int
    total_response_time: float
    max_response_time: float
    total_content_length: int
    response_times: dict[float, int]
    num_reqs_per_sec: dict[int, int]
    num_fail_per_sec: dict[int, int]
    last_request_timestamp: float | None = None
    min_response_time: float | None = None


class _Error(msgspec.Struct):
    method: str
    name: str
    error: str
    occurrences: int
    first_seen: float | None = None
    last_seen: float | None = None


class _Report(msgspec.Struct):
    stats: list[_Row]
    stats_total: _Row
    errors: dict[str, _Error]
    user_classes_count: dict[str, int]
    user_count: int


class _Heartbeat(msgspec.Struct):
    state: Word
    current_cpu_usage: float
    current_memory_usage: float = 0


class _Spawned(msgspec.Struct):
    user_classes_count: dict[str, int]


class _Raised(msgspec.Struct):
    msg: str
    traceback: str


class _Logs(msgspec.Struct):
    worker_id: str
    logs: list[Any]


class _Version(msgspec.Struct):
    version: Word


class _Index(msgspec.Struct):
    index: int = 0


class _Spawn(msgspec.Struct):
    timestamp: float
    user_classes_count: dict[str, int]
    parsed_options: dict[str, Any]
    host: str | None
    stop_timeout: float | None


class _Users(msgspec.Struct):
    user_count: int


TO_MASTER: Final[dict[str, Any]] = {
    "client_ready": Word | int,
    "client_stopped": Any,
    "exception": _Raised,
    "heartbeat": _Heartbeat,
    "locustfile": _Version,
    "logs": _Logs,
    "quit": Any,
    "spawning": Any,
    "spawning_complete": _Spawned,
    "stats": _Report,
    TO_CONTROL: Any,  # see wire/worker_messages.py
}
TO_WORKER: Final[dict[str, Any]] = {
    "ack": _Index | None,
    "heartbeat": Any,
    "quit": Any,
    "reconnect": Any,
    "spawn": _Spawn,
    "spawning_complete": _Users,
    "stop": Any,
    "update_user_class": dict[str, Any],
    TO_SENDER: Any,
}


def find_frame_mistake(message: Any, kinds: dict[str, Any], sender: str | None = None) -> str:
    """Why a message must not be handled, as a part of a sentence. Empty: it may be.

    ``sender`` is known by its connection; None: the master. The user's own types may have any data.
    """
    if not isinstance(message.type, str):
        return "has a type that is not text"
    if sender is not None and message.node_id != sender:
        return "gives another worker as its sender"
    if sender is not None and not (sender.isprintable() and 0 < len(sender) <= NAME_LENGTH):
        return "has an unknown name"
    if message.type == "client_ready" and isinstance(message.data, int) and message.data != -1:
        return "has an invalid version"
    kind = kinds.get(message.type, Any)
    if kind is Any:
        return ""
    try:
        msgspec.convert(message.data, kind, strict=True)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        return f"has other data than a message of type {message.type}: {error}"
    return ""


# -- Locust's own ----------------------------------------------------------------------------------


def check_frames() -> None:
    """Check the frames of all masters and workers that are made later in this process."""
    if getattr(Message.unserialize, "is_checked", False):
        return
    Message.unserialize = classmethod(_unpacked)  # type: ignore[method-assign,assignment]
    master, worker, begin = (
        MasterRunner.handle_message,
        WorkerRunner.handle_message,
        zmqrpc.BaseSocket.__init__,
    )
    MasterRunner.handle_message = _to_master(master)  # type: ignore[method-assign,assignment]
    WorkerRunner.handle_message = _to_worker(worker)  # type: ignore[method-assign,assignment]

    def begin_bounded(self: Any, sock_type: int, ipv4_only: bool) -> None:
        begin(self, sock_type, ipv4_only)  # type: ignore[no-untyped-call]
        if sock_type == zmq.ROUTER:
            self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)

    zmqrpc.BaseSocket.__init__ = begin_bounded  # type: ignore[method-assign]
    logging.getLogger("locust.runners").addFilter(_harmless)


_turned_at = 0.0


def _unpacked(kind: type[Message], data: bytes) -> Message:
    """Unpack as ``Message.unserialize`` does, but raise the same exception for any fault."""
    global _turned_at
    if time.monotonic() - _turned_at > TURN_S:
        yield_to_event_loop()
        _turned_at = time.monotonic()
    try:
        limits = {"max_array_len": MAX_ITEMS, "max_map_len": MAX_ITEMS}
        fields = msgpack.unpackb(
            data, raw=False, strict_map_key=False, object_hook=decode, **limits
        )
        made = kind(*fields)
        if not isinstance(made.type, str) or not isinstance(made.node_id, str):
            raise MalformedFrame
    except Exception as error:
        raise MalformedFrame from error
    return made


_unpacked.is_checked = True  # type: ignore[attr-defined]


def _to_master(handle: Callable[[Any, str, Message], None]) -> Callable[[Any, str, Message], None]:
    def handle_checked(self: Any, client_id: str, msg: Message) -> None:
        if why := find_frame_mistake(msg, TO_MASTER, client_id):
            _ignored(f"worker {sanitise_text(client_id, most=NAME_BYTES)}", why)
        elif msg.type in TO_MASTER or msg.type in self.custom_messages:
            _note_heartbeat(self, client_id)
            _guard(handle, self, client_id, msg)
        else:
            _ignored(f"worker {client_id}", f"has the type {msg.type}, which is unknown")

    return handle_checked


def _note_heartbeat(master: Any, worker: str) -> None:
    """Every message shows that its worker lives: a heartbeat of its own may still wait here. A
    worker whose heartbeats count as missed already stays so until Locust's next look."""
    client = master.clients.get(worker)
    if client is not None and client.heartbeat >= 0:
        client.heartbeat = HEARTBEAT_LIVENESS


def _to_worker(handle: Callable[[Any, Message], None]) -> Callable[[Any, Message], None]:
    def handle_checked(self: Any, msg: Message) -> None:
        if why := find_frame_mistake(msg, TO_WORKER):
            _ignored("the master", why)
        else:
            _guard(handle, self, msg)

    return handle_checked


_lines = 0


def _has_room() -> bool:
    """Whether one more ignored message is logged. A sender without end must not fill the log."""
    global _lines
    _lines += 1
    if _lines == MAX_LINES:
        logger.error(f"{MAX_LINES} messages were ignored; further ones are ignored silently")
    return _lines < MAX_LINES


def _ignored(sender: str, why: str) -> None:
    if _has_room():
        logger.error(
            f"a message of {sender} was ignored, as it {sanitise_text(why, most=NAME_BYTES)}"
        )


def _guard(handle: Callable[..., None], *args: Any) -> None:
    """A message that Locust or a listener cannot handle must not end the listening. The exit status
    shows it."""
    try:
        handle(*args)
    except Exception:
        locust.log.unhandled_greenlet_exception = True
        logger.exception("a message could not be handled")


def _harmless(record: logging.LogRecord) -> bool:
    """Locust writes a peer's name as it came, where it could not read a message."""
    if (
        isinstance(record.msg, str)
        and not record.args
        and record.msg.startswith(("Unrecognized", "RPCError"))
    ):
        record.msg = sanitise_text(record.msg, most=NAME_BYTES)
        return _has_room()
    return True
