"""The messages between the control and the processes that send, as types; packed and unpacked here
only.

They travel as bytes in two of Locust's messages, one a direction: between a master and its workers
over the wire, in one process as plain calls. With each goes the number of the run (its epoch); an
end ignores those of another run.
"""

from typing import Any, Final

import msgspec

from locust_llm.gate.shares import GateStatus, Share
from locust_llm.records.message import ControlMessage
from locust_llm.records.run import ProcessHealth
from locust_llm.records.telemetry_counts import TelemetryCounts
from locust_llm.server.discovery import Discovery
from locust_llm.server.request_form import RequestForm
from locust_llm.settings.settings import Settings

LOCAL: Final = "local"
"""The only process."""
GONE_S: Final = 15.0
"""A process that has been silent for longer is given up."""
HELD_S: Final = 2.0
"""A process that was held up for longer was stopped, or its machine was: that nobody was heard
meanwhile means nothing."""
TO_CONTROL: Final = "llm_to_control"
TO_SENDER: Final = "llm_to_sender"

Arrival = tuple[float, int | None, bytes | None, str]
"""When it is due (seconds from the start of the schedule), the slot of its user, the session that
begins with it, packed (load.formats.Item), and the name of its draws (see Permit)."""


class ReliableMessage(ControlMessage, frozen=True):
    """It must come, in its order and once: see wire/delivery.py. What is none is said again by
    itself, or answered."""


class Numbered(ControlMessage, frozen=True):
    """A posted one, packed, on its way."""

    number: int
    message: msgspec.Raw


# -- from a process that sends ---------------------------------------------------------------------


class Hello(ControlMessage, frozen=True):
    """The first message of a worker, of no run: all that decides whether it may take part."""

    version: str = "an older one"
    locustfile: str = ""
    """The files that its users come from, each with the beginning of its SHA-256: ``chat.py
    (1f0c9ae4)``."""
    secrets: tuple[str, ...] = ()
    """The names of headers and flags of which it has a value. No hash of one: whoever listens could
    try short ones out."""


class RequestsWanted(ReliableMessage, frozen=True):
    """Its share of the requests is used up."""


class RequestsReturned(ReliableMessage, frozen=True):
    """A part of its share that it cannot use."""

    phase: str
    count: int


class ArrivalsReturned(ReliableMessage, frozen=True):
    """Arrivals that it has no users for, due at Unix seconds."""

    phase: str
    arrivals: list[Arrival]


class SessionsWanted(ReliableMessage, frozen=True):
    """It has no sessions left to begin."""


class SessionCounts(ControlMessage, frozen=True):
    """How far a process is with the sessions of a phase."""

    phase: str = ""
    begun: int = 0
    ended: int = 0


class SessionsReturned(ReliableMessage, frozen=True):
    """Sessions that nobody there waits for."""

    items: list[bytes | None]
    counts: SessionCounts


class Status(ControlMessage, frozen=True, kw_only=True):
    """Of one process, four times a second."""

    gate: GateStatus
    admitted: int = 0
    """Requests that the gate has admitted."""
    over: int = 0
    """Of them, those that have ended."""
    decoding: int = 0
    request_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Requests awaiting their first token, at the gate and decoding, each added up over the time of
    this run so far."""
    ttfts_s: list[float] = msgspec.field(default_factory=list)
    """Since the last status."""
    unreserved: int = 0
    """Arrivals that are due soon and find no free user."""
    sessions: SessionCounts = SessionCounts()
    users: int = 0
    reads: int = 0
    """Of sockets, so far."""
    clock_error_s: float = 0.0
    """How far the times of its records so far may be off on the control's clock; 0: it has the same
    one."""
    health: ProcessHealth | None = None
    failure: str = ""
    """Why this process can send nothing more."""
    activity: str = ""
    """Where the users' own schedule is, if they have one."""
    at: float | None = None
    """When it was sent, by the monotonic clock there; it asks for an answer. None: in the control's
    own process."""
    heard: int = 0
    """All that was posted to it came, up to this number."""


class StageHealth(ReliableMessage, frozen=True):
    """Of the stage that is over."""

    health: ProcessHealth


class FormLearnt(ReliableMessage, frozen=True):
    """A server has refused a field of requests during the load: they are sent without it, or with
    another one."""

    side: str
    """Of two arms the name of one."""
    form: RequestForm
    """What is new."""
    message: str
    """The server's, fit to show."""


class Records(ControlMessage, frozen=True):
    """Finished requests, to be acknowledged."""

    number: int
    """Serial of the first one."""
    packed: list[bytes]
    """See worker.outbox.pack."""


