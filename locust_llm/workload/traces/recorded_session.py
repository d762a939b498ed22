"""Recorded session: a session of a recording, and what all formats share in reading one."""

from typing import Any, NamedTuple, TypeVar

import msgspec

from locust_llm.workload.dataset_formats import RowError, Turn, locate_row_error


class RecordedSession(NamedTuple):
    """A session of a recording."""

    name: str
    turns: list[Turn]
    about: str = ""
    """The assumption where a format has two meanings."""


_Read = TypeVar("_Read")


def convert_row(fields: dict[str, Any], into: type[_Read], line: int | None = None) -> _Read:
    """The fields of a row. Raises RowError, with its line where that is not the first one's."""
    try:
        return msgspec.convert(fields, into)
    except (msgspec.ValidationError, RecursionError) as wrong:
        error = locate_row_error(wrong, b"")
        raise RowError(str(error), field=error.field, line=line) from None


def simplify_turns(turns: list[Turn]) -> list[Turn]:
    """Drop needless numbers: a turn that waits for the one before it needs none."""
    line = [(number - 1,) if number else () for number in range(len(turns))]
    return [
        msgspec.structs.replace(turn, after=None) if turn.after == before else turn
        for turn, before in zip(turns, line, strict=True)
    ]
