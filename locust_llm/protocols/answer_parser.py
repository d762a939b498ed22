"""Answer parser: an answer of any protocol, streamed or whole: its chunks, its counts, its end.

A chunk is an event with non-empty content, reasoning, refusal or a part of a tool call. The
protocol knows which event is one. Neither usage nor ``[DONE]`` is required: transformers ends
without it, vLLM sends it after an error.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from locust_llm.answers.received_answer import EventReader
from locust_llm.records.outcomes import OK
from locust_llm.text.sanitise import sanitise_text

from .error_forms import (
    ErrorFields,
    find_embedded_error,
    is_error,
)
from .error_message import MAX_MESSAGE_BYTES, choose_error_message, error_line, status_message
from .first_token import (
    Delta,
    Index,
    TextChoice,
    has_arguments,
    has_text,
    is_encrypted,
    is_summary,
    read_tool_call_start,
)
from .lenient_json import coerce_json, decode_lenient_json, repair_json
from .token_counts import (
    CACHED,
    INPUT,
    MAX_COUNT,
    OUTPUT,
    REASONING,
    SettledCounts,
    TokenCounts,
    take_token_count,
)
from .token_counts import Count as Count
from .token_counts import parse_token_count as parse_token_count

if TYPE_CHECKING:
    from .protocol import Protocol

MAX_CHUNK_TOKENS: Final = 1 << 31

T = TypeVar("T")


BROKEN: Final = frozenset({"abort", "error", "timeout", "cancelled"})
"""The finish reasons of answers that were broken off: vLLM when it shuts down or pauses (abort),
SGLang's abort requests, TensorRT-LLM's time-outs and cancellations."""
DONE: Final = b"[DONE]"
COMPLAINT: Final = re.compile(
    rb"error|message|detail|msg|success|base_resp|title|fault|exception", re.IGNORECASE
)
"""Each form of an error matches this quick check, as there may be many events that are nothing at
all."""
FAILS: Final = re.compile(
    rb"error|fail|exception|time.?out|unavailable|exceeded|overloaded", re.IGNORECASE
)
"""A text that is no JSON and matches this is about an error."""
NO_PART: Final = re.compile(rb"null|true|false|-?[0-9.]+|[\[\]{},\s]*")
"""JSON that holds nothing."""
NO_REASON: Final = frozenset({"", "null", "none", "undefined"})
REASON: Final = re.compile(r"[A-Za-z_ -]{1,32}")
"""The form of a finish_reason. Another text of the server's may be long, or hold what must not be
written down."""
USUAL: Final = BROKEN | {
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "content_filter",
    "eos_token",
    "stop_sequence",
}
"""Reasons that need no second look."""


class Completion:
    """Adds up the events of an answer, in plain fields that the maker of the record reads.
    Protocols call the methods after ``whole``."""

    def __init__(
        self, protocol: "Protocol[Any]", keep_text: bool = False, *, checked: bool = False
    ) -> None:
        """``checked``: what a check of the answer needs is read as well, event by event."""
        self._protocol = protocol
        self._decode, self._event = protocol.decode, protocol.event
        self.chunk_reads: list[int] = []
        """For each chunk, the number of the read that brought it."""
        self.counted_by: list[int] = []
        """The tokens of the whole answer up to each chunk, where the server counts with each of
        them."""
        self.early_read: int | None = None
        """The read that brought the first event, where it came before the first chunk."""
        self.done_read: int | None = None
        """The read that brought the last event: ``[DONE]``, or the protocol's own last event."""
        self.followed: set[int] = set()
        """The reads in which an event without content came behind a chunk."""
        self.first_output: int | None = None
        self.first_chunk_tokens = 1
        self.finish_reason: str | None = None
        self.counts = TokenCounts()
        self.input_parts: dict[str, int] = {}
        """Counts that add up to the prompt, in protocols that count its parts."""
        self.thought = False
        """Reasoning came as it was made."""
        self.summarised = False
        """A summary of the reasoning came, whose tokens differ from the reasoning's."""
        self.encrypted = self.redacted = False
        """Some reasoning did not come as text."""
        self.words: str | None = None
        """The first event that is a text in place of JSON. It is a ping if the answer is whole
        without it."""
        self.complaint: str | None = None
        """What may have been an error. It explains an answer that has no end."""
        self.timings = msgspec.Raw()
        self.metrics = msgspec.Raw()
        """The server's own times, as llama.cpp and vLLM wrote them last. Empty: it wrote none."""
        self.error: str | None = None
        self.malformed: str | None = None
        self.others: set[Any] = set()
        """The index of each choice other than 0 that had content or ended."""
        self.led = False
        """Choice 0 had content or ended. Some servers give their only choice another index."""
        self.finished: set[Any] = set()
        """The choices that have a finish_reason."""
        self.last = b""
        """The data of the last event."""
        self.broken = b""
        """The data of the first event that was an error or could not be read."""
        self.closing = False
        """After a finish_reason came the last events: the usage, or ``[DONE]``."""
        self.content = False
        """There was anything to read, in a stream or in a whole answer."""
        self.deltas: list[Delta | TextChoice] | None = [] if keep_text or checked else None
        """The deltas of the first choice, in their order. None: they are not kept."""
        self.other_deltas: defaultdict[Any, list[Delta | TextChoice]] | None = (
            defaultdict(list) if checked else None
        )
        """The deltas of each choice other than 0, by its index. None: they are not kept."""
        self.events = EventReader() if checked else None
        """Response ids, model names, event numbers and logprobs. None: they are not checked."""
        self.calls: dict[Any, bool] = {}
        """For each tool call by its index, whether any arguments came. For protocols that name the
        parts of calls."""
        self.response_id: str | None = None
        """The id from which a later request can go on, where the server keeps the answer."""
        self.results: int | None = None
        """The number of vectors, one for each input. None: the answer has no vectors."""
        self.form = b"", b""
        """The bytes around the text of its last chunk. Empty: not known, or more than the text
        counts."""
        self.begun: set[Any] = set()
        """What tool calls began with, for protocols that do not name the parts of calls."""
        self.counted = 0
        """How many choices were finished when their tokens were last counted."""
        self._ended = False

    def add(self, event: tuple[int, str, bytes]) -> None:
        """Add one event of a stream: (the read that brought it, its type, its data)."""
        read, kind, data = event
        if kind != "message" and kind.lower() == "error":
            if self.error is None:  # one is enough, and there may be many
                self.fail(status_message(data) or "an event named error", data)
        elif kind != "message" and not data.lstrip().startswith((b"{", b"[")):
            pass  # its words are for somebody else: a ping with the time, say
        elif not data.startswith(b"{") and self._is_no_part(data):
            pass
        else:
            self.last = data
            if self.events is not None:
                self.events.add(data)
            try:
                message = self._decode(data)
            except (
                ValueError,
                RecursionError,
            ):  # once it is malformed nothing more is mended: that costs 50 times as much
                message = self.read(self._decode, data) if self.malformed is None else None
            if kind != "message" and getattr(message, "type", None) == "":
                message.type = kind  # some relays name it in the field of the event stream alone
            if message is not None and self._event(self, message, data):
                self.chunk_reads.append(read)
                if self._ended and self.done_read is None:
                    self.done_read = read
                return
        if self._ended and self.done_read is None:
            self.done_read = read
        if not self.chunk_reads:
            self.early_read = read if self.early_read is None else self.early_read
        elif self.chunk_reads[-1] == read:
            self.followed.add(read)

    def _is_no_part(self, data: bytes) -> bool:
        """Whether the data ends the stream or is no part of an answer: nothing, or words that are
        not JSON."""
        text = data.strip()
        if text.strip(b'"').upper() in (DONE, b""):
            self.closing = self.closing or bool(self.finished and data)
            self._ended = self._ended or text != b""
            return True
        if NO_PART.fullmatch(text):
            return True
        if text.startswith((b"{", b"[")):
            return False
        self.words = self.words or error_line(text)
        self.broken = self.broken or data
        if self.complaint is None and FAILS.search(text):
            self.complaint = error_line(text)
        return True

    def add_same_form(self, reads: list[int], last: bytes) -> None:
        """Add chunks that differ from ``form`` in their text alone. ``reads`` has the read that
        brought each one."""
        self.chunk_reads += reads
        self.last = last

    def find_form(self) -> None:
        before, behind = self.form
        if self.deltas is None and not (
            before and self.last.startswith(before) and self.last.endswith(behind)
        ):
            self.form = self._protocol.form(self.last)

    def whole(self, body: bytes) -> None:
        """Add an answer that came as one JSON body."""
        if self.events is not None:
            self.events.add(body)
        self._protocol.whole(self, body)
        self.first_output = None  # nothing in it has a time of its own

    # -- what a protocol calls ---------------------------------------------------------------------

    def read(self, decode: Callable[[bytes], T], data: bytes) -> T | None:
        """The JSON of an event or of a body. None: it is no JSON, or an error, or the answer is
        malformed."""
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            mistake = error
        try:
            content = decode_lenient_json(data)
            kind = getattr(getattr(decode, "__self__", None), "type", None)
            if isinstance(content, list) and self._complain(content, data):
                return None
            try:
                content_read: T = (
                    decode(repair_json(data)) if kind is None else coerce_json(kind, content)
                )
            except ValueError:
                if self._complain(content, data):
                    return None
                raise
            return content_read
        except (ValueError, RecursionError) as error:
            mistake = mistake if isinstance(mistake, msgspec.ValidationError) else error
        several = [line for line in data.split(b"\n") if line.strip()]
        if len(several) > 1 and all(
            line.startswith(b"{") or line.strip() == DONE for line in several
        ):
            mistake = ValueError("events without a blank line between them")
        self.malformed = f"{mistake}: {error_line(data)}"
        self.broken = self.broken or data
        return None

    def look_for_error(self, data: bytes) -> bool:
        """Whether an event or a body without any part of an answer is an error. One is enough."""
        if (
            self.error is not None
            or len(data) > MAX_MESSAGE_BYTES
            or COMPLAINT.search(data) is None
        ):
            return False
        try:
            return self._complain(decode_lenient_json(data), data)
        except (ValueError, RecursionError):
            return False

    def _complain(self, content: Any, data: bytes) -> bool:
        error_found = find_embedded_error(content)
        if error_found is None:
            return False
        if error_found.certain:
            self.fail(error_found.message, data)
            return True
        self.complaint = self.complaint or sanitise_text(error_found.message) or None
        return False

    def add_text(self, text: Any) -> bool:
        """Add text of the answer. True: it is a chunk, as it is not empty."""
        if not text:
            return False
        return self._keep(Delta(content=text) if self.deltas is not None else None)

    def add_reasoning(self, text: Any, *, summary: bool = False) -> bool:
        """Add reasoning, as ``add_text`` does. ``summary``: it is a summary."""
        if not text:
            return False
        if summary:
            self.summarised = True
        else:
            self.thought = True
        if self.deltas is not None:
            self.deltas.append(Delta(reasoning=text))
        self.content = True
        return True

    def add_refusal(self, text: Any) -> bool:
        if not text:
            return False
        return self._keep(Delta(refusal=text) if self.deltas is not None else None)

    def add_tool_call(
        self, index: Index, *, id_: str | None = None, name: str | None = None, arguments: Any = ""
    ) -> bool:
        """Add a part of a tool call: its begin (with its id and the function's name) or more of its
        arguments."""
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

    def add_other(self) -> bool:
        """Add output that is no text: sound, or code for a tool of the server's."""
        return self._keep(None)

    def add_results(self, number: int | None) -> None:
        """Add all vectors or scores of an answer, which has no text and no finish_reason. None: any
        number is right."""
        self.results = number
        self.content = number != 0
        self.finished.add(0)

    def count(
        self,
        *,
        input_: Count = None,
        output: Count = None,
        reasoning: Count = None,
        cached: Count = None,
        total: Count = None,
    ) -> None:
        """Take the server's token counts. The last count above zero wins: a missing or zero count
        erases none."""
        counts = self.counts
        if input_.__class__ is int and 0 < input_ < MAX_COUNT:  # the usual, which is to be fast
            counts.input = input_
        elif input_ is not None:
            take_token_count(counts, "input", INPUT, input_)
        if output.__class__ is int and 0 < output < MAX_COUNT:
            counts.output = output
        elif output is not None:
            take_token_count(counts, "output", OUTPUT, output)
        if reasoning is not None:
            take_token_count(counts, "reasoning", REASONING, reasoning)
        if cached is not None:
            take_token_count(counts, "cached", CACHED, cached)
        if total is not None:
            counts.total = total if total.__class__ is int else parse_token_count(total)

    def finish(self, reason: str, choice: Index = None) -> None:
        """The model ended the answer, or one of its choices. ``reason``: ``stop``, ``length`` and
        so on."""
        self.finish_reason = reason if REASON.fullmatch(reason) else "(no reason)"
        self.finished.add(choice or 0)
        if choice:
            self.others.add(choice)
        elif not self.led:
            self.lead()
        if reason in BROKEN and self.error is None:
            self.error = f"finish_reason {reason}"

    def lead(self) -> None:
        """The first choice has content, or ended. Drop what was kept of another choice in its
        place."""
        self.led = True
        if self.others and self.deltas:
            self.deltas.clear()

    def end(self) -> None:
        """The answer's last event, which is no chunk, came: nothing is waited for behind it."""
        self._ended = True
        self.closing = self.closing or bool(self.finished)

    def fail(self, error: Any, data: bytes) -> None:
        """The server failed. The first failure counts, as later ones are about the same.

        ``error`` is what the server wrote. If it is empty, ``data`` (the event or body) has the
        message.
        """
        self.error = self.error or choose_error_message(error, data)
        self.broken = self.broken or data

    def failed(self, failure: "ErrorFields", data: bytes) -> bool:
        """Whether an event or a whole answer is or holds an error, in OpenAI's or MiniMax's
        form."""
        if not failure.failed:
            return False
        if self.error is not None:
            return True
        base = failure.base_resp.get("status_msg") if isinstance(failure.base_resp, dict) else None
        error = (
            failure.error
            if is_error(failure.error) and not isinstance(failure.error, bool)
            else None
        )
        self.fail(error or failure.message or base, data)
        return True

    def adds_call(self, delta: Any, choice: Index) -> bool:
        """Whether the tool calls in a delta begin, or bring more of their arguments. Some servers
        send empty ones, or repeat how a call began."""
        has_call = False
        # TGI: no list
        calls = [delta.tool_calls] if isinstance(delta.tool_calls, dict) else delta.tool_calls
        for part in calls if isinstance(calls, list) else ():
            has_call = self._begins(part, choice) or has_call
            function = (
                part.get("function") or part.get("custom") or part
                if isinstance(part, dict)
                else None
            )
            has_call = has_call or has_arguments(function)
        function = delta.function_call
        if isinstance(function, dict):
            begin = (choice, "function_call", str(function.get("name")))
            if function.get("name") and begin not in self.begun:
                self.begun.add(begin)
                has_call = True
            has_call = has_call or has_arguments(function)
        return has_call

    def _begins(self, part: Any, choice: Index) -> bool:
        """Whether a part of a tool call brings an id or a name that its call did not have."""
        begin = read_tool_call_start(part)
        if begin is None:
            return False
        index, id_, name = begin
        call = choice, str(index if index is not None else id_)
        news = {
            (*call, field, str(value)) for field, value in (("id", id_), ("name", name)) if value
        } - self.begun
        self.begun |= news
        return bool(news)

    def add_details(self, details: Any) -> None:
        """Add reasoning in parts that have types."""
        parts = details if isinstance(details, list) else [details]
        self.summarised = self.summarised or any(map(is_summary, parts))
        self.encrypted = self.encrypted or any(map(is_encrypted, parts))
        self.thought = self.thought or any(
            has_text(part) and not is_summary(part) for part in parts
        )

    # -- what came of it ---------------------------------------------------------------------------

    @property
    def text(self) -> list[str] | None:
        """The texts of its chunks. None: they were not kept."""
        return (
            None
            if self.deltas is None
            else [d.content for d in self.deltas if isinstance(d.content, str)]
        )

    @property
    def choices(self) -> int:
        return max(1, len(self._expected))

    @property
    def _expected(self) -> set[Any]:
        """The indices of all choices."""
        return self.others if len(self.others) == 1 and not self.led else {0, *self.others}

    @property
    def _stands_still(self) -> bool:
        """Whether the counts of the chunks do not grow and are too small: each counts its own
        chunk, or nothing."""
        counts = self.counted_by
        return (
            len(counts) == len(self.chunk_reads) > counts[0] == max(counts) == min(counts)
            if counts
            else False
        )

    @property
    def chunk_tokens(self) -> tuple[tuple[int, int], ...]:
        """See Record. Empty where a count is missing or falls, or belongs to one of several
        choices."""
        counts = self.counted_by
        tokens = list[list[int]]()
        if len(counts) != len(self.chunk_reads) or self.others or self._stands_still:
            return ()
        for before, now in pairwise((0, *counts)):
            if not 0 <= now - before <= MAX_CHUNK_TOKENS:
                return ()
            if tokens and tokens[-1][0] == now - before:
                tokens[-1][1] += 1
            else:
                tokens.append([now - before, 1])
        return tuple((each, chunks) for each, chunks in tokens)

    @property
    def visible(self) -> bool:
        """The answer had more than reasoning."""
        return self.first_output is not None

    @property
    def settled(self) -> SettledCounts:
        """The counts that can be right, once all of the answer has come."""
        visible = self.visible or not self.chunk_reads
        chunks = len(self.chunk_reads)
        still = self._stands_still and self.counts.output == self.counted_by[0]
        return self.counts.settled(
            answered=self.content,
            visible=visible,
            reasoned=self.thought,
            chunks=chunks,
            still=still,
        )

    @property
    def input_tokens(self) -> int | None:
        return self.settled.input

    @property
    def output_tokens(self) -> int | None:
        return self.settled.output

    @property
    def reasoning_tokens(self) -> int | None:
        return self.settled.reasoning

    @property
    def cached_tokens(self) -> int | None:
        return self.settled.cached

    @property
    def hidden_tokens(self) -> int | None:
        """The reasoning tokens of the output that did not come as they were made. None: not
        known."""
        if self.chunk_tokens:  # the first chunk has them
            return 0
        if self.thought and not self.redacted:
            return 0
        counts = self.settled
        if counts.reasoning is not None and counts.output is not None and not self.thought:
            seen = counts.output - counts.reasoning
            inline = abs(len(self.chunk_reads) - counts.output) < abs(len(self.chunk_reads) - seen)
            return 0 if inline else counts.reasoning
        return None if self.redacted or self.encrypted or self.summarised else 0

    def outcome(self) -> tuple[str, str]:
        """(outcome, message) of a response with status 2xx, when all its bytes have come."""
        if self.error is not None:
            return "stream_error", self.error
        if self.malformed is not None:
            return "malformed", self.malformed
        if not self.finished and self.complaint is not None:
            return "stream_error", self.complaint
        if not self.finished and self.words is not None and not self.content:
            return "malformed", f"not JSON: {self.words}"
        if not self.finished:
            return "truncated", "the response ended without a finish_reason"
        if not self.closing and (unfinished := len(self._expected - self.finished)):
            # LiteLLM passes on one finish_reason for all choices, with the usage behind it
            return (
                "truncated",
                f"{unfinished} of {self.choices} choices ended without a finish_reason",
            )
        return (OK, "") if self.content else self._without_content()

    def _without_content(self) -> tuple[str, str]:
        """(outcome, message) of an answer without content. A model may end at once: then nothing
        but its end was counted, if anything was."""
        tokens, reason = self.output_tokens, self.finish_reason
        if tokens is None:
            return "empty", f"no content and no token count (finish_reason {reason})"
        if reason != "content_filter" and tokens <= self.choices:
            return OK, f"no content: the model ended at once (finish_reason {reason})"
        hidden = (
            f", {self.reasoning_tokens} of them hidden reasoning" if self.reasoning_tokens else ""
        )
        return (
            "empty",
            f"no content, though {tokens} tokens were counted{hidden} (finish_reason {reason})",
        )


def read_finish_reason(value: Any) -> str | None:
    """The finish_reason. None: there is none yet, in any of the words for that."""
    if isinstance(value, dict):
        value = value.get("type")
    if isinstance(value, str):
        return None if value.strip().lower() in NO_REASON else value
    return str(value) if value else None
