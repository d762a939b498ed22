"""Upstream script: what one request asks of the timed upstream. It travels in the prompt, so that
every gateway that forwards prompts forwards it.

``write_prompt`` makes a prompt of some prose and a line ``gwbench {JSON}``. The upstream finds that
line again in whatever body the gateway makes of the request. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

MARKER: Final = "gwbench "
PROSE: Final = "Please read this line and answer with a few words of your own."
MOST_TOKENS: Final = 100_000
MOST_MS: Final = 3_600_000.0
STAMP_DIGITS: Final = 18
"""A moment in ns of CLOCK_MONOTONIC has so many digits in an answer, so that its length is known
before the moment is."""


class Fault(NamedTuple):
    """A failure of the upstream that a script can ask for."""

    what: str
    streamed: bool = True
    """It is possible in a stream."""
    whole: bool = True
    """It is possible in an answer in one piece."""


FAULTS: Final[dict[str, Fault]] = {
    "http_400": Fault("HTTP 400 with an error object"),
    "http_401": Fault("HTTP 401 with an error object"),
    "http_404": Fault("HTTP 404: no such model"),
    "http_429": Fault("HTTP 429 with Retry-After: 7"),
    "http_500": Fault("HTTP 500 with an error object"),
    "http_503_text": Fault("HTTP 503 with plain text"),
    "close_unanswered": Fault("connection closed without a byte"),
    "reset_unanswered": Fault("connection reset without a byte"),
    "stall_unanswered": Fault("no byte of an answer"),
    "not_http": Fault("bytes that are not HTTP"),
    "error_first": Fault("error event instead of the first token", whole=False),
    "error_midstream": Fault("error event after some tokens", whole=False),
    "abort_finish": Fault("an end that reports that the answer was broken off"),
    "content_filter": Fault("an end that reports a content filter"),
    "no_end": Fault("the stream ends without an end event", whole=False),
    "no_done": Fault("the stream ends without its last event", whole=False),
    "close_midstream": Fault("connection closed in the middle"),
    "reset_midstream": Fault("connection reset in the middle"),
    "stall_first": Fault("headers, then no first token", whole=False),
    "stall_midstream": Fault("silence after some tokens"),
    "bad_chunk": Fault("broken HTTP chunk in the middle", whole=False),
    "bad_json": Fault("broken JSON"),
    "html_200": Fault("HTML page with status 200"),
    "other_json": Fault("JSON of something else"),
    "error_in_200": Fault("error object in a JSON answer with status 200"),
    "other_protocol": Fault("events of another protocol", whole=False),
    "empty_counted": Fault("no content, 5 tokens counted"),
    "empty": Fault("no content, 1 token counted"),
    "fewer_vectors": Fault("one vector less than inputs", streamed=False),
    "wrong_usage": Fault("twice as many output tokens counted as sent"),
    "missing_usage": Fault("no usage"),
    "wrong_model": Fault("another model named"),
    "id_changes": Fault("the id changes within the stream", whole=False),
}
"""The failures by name. Those in the middle come after ``after`` tokens."""

FEATURES: Final[dict[str, str]] = {
    "reasoning": "the first half of the words come as reasoning",
    "tools": "the words come as arguments of a tool call (behind the reasoning, if there is any)",
    "usage": "usage at the end of a stream, requested or not",
    "comments": "an SSE comment is written in the middle of each wait between two words",
    "bursts": "four events are written in one write",
    "split": "each event is written in two pieces, 1 ms apart",
    "gzip": "the body is compressed where the request accepts gzip",
    "unicode": "each word is followed by letters of two, three and four bytes",
    "long_event": "the second word is followed by 64 KiB of letters",
    "extra_fields": "each event has a field that no API defines",
    "event_ids": "each event has an SSE id",
    "early_headers": "the headers are written at once, not with the first event",
    "length": "the answer ends because of its length",
}
"""What an answer that is no failure can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamScript:
    """Describes the answer that a request asks for. Times count from the request's arrival."""

    id: str
    """It is unique: its second arrival at the upstream is a retry."""
    ttft_ms: float = 20.0
    gap_ms: float = 10.0
    tokens: int = 8
    """The answer has so many words, one an event."""
    jitter: float = 0.0
    """Each wait is longer or shorter by up to this share, drawn by a generator with the id as
    seed."""
    fault: str = ""
    after: int = 3
    """A failure in the middle comes after so many words."""
    fault_arrivals: int = 0
    """The failure comes at the first so many arrivals of the id only. 0: at each."""
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.fault and self.fault not in FAULTS:
            raise ValueError(f"unknown fault {self.fault!r}: there are {', '.join(FAULTS)}")
        unknown = [name for name in self.features if name not in FEATURES]
        if unknown:
            raise ValueError(f"unknown feature {unknown[0]!r}: there are {', '.join(FEATURES)}")
        if not 1 <= self.tokens <= MOST_TOKENS or self.after < 0 or self.fault_arrivals < 0:
            raise ValueError(f"tokens must be from 1 to {MOST_TOKENS}; after is not negative")
        if not (0 <= self.ttft_ms <= MOST_MS and 0 <= self.gap_ms <= MOST_MS):
            raise ValueError(f"ttft_ms and gap_ms must be from 0 to {MOST_MS:g}")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be from 0 to 1")

    @property
    def channels(self) -> tuple[str, ...]:
        """The channel of each word: ``reasoning``, ``tool`` or ``content``."""
        rest = "tool" if "tools" in self.features else "content"
        reasoning = self.tokens // 2 if "reasoning" in self.features else 0
        return ("reasoning",) * reasoning + (rest,) * (self.tokens - reasoning)


_DEFAULTS: Final = {
    field.name: field.default for field in fields(UpstreamScript) if field.name != "id"
}


def write_prompt(script: UpstreamScript) -> str:
    """Some words of prose, and the script in a line of its own. Defaults are left out."""
    changed = {
        name: value
        for name, value in asdict(script).items()
        if name == "id" or value != _DEFAULTS[name]
    }
    return f"{PROSE}\n{MARKER}{json.dumps(changed)}\n"


def find_script(body: Any) -> UpstreamScript | None:
    """Finds the script in the texts of a parsed body. The last one counts, as earlier turns of a
    conversation may have others. None: there is none, or it cannot be read."""
    found = None
    for text in _texts(body):
        place = text.rfind(MARKER + "{")
        if place >= 0:
            found = _parse_script(text[place + len(MARKER) :])
    return found


def _parse_script(text: str) -> UpstreamScript | None:
    try:
        values, _ = json.JSONDecoder().raw_decode(text)
        values["features"] = tuple(values.get("features", ()))
        return UpstreamScript(**values)
    except (ValueError, TypeError, RecursionError):
        return None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
