"""Load metrics: what a result says of one load, whichever tool wrote it. What it does not say is
None."""

from collections.abc import Mapping

import msgspec


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of one measure over the requests, or over the gaps of all of them. Seconds or tokens."""

    avg: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    count: int | None = None
    percentiles: Mapping[float, float] = {}
    """The percentiles by 50.0, 99.0, ..."""

    def points(self) -> list[tuple[str, float]]:
        """All of them that must not fall, from the least to the largest, with their names."""
        ends = [
            ("min", self.min),
            *((f"p{p:g}", v) for p, v in sorted(self.percentiles.items())),
            ("max", self.max),
        ]
        return [(name, value) for name, value in ends if value is not None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One load. Times are seconds."""

    tool: str
    version: str = ""
    label: str = ""
    """Which of several loads of a file."""
    cut: str = ""
    """Which later result of the file was cut off, and not read; empty: none."""
    model: str = ""
    started_at: float | None = None
    """Unix seconds."""
    requests: int | None = None
    """Answered."""
    failed: int = 0
    in_blocks: bool = False
    """Two variants took turns: a rate or a number of users is not that of the whole time."""
    unfinished: int = 0
    """Cut as the run ended: neither answered nor failed, and in no percentile."""
    asked_requests: int | None = None
    duration_s: float | None = None
    concurrency: int | None = None
    """Requests in flight at most."""
    prefill_concurrency: int | None = None
    """Requests before their first token at most, counted like ``ttft``."""
    rate_per_s: float | None = None
    """Of the schedule; None: a closed loop, or unknown."""
    most_in_flight: int | None = None
    asked_output_tokens: float | None = None
    requests_per_s: float | None = None
    goodput_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    ttft: Distribution = Distribution()
    """The time from the send to the first token."""
    tpot: Distribution = Distribution()
    """Of each request: time after the first token, over the tokens after it."""
    itl: Distribution = Distribution()
    """Each gap between two chunks."""
    latency: Distribution = Distribution()
    """The time from the send to the end."""
    input_tokens: Distribution = Distribution()
    output_tokens: Distribution = Distribution()
    server_output_tokens: float | None = None
    """Mean tokens an answer by the server's own count, where ``output_tokens`` are another's."""
    client: str = ""
    """What the tool says of itself: ``OK``, ``DEGRADED``, ...; empty: nothing."""

    @property
    def title(self) -> str:
        return " ".join(word for word in (self.tool, self.version, self.label) if word)
