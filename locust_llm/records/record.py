"""Record: everything stamped and counted about one request, also a failed one. The values derived
from the stamps are in ttft_itl_latency.py.

Stamps end in ``_at``: seconds on the monotonic clock of the process that sent the request.
``clock_offset_s`` is what to add to a stamp to get Unix time; it is taken once a process, so a
stepped wall clock moves no duration. Chunk stamps are whole microseconds after ``sent_at``
(``chunk_us``), so that request latency = TTFT + the sum of the gaps holds exactly, and a record is
the same whether it was written locally or came from a worker.
"""

from typing import Annotated, Final

import msgspec

from .answer_checks import AnswerChecks
from .outcomes import FAILURES, OK
from .server_times import ServerTimes
from .ttft_itl_latency import RequestLatency

Stamp = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]
"""Seconds. The bounds here and below apply to values from files: beyond them there is no date, and
no array holds the number."""
Micros = Annotated[int, msgspec.Meta(ge=0, le=10**13)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
TokensOfChunk = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
MIN_EARLY_S: Final = 0.02
"""From so much time on between an event without content and the first token, `check` and `probe`
give advice. Some clients count the event as the first token."""
MOST_CHUNKS: Final = 2**18
"""The most chunks of an answer, more than any model writes. A process writes or reads a record of so
many in 0.1 s."""

DRAFTS: Final = ("draft_steps", "drafted_tokens", "accepted_tokens")
"""Fields of speculative decoding."""


class Record(RequestLatency, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to one request."""

    id: str
    """The X-Request-Id of the request."""
    worker: str = "local"
    user: Count = 0
    user_class: str = ""
    name: str = ""
    model: str = ""
    phase: str = "profiling"
    """``warmup`` or ``profiling``: the phase in which the request was sent."""
    stage: Count = 0
    tenant: str = ""
    """The tenant that the request belongs to. Empty: the run has no tenants."""
    arm: str = ""
    """``base`` or ``candidate``: see settings/ab_arms.py. Empty: the run has no arms."""
    pair: Count = 0
    """The number of its pair of blocks, from 1. 0: it counts in no pair."""
    backend: str = ""
    """The replica that answered: as ``--backend-header`` reports it, else its address where there
    are several."""
    session: str = ""
    turn: Count = 0
    turns: Count | None = None
    """How many turns its session has. Only the first turn has it, where there are several and their
    number is known."""
    after: tuple[Count, ...] | None = None
    """The turns of its session for whose ends it waited. None: the turn before it."""
    tool_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """The seconds of the tool call before it. None: there was no tool."""
    unsent: Count = 0
    """Turns of its session that were never sent because this request failed."""

    clock_offset_s: Stamp
    due_at: Stamp
    asked_at: Stamp
    admitted_at: Stamp | None = None
    sent_at: Stamp | None = None
    """Just before the first byte of the request was written, on an open connection. None: nothing
    was written."""
    written_us: Micros | None = None
    """When the whole request had been written, in microseconds after ``sent_at``. None: it never
    was."""
    freed_at: Stamp | None = None
    """When the slot went back to the gate."""
    headers_at: Stamp | None = None
    closed_at: Stamp
    """When the answer was complete, or when it failed."""

    chunk_us: tuple[int, ...] = ()
    """Arrival of each chunk (event with content), microseconds after ``sent_at``, never falling."""
    merged: tuple[tuple[Count, Micros], ...] = ()
    """(index, earliest) for each chunk that came together with others in one read. Its stamp is the
    latest moment at which it can have arrived; ``earliest`` (microseconds after ``sent_at``) is the
    soonest."""
    first_output: Count | None = None
    """Index of the first chunk that is no reasoning."""
    first_chunk_tokens: Count = 1
    chunk_tokens: tuple[tuple[TokensOfChunk, Count], ...] = ()
    """(tokens, how many chunks in a row) of the chunks, where the server counted tokens with each
    chunk. Empty: it did not count, or there are several choices."""
    early_us: Whole | None = None
    """When an event without content came first (a role, an empty text), in microseconds after
    ``sent_at``. Only if that was more than a millisecond before the first chunk."""

    outcome: str = OK
    status: Count | None = None
    error: str = msgspec.field(default="", name="message")
    """The failure in one line without secrets, at most 4 kB. For a successful request it is a
    remark. In files its name is ``message``."""
    sample: str = ""
    """The answer as received, without secrets, at most 4 kB. Only the first failure of its kind in
    a process has it."""
    retry_after_s: float | None = None
    """The seconds that the server asked to wait (Retry-After)."""
    attempt: Count = 1
    """The number of this attempt. It is above 1 after an attempt that was ``retried``. All attempts
    have the same ``due_at``."""
    finish_reason: str | None = None
    streamed: bool = True
    """False: the answer came as one JSON body, so it has no chunks and no TTFT."""
    choices: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    """How many choices the answer had (``n`` of the request)."""

    schema_valid: bool | None = None
    """The answer is JSON of the requested schema, or its tool calls are. None: no schema was
    requested, or nobody can know (no package jsonschema; a failure)."""

    answer: AnswerChecks | None = None
    """What the checks of the answer found. None: it was not checked (``--check-answers``)."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    hidden_tokens: Count | None = 0
    """The ``reasoning_tokens`` that did not come as they were made, and so have no time of their
    own between the chunks. None: there were some, and their number is unknown."""
    cached_tokens: Count | None = None
    tokens_from: str = ""
    """``usage``: the server counted. ``chunks``: an estimate of one token a chunk. ``tokenizer``:
    the load tester of an imported result counted. Empty: there is no count."""
    rejected_counts: tuple[tuple[str, str], ...] = ()
    """(field of the record, what the server wrote) for each count that contradicts the answer and
    was rejected: no tokens beside text, a negative number, output without its reasoning."""
    asked_input_tokens: Count | None = None
    asked_output_tokens: Count | None = None

    prefix: Count | None = None
    """The number of the shared prefix that it begins with (``--prefix-cache-hit-rate``). None: it
    has none."""
    prefix_tokens: Count | None = None
    """The tokens that it has in common with the others of this number, the head of the chat
    template included."""

    inputs: Count | None = None
    """The texts of embeddings, or documents of rerank. None: the request asked for generated
    output."""

    images: Count | None = None
    """The images in the request, with the images of earlier turns. None: there are none."""
    image_bytes: Count | None = None
    """The bytes of their files. None: one of them was a URL, which the server fetched."""
    image_pixels: Count | None = None
    audio_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """The seconds of all audio in it. None: there is none, or its length is unknown (MP3, a
    URL)."""

    resent: Count = 0
    """How often it was sent again on a new connection, as the server was closing the old one.
    ``sent_at`` is of the last send."""
    turnaround_us: Micros | None = None
    """Closed loop: the load generator's own time from the end of this user's previous answer to
    ``asked_at``, in microseconds. Connecting and pauses are left out. None: it follows on no
    answer."""
    paused_us: Micros | None = None
    """The pauses in that time: think time, tools, code of the locustfile."""
    connect_s: Stamp | None = None
    """The seconds to open the connection (before ``asked_at``). None: an open one was used
    again."""
    reconnect_s: Stamp | None = None
    """The part of ``connect_s`` after ``admitted_at``: the server had closed the connection while
    the request waited."""
    clock: str = "kernel"
    """``kernel``: the stamps are the kernel's. ``thread``: the reader's clock right after the read.
    ``tool``: the clock of an imported result's load tester."""
    bad_stamps: Count = 0
    """Kernel stamps before the send or in the future. The reader's clock replaced them."""
    read_lag_us: Whole | None = 0
    """The longest time from the newest byte of a read of this response to that read. Older bytes of
    the same read may have lain in the kernel for longer (``merged``). None: an imported result."""
    draft_steps: Count | None = None
    drafted_tokens: Count | None = None
    accepted_tokens: Count | None = None
    """Speculative decoding of this request: steps with a draft, drafted tokens, accepted tokens.
    None: the answer does not report them."""
    server: ServerTimes | None = None
    """The server's own times in its answer. None: there are none. Times from spans are beside the
    records, in spans.jsonl."""
    rtt_us: Count | None = None
    """The kernel's smoothed round trip of the connection when the answer was over (TCP_INFO)."""
    retransmits: Count = 0
    """Segments that this side had to send again during the request."""
    reads: Count = 0
    limit: Count | None = None
    """The gate's limit when the request was admitted. None: there is no gate."""
    request_bytes: Count = 0
    response_bytes: Count = 0
    simulated: bool = False
    lacks: tuple[str, ...] = ()
    """What is unknown of an imported request. ``due``: ``due_at`` and ``asked_at`` are its send.
    ``gaps``: ``chunk_us`` has only the first chunk and the last."""

    @property
    def failed(self) -> bool:
        """The request counts in the failure rate. Cut and cancelled requests are counted beside
        it."""
        return self.outcome in FAILURES

    @property
    def broke_in(self) -> str:
        """How far a failed request came: ``connecting``, ``sending``, ``headers`` (the answer had
        not begun, or its status was the failure), ``prefill`` (no chunk), ``decode``, ``end``
        (after a finish_reason). Empty: it succeeded."""
        if self.outcome == OK:
            return ""
        if self.sent_at is None:
            return "connecting"
        if self.outcome == "send_failed":
            return "sending"
        if self.headers_at is None or (self.status is not None and not 200 <= self.status < 300):
            return "headers"
        if self.finish_reason is not None:
            return "end"
        return "decode" if self.chunk_us else "prefill"

    @property
    def asked_unix_s(self) -> float:
        """When its user asked for it, in Unix seconds."""
        return self.asked_at + self.clock_offset_s

    @property
    def sent_unix_s(self) -> float:
        """When it was sent, in Unix seconds; one that could not be sent: when it was asked for."""
        sent_at = self.asked_at if self.sent_at is None else self.sent_at
        return sent_at + self.clock_offset_s

    @property
    def closed_unix_s(self) -> float:
        """When it was over, in Unix seconds."""
        return self.closed_at + self.clock_offset_s

    @property
    def rejected(self) -> str:
        """The rejected counts as text, one line each."""
        return "\n".join(f"{name} {value}" for name, value in self.rejected_counts)

    @property
    def chunks_counted(self) -> bool:
        """The server counted the tokens of each chunk."""
        return bool(self.chunk_tokens)

    @property
    def tokens_of_chunks(self) -> list[int]:
        """For each chunk, the tokens that the server counted in it. Empty: it counted none."""
        tokens_of: list[int] = []
        for tokens, chunks in self.chunk_tokens:
            tokens_of += [tokens] * chunks
        return tokens_of

    @property
    def tokens_per_chunk(self) -> float | None:
        """The mean tokens of a chunk. None without chunks, and where one token a chunk was assumed.

        Without counts for each chunk it uses the answer's tokens, except the last one, which has no
        text.
        """
        if not self.known_us:
            return None
        if self.chunk_tokens:
            return sum(tokens * chunks for tokens, chunks in self.chunk_tokens) / len(self.chunk_us)
        if self.output_tokens is None or self.tokens_from != "usage" or self.hidden_tokens is None:
            return None
        chunks = len(self.chunk_us) - self._first
        return (self.output_tokens - self.hidden_tokens - (self.finish_reason == "stop")) / chunks
