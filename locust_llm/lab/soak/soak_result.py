"""Soak result: what a soak found, as frozen data that soak.json holds."""

from pathlib import Path
from typing import Final

import msgspec

from locust_llm.files.json_file import decode_json_file

RESULT_NAME: Final = "soak.json"
PAGE_NAME: Final = "soak.html"


class SoakSlope(msgspec.Struct, frozen=True, kw_only=True):
    """A slope with its 95 % interval."""

    value: float
    low: float
    high: float


class SoakChange(msgspec.Struct, frozen=True, kw_only=True):
    """A shift of the level."""

    hours: float
    before: float
    after: float


class SoakQuantity(msgspec.Struct, frozen=True, kw_only=True):
    """What one quantity did. Times in seconds, memory in bytes, shares from 0 to 1."""

    name: str
    label: str
    unit: str
    verdict: str
    """``grows``, ``stable`` or ``cannot tell yet``. For free KV cache ``grows`` means that it
    shrinks."""
    reason: str = ""
    """Why nobody can tell yet."""
    first: float | None = None
    last: float | None = None
    """The median of the first and of the last tenth."""
    from_hours: float | None = None
    """The slopes are of the time from here on."""
    per_hour: SoakSlope | None = None
    per_request: SoakSlope | None = None
    per_token: SoakSlope | None = None
    visible_per_hour: float | None = None
    """A steady growth above this would have been found, by the noise of this soak."""
    needed_hours: float | None = None
    """The whole length of a soak that can tell. null: it is known already, or unknown."""
    full_in_hours: float | None = None
    """Memory, or the KV cache, is full after this time at this growth. null: it does not grow, or
    the limit is unknown."""
    full_at_earliest_hours: float | None = None
    """The same at the upper end of the interval."""
    changes: tuple[SoakChange, ...] = ()
    """Shifts of the level. None is listed where it grows steadily."""


class SoakResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm soak --json`` at its end, and soak.json."""

    folder: str
    host: str
    started: str
    """ISO 8601, UTC."""
    version: str
    """Of this package."""
    verdict: str
    """The worst of all quantities."""
    hours: float
    """The time under load."""
    planned_hours: float
    requests: int
    tokens: int
    failed: int
    parts: int
    """1, and one more for each ``--continue``."""
    restarts: int
    """So often the server's process was a new one."""
    memory_source: str
    """What memory was read from, without secrets; empty: none was found."""
    memory_limit_bytes: float | None = None
    quantities: tuple[SoakQuantity, ...] = ()
    notes: tuple[str, ...] = ()


def read_soak_result(folder: Path) -> SoakResult:
    """Raises OSError and ValueError."""
    return decode_json_file(folder / RESULT_NAME, SoakResult)


def encode_soak_result(result: SoakResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1)
