"""Contents: the bytes of a result's file, and the JSON in them."""

import json
import re
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.files import decoded_text, open_regular, read_regular

MAX_BYTES: Final = 2**31
MAX_TEXT_BYTES: Final = 2**25
"""Of a file that is no JSON: a table as a tool printed it."""
HEAD_BYTES: Final = 2**12
MAX_DOCUMENTS: Final = 10_000
"""Of a file."""
_BLANK: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()


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


def decode_documents(raw: bytes) -> list[object]:
    """The JSON of a file: one document, or several one behind the other, as ``vllm bench --append-result`` writes them.
    Raises ValueError."""
    try:
        return [decode_json(raw)]
    except ValueError as error:
        alone = error
    found = list[object]()
    try:
        text, at = decoded_text(raw), 0
        while (start := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it always matches
            document, at = _DECODER.raw_decode(text, start)
            if not isinstance(document, dict) or len(found) >= MAX_DOCUMENTS:
                raise alone
            found.append(document)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise alone from None
    if not found:
        raise alone
    return found
