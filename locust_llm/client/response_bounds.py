"""The bounds of one answer: bytes, chunks and choices, above which the connection is closed."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MIN_READ_BYTES: Final = 64
"""Of a read, as counted: its stamps take memory too, and a server may send byte by byte."""
MIN_CHUNK_BYTES: Final = 256
"""The same for a chunk, which takes about that in a record. No answer may have more than
``core.record.MOST_CHUNKS``."""
CHUNKS_PER_TOKEN: Final = 8
EXTRA_CHUNKS: Final = 4096
"""An answer may have CHUNKS_PER_TOKEN chunks per token asked for, and EXTRA_CHUNKS more: enough for
a server that ignores the number or does not count reasoning, and for a proxy that sends each
character by itself."""
MAX_CHOICES: Final = 1024


def chunk_limit(
    tokens: int | None, body: Mapping[str, Any], length_fields: Sequence[str]
) -> int | None:
    """Chunks that an answer may have with ``tokens`` asked for, unless ``body``, the other fields
    of the request, has its own number in one of the ``length_fields`` (the last that is there);
    None: no limit."""
    tokens = next((body[name] for name in reversed(length_fields) if name in body), tokens)
    choices = body.get("n") or 1
    if not isinstance(tokens, int) or not isinstance(choices, int):
        return None
    return choices * (CHUNKS_PER_TOKEN * tokens + EXTRA_CHUNKS)
