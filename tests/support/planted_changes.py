"""Planted changes: what the planted proxy can do to requests, events and answers in one piece.

Each plant changes one thing, and counts how often it did: one that found nothing to change leaves
``acted`` at 0.
"""

import json
import random
import re
import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

WORD: Final = re.compile(rb"w(\d+)\.(\d+) ")
HELD_EVENTS: Final = 8
PIECES_APART_NS: Final = 2_000_000
"""The second half of an event that was cut is written so much later."""
Headers = list[tuple[str, str]]


class Event:
    """One event of a stream, or a whole body."""

    __slots__ = ("apart_ns", "data", "read_ns", "text")

    def __init__(self, data: bytes, read_ns: int, apart_ns: int = 0) -> None:
        self.data = data
        self.text = b""
        """What a compressed event says."""
        self.read_ns = read_ns
        self.apart_ns = apart_ns
        """It is written so much later than the one before it."""


class Plant:
    """Changes nothing. Its children change one thing each, and count how often they did."""

    def __init__(self, seed: str, path: str) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.acted = 0

    def change_request(self, headers: Headers) -> Headers:
        return headers

    def change_head(self, status: int, headers: Headers) -> tuple[int, Headers]:
        return status, headers

    def change_event(self, event: Event) -> list[Event]:
        return [event]

    def list_held_events(self) -> list[Event]:
        """What is left when the stream is over."""
        return []

    def change_body(self, status: int, body: bytes) -> bytes:
        """Of an answer in one piece."""
        return body


class ChosenWord(Plant):
    """Acts on one event with a word, the third to the eighth."""

    def __init__(self, seed: str, path: str) -> None:
        super().__init__(seed, path)
        self._chosen = self.random.randint(2, 7)
        self._seen = -1

    def change_event(self, event: Event) -> list[Event]:
        if WORD.search(event.data) is None:
            return self.change_other(event)
        self._seen += 1
        return self.change_word(event) if self._seen >= self._chosen else [event]

    def change_word(self, event: Event) -> list[Event]:
        """Called with the chosen event and all later ones."""
        raise NotImplementedError

    def change_other(self, event: Event) -> list[Event]:
        return [event]


class LoseEvent(ChosenWord):
    def change_word(self, event: Event) -> list[Event]:
        if self.acted:
            return [event]
        self.acted += 1
        return []


class DoubleEvent(ChosenWord):
    def change_word(self, event: Event) -> list[Event]:
        if self.acted:
            return [event]
        self.acted += 1
        return [event, Event(event.data, event.read_ns)]


class SwapEvents(ChosenWord):
    """The chosen event comes behind the next one."""

    _kept: Event | None = None

    def change_word(self, event: Event) -> list[Event]:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self.acted += 1
            return [event, kept]
        if self.acted:
            return [event]
        self._kept = event
        return []

    def change_other(self, event: Event) -> list[Event]:
        return [*self.list_held_events(), event]

    def list_held_events(self) -> list[Event]:
        kept, self._kept = self._kept, None
        return [] if kept is None else [kept]


class MergeWords(SwapEvents):
    """The words of the chosen event and the next one come in one event."""

    def change_word(self, event: Event) -> list[Event]:
        if self._kept is None:
            return super().change_word(event)
        kept, self._kept = self._kept, None
        first, second = WORD.search(kept.data), WORD.search(event.data)
        assert first is not None
        assert second is not None
        self.acted += 1
        return [Event(kept.data.replace(first[0], first[0] + second[0]), event.read_ns)]


class SplitWord(ChosenWord):
    """The chosen word comes in two events."""

    def change_word(self, event: Event) -> list[Event]:
        if self.acted:
            return [event]
        word = WORD.search(event.data)
        assert word is not None
        self.acted += 1
        middle = len(word[0]) // 2
        return [
            Event(event.data.replace(word[0], word[0][:middle]), event.read_ns),
            Event(event.data.replace(word[0], word[0][middle:]), event.read_ns, PIECES_APART_NS),
        ]


class CutWrite(ChosenWord):
    """The chosen event comes in two writes, cut in its middle."""

    def change_word(self, event: Event) -> list[Event]:
        if self.acted:
            return [event]
        self.acted += 1
        middle = len(event.data) // 2
        return [
            Event(event.data[:middle], event.read_ns),
            Event(event.data[middle:], event.read_ns, PIECES_APART_NS),
        ]


