"""Interference: what prefills do to the requests beside them, as frozen data; analysis.py makes it, text.py says it."""

import msgspec


class DisturbedGaps(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps with a given number of other requests in prefill. Times in ms; None without values."""

    label: str
    """``1``, ``4-7``, ``16+``."""
    gaps: int
    share: float
    """Of all decode time (the sum of all gaps)."""
    streams: float
    """How many requests were decoding meanwhile, this one among them: the mean over the gaps' time."""
    requests: int
    """How many have such a gap."""
    itl_ms: dict[float, float]
    """Percentiles of one number a request: the mean of its gaps of this row."""
    icl_ms: dict[float, float]
    """Percentiles of the gaps themselves."""
    longest_ms: float
    compared: int
    """Of the gaps: those for which there are enough undisturbed ones at as many decoding streams, or at more."""
    compared_share: float = 1.0
    """Of the gaps, by number or by time: the smaller of both."""
    mean_ms: float | None = None
    """Of the compared ones."""
    usual_ms: float | None = None
    """The mean that undisturbed gaps had at as many decoding streams as the compared ones, or at more."""
    slowdown: float | None = None
    """mean / usual; None with too few compared gaps, or too small a share of them."""


class RequestsAhead(msgspec.Struct, frozen=True, kw_only=True):
    """The successful requests sent with a given number of others in prefill."""

    label: str
    count: int
    ttft_ms: dict[float, float]
    tokens: float | None
    """The median of the input tokens that were ahead; None: more than half are unknown."""
    own_tokens: float | None
    """The median of their own input tokens."""


class PrefillSlope(msgspec.Struct, frozen=True, kw_only=True):
    """By how much TTFT is longer for each 1,000 input tokens in prefill at the send, at the same own length."""

    ms_per_1k: float
    low: float
    high: float
    """The ends of its 95 % interval."""
    r2: float
    """Of the fit of TTFT by own input tokens and tokens ahead."""
    count: int


class PrefillInterference(msgspec.Struct, frozen=True, kw_only=True):
    """What prefills did to decodes, and to prefills behind them."""

    gaps: int
    requests: int
    """That these gaps are of."""
    of_requests: int
    """All requests with gaps; above ``requests``: a sample, in stretches evenly over the run."""
    decode_s: float
    """The sum of the gaps."""
    rows: tuple[DisturbedGaps, ...]
    """By number of prefills, without empty ones."""
    disturbed: DisturbedGaps | None
    """All gaps with one prefill and more."""
    lost_s: float | None = None
    """What the gaps that a prefill touched took longer than others did, not below 0; None: nothing to compare, or too
    small a share of them."""
    lost_share: float | None = None
    """Of ``decode_s``."""
    hidden_share: float | None = None
    """Of the time in prefill, what lies beside gaps that count as undisturbed, where that is why there is no loss."""
    ahead: tuple[RequestsAhead, ...] = ()
    slope: PrefillSlope | None = None
