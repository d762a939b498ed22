"""The bounds of one answer: how many bytes, chunks and choices are taken before the connection is closed."""

from collections.abc import Mapping
from typing import Any, Final

MAX_RESPONSE_BYTES: Final = 1 << 26
"""Of a whole answer, with its headers and its framing, where nobody says otherwise: 200,000 chunks of 300 bytes, more than
any model writes."""
LEAST_READ_BYTES: Final = 64
"""A read counts as at least so many of these: its stamps take memory too, and a server may send byte by byte."""
LEAST_CHUNK_BYTES: Final = 256
"""The same for a chunk, of which a record takes nearly so much: 262,144 of them by default."""
MORE_CHUNKS: Final = 8
SPARE_CHUNKS: Final = 4096
"""An answer may have so many times the chunks that it was asked for, and so many more: a server that ignores the number is
measured, also with reasoning that it does not count, and where a proxy sends each character by itself."""
MOST_CHOICES: Final = 1024


def most_chunks(tokens: int | None, body: Mapping[str, Any]) -> int | None:
    """How many chunks an answer may have that was asked for so many tokens, where ``body``, the other fields of the request,
    says nothing else; None: any number."""
    tokens = next((body[name] for name in ("max_completion_tokens", "max_tokens") if name in body), tokens)
    choices = body.get("n") or 1
    if not isinstance(tokens, int) or not isinstance(choices, int):
        return None
    return choices * (MORE_CHUNKS * tokens + SPARE_CHUNKS)
