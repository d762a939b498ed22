"""Load metrics: holds one load's metrics in one form for all tools. Missing values are None."""

from collections.abc import Mapping

import msgspec


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one measure over the requests, or over all gaps, in seconds or tokens."""

    avg: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    count: int | None = None
    percentiles: Mapping[float, float] = {}
    """The keys are 50.0, 99.0 and so on."""

    def points(self) -> list[tuple[str, float]]:
        """Returns minimum, percentiles and maximum with their names, in ascending order."""
        ends = [
            ("min", self.min),
            *((f"p{percent:g}", value) for percent, value in sorted(self.percentiles.items())),
            ("max", self.max),
        ]
        return [(name, value) for name, value in ends if value is not None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one load. Times are in seconds."""

    tool: str
    version: str = ""
    label: str = ""
    """This distinguishes several loads of a file."""
    cut: str = ""
    """This names the later result of the file that was cut off. Empty: none."""
    model: str = ""
    started_at: float | None = None
    """The load started at this Unix time in seconds."""
    requests: int | None = None
    """This many requests were answered."""
    failed: int = 0
    in_blocks: bool = False
    """Two variants took turns, so rates and numbers of users do not hold for the whole time."""
    goes_on_from_warmup: bool = False
    """Rates count the requests that ended in the time, and means the requests that were sent in it:
    the load had begun before."""
    unfinished: int = 0
    """These requests were cut at the end of the run. They neither succeeded nor failed, and are in
    no percentile."""
    asked_requests: int | None = None
    duration_s: float | None = None
    concurrency: int | None = None
    """At most this many requests are in flight."""
    prefill_concurrency: int | None = None
    """At most this many requests await their first token, counted like ``ttft``."""
    rate_per_s: float | None = None
    """The schedule has this rate. None: a closed loop, or unknown."""
    most_in_flight: int | None = None
    asked_output_tokens: float | None = None
    requests_per_s: float | None = None
    goodput_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    ttft: Distribution = Distribution()
    tpot: Distribution = Distribution()
    """Each request has one value: the time after the first token over the tokens after it."""
    itl: Distribution = Distribution()
    """Each value is a gap between two chunks."""
    tpot_name: str = "TPOT"
    itl_name: str = "ITL"
    """What the tool calls these two. AIPerf and this tool say ITL for the first and ICL for the
    second; guidellm says ITL for the first."""
    latency: Distribution = Distribution()
    input_tokens: Distribution = Distribution()
    output_tokens: Distribution = Distribution()
    server_output_tokens: float | None = None
    """The server counted this mean of output tokens, if ``output_tokens`` has another source."""
    client: str = ""
    """The tool rates itself, such as ``OK`` or ``DEGRADED``. Empty: it does not."""

    @property
    def title(self) -> str:
        return " ".join(word for word in (self.tool, self.version, self.label) if word)
