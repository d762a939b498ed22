"""Finding: what one rule says of one load, with the arithmetic that a reader can check."""

from enum import StrEnum
from typing import Final, NamedTuple


class AuditOutcome(StrEnum):
    IMPOSSIBLE = "impossible"
    """No run can have had these figures."""
    DOUBTFUL = "doubtful"
    """They may be true, and do not say what they are read for."""
    HOLDS = "holds"


class Finding(NamedTuple):
    rule: str
    verdict: AuditOutcome
    arithmetic: str


OFF: Final = 0.05
"""By so much two figures that must be equal may differ: rounding, and what each tool counts to the
duration."""


def check_equal(rule: str, said: float, must: float, words: str, off: float = OFF) -> Finding:
    """Of two figures that are one."""
    equal = abs(said - must) <= off * max(abs(said), abs(must))
    return Finding(rule, AuditOutcome.HOLDS if equal else AuditOutcome.IMPOSSIBLE, words)


def check_at_most(rule: str, said: float, most: float, words: str, off: float = OFF) -> Finding:
    """Of a figure that is at most another."""
    return Finding(
        rule, AuditOutcome.HOLDS if said <= most * (1 + off) else AuditOutcome.IMPOSSIBLE, words
    )


def format_seconds_or_ms(value: float) -> str:
    """As a reader writes it: ``1.23 s``, ``45.6 ms``."""
    return f"{value:.4g} s" if abs(value) >= 1 else f"{value * 1e3:.4g} ms"
