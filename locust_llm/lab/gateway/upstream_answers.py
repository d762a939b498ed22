"""Upstream answers: the writes of one answer and their times, as the script asks for them. Standard
library only.

Each content event is one word ``w<index>.<ns> ``, where ``ns`` is the moment just before its write.
``r<ns>.<replica> `` stands before the first word: the kernel's stamp of the request. The moment of
a write is not known when its bytes are made: STAMP keeps the place, and the upstream replaces it.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from locust_llm.accuracy.reference_server import frame_as_http_chunk

from .upstream_events import (
    BEGIN_ARGUMENTS,
    END_ARGUMENTS,
    FAILURE,
    MODEL,
    OTHER_MODEL,
    PLACE,
    PROMPT_TOKENS,
    STAMP,
    WHOLE,
    WRITERS,
    ChatWriter,
    OnePieceAnswer,
    StreamWriter,
    UpstreamAnswerOptions,
    encode_compact,
)
from .upstream_script import FAULTS, STAMP_DIGITS, UpstreamScript

MS: Final = 1_000_000
BURST: Final = 4
SPLIT_NS: Final = MS
SPLIT_BYTES: Final = 5
"""An event is split so many bytes before its end, behind its words."""
RESET_AFTER_NS: Final = 20 * MS
"""A reset comes so long after the last bytes: what the peer has not read, it never will."""
LETTERS: Final = (
    "\N{LATIN SMALL LETTER E WITH ACUTE}\N{CJK UNIFIED IDEOGRAPH-6F22}\N{GRINNING FACE} "
)
LONG: Final = "x" * 65_536
BAD_CHUNK: Final = b"zz\r\nno length\r\n"
COMMENT: Final = b": keep-alive\n\n"
DIMENSIONS: Final = 8
PATHS: Final = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
    "/embeddings": "embeddings",
}
CUTS: Final = (
    "error_midstream", "abort_finish", "content_filter", "no_end", "close_midstream",
    "reset_midstream", "stall_midstream", "bad_chunk", "bad_json",
)  # fmt: skip
"""These failures come after some words, and end the answer."""
STREAMS: Final = ("chat", "completions", "responses", "messages")


class PlannedWrite(NamedTuple):
    """One write of an answer."""

    at_ns: int
    """When, counted from the request's arrival."""
    data: bytes
    """Its bytes. Each STAMP in them is replaced by the moment of the write."""
    words: int = 0
    """So many words are in them."""
    then: str = ""
    """What follows it: ``close``, ``reset``, or ``stall`` (nothing more until the client is
    gone)."""
    seal: Callable[[bytes], bytes] | None = None
    """Applied to the stamped bytes: compression and HTTP framing."""


def find_kind(path: str) -> str | None:
    """The API of a path. None: it is none of the known ones."""
    bare = path.partition("?")[0].rstrip("/")
    return next((kind for end, kind in PATHS.items() if bare.endswith(end)), None)


def read_answer_request(
    kind: str, body: Any, *, chunked: bool, gzip: bool, keep_alive: bool
) -> UpstreamAnswerOptions:
    """Reads the parsed body of a request. What it does not have is at its default."""
    asked = body if isinstance(body, dict) else {}
    options = asked.get("stream_options")
    inputs = asked.get("input")
    return UpstreamAnswerOptions(
        kind=kind,
        stream=asked.get("stream") is True and kind in STREAMS,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        model=str(asked.get("model", MODEL)),
        inputs=len(inputs) if isinstance(inputs, list) else 1,
        base64=asked.get("encoding_format") == "base64",
        chunked=chunked,
        gzip=gzip,
        keep_alive=keep_alive,
    )


# -- HTTP ------------------------------------------------------------------------------------------


