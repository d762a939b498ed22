"""Request bytes: a request as bytes, ready to be sent, and its limits."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.settings.run_options import MAX_RESPONSE_BYTES

from .connection import Target

CHUNKS_PER_TOKEN: Final = 8
EXTRA_CHUNKS: Final = 4096
"""An answer may have CHUNKS_PER_TOKEN chunks for each requested token, and EXTRA_CHUNKS more. Some
servers ignore the number or do not count reasoning, and some proxies send each character by
itself."""


class PreviousAnswer(NamedTuple):
    """The answer that a request of a closed loop follows on."""

    ended_at: float
    paused_s: float
    """The pauses since then that the run or the locustfile asked for."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, as bytes, with the fields of its record that are known beforehand."""

    target: Target
    data: bytes
    more: tuple[bytes, ...] = ()
    """The bytes that follow ``data``: megabytes that are not copied."""
    labels: dict[str, Any]
    """The fields of the record: id, name, model, user_class, asked_output_tokens and so on."""
    due_at: float | None = None
    previous: PreviousAnswer | None = None
    """None: it follows on no answer, or on a schedule."""
    timeout_s: float | None = None
    """The longest time from the send to the end of the answer."""
    first_token_timeout_s: float | None = None
    """The longest time from the send to the first chunk. A request that asks for no stream has
    none."""
    gap_timeout_s: float | None = None
    """The longest time without any byte, once the first chunk has come."""
    cancel_after_s: float | None = None
    """The request is cancelled on purpose so long after it was fully written; 0: at once."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """The answer, with headers and framing, may have so many bytes. Beyond them the connection is
    closed."""
    max_chunks: int | None = None
    """The answer may have so many chunks: see ``chunk_limit``."""
    keep_text: bool = False
    checked: bool = False
    """The answer is checked: its text is kept until then."""
    kind: str = "chat"
    """The protocol of its endpoint: see ``PROTOCOLS``."""

    @property
    def pieces(self) -> tuple[bytes, ...]:
        return (self.data, *self.more)


def chunk_limit(
    tokens: int | None, body: Mapping[str, Any], length_fields: Sequence[str]
) -> int | None:
    """How many chunks an answer may have when ``tokens`` are requested. A number in ``body`` under
    one of ``length_fields`` comes first; the last of them counts. None: no limit."""
    asked = find_asked_length(tokens, body, length_fields)
    choices = body.get("n") or 1
    if asked is None or not isinstance(choices, int):
        return None
    return choices * (CHUNKS_PER_TOKEN * asked + EXTRA_CHUNKS)


def find_asked_length(
    tokens: int | None, body: Mapping[str, Any], length_fields: Sequence[str]
) -> int | None:
    """The longest answer in tokens that a request asks for, as in ``chunk_limit``. None: it has no
    limit."""
    found = next((body[name] for name in reversed(length_fields) if name in body), tokens)
    return found if isinstance(found, int) else None
