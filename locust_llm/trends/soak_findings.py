"""Soak findings: what a soak found, as frozen data: in run.json, in soak.json, on the live page."""

import msgspec


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
    """A steady slope of this size would have been called growth, had it been added to the values
    (without the slope that was found). null: there was no noise, or there are too few readings."""
    needed_hours: float | None = None
    """The whole length of a soak that can tell. null: it is known already, or unknown."""
    full_in_hours: float | None = None
    """Memory, or the KV cache, is full after this time at this growth. null: it does not grow, or
    the limit is unknown."""
    full_at_earliest_hours: float | None = None
    """The same at the upper end of the interval."""
    changes: tuple[SoakChange, ...] = ()
    """Shifts of the level. None is listed where it grows steadily."""


class SoakFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the readings of a load show of the server's growth."""

    verdict: str
    """The worst of all quantities."""
    hours: float
    """The time under load."""
    requests: int
    tokens: int
    failed: int
    restarts: int
    """So often the server's process was a new one."""
    memory_source: str
    """What memory was read from, without secrets; empty: none was found."""
    memory_limit_bytes: float | None = None
    quantities: tuple[SoakQuantity, ...] = ()
    notes: tuple[str, ...] = ()
