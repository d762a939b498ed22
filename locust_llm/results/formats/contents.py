"""Contents: the bytes of a result's file, and the JSON in them."""

import json
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.files import open_regular, read_regular

MAX_BYTES: Final = 2**31
MAX_TEXT_BYTES: Final = 2**25
"""Of a file that is no JSON: a table as a tool printed it."""
HEAD_BYTES: Final = 2**12


def contents(path: Path) -> bytes:
    """All of it. Raises OSError for what is no regular file, or larger than any result."""
    with open_regular(path) as file:
        head = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    return read_regular(path, MAX_BYTES if head[:1] in (b"{", b"[") else MAX_TEXT_BYTES)


def decode_json(raw: bytes) -> object:
    """JSON, with NaN and Infinity as Python writes them. Raises ValueError."""
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.DecodeError:
        try:
            return json.loads(raw)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
