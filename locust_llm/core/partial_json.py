"""Partial JSON: the readable fields of an object that is damaged or of another version."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def readable(data: bytes, kind: type[T], instead: Mapping[str, Any]) -> tuple[T, list[tuple[str, str]]]:
    """(the struct, (path, reason) of each unreadable field). Such a field has the value of ``instead``, else its
    default. Raises ValueError where it is no JSON object, or a field without a default is missing."""
    try:
        found = msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    unread: list[tuple[str, str]] = []
    return _struct(found, kind, "", instead, unread), unread


def _struct(
    found: Mapping[str, Any], kind: type[T], path: str, instead: Mapping[str, Any], unread: list[tuple[str, str]]
) -> T:
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name, inner = f"{path}{field.encode_name}", field.type
        if field.encode_name not in found:
            if field.required and field.name not in instead:
                raise ValueError(f"{name} is missing")
            if field.required:
                unread.append((name, "is missing"))
        else:
            value = found[field.encode_name]
            try:
                known[field.name] = msgspec.convert(value, inner, strict=True)
                continue
            except (ValueError, OverflowError, RecursionError) as error:
                if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                    known[field.name] = _struct(value, inner, f"{name}.", {}, unread)
                    continue
                if field.required and field.name not in instead:
                    raise ValueError(f"{name} cannot be read ({error})") from None
                unread.append((name, f"cannot be read ({error})"))
        if field.name in instead:
            known[field.name] = instead[field.name]
    return kind(**known)