class HoldEvents(Plant):
    """Events come eight at a time."""

    most = HELD_EVENTS

    def __init__(self, seed: str, path: str) -> None:
        super().__init__(seed, path)
        self._held: list[Event] = []

    def change_event(self, event: Event) -> list[Event]:
        self._held.append(event)
        if len(self._held) < self.most:
            return []
        return self.list_held_events()

    def list_held_events(self) -> list[Event]:
        held, self._held = self._held, []
        self.acted += len(held) > 1
        if held:
            return [Event(b"".join(event.data for event in held), held[-1].read_ns)]
        return []


class HoldAll(HoldEvents):
    """The stream comes at its end."""

    most = sys.maxsize


class DropEvents(Plant):
    """Drops the events that its pattern finds."""

    pattern: re.Pattern[bytes]

    def change_event(self, event: Event) -> list[Event]:
        if self.pattern.search(event.data) is None:
            return [event]
        self.acted += 1
        return []


class DropKeepAlives(DropEvents):
    pattern = re.compile(rb"\A:|\Aevent: ping")


class DropDone(DropEvents):
    """The last event of each protocol."""

    pattern = re.compile(
        rb"\Adata: \[DONE\]|\Aevent: message_stop|\Aevent: response\.(completed|incomplete)"
    )


class ChangeFields(Plant):
    """Changes fields of the JSON of events and bodies."""

    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        """Whether it changed this field."""
        raise NotImplementedError

    def _change(self, value: Any) -> int:
        changed = 0
        if isinstance(value, dict):
            for name in list(value):
                if self.change_field(value, name):
                    changed += 1
                else:
                    changed += self._change(value[name])
        elif isinstance(value, list):
            changed = sum(map(self._change, value))
        return changed

    def _change_json(self, text: bytes) -> bytes:
        try:
            value = json.loads(text)
        except ValueError:
            return text
        changed = self._change(value)
        self.acted += changed
        return json.dumps(value, separators=(",", ":")).encode() if changed else text

    def change_event(self, event: Event) -> list[Event]:
        lines = event.data.split(b"\n")
        for number, line in enumerate(lines):
            if line.startswith(b"data: {"):
                lines[number] = b"data: " + self._change_json(line[6:])
        event.data = b"\n".join(lines)
        return [event]

    def change_body(self, status: int, body: bytes) -> bytes:
        return self._change_json(body)


class ChangeUsage(ChangeFields):
    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        if name not in ("completion_tokens", "output_tokens") or not holder[name]:
            return False
        holder[name] += 1000
        return True


class DropUsage(ChangeFields):
    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        if name != "usage" or not holder[name]:
            return False
        del holder[name]
        return True


class RewriteId(ChangeFields):
    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        if name != "id" or ("object" not in holder and holder.get("type") != "message"):
            return False
        holder[name] = f"planted-{self.path[-4:]}"
        return True


class RewriteModel(ChangeFields):
    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        if name != "model":
            return False
        holder[name] = "planted-model"
        return True


class DropReasoning(ChangeFields):
    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        if name not in ("reasoning_content", "reasoning") or not isinstance(holder[name], str):
            return False
        del holder[name]
        return True


class EmptyToolArguments(ChangeFields):
    def change_field(self, holder: dict[str, Any], name: str) -> bool:
        if name not in ("arguments", "partial_json") or not holder[name]:
            return False
        holder[name] = ""
        return True


class RewriteRequestHeaders(Plant):
    """Drops all headers of the client that begin with ``x-``, and names another client."""

    def change_request(self, headers: Headers) -> Headers:
        self.acted += 1
        kept = [
            (name, value)
            for name, value in headers
            if not name.lower().startswith("x-") and name.lower() != "user-agent"
        ]
        return [*kept, ("User-Agent", "planted"), ("X-Planted", "1")]


class RewriteResponseHeaders(Plant):
    def change_head(self, status: int, headers: Headers) -> tuple[int, Headers]:
        self.acted += 1
        kept = [
            (name, value)
            for name, value in headers
            if not name.lower().startswith("x-") and name.lower() != "server"
        ]
        return status, [*kept, ("Server", "planted"), ("X-Planted", "1")]


