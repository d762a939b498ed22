"""Contents: the bytes of a result's file, and the JSON in them."""

import errno
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from locust_llm.files.regular_file import decode_utf8, open_regular, read_regular

MAX_BYTES: Final = 2**31
MAX_TEXT_BYTES: Final = 2**25
"""Of a file that is no JSON: a table as a tool printed it."""
MAX_VALUES: Final = 2**26
"""Of a file of JSON: an empty list takes three bytes of it, and 64 bytes of memory."""
HEAD_BYTES: Final = 2**12
MAX_DOCUMENTS: Final = 10_000
"""A file has at most so many documents."""
_BLANK: Final = re.compile(r"\s*")
_COMMA: Final = re.compile(r"\s*,?\s*")
_MARKS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)
"""Whole strings, and what opens or closes."""
_DECODER: Final = json.JSONDecoder()


def read_result_file(path: Path) -> bytes:
    """All of it. Raises OSError for what is no regular file, or larger than any result. What JSON
    makes of it takes at most 5 GB, and nine times the file for text."""
    with open_regular(path) as file:
        head = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    is_json = head[:1] in (b"{", b"[")
    raw = read_regular(path, MAX_BYTES if is_json else MAX_TEXT_BYTES)
    if is_json and sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise OSError(errno.EFBIG, f"{path.name} has more than {MAX_VALUES:,} values", str(path))
    return raw


class ResultFile:
    """A file that a tool wrote, read when it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def head(self) -> bytes:
        """Reads the first bytes of the file. Raises OSError."""
        with open_regular(self.path) as file:
            return file.read(2 * HEAD_BYTES)

    @cached_property
    def raw(self) -> bytes:
        """Reads all of it. Raises OSError, as ``read_result_file`` does."""
        return read_result_file(self.path)


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


class Documents(NamedTuple):
    """The JSON of a file."""

    found: list[object]
    cut: str = ""
    """Which one behind them was cut off, in words; empty: none."""


def decode_documents(raw: bytes) -> Documents:
    """The JSON of a file: one document, or several one behind the other, as ``vllm bench
    --append-result`` writes them. Of a file, or of its one list, that ends in the middle of an
    object, what stands before that object. Raises ValueError."""
    try:
        return Documents([decode_json(raw)])
    except ValueError as error:
        alone = error
    try:
        text = decode_utf8(raw)
        start = _BLANK.match(text, 0).end()  # type: ignore[union-attr]  # it always matches
        is_list = text.startswith("[", start)
        documents, at = _objects(text, start + is_list, _COMMA if is_list else _BLANK)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise alone from None
    whole = at == len(text)
    if not documents or not (whole or _is_cut(text, at)):
        raise alone
    if is_list:  # one with an end is a document
        return Documents([documents], "its list" if whole else f"entry {len(documents) + 1}")
    return Documents(documents, "" if whole else f"result {len(documents) + 1}")


def split_results(document: object) -> list[object]:
    """The results of a list of them, else the one document."""
    if not isinstance(document, list) or not document or len(document) > MAX_DOCUMENTS:
        return [document]
    entries: list[object] = document
    return entries if all(isinstance(entry, dict) for entry in entries) else [document]


def _objects(text: str, at: int, between: re.Pattern[str]) -> tuple[list[object], int]:
    """(the objects from this place on, where the first one begins that is not whole: the end, if
    all are). Raises ValueError for anything else."""
    objects = list[object]()
    while (start := between.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it always matches
        if not text.startswith("{", start) or len(objects) >= MAX_DOCUMENTS:
            raise ValueError
        try:
            document, at = _DECODER.raw_decode(text, start)
        except ValueError:
            return objects, start
        objects.append(document)
    return objects, start


def _is_cut(text: str, at: int) -> bool:
    """The object that begins here has no end in the text."""
    depth = 0
    for mark in _MARKS.finditer(text, at):
        if mark[0] == '"':  # a string without an end
            return True
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark[0], 0)
        if depth == 0 and mark[0][0] != '"':
            return False
    return True
