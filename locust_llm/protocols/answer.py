"""An answer, streamed or whole, of any protocol: its chunks, its counts, how it ended.

A chunk is an event with non-empty content, reasoning, refusal or a part of a tool call. Which event is one, its protocol
knows. Neither usage nor ``[DONE]`` is ever required: transformers ends without it, vLLM sends it after an error.
"""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from locust_llm.core.foreign_text import shown
from locust_llm.core.record import OK

if TYPE_CHECKING:
    from .protocol import Protocol

MAX_MESSAGE_BYTES: Final = 1 << 16
"""A longer body of an error is a page, or no message: its JSON is not looked at, as objects made of it may be large."""
MAX_COUNT: Final = 1 << 53
MAX_CHUNK_TOKENS: Final = 1 << 31

Count = int | float | None
"""A count as servers write it: proxies that know only one kind of number make 6 into 6.0."""
Index = int | float | str | None
"""Of a choice."""
T = TypeVar("T")


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds to the assistant's message, or a whole message, in the form of a chat completion."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    """A tool call of the time before ``tool_calls``."""

    @property
    def output(self) -> bool:
        return bool(self.content or self.tool_calls or self.refusal or self.function_call)

    @property
    def thought(self) -> bool:
        return bool(self.reasoning_content or self.reasoning)

    @property
    def text_alone(self) -> bool:
        """It adds text of the answer, and nothing else."""
        return isinstance(self.content, str) and self.content != "" and self == Delta(content=self.content)


class Failure(msgspec.Struct, gc=False):
    """Where a failure is, in an event or a whole answer: in ``error``, or, as vLLM wrote it until 2025 and LMDeploy does, in
    the ``message`` of an ``object`` that is an ``error``."""

    error: Any = None
    object: Any = None
    message: Any = None


class Text(msgspec.Struct, gc=False):
    """A choice of a plain completion: it has its text itself, in a stream and in a whole answer."""

    index: Index = None
    content: Any = msgspec.field(default=None, name="text")
    finish_reason: str | None = None

    @property
    def delta(self) -> "Text":
        return self

    message = delta

    @property
    def output(self) -> bool:
        return bool(self.content)

    @property
    def thought(self) -> bool:
        return False

    @property
    def text_alone(self) -> bool:
        return isinstance(self.content, str) and self.content != ""


BROKEN: Final = frozenset({"abort", "error", "timeout", "cancelled"})
"""Reasons of an answer that was broken off: vLLM's engine when it shuts down or pauses (abort), SGLang's abort
requests, TensorRT-LLM's time-outs and cancellations."""
DONE: Final = b"[DONE]"
SURROGATE: Final = re.compile("[\ud800-\udfff]")
REASON: Final = re.compile(r"[A-Za-z_ -]{1,32}")
"""What a finish_reason looks like. Another text of the server's may be long, or hold what must not be written down."""
USUAL: Final = BROKEN | {
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "content_filter",
    "eos_token",
    "stop_sequence",
}
"""Those that need no second look."""


