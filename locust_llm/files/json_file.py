"""JSON file: JSON that is written whole or not at all, and read as far as possible."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from locust_llm.files.regular_file import read_regular

MAX_JSON_BYTES: Final = 2**26
"""A longer file is refused."""
STANDARD_OUTPUT: Final = Path("-")
"""The value of --json FILE that prints the JSON."""

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def decode_json_file(path: Path, kind: type[T]) -> T:
    """Raises OSError and ValueError."""
    try:
        return msgspec.json.decode(read_regular(path, MAX_JSON_BYTES), type=kind)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # never into a pipe or a link of that name
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def decode_readable_fields(
    data: bytes, kind: type[S], instead: Mapping[str, Any]
) -> tuple[S, list[tuple[str, str]]]:
    """(the struct, (path, reason) of each unreadable field). An unreadable field has the value of
    ``instead``, else its default.

    Raises ValueError where the data is no JSON object, or lacks a field without a default.
    """
    try:
        fields_read = msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(fields_read, dict):
        raise ValueError("it is not a JSON object")
    unread: list[tuple[str, str]] = []
    return _struct(fields_read, kind, "", instead, unread), unread


def _struct(
    fields_read: Mapping[str, Any],
    kind: type[S],
    path: str,
    instead: Mapping[str, Any],
    unread: list[tuple[str, str]],
) -> S:
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name, inner = f"{path}{field.encode_name}", field.type
        if field.encode_name not in fields_read:
            if field.required and field.name not in instead:
                raise ValueError(f"{name} is missing")
            if field.required:
                unread.append((name, "is missing"))
        else:
            value = fields_read[field.encode_name]
            try:
                known[field.name] = msgspec.convert(value, inner, strict=True)
                continue
            except (ValueError, OverflowError, RecursionError) as error:
                if (
                    isinstance(value, dict)
                    and isinstance(inner, type)
                    and issubclass(inner, msgspec.Struct)
                ):
                    known[field.name] = _struct(value, inner, f"{name}.", {}, unread)
                    continue
                if field.required and field.name not in instead:
                    raise ValueError(f"{name} cannot be read ({error})") from None
                unread.append((name, f"cannot be read ({error})"))
        if field.name in instead:
            known[field.name] = instead[field.name]
    return kind(**known)