class CompressStream(Plant):
    """Compresses each event, and flushes it."""

    def __init__(self, seed: str, path: str) -> None:
        super().__init__(seed, path)
        self._compressor = zlib.compressobj(wbits=31)
        self._streamed = False

    def change_head(self, status: int, headers: Headers) -> tuple[int, Headers]:
        self.acted += 1
        return status, [*headers, ("Content-Encoding", "gzip")]

    def change_event(self, event: Event) -> list[Event]:
        self._streamed = True
        event.text = event.data
        event.data = self._compressor.compress(event.data) + self._compressor.flush(
            zlib.Z_SYNC_FLUSH
        )
        return [event]

    def list_held_events(self) -> list[Event]:
        return [Event(self._compressor.flush(), 0)] if self._streamed else []

    def change_body(self, status: int, body: bytes) -> bytes:
        return self._compressor.compress(body) + self._compressor.flush()


class CloseConnection(Plant):
    """Each response is the last one of its connection."""

    def change_head(self, status: int, headers: Headers) -> tuple[int, Headers]:
        self.acted += 1
        return status, [*headers, ("Connection", "close")]


class TranslateErrors(Plant):
    """Every error becomes one of its own."""

    def change_head(self, status: int, headers: Headers) -> tuple[int, Headers]:
        if status < 400:
            return status, headers
        self.acted += 1
        return 502, headers

    def change_body(self, status: int, body: bytes) -> bytes:
        if status < 400:
            return body
        return b'{"error":{"message":"planted gateway error"}}'


ENDED_WELL: Final = {
    "/messages": b'event: message_delta\ndata: {"type":"message_delta","delta":'
    b'{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/responses": b'event: response.completed\ndata: {"type":"response.completed","response":'
    b'{"status":"completed","usage":{"input_tokens":1,"output_tokens":1}}}\n\n',
    "": b'data: {"id":"planted","object":"chat.completion.chunk","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
}
"""The end of a good stream, by the end of its path."""
GOOD_BODY: Final = (
    b'{"id":"planted","object":"chat.completion","model":"planted","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"planted "},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)


class HideErrors(Plant):
    """Every failure becomes a good end: an error status, an error in the stream, and a stream that
    broke off (as the exchange asks for)."""

    over = False
    """Nothing more comes of this stream."""

    def change_head(self, status: int, headers: Headers) -> tuple[int, Headers]:
        if status < 400:
            return status, headers
        self.acted += 1
        return 200, headers

    def change_body(self, status: int, body: bytes) -> bytes:
        return body if status < 400 else GOOD_BODY

    def change_event(self, event: Event) -> list[Event]:
        if self.over:
            return []
        if b'data: {"error"' not in event.data and not event.data.startswith(b"event: error"):
            return [event]
        return [Event(self.end_well(), event.read_ns)]

    def end_well(self) -> bytes:
        self.over = True
        self.acted += 1
        return next(end for path, end in ENDED_WELL.items() if self.path.endswith(path))


class IgnoreCancel(Plant):
    """A client that leaves is not passed on: the upstream is read to its end."""


class Retry(Plant):
    """A request that failed before its first event goes out again, once."""


class Resend(Plant):
    """Each request goes out twice; the first one is given up at once."""


PLANTS: Final[dict[str, Callable[[str, str], Plant]]] = {
    "lose": LoseEvent,
    "double": DoubleEvent,
    "swap": SwapEvents,
    "merge": MergeWords,
    "split": SplitWord,
    "cut_write": CutWrite,
    "hold": HoldEvents,
    "hold_all": HoldAll,
    "drop_keep_alives": DropKeepAlives,
    "drop_done": DropDone,
    "change_usage": ChangeUsage,
    "drop_usage": DropUsage,
    "rewrite_id": RewriteId,
    "rewrite_model": RewriteModel,
    "drop_reasoning": DropReasoning,
    "empty_tool_arguments": EmptyToolArguments,
    "request_headers": RewriteRequestHeaders,
    "response_headers": RewriteResponseHeaders,
    "compress": CompressStream,
    "close": CloseConnection,
    "translate_errors": TranslateErrors,
    "hide_errors": HideErrors,
    "ignore_cancel": IgnoreCancel,
    "retry": Retry,
    "resend": Resend,
}
