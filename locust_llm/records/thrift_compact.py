"""Thrift's compact protocol, as far as the metadata of Parquet needs it.

The protocol: ``doc/specs/thrift-compact-protocol.md`` of apache/thrift.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

I32: Final = 5
I64: Final = 6
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12
_TRUE: Final = 1
_FALSE: Final = 2
_LONG_LIST: Final = 15
MAX_DEPTH: Final = 16


class ThriftField(NamedTuple):
    """One field of a struct that is written."""

    number: int
    kind: int
    value: Any
    """An int, bytes of a text or a whole struct, or for a list (kind of its elements, elements)."""


class ThriftList(NamedTuple):
    kind: int
    elements: Sequence[Any]


def encode_varint(value: int) -> bytes:
    """A number from 0 on, seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, the place behind it). Raises IndexError beyond the end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def encode_struct(fields: Sequence[ThriftField]) -> bytes:
    """The fields in the order of their numbers, which are less than 16 apart."""
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        out.append((number - last) << 4 | kind)
        out += _encode_value(kind, value)
        last = number
    out.append(0)
    return bytes(out)


def _encode_value(kind: int, value: Any) -> bytes:
    if kind in (I32, I64):
        return encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind == LIST:
        count = len(value.elements)
        head = bytes([min(count, _LONG_LIST) << 4 | value.kind])
        if count >= _LONG_LIST:
            head += encode_varint(count)
        return head + b"".join(_encode_value(value.kind, element) for element in value.elements)
    return bytes(value)  # a struct that is encoded already


def decode_struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """(the values by the numbers of their fields, the place behind the struct). Raises ValueError
    or IndexError for other bytes."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        number += head >> 4
        kind = head & 0xF
        if kind in (I32, I64) and (byte := data[at]) < 0x80:  # most values are small numbers
            fields[number] = byte >> 1 ^ -(byte & 1)
            at += 1
        else:
            fields[number], at = _decode_value(kind, data, at, depth)
    return fields, at + 1


def _decode_value(kind: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in (I32, I64):
        value, at = (data[at], at + 1) if data[at] < 0x80 else decode_varint(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == BINARY:
        length, at = (data[at], at + 1) if data[at] < 0x80 else decode_varint(data, at)
        return data[at : at + length], at + length
    if kind == STRUCT:
        return decode_struct(data, at, depth + 1)
    if kind != LIST:
        raise ValueError(f"type {kind} is none of Parquet's metadata")
    head = data[at]
    count = head >> 4
    of = head & 0xF
    at += 1
    if count == _LONG_LIST:
        count, at = decode_varint(data, at)
    elements = []
    for _ in range(count):
        element, at = _decode_value(of, data, at, depth)
        elements.append(element)
    return elements, at
