"""Lenient JSON: fields have another type than the API names. What is empty or only counts is left
out, the rest is read.

Relays write ``[]`` for ``{}`` (PHP), a list around one object, or a number as a text. msgspec's
decoders refuse such an event as a whole; then it comes here.
"""

import json
import re
from types import NoneType
from typing import Any, Final, get_args, get_origin

import msgspec

SURROGATE: Final = re.compile("[\ud800-\udfff]")
ESSENTIAL: Final = frozenset(
    {"choices", "delta", "content", "text", "output", "item", "content_block"}
)
"""Fields that hold the answer itself. One of another type, if it is not empty, is not left out in
silence."""


def coerce_json(kind: Any, value: Any) -> Any:
    """Convert ``value``, made of plain JSON, to ``kind``, a type that has a decoder. Raises
    ValueError where it does not fit and would be missed."""
    if kind is Any:
        return value
    for option in get_args(kind) if _is_union(kind) else (kind,):
        if option is NoneType and value is None:
            return None
        if option is msgspec.Raw:
            return msgspec.Raw(msgspec.json.encode(value))
        if get_origin(option) is list and isinstance(value, list):
            (item,) = get_args(option)
            return [coerce_json(item, entry) for entry in value]
        if isinstance(option, type) and type(value) is option:
            return value
        if _is_struct(option):
            whole = value[0] if isinstance(value, list) and len(value) == 1 else value
            if isinstance(whole, dict):
                return _filled(option, whole)
    raise ValueError("JSON of an unexpected type")


def _filled(kind: Any, values: dict[str, Any]) -> Any:
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in values:
            continue
        value = values[field.encode_name]
        try:
            fields[field.name] = coerce_json(field.type, value)
        except ValueError:
            if value and field.encode_name in ESSENTIAL:
                raise
    return kind(**fields)


def _is_union(kind: Any) -> bool:
    return len(get_args(kind)) > 1 and NoneType in get_args(kind)


def _is_struct(kind: Any) -> bool:
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, msgspec.Struct)


def decode_lenient_json(data: bytes) -> Any:
    """The content of JSON, also where msgspec refuses its texts or numbers alone. Raises ValueError
    and RecursionError."""
    try:
        return msgspec.json.decode(data)
    except ValueError:
        return msgspec.json.decode(repair_json(data))


def repair_json(data: bytes) -> bytes:
    """JSON that msgspec refuses for its texts or numbers alone, repaired. Raises ValueError and
    RecursionError.

    It repairs bytes that are no UTF-8, half surrogate pairs (a character that was split over two
    chunks), and Python's NaN and Infinity, which become null.
    """
    content = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None)
    text = json.dumps(content, ensure_ascii=False)
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).encode()
