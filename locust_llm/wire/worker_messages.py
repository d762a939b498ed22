"""Worker messages: what the controller and the worker processes send each other, as types. They are
packed and unpacked here only.

They travel as bytes in two of Locust's messages, one for each direction: between a master and its
workers over the wire, in one process as plain calls. Each carries the number of the run (its
epoch). An end ignores messages of another run.
"""

from typing import Any, Final

import msgspec

from locust_llm.gate.shares import GateStatus, Share
from locust_llm.records.control_message import ControlMessage
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.records.telemetry_counts import TelemetryCounts
from locust_llm.server.discovery import Discovery
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.settings.run_options import Settings

LOCAL: Final = "local"
"""The name of the only process."""
GONE_S: Final = 15.0
"""A process that has been silent for longer is lost."""
HELD_S: Final = 2.0
"""A control that was held up for longer was stopped, or its machine was: the silence of others
meanwhile means nothing."""
STATUS_S: Final = 0.25
"""The interval of statuses."""
TO_CONTROL: Final = "llm_to_control"
TO_SENDER: Final = "llm_to_sender"

Arrival = tuple[float, int | None, bytes | None, str]
"""When it is due (seconds from the start of the schedule), its user's slot, the packed session that
begins with it (workload.formats.DatasetSession), and its draw name (see Permit)."""


class ReliableMessage(ControlMessage, frozen=True):
    """A message that must arrive, in order and once: see wire/reliable_delivery.py. Other messages
    repeat themselves, or are answered."""


class Numbered(ControlMessage, frozen=True):
    """A numbered reliable message, packed."""

    number: int
    message: msgspec.Raw


# -- from a process that sends ---------------------------------------------------------------------


class Hello(ControlMessage, frozen=True):
    """The first message of a worker, before any run. It has all that decides whether the worker may
    take part."""

    version: str = "an older one"
    locustfile: str = ""
    """The files of its users, each with the begin of its SHA-256: ``chat.py (1f0c9ae4)``."""
    secrets: tuple[str, ...] = ()
    """The names of headers and flags of which it has a value. No hash is sent, as a listener could
    try short values."""


class RequestsWanted(ReliableMessage, frozen=True):
    """The worker's share of the requests is used up."""


class RequestsReturned(ReliableMessage, frozen=True):
    """The part of its share that a worker cannot use."""

    phase: str
    count: int


class ArrivalsReturned(ReliableMessage, frozen=True):
    """Arrivals that the worker has no users for, due at Unix seconds."""

    phase: str
    arrivals: list[Arrival]


class SessionsWanted(ReliableMessage, frozen=True):
    """The worker has no sessions left to begin."""


class SessionCounts(ControlMessage, frozen=True):
    """How far a process is with the sessions of a phase."""

    phase: str = ""
    begun: int = 0
    ended: int = 0


class SessionsReturned(ReliableMessage, frozen=True):
    """Sessions that no user of the worker waits for."""

    items: list[bytes | None]
    counts: SessionCounts


class Records(ControlMessage, frozen=True):
    """Finished requests, which the controller acknowledges."""

    number: int
    """The serial number of the first record."""
    lines: list[bytes]
    """The lines of the records: see records/profile_export_jsonl.py."""


class Status(ControlMessage, frozen=True, kw_only=True):
    """The status of a process, sent four times a second, and less often if there are many."""

    gate: GateStatus
    admitted: int = 0
    over: int = 0
    """The admitted requests that have ended."""
    decoding: int = 0
    request_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The request-seconds of this run so far: awaiting the first token, at the gate, decoding."""
    ttfts_s: list[float] = msgspec.field(default_factory=list)
    """The TTFTs since the last status."""
    ttfts_from_due_s: list[float] = msgspec.field(default_factory=list)
    """The TTFTs from due since the last status."""
    awaited: dict[int, int] = msgspec.field(default_factory=dict)
    """How many requests await their first token, by hundredths of a second since they were due.
    Those at the gate and those without a user count, too."""
    unreserved: int = 0
    """Arrivals that are due soon and find no free user."""
    sessions: SessionCounts = SessionCounts()
    users: int = 0
    reads: int = 0
    """Reads of sockets so far."""
    clock_error_s: float = 0.0
    """The largest error so far of its records' times on the controller's clock. 0: it has the same
    clock."""
    health: ProcessHealth | None = None
    failure: str = ""
    """Why this process can send nothing more."""
    activity: str = ""
    """Where the users' own schedule is, if they have one."""
    at: float | None = None
    """When it was sent, by the sender's monotonic clock; it asks for an answer. None: it was sent
    in the controller's own process."""
    heard: int = 0
    """All that was posted to the process came, up to this number."""
    records: Records | None = None
    """The requests that have finished since the last status. The answer acknowledges them."""


class StageHealth(ReliableMessage, frozen=True):
    """The health of the load generator in the stage that is over."""

    health: ProcessHealth


class FormLearnt(ReliableMessage, frozen=True):
    """A server refused a field of requests during the load. They are sent without it, or with
    another one."""

    side: str
    """The name of one of two arms."""
    form: RequestForm
    """What changed in the form."""
    message: str
    """The server's message, safe to show."""


class AnswerFaultFound(ReliableMessage, frozen=True):
    """The evidence of a wrong answer."""

    line: bytes
    """A line of answer_faults.jsonl, without its newline."""


class BeginFailed(ControlMessage, frozen=True):
    """The process cannot take part in this run."""

    reason: str


