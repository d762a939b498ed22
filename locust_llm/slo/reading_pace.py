"""Reading pace: when the first token is expected, and at which pace the others."""

from typing import Final, NamedTuple

from .metric_definitions import TIME

PACE: Final = 4.8
"""Tokens a second. Andes (arXiv 2404.16283) uses it for reading English. 238 words a minute
(Brysbaert, How many words do we read per minute?, 2019) are as many at 1.21 tokens a word."""
PACES: Final = (0.1, 1000.0)
DEADLINES: Final = "2s,200ms"
"""The deadlines of the first token, and between tokens: MLPerf Inference, llama2-70b, scenario
Server (as in rules.py)."""


class ReadingPace(NamedTuple):
    """The pace and the deadlines by which tokens are in time."""

    pace: float = PACE
    """Tokens a second."""
    ttft_s: float = 2.0
    tpot_s: float = 0.2
    """The deadlines in seconds: of the first token, and between tokens."""


def parse_reading_pace(pace: float, token_deadline: str) -> ReadingPace:
    """The pace in the settings. Raises ValueError of one sentence."""
    if not PACES[0] <= pace <= PACES[1]:
        raise ValueError(f"--reading-pace must be from {PACES[0]:g} to {PACES[1]:g}, got {pace:g}")
    return ReadingPace(pace, *parse_token_deadlines(token_deadline))


def parse_token_deadlines(text: str) -> tuple[float, float]:
    """(deadline of the first token after the send, deadline of each further one) in seconds, from
    ``2s,200ms``. Raises ValueError of one sentence."""
    first, comma, other = text.partition(",")
    seconds = [_seconds(text.strip()) for text in (first, other)]
    if not comma or seconds[0] is None or seconds[1] is None:
        raise ValueError(
            f"--token-deadline takes TTFT,TPOT with their units, such as {DEADLINES}, got {text[:40]!r}"
        )
    return seconds[0], seconds[1]


def _seconds(text: str) -> float | None:
    """The seconds, above 0 and at most an hour; at least a microsecond, as stamps have no more.
    None: the text has no such value."""
    for unit, factor in sorted(TIME.items(), key=lambda text: -len(text[0])):  # ms before s
        if text.endswith(unit):
            try:
                value = float(text.removesuffix(unit)) / factor
            except ValueError:
                return None
            return value if 1e-6 <= value <= 3600 else None
    return None