def write_head(status: int, kind: str, headers: Sequence[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {PHRASES.get(status, 'Status')}", f"Content-Type: {kind}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


PHRASES: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 413: "Content Too Large",
    429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


# -- the words -------------------------------------------------------------------------------------


def write_word(script: UpstreamScript, index: int, received_ns: int, replica: int) -> str:
    """The text of one content event, with the place of its moment."""
    first = f"r{received_ns:0{STAMP_DIGITS}d}.{replica} " if index == 0 else ""
    after = LETTERS if "unicode" in script.features else ""
    if index == 1 and "long_event" in script.features:
        after += LONG + " "
    return f"{first}w{index}.{PLACE} {after}"


def draw_moments(script: UpstreamScript, random: Random) -> list[int]:
    """When each word is due, in ns from the request's arrival."""
    moments = list[int]()
    at_ns = 0.0
    for index in range(script.tokens):
        wait_ms = script.gap_ms if index else script.ttft_ms
        moved = 1 + script.jitter * (2 * random.random() - 1) if script.jitter else 1.0
        at_ns += wait_ms * moved * MS
        moments.append(int(at_ns))
    return moments


# -- an answer -------------------------------------------------------------------------------------


@dataclass(slots=True)
class AnswerPlan:
    """What one answer will be: its status, and its writes in order, each made when it is asked
    for."""

    status: int
    fault: str
    writes: Iterator[PlannedWrite]
    moments: list[int]
    """Who writes adds the moment of each word."""


def plan_answer(
    script: UpstreamScript,
    asked: UpstreamAnswerOptions,
    received_ns: int,
    *,
    fault: str,
    replica: int,
    headers: Sequence[tuple[str, str]],
) -> AnswerPlan:
    """Plans the answer. ``fault`` is the script's, or nothing where it does not come this time; one
    that this form of an answer cannot have is left out."""
    possible = fault and (FAULTS[fault].streamed if asked.stream else FAULTS[fault].whole)
    maker = _AnswerMaker(script, asked, received_ns, fault if possible else "", replica, headers)
    return AnswerPlan(maker.status, maker.fault, maker.make(), maker.moments)


class _AnswerMaker:
    def __init__(
        self,
        script: UpstreamScript,
        asked: UpstreamAnswerOptions,
        received_ns: int,
        fault: str,
        replica: int,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        self.script = script
        self.asked = asked
        self.received_ns = received_ns
        self.fault = fault
        self.replica = replica
        self.headers = [*headers]
        if not asked.keep_alive:
            self.headers.append(("Connection", "close"))
        self.moments = list[int]()
        self.first_ns = int(script.ttft_ms * MS)
        self.gzip = asked.gzip and "gzip" in script.features
        self.status = 200
        if fault.startswith("http_"):
            self.status = int(fault[5:8])

    def make(self) -> Iterator[PlannedWrite]:
        fault = self.fault
        if fault.startswith("http_"):
            return self._refused()
        match fault:
            case "close_unanswered":
                return iter((PlannedWrite(self.first_ns, b"", then="close"),))
            case "reset_unanswered":
                return iter((PlannedWrite(self.first_ns, b"", then="reset"),))
            case "stall_unanswered":
                return iter((PlannedWrite(self.first_ns, b"", then="stall"),))
            case "not_http":
                return iter(
                    (PlannedWrite(self.first_ns, b"\x00\x01 no HTTP\r\n\r\n", then="close"),)
                )
            case "html_200":
                return self._body(b"<html><body>welcome</body></html>", "text/html")
            case "other_json":
                return self._body(b'{"hello":"world"}')
            case "error_in_200":
                return self._body(encode_compact(self._error(500)))
        return self._stream() if self.asked.stream else self._whole()

    # -- answers in one piece

    def _refused(self) -> Iterator[PlannedWrite]:
        if self.fault == "http_429":
            self.headers.append(("Retry-After", "7"))
        if self.fault.endswith("_text"):
            return self._body(b"busy\n", "text/plain")
        return self._body(encode_compact(self._error(self.status)))

    def _error(self, status: int) -> dict[str, Any]:
        error = {"message": FAILURE, "type": "server_error", "param": None, "code": status}
        if self.asked.kind == "messages":
            return {"type": "error", "error": {"type": "api_error", "message": FAILURE}}
        return {"error": error}

    def _body(
        self, data: bytes, kind: str = JSON, at_ns: int | None = None, words: int = 0
    ) -> Iterator[PlannedWrite]:
        then = "" if self.asked.keep_alive else "close"
        at_ns = self.first_ns if at_ns is None else at_ns
        if self.gzip:
            yield PlannedWrite(at_ns, data, words, then, partial(self._seal_whole, kind))
            return
        headers = [*self.headers, ("Content-Length", str(len(data)))]
        yield PlannedWrite(at_ns, write_head(self.status, kind, headers) + data, words, then)

    def _seal_whole(self, kind: str, data: bytes) -> bytes:
        packer = zlib.compressobj(wbits=31)
        packed: bytes = packer.compress(data) + packer.flush()
        headers = [
            *self.headers,
            ("Content-Encoding", "gzip"),
            ("Content-Length", str(len(packed))),
        ]
        return write_head(self.status, kind, headers) + packed

    def _whole(self) -> Iterator[PlannedWrite]:
        """The whole answer at the moment of its last word."""
        at_ns = self.first_ns
        if self.asked.kind != "embeddings":
            at_ns = draw_moments(self.script, Random(self.script.id))[-1]
        data = encode_compact(self._whole_value())
        if self.fault == "bad_json":
            data = data[: len(data) // 2]
        if self.fault in ("close_midstream", "reset_midstream", "stall_midstream"):
            headers = [*self.headers, ("Content-Length", str(len(data)))]
            half = write_head(200, JSON, headers) + data[: len(data) // 2]
            return self._broken(at_ns, half)
        return self._body(data, at_ns=at_ns, words=data.count(STAMP))

    def _broken(self, at_ns: int, data: bytes) -> Iterator[PlannedWrite]:
        """``data``, then the end that the fault names."""
        if self.fault == "reset_midstream":
            yield PlannedWrite(at_ns, data)
            yield PlannedWrite(at_ns + RESET_AFTER_NS, b"", then="reset")
        else:
            yield PlannedWrite(at_ns, data, then=self.fault.partition("_")[0])

    def _whole_value(self) -> dict[str, Any]:
        if self.asked.kind == "embeddings":
            return self._embeddings()
        channels = self.script.channels
        if self.fault in ("empty", "empty_counted"):
            channels = ()
        texts = {"reasoning": "", "tool": "", "content": ""}
        for index, channel in enumerate(channels):
            texts[channel] += write_word(self.script, index, self.received_ns, self.replica)
        if texts["tool"]:
            texts["tool"] = BEGIN_ARGUMENTS + texts["tool"] + END_ARGUMENTS
        value: dict[str, Any] = WHOLE[self.asked.kind](
            OnePieceAnswer(self.script, self.model, self.reason, self.counted, texts)
        )
        if self.fault == "missing_usage":
            del value["usage"]
        if "extra_fields" in self.script.features:
            value["vendor_field"] = {"kept": True}
        return value

    def _embeddings(self) -> dict[str, Any]:
        vector = [(index + 1) / 16 for index in range(DIMENSIONS)]
        shown: Any = vector
        if self.asked.base64:
            shown = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
        count = self.asked.inputs - (self.fault == "fewer_vectors")
        count = 0 if self.fault in ("empty", "empty_counted") else count
        data = [
            {"object": "embedding", "index": index, "embedding": shown} for index in range(count)
        ]
        used = {} if self.fault == "missing_usage" else {"usage": {"prompt_tokens": PROMPT_TOKENS,
            "total_tokens": PROMPT_TOKENS}}  # fmt: skip
        return {"object": "list", "data": data, "model": self.model, **used}

    # -- facts of the answer

    @property
    def model(self) -> str:
        return OTHER_MODEL if self.fault == "wrong_model" else self.asked.model

    @property
    def reason(self) -> str:
        if self.fault == "abort_finish":
            return "abort"
        if self.fault == "content_filter":
            return "content_filter"
        if "length" in self.script.features:
            return "length"
        calls = "tool" in self.script.channels and self.asked.kind != "completions"
        return "tool_calls" if calls and not self.fault.startswith("empty") else "stop"

    @property
    def counted(self) -> int:
        """The output tokens that usage reports."""
        special = {"empty": 1, "empty_counted": 5, "wrong_usage": 2 * self.script.tokens}
        return special.get(self.fault, self.script.tokens)

    # -- streams

    def _stream(self) -> Iterator[PlannedWrite]:
        packer = zlib.compressobj(wbits=31) if self.gzip else None
        headers = [*self.headers, ("Cache-Control", "no-cache")]
        if packer is not None:
            headers.append(("Content-Encoding", "gzip"))
        if self.asked.chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        head = write_head(200, EVENT_STREAM, headers)
        early = "early_headers" in self.script.features or self.fault == "stall_first"
        if early:
            yield PlannedWrite(0, head)
            head = b""
        for at_ns, events, words, then in self._events():
            last = then == "end"
            if packer is not None:
                data = b"".join(events)
                seal = partial(_seal_stream, packer, head, last=last, chunked=self.asked.chunked)
                yield PlannedWrite(at_ns, data, words, self._after(then), seal)
            else:
                data = head + self._framed(events, last=last)
                data += BAD_CHUNK if then == "bad_chunk" else b""
                yield PlannedWrite(at_ns, data, words, self._after(then))
            head = b""

    def _after(self, then: str) -> str:
        if then == "end":
            return "" if self.asked.chunked and self.asked.keep_alive else "close"
        return "close" if then == "bad_chunk" else then

    def _framed(self, events: Sequence[bytes], *, last: bool) -> bytes:
        """Each event is an HTTP chunk of its own."""
        if not self.asked.chunked:
            return b"".join(events)
        return b"".join(map(frame_as_http_chunk, filter(None, events))) + (
            b"0\r\n\r\n" if last else b""
        )

    def _events(self) -> Iterator[tuple[int, list[bytes], int, str]]:
        """(when, the events of one write, how many words, what follows). ``end``: the answer ends
        in order."""
        script = self.script
        if self.fault == "stall_first":
            yield self.first_ns, [], 0, "stall"
            return
        writer = self._writer(self.asked.kind)
        stop_at = self._words_before_fault()
        count = script.tokens if stop_at is None else stop_at
        begun = [writer.begin()]
        at_ns = self.first_ns
        for at_ns, events, words, is_last in self._grouped(self._words(writer, count)):
            if is_last and stop_at is None:
                yield at_ns, [*begun, *events, *self._end(writer)], words, "end"
                return
            yield at_ns, [*begun, *events], words, ""
            begun = []
        at_ns += int(script.gap_ms * MS)
        events, then = self._end_early(writer)
        wait_ns = RESET_AFTER_NS if then == "reset" else 0
        yield at_ns + wait_ns, [*begun, *events], 0, then

    def _writer(self, kind: str) -> StreamWriter:
        if self.fault == "other_protocol":
            kind = "messages" if kind != "messages" else "chat"
        return WRITERS[kind](self.script, self.asked, self.moments)

    def _words_before_fault(self) -> int | None:
        """So many words come before the answer ends otherwise than in order. None: it ends in
        order."""
        if self.fault in ("error_first", "empty", "empty_counted"):
            return 0
        return min(self.script.after, self.script.tokens) if self.fault in CUTS else None

    def _words(self, writer: StreamWriter, count: int) -> Iterator[tuple[int, bytes, int, bool]]:
        """(when, event, how many words, whether it is the last) of the first ``count`` words, and of
        comments and pieces."""
        script = self.script
        channels = script.channels
        moments = draw_moments(script, Random(script.id))
        comments = "comments" in script.features
        splits = "split" in script.features
        before_ns = 0
        for index in range(count):
            if self.fault == "id_changes" and index == script.after:
                writer.id = f"other-{script.id}"
            at_ns = moments[index]
            is_last = index == count - 1
            if comments and index:
                yield (before_ns + at_ns) // 2, COMMENT, 0, False
            text = write_word(script, index, self.received_ns, self.replica)
            event = writer.word(text, channels[index])
            before_ns = at_ns
            if splits and not is_last:
                yield at_ns, event[:-SPLIT_BYTES], 1, False
                yield at_ns + SPLIT_NS, event[-SPLIT_BYTES:], 0, False
            else:
                yield at_ns, event, 1, is_last

    def _grouped(
        self, words: Iterator[tuple[int, bytes, int, bool]]
    ) -> Iterator[tuple[int, list[bytes], int, bool]]:
        """(when, events, how many words, whether they are the last ones) of each write."""
        size = BURST if "bursts" in self.script.features else 1
        group = list[bytes]()
        count = 0
        for at_ns, event, of_event, is_last in words:
            group.append(event)
            count += of_event
            if len(group) == size or is_last:
                yield at_ns, group, count, is_last
                group = []
                count = 0

    def _end(self, writer: StreamWriter) -> list[bytes]:
        end = writer.close() if isinstance(writer, ChatWriter) else b""
        end += writer.finish(self.reason, self.counted)
        done = writer.done
        if self.fault == "no_done" and not done:
            # the last event of an API without [DONE]
            events = end.rstrip(b"\n").split(b"\n\n")
            return [b"".join(event + b"\n\n" for event in events[:-1])]
        return [end] if self.fault == "no_done" else [end, done]

    def _end_early(self, writer: StreamWriter) -> tuple[list[bytes], str]:
        """(last events, what follows) of an answer that ends otherwise than in order."""
        match self.fault:
            case "error_first" | "error_midstream":
                return [writer.error(), writer.done], "end"
            case "no_end":
                return [], "end"
            case "close_midstream" | "reset_midstream" | "stall_midstream":
                return [], self.fault.partition("_")[0]
            case "bad_chunk":
                return [], "bad_chunk"
            case "bad_json":
                return [b"data: {broken\n\n", *self._end(writer)], "end"
        return self._end(writer), "end"


def _seal_stream(packer: Any, head: bytes, data: bytes, *, last: bool, chunked: bool) -> bytes:
    """One write of a compressed stream."""
    packed: bytes = packer.compress(data) + packer.flush(
        zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
    )
    if not chunked:
        return head + packed
    return head + frame_as_http_chunk(packed) + (b"0\r\n\r\n" if last else b"")