class BeginFailed(ControlMessage, frozen=True):
    """It cannot take part in this run."""

    reason: str


class Ended(ReliableMessage, frozen=True, kw_only=True):
    """It has ended what it had, and handed over its records."""

    turned_away: int = 0
    missed: int = 0
    """Arrivals that were due and found no user."""
    records: int = 0
    """That it has made in this run."""
    unchecked_answers: int = 0
    """Answers that were not held against their schemas, as that took too long."""
    health: ProcessHealth | None = None
    telemetry: TelemetryCounts | None = None
    """None: it sends none."""
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
    | Records
    | BeginFailed
    | Ended
)


# -- from the control ------------------------------------------------------------------------------


class Refused(ControlMessage, frozen=True):
    """To a worker that may not take part."""

    reason: str


class Begin(ReliableMessage, frozen=True, kw_only=True):
    """A run begins."""

    settings: Settings
    survey: Discovery
    worker: int = 0
    """The place of the process among the workers: its prompts are its own."""
    folder: str = ""
    """Of the run, on the machine of the control."""
    clock: str = ""
    """Of the control: see clock_sync.clock_id."""
    clock_offset_s: float = 0.0
    """Of it to Unix time."""
    salt: str = ""
    """Of this run, for the texts of its prompts; empty: they follow from the seed alone."""
    trace: str = ""
    """``Run.trace``; empty: no request has a traceparent."""


class StageBegin(ReliableMessage, frozen=True):
    """A stage of a sweep begins."""

    number: int
    """0: the last one is over."""
    input_tokens: float | None = None
    """Mean length of its prompts; None: as in the settings."""


class Renewal(ControlMessage, frozen=True):
    """The answer to a status: the share, whose lease begins anew, and the time."""

    share: Share
    at: float
    """That of the status."""
    unix_s: float
    """The control's clock."""
    heard: int = 0
    """All that it posted came, up to this number."""


class Grant(ReliableMessage, frozen=True):
    """Requests that it may send, beyond those that it has; 0: it asks again after AskAgain."""

    phase: str
    count: int


class StartSpread(ReliableMessage, frozen=True):
    """Users send their first requests of this phase one after the other."""

    phase: str
    spacing_s: float
    """Between two users, over all processes."""
    longest_spacing_s: float
    """While requests await their first token."""


class AskAgain(ReliableMessage, frozen=True):
    """Requests and sessions may be available."""

    phase: str


class Arrivals(ReliableMessage, frozen=True):
    """Of the schedule, in the order in which they are due."""

    phase: str
    started_at: float
    """Of the schedule, in Unix seconds."""
    arrivals: list[Arrival]


class Sessions(ReliableMessage, frozen=True):
    """Sessions to begin."""

    phase: str
    items: list[bytes | None]
    """Packed (load.formats.Item); None: a synthetic one."""
    last: bool = False
    """There are no more."""


class ReleaseRequests(ReliableMessage, frozen=True):
    """Others wait: return the requests that nobody there waits for."""

    phase: str


class ReleaseSessions(ReliableMessage, frozen=True):
    """Others wait: return the sessions that nobody there waits for."""

    phase: str


class PhaseOver(ReliableMessage, frozen=True):
    """Nothing new starts in this phase: what is left of its share comes back."""

    phase: str


class EndRun(ReliableMessage, frozen=True):
    """Nothing new starts; end what is open and hand over the records."""


class Cut(ReliableMessage, frozen=True):
    """Cut what is still open."""


class Ack(ControlMessage, frozen=True):
    """These records are on the disk."""

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
    """``number``: of a posted one; 0: it has none. Raises OverflowError for a number beyond 64
    bits."""
    return _pack((epoch, Numbered(number, msgspec.Raw(_pack(message))) if number else message))


def unpack_to_control(data: Any) -> tuple[int, ToControl, int]:
    """The epoch, the message, and its number. Raises ValueError for what is none, whatever it
    is."""
    try:
        epoch, message = _to_control.decode(data)
        if isinstance(message, Numbered):
            return epoch, _posted_to_control.decode(message.message), message.number
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return epoch, message, 0


def unpack_to_worker(data: Any) -> tuple[int, ToSender, int]:
    """The epoch, the message, and its number. Raises ValueError for what is none, whatever it
    is."""
    try:
        epoch, message = _to_sender.decode(data)
        if isinstance(message, Numbered):
            return epoch, _posted_to_sender.decode(message.message), message.number
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return epoch, message, 0
