"""Chart mark names: what the marks of a change are called in charts, live and in the report."""

from typing import Final

MAX_CHANGE_MARKS: Final = 12
"""With more changes of the limit, or of the users, there are no marks, as their lines show them."""


def name_gate_change(limit: int | None, before: int | None = None, over_s: float = 0.0) -> str:
    """``limit 8``; of a ramp ``limit 1 to 8``, or ``limit 8 over 10 s`` while it begins. None: no
    limit."""
    if limit is None:
        return "no limit"
    if before is not None:
        return f"limit {before} to {limit}"
    return f"limit {limit} over {over_s:g} s" if over_s else f"limit {limit}"


def name_users_change(users: int) -> str:
    """``40 users``."""
    return f"{users} user{'' if users == 1 else 's'}"


def name_rate_change(per_s: float) -> str:
    """``5 requests/s``."""
    return f"{per_s:g} request{'' if per_s == 1 else 's'}/s"


def name_disruption(number: int) -> str:
    """``disruption 1``."""
    return f"disruption {number}"


def name_stage_start(axis: str, value: float) -> str:
    """``concurrency 16``; without an axis the value alone."""
    return f"{axis} {value:g}".strip()
