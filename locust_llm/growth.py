"""Growth: how much longer the first token of a longer prompt takes, as a model must read all of it and a stub need not."""

from typing import Final

import numpy as np

from .intervals import ranks
from .parts import Floats, Part
from .record import OK
from .summary import Growth

AT_LEAST: Final = 50
"""Requests; so each quarter has enough for an interval of its median."""
TIMES: Final = 2.0
TOKENS: Final = 500.0
"""So much longer, at least, the upper quartile of the prompts must be than the lower one."""


def growth(main: Part) -> Growth | None:
    """Of successful requests; None where their prompts are too few, or too much alike, to tell.

    The medians of TTFT of the quarter with the longest prompts and of that with the shortest; the ends of its interval
    are the difference of opposite ends of theirs (order statistics), so it is rather too wide than too narrow.
    """
    ok = main.outcome(OK)
    tokens, ttft_ms = ok["input_tokens"], ok["ttft_s"] * 1e3
    known = ~(np.isnan(tokens) | np.isnan(ttft_ms))
    tokens, ttft_ms = tokens[known], ttft_ms[known]
    if len(tokens) < AT_LEAST:
        return None
    low, high = np.percentile(tokens, [25, 75])
    if high < TIMES * low or high - low < TOKENS:
        return None
    short, long = tokens <= low, tokens >= high
    (short_low, short_ms, short_high), (long_low, long_ms, long_high) = (
        _median(ttft_ms[those]) for those in (short, long)
    )
    thousands = float(tokens[long].mean() - tokens[short].mean()) / 1000
    return Growth(
        short_tokens=float(low),
        long_tokens=float(high),
        short_ttft_ms=short_ms,
        long_ttft_ms=long_ms,
        ms_per_1k=(long_ms - short_ms) / thousands,
        low=(long_low - short_high) / thousands,
        high=(long_high - short_low) / thousands,
        count=len(tokens),
    )


def _median(values: Floats) -> tuple[float, float, float]:
    """The ends of its interval around it; of at least six values."""
    ordered = np.sort(values)
    low, high = ranks(len(ordered), 50)
    return float(ordered[low - 1]), float(np.median(ordered)), float(ordered[high - 1])
