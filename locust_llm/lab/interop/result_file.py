"""Result file: reads the bytes of a result's file and the JSON in them."""

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
"""A file without JSON, such as a printed table, has at most this many bytes."""
MAX_VALUES: Final = 2**26
"""A JSON file has at most this many values: an empty list takes three bytes of the file and 64
bytes of memory."""
HEAD_BYTES: Final = 2**12
MAX_DOCUMENTS: Final = 10_000
"""A file has at most this many documents."""
_BLANK: Final = re.compile(r"\s*")
_COMMA: Final = re.compile(r"\s*,?\s*")
_MARKS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)
"""Whole strings, and opening and closing marks, match."""
_DECODER: Final = json.JSONDecoder()


def read_result_file(path: Path) -> bytes:
    """Reads the whole file. Decoded JSON takes at most 5 GB, and text nine times the file. Raises
    OSError for a file that is not regular or too large."""
    with open_regular(path) as file:
        head = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    is_json = head[:1] in (b"{", b"[")
    raw = read_regular(path, MAX_BYTES if is_json else MAX_TEXT_BYTES)
    if is_json and sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise OSError(errno.EFBIG, f"{path.name} has more than {MAX_VALUES:,} values", str(path))
    return raw


class ResultFile:
    """Reads a tool's file on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def head(self) -> bytes:
        """Reads the first bytes of the file. Raises OSError."""
        with open_regular(self.path) as file:
            return file.read(2 * HEAD_BYTES)

    @cached_property
    def raw(self) -> bytes:
        """Reads the whole file. Raises OSError, as ``read_result_file`` does."""
        return read_result_file(self.path)


def decode_json(raw: bytes) -> object:
    """Decodes JSON, with NaN and Infinity as Python writes them. Raises ValueError."""
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
    """Holds the JSON documents of a file."""

    found: list[object]
    cut: str = ""
    """This names the document after them that was cut off. Empty: none."""


def decode_documents(raw: bytes) -> Documents:
    """Decodes one document or several in a row, as ``vllm bench --append-result`` writes them. If
    the file or its one list ends within an object, the objects before it count. Raises
    ValueError."""
    try:
        return Documents([decode_json(raw)])
    except ValueError as error:
        first_error = error
    try:
        text = decode_utf8(raw)
        start = _BLANK.match(text, 0).end()  # type: ignore[union-attr]  # it always matches
        is_list = text.startswith("[", start)
        documents, at = _decode_objects(text, start + is_list, _COMMA if is_list else _BLANK)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise first_error from None
    whole = at == len(text)
    if not documents or not (whole or _is_cut(text, at)):
        raise first_error
    if is_list:  # one with an end is a document
        return Documents([documents], "its list" if whole else f"entry {len(documents) + 1}")
    return Documents(documents, "" if whole else f"result {len(documents) + 1}")


def split_results(document: object) -> list[object]:
    """Returns the results of a list of objects, else the one document."""
    if not isinstance(document, list) or not document or len(document) > MAX_DOCUMENTS:
        return [document]
    entries: list[object] = document
    return entries if all(isinstance(entry, dict) for entry in entries) else [document]


def _decode_objects(text: str, at: int, between: re.Pattern[str]) -> tuple[list[object], int]:
    """Returns the objects from ``at`` on, and the place of the first incomplete one, which is the
    end if all are complete. Raises ValueError for other content."""
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
    """Returns whether the object at this place has no end in the text."""
    depth = 0
    for mark in _MARKS.finditer(text, at):
        if mark[0] == '"':  # a string without an end
            return True
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark[0], 0)
        if depth == 0 and mark[0][0] != '"':
            return False
    return True