class Ended(ReliableMessage, frozen=True, kw_only=True):
    """The process has ended its part and has handed over its records."""

    turned_away: int = 0
    missed: int = 0
    """Arrivals that were due and found no user."""
    records: int = 0
    """How many records the process made in this run."""
    unchecked_answers: int = 0
    """Answers that were not checked against their schemas, as that took too long."""
    health: ProcessHealth | None = None
    telemetry: TelemetryCounts | None = None
    """None: the process sends no telemetry."""
    failure: str = ""
    leaves: bool = False
    """The locustfile has ended this process, or its users, while the run goes on."""


ToControl = (
    Hello
    | RequestsWanted
    | RequestsReturned
    | ArrivalsReturned
    | SessionsWanted
    | SessionsReturned
    | GateStatus
    | Status
    | StageHealth
    | FormLearnt
    | AnswerFaultFound
    | Records
    | BeginFailed
    | Ended
)


# -- from the controller ------------------------------------------------------------------------------


class Refused(ControlMessage, frozen=True):
    """The answer to a worker that may not take part."""

    reason: str


class Begin(ReliableMessage, frozen=True, kw_only=True):
    settings: Settings
    survey: Discovery
    worker: int = 0
    """The place of the process among the workers, from which its own prompts follow."""
    folder: str = ""
    """The run's folder on the controller's machine."""
    clock: str = ""
    """The controller's clock: see clock_sync.clock_id."""
    clock_offset_s: float = 0.0
    """The offset of the controller's clock to Unix time."""
    salt: str = ""
    """The salt of this run's prompts. Empty: the prompts follow from the seed alone."""
    trace: str = ""
    """``Run.trace``; empty: no request has a traceparent."""
    marker_key: bytes = b""
    """The key of the run's session markers. Empty: answers are not checked."""


class StageBegin(ReliableMessage, frozen=True):
    number: int
    """0: the last stage is over."""
    input_tokens: float | None = None
    """The mean length of its prompts. None: as in the settings."""


class Renewal(ControlMessage, frozen=True):
    """The answer to a status: the share, whose lease begins anew, and the time."""

    share: Share
    at: float
    """When the status was sent, as the status has it."""
    unix_s: float
    """The time of the controller's clock."""
    heard: int = 0
    """All that the process posted came, up to this number."""
    recorded: int = 0
    """The status's records of this number are on the disk. 0: it had none."""
    next_s: float = STATUS_S
    """The time until the next status."""


class Grant(ReliableMessage, frozen=True):
    """Requests that the process may send beyond its present ones. 0: it asks again after
    AskAgain."""

    phase: str
    count: int


class StartSpread(ReliableMessage, frozen=True):
    """The users send their first requests of this phase one after the other."""

    phase: str
    spacing_s: float
    """The seconds between two users, over all processes."""
    longest_spacing_s: float
    """The same, while requests await their first token."""


class AskAgain(ReliableMessage, frozen=True):
    """Requests and sessions may be available."""

    phase: str


class Arrivals(ReliableMessage, frozen=True):
    """Arrivals of the schedule, in the order in which they are due."""

    phase: str
    started_at: float
    """When the schedule started, in Unix seconds."""
    arrivals: list[Arrival]


class Sessions(ReliableMessage, frozen=True):
    """Sessions to begin."""

    phase: str
    items: list[bytes | None]
    """Packed sessions (workload.formats.DatasetSession); None: a synthetic one."""
    last: bool = False
    """There are no more sessions."""


class ReleaseRequests(ReliableMessage, frozen=True):
    """Other processes wait: return the requests that no user waits for."""

    phase: str


class ReleaseSessions(ReliableMessage, frozen=True):
    """Other processes wait: return the sessions that no user waits for."""

    phase: str


class PhaseOver(ReliableMessage, frozen=True):
    """Nothing new starts in this phase: return the rest of the share."""

    phase: str


class EndRun(ReliableMessage, frozen=True):
    """Nothing new starts: end what is open and hand over the records."""


class Cut(ReliableMessage, frozen=True):
    """Cut what is still open."""


class Ack(ControlMessage, frozen=True):
    """These records, which came without a status, are on the disk."""

    number: int


ToSender = (
    Refused
    | Begin
    | StageBegin
    | Share
    | Renewal
    | Grant
    | StartSpread
    | AskAgain
    | Arrivals
    | Sessions
    | ReleaseRequests
    | ReleaseSessions
    | PhaseOver
    | EndRun
    | Cut
    | Ack
)


# -- packed ----------------------------------------------------------------------------------------

_pack: Final = msgspec.msgpack.Encoder().encode
_to_control: Final = msgspec.msgpack.Decoder(tuple[int, ToControl | Numbered])
_to_sender: Final = msgspec.msgpack.Decoder(tuple[int, ToSender | Numbered])
_posted_to_control: Final = msgspec.msgpack.Decoder(ToControl)
_posted_to_sender: Final = msgspec.msgpack.Decoder(ToSender)


def pack_message(epoch: int, message: ControlMessage, number: int = 0) -> bytes:
    """``number`` is the number of a reliable message; 0: it has none. Raises OverflowError for a
    number beyond 64 bits."""
    return _pack((epoch, Numbered(number, msgspec.Raw(_pack(message))) if number else message))


def unpack_to_control(data: Any) -> tuple[int, ToControl, int]:
    """(epoch, message, number). Raises ValueError for bytes that are no message."""
    try:
        epoch, message = _to_control.decode(data)
        if isinstance(message, Numbered):
            return epoch, _posted_to_control.decode(message.message), message.number
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return epoch, message, 0


def unpack_to_worker(data: Any) -> tuple[int, ToSender, int]:
    """(epoch, message, number). Raises ValueError for bytes that are no message."""
    try:
        epoch, message = _to_sender.decode(data)
        if isinstance(message, Numbered):
            return epoch, _posted_to_sender.decode(message.message), message.number
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return epoch, message, 0
