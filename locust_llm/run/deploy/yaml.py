"""YAML to be read by people: mappings, lists and scalars in block style, a text quoted unless it is plain."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeGuard

Value = Mapping[str, "Value"] | Sequence["Value"] | str | int | bool | None

_PLAIN: Final = re.compile(r"-{0,2}[A-Za-z/](?:[\w./=@,+-]|:(?!$))*", re.ASCII)
_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
"""No texts to YAML 1.1."""
_LITERAL: Final = re.compile(r"(?![ \n])(?:[ -~\u00a1-\u2027\u2030-\ud7ff]|\n(?!\n*\Z))+\n?(?!\n)")
"""Lines that a block can hold as they are."""
_PRINTABLE: Final = re.compile(r"[ -~\u00a1-\u2027\u2030-\ud7ff]")


def text_of(documents: Iterable[Value]) -> str:
    """One after the other, with ``---`` between."""
    return "---\n".join("".join(f"{line}\n" for line in _block(document)) for document in documents)


def _block(value: Value) -> Iterator[str]:
    """Its lines."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif _is_list(value) and value:
        for inner in value:
            lines = _block(inner) if not _is_text_block(inner) else _literal(str(inner))
            yield f"- {next(lines)}"
            yield from (_indented(line) for line in lines)
    else:
        yield _scalar(value)


def _entry(key: str, inner: Value) -> Iterator[str]:
    if _is_text_block(inner):
        first, *rest = _literal(str(inner))
        yield f"{key} {first}"
        yield from map(_indented, rest)
    elif (isinstance(inner, Mapping) or _is_list(inner)) and inner:
        yield key
        yield from map(_indented, _block(inner))
    else:
        yield f"{key} {_scalar(inner)}"


def _is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_text_block(value: Value) -> bool:
    return isinstance(value, str) and "\n" in value.rstrip("\n") and _LITERAL.fullmatch(value) is not None


def _literal(text: str) -> Iterator[str]:
    yield "|" if text.endswith("\n") else "|-"
    yield from text.removesuffix("\n").split("\n")


def _indented(line: str) -> str:
    return f"  {line}" if line else ""


def _scalar(value: Value) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return '"' + "".join(map(_character, value)) + '"'
    return json.dumps(value)  # a number, true, null, or what is empty


def _character(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if _PRINTABLE.match(one):
        return one
    return f"\\U{ord(one):08x}"