class Completion:
    """Adds up events; plain fields, read by whoever makes the record. What a protocol calls comes after ``whole``."""

    def __init__(self, protocol: "Protocol[Any]", keep_text: bool = False) -> None:
        self._protocol = protocol
        self._decode, self._event = protocol.decode, protocol.event
        self.chunk_reads: list[int] = []
        """For each chunk the number of the read that brought it."""
        self.counted_by: list[int] = []
        """Tokens of the whole answer up to each chunk, where the server counts with each of them."""
        self.early_read: int | None = None
        """The read that brought the first event, where that is before the first chunk."""
        self.done_read: int | None = None
        """The read that brought the last event: ``[DONE]``, or what the protocol has in its place."""
        self.followed: set[int] = set()
        """The reads in which an event that is no chunk came behind a chunk."""
        self.first_output: int | None = None
        self.first_chunk_tokens = 1
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.timings = msgspec.Raw()
        self.metrics = msgspec.Raw()
        """The server's own times, as llama.cpp and as vLLM wrote them last; empty: it wrote none."""
        self.error: str | None = None
        self.malformed: str | None = None
        self.others: set[Any] = set()
        """The index of each choice but the first, 0, that had content or ended."""
        self.finished: set[Any] = set()
        """The choices that have a finish_reason."""
        self.last = b""
        """The data of the last event."""
        self.broken = b""
        """That of the first which was an error or could not be read."""
        self.closing = False
        """Behind a finish_reason came what comes last: the usage, or ``[DONE]``."""
        self.content = False
        """There was anything to read, in a stream or in a whole answer."""
        self.deltas: list[Delta | Text] | None = [] if keep_text else None
        """Of the first choice, as they came; None: they are not kept."""
        self.calls: dict[Any, bool] = {}
        """By the index of each tool call whether any of its arguments came; of protocols that name its parts."""
        self.response_id: str | None = None
        """By which a later request can go on from this answer, where the server keeps it."""
        self.results: int | None = None
        """Vectors, one for each input; None: it is none of these."""
        self.form = b"", b""
        """What stands around the text of its last chunk; empty: that is not known, or more than the text counts."""
        self.counted = 0
        """How many choices were finished when their tokens were last counted."""
        self._ended = False

    def add(self, event: tuple[int, str, bytes]) -> None:
        """One event of a stream: the read that brought it, its type, its data."""
        read, kind, data = event
        if kind == "error":
            self.fail(status_message(data) or "an event named error", data)
        elif not data.startswith(b"{") and (text := data.strip()) in (DONE, b""):
            self.closing = self.closing or bool(self.finished and data)
            self._ended = self._ended or text == DONE
        else:
            self.last = data
            try:
                message = self._decode(data)
            except (ValueError, RecursionError):
                message = self.read(self._decode, data)
            if message is not None and self._event(self, message, data):
                self.chunk_reads.append(read)
                return
        if self._ended and self.done_read is None:
            self.done_read = read
        if not self.chunk_reads:
            self.early_read = read if self.early_read is None else self.early_read
        elif self.chunk_reads[-1] == read:
            self.followed.add(read)

    def add_alike(self, reads: list[int], last: bytes) -> None:
        """Chunks that are like the one of ``form``, but for their text; for each the read that brought it."""
        self.chunk_reads += reads
        self.last = last

    def find_form(self) -> None:
        """That of the last event."""
        before, behind = self.form
        if self.deltas is None and not (before and self.last.startswith(before) and self.last.endswith(behind)):
            self.form = self._protocol.form(self.last)

    def whole(self, body: bytes) -> None:
        """An answer that came as one JSON body."""
        self._protocol.whole(self, body)
        self.first_output = None  # nothing in it has a time of its own

    # -- what a protocol calls -----------------------------------------------------------------------------------------

    def read(self, decode: Callable[[bytes], T], data: bytes) -> T | None:
        """The JSON of an event or of a body; None: it is none, and the answer is malformed."""
        try:
            try:
                return decode(data)
            except ValueError:
                return decode(mended(data))
        except (ValueError, RecursionError) as mistake:
            self.malformed = f"{mistake}: {error_line(data)}"
            self.broken = self.broken or data
            return None

    def add_text(self, text: Any) -> bool:
        """Of the answer; True if it is a chunk, as it is not empty."""
        return self._keep(Delta(content=text) if self.deltas is not None else None) if text else False

    def add_reasoning(self, text: Any) -> bool:
        """The same before the answer."""
        if not text:
            return False
        if self.deltas is not None:
            self.deltas.append(Delta(reasoning=text))
        self.content = True
        return True

    def add_refusal(self, text: Any) -> bool:
        return self._keep(Delta(refusal=text) if self.deltas is not None else None) if text else False

    def add_tool_call(
        self, index: Index, *, id_: str | None = None, name: str | None = None, arguments: Any = ""
    ) -> bool:
        """A part of a tool call: its begin, with its id and the name of the function, or more of its arguments."""
        self.calls[index] = bool(arguments) or (not id_ and self.calls.get(index, False))
        if self.deltas is None:
            return self._keep(None)
        part: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
        if id_:
            part |= {"id": id_, "type": "function"}
        if name:
            part["function"]["name"] = name
        return self._keep(Delta(tool_calls=[part]))

    def _keep(self, delta: Delta | None) -> bool:
        self.content = True
        if delta is not None and self.deltas is not None:
            self.deltas.append(delta)
        if self.first_output is None:
            self.first_output = len(self.chunk_reads)
        return True

    def add_results(self, number: int | None) -> None:
        """Vectors or scores, all of an answer that has no text and no finish_reason; None: any number of them is right."""
        self.results = number
        self.content = number != 0
        self.finished.add(0)

    def count(
        self, *, input_: Count = None, output: Count = None, reasoning: Count = None, cached: Count = None
    ) -> None:
        """Tokens as the server counts them. The last count that is there wins: one that is missing erases none."""
        if input_ is not None:
            self.input_tokens = _latest(input_, self.input_tokens)
        if output is not None:
            self.output_tokens = _latest(output, self.output_tokens)
        if reasoning is not None:
            self.reasoning_tokens = _latest(reasoning, self.reasoning_tokens)
        if cached is not None:
            self.cached_tokens = _latest(cached, self.cached_tokens)

    def finish(self, reason: str, choice: Index = None) -> None:
        """The model's end of the answer, or of one of its choices, and why: ``stop``, ``length``, ..."""
        self.finish_reason = reason if REASON.fullmatch(reason) else "(no reason)"
        self.finished.add(choice or 0)
        if choice:
            self.others.add(choice)
        if reason in BROKEN and self.error is None:
            self.error = f"finish_reason {reason}"

    def end(self) -> None:
        """This event, which is no chunk, was the last: nothing is waited for behind it."""
        self._ended = True
        self.closing = self.closing or bool(self.finished)

    def fail(self, error: Any, data: bytes) -> None:
        """The server failed. The first failure counts: what follows it is about the same. ``error``: as the server wrote it;
        if it is empty, ``data`` says it: the event or body."""
        self.error = self.error or error_text(error or data.decode("utf-8", "replace"))
        self.broken = self.broken or data

    def failed(self, whole: "Failure", body: bytes) -> bool:
        """Whether a whole answer is an error, in a form of OpenAI's."""
        found = bool(whole.error) or whole.object == "error"
        if found:
            self.fail(whole.error or whole.message, body)
        return found

    # -- what came of it -----------------------------------------------------------------------------------------------

    @property
    def text(self) -> list[str] | None:
        """The texts of its chunks; None where they were not kept."""
        return None if self.deltas is None else [d.content for d in self.deltas if isinstance(d.content, str)]

    @property
    def choices(self) -> int:
        return 1 + len(self.others)

    @property
    def chunk_tokens(self) -> tuple[tuple[int, int], ...]:
        """See Record. None where a count is missing, falls, or is of one of several choices."""
        counts, tokens = self.counted_by, list[list[int]]()
        if len(counts) != len(self.chunk_reads) or self.others:
            return ()
        for before, now in pairwise((0, *counts)):
            if not 0 <= now - before <= MAX_CHUNK_TOKENS:
                return ()
            if tokens and tokens[-1][0] == now - before:
                tokens[-1][1] += 1
            else:
                tokens.append([now - before, 1])
        return tuple((each, chunks) for each, chunks in tokens)

    def outcome(self) -> tuple[str, str]:
        """(outcome, message) of a response with status 2xx whose bytes all came."""
        if self.error is not None:
            return "stream_error", self.error
        if self.malformed is not None:
            return "malformed", self.malformed
        if not self.finished:
            return "truncated", "the answer ended without a finish_reason"
        if not self.closing and (unfinished := len({0, *self.others} - self.finished)):
            # LiteLLM passes on one finish_reason for all choices, with the usage behind it
            return "truncated", f"{unfinished} of {self.choices} choices ended without a finish_reason"
        return (OK, "") if self.content else self._without_content()

    def _without_content(self) -> tuple[str, str]:
        """A model may end at once: then its end is all that was counted, if that was."""
        tokens, reason = self.output_tokens, self.finish_reason
        if tokens is None:
            return "empty", f"no content, and no count of tokens (finish_reason {reason})"
        if reason != "content_filter" and tokens <= self.choices:
            return OK, f"no content: the model ended at once (finish_reason {reason})"
        hidden = f", {self.reasoning_tokens} of them hidden reasoning" if self.reasoning_tokens else ""
        return "empty", f"no content, though {tokens} tokens were counted{hidden} (finish_reason {reason})"


def count(value: Count) -> int | None:
    """A number of tokens, if it can be one."""
    return int(value) if value is not None and 0 <= value < MAX_COUNT else None


def _latest(value: Count, before: int | None) -> int | None:
    now = count(value)
    return before if now is None else now


def mended(data: bytes) -> bytes:
    """JSON that msgspec refuses for its text alone: bytes that are no UTF-8, half of a pair of surrogates (a character
    that was split over two chunks). Raises ValueError and RecursionError."""
    text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).encode()


def error_text(error: Any) -> str:
    """The message in an error, which servers write as an object, a string or whatever else."""
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return shown(error if isinstance(error, str) else str(error))


def error_line(body: bytes) -> str:
    """``body`` as one line of at most 4 kB, without the control characters that would reach a terminal."""
    return shown(body)


def status_message(body: bytes) -> str:
    """The message of an error response: that of its JSON, whatever its shape, else its text."""
    if len(body) > MAX_MESSAGE_BYTES:
        return error_line(body)
    try:
        try:
            content = msgspec.json.decode(body)
        except ValueError:
            content = msgspec.json.decode(mended(body))
    except (ValueError, RecursionError):
        return error_line(body)
    if isinstance(content, dict):
        return error_text(content.get("error") or content.get("detail") or content.get("message") or content)
    return error_text(content)
