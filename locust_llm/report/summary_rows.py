"""Summary rows: what a summary is made of, as frozen data: a metric, a group of requests, a stage,
each a line of a table. distribution_rows.py makes the row of a metric."""

from typing import Final

import msgspec

from locust_llm.settings.sweep_option import MAX_RESIDUAL, REPEAT
from locust_llm.slo.capacity_search import CapacityEstimate, StageEvidence
from locust_llm.slo.metric_definitions import name_token_rate
from locust_llm.slo.rules import SloResult

MIN_TOKENS_PER_MERGED_CHUNK: Final = 1.05
"""Above so many mean tokens a chunk, the report names what is of chunks and what of tokens."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one phase. Values are in ``unit``. None: nothing was measured."""

    label: str
    tag: str
    unit: str
    count: int | None = None
    """The number of its values. None: it is a single number (in ``avg``), no distribution."""
    per: str = ""
    """The base of its values where chunks hold several tokens: ``per token``, ``per chunk of
    3.2``."""
    effective: float | None = None
    """The effective sample size for its mean rank. None: not computed."""
    avg: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    """The standard deviation of the sample (ddof=1). None: there are fewer than two values."""
    sum: float | None = None
    percentiles: dict[float, float] = {}
    """The percentiles by linear interpolation (numpy's default). An ``adj_`` row with failures uses
    nearest rank. There +infinity is a failure, or a cut request, which is also in ``at_least``."""
    at_least: dict[float, float] = {}
    """For an ``adj_`` row: the percentiles at a cut request, and its age, which is a lower
    bound."""
    plus_minus: dict[float, tuple[float, float]] = {}
    """How much lower, and how much higher, the true percentile may be: see
    report/slo_evidence/measurement_error.py. Empty: not known."""
    intervals: dict[float, tuple[float, float]] = {}
    """The 95 % intervals of TTFT percentiles: how far chance alone may have moved them in this run.
    A rule on the same value has the same interval."""
    inexact: tuple[str, ...] = ()
    """The statistics (``p95``, ``avg``; empty: a rate) that the load generator may have too
    wrong."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one kind, which differ only in words with digits in their messages."""

    outcome: str
    name: str
    status: int | None
    count: int
    message: str
    """The first message."""
    arms: dict[str, int] = {}
    """How many of them each arm has. Empty: there are no arms."""

    def describe_arms(self) -> str:
        """`` at the candidate``, `` (3 at the base, 24 at the candidate)``. Empty: no arms."""
        if len(self.arms) == 1:
            return f" at the {next(iter(self.arms))}"
        counts = ", ".join(f"{count} at the {arm}" for arm, count in self.arms.items())
        return f" ({counts})" if counts else ""


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Further counts, of the profiling phase where nothing else is named."""

    cut_ages_s: tuple[float, float] | None = None
    """The shortest and the longest time after its send at which a request was cut. None: none was
    cut."""
    cut_without_chunk: int = 0
    """Requests that were cut before their first chunk."""
    warmup: int
    cut_unmeasured: int = 0
    """Requests of the warmup that were cut; of a stage those before and after the measured time."""
    in_flight_at_profiling: int = 0
    """The warmup's requests that were in flight when profiling began, where its load went on."""
    never_sent: int
    turned_away: int
    records_lost: int
    broken_lines: int
    chunks: int
    """The chunks of successful requests."""
    merged_chunks: int
    ttft_upper_bounds: int
    """Successful requests whose first chunk came together with others: it may have arrived
    sooner."""
    not_streamed: int
    tokens_from_usage: int
    tokens_from_chunks: int
    tokens_unknown: int
    without_itl: dict[str, int] = {}
    """How many successful requests have no Inter Token Latency, by the reason."""
    rejected_counts: dict[str, tuple[int, str]] = {}
    """By the field of the record: in how many successful requests the server's count contradicted
    the answer and was rejected, and one such count."""
    gaps_left_out: int
    """Gaps beside a chunk that may have come sooner than its stamp, as something else came in the
    same read."""
    gaps_exact: bool
    tokens_per_chunk: float | None = None
    chunks_counted: int = 0
    """Successful requests with a count of tokens in each chunk."""
    retransmits: int = 0
    """TCP segments that were sent again to the server."""

    @property
    def token_rate_unit(self) -> str:
        return name_token_rate(self.tokens_from_usage, self.tokens_from_chunks)


class GateUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the prefill limit over a time."""

    mean_used: float
    """The time-weighted mean of ``used``."""
    max_used: int
    waited_s: float
    """How long at least one request waited while there was a limit."""
    utilisation: float | None
    """The time-weighted mean of used / limit over that time. It is 1.0 if no slot was free while a
    request waited."""


class RequestGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Requests with a common property, such as a length or a model."""

    label: str
    succeeded: int
    failed: int
    failure_rate: float | None
    rows: tuple[Row, ...]
    """TTFT and ITL, with TTFT from Due before them where requests had waits. Each has p50, p90,
    p95, p99. By prefill limit, Longest Stall is before ITL. By prefill limit or rate of a ramp, ITL
    and stalls cover requests that decoded under it alone."""
    input_tokens: float | None = None
    """The mean input tokens as delivered, only by turn."""
    cached_share: float | None = None


LIMIT: Final = "limit of the ramp"
CHANGED_LIMIT: Final = "prefill limit"
"""The limit in force where somebody changed it."""


class RequestBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of the profiling phase, divided into groups. A group may be all of them."""

    by: str
    groups: tuple[RequestGroup, ...]

    @property
    def of_ramp(self) -> bool:
        """It divides by the limit, or the rate, of a ramp."""
        return self.by.endswith(" of the ramp")

    @property
    def of_limit(self) -> bool:
        """It divides by the prefill limit in force, of a ramp or as somebody changed it."""
        return self.by in (LIMIT, CHANGED_LIMIT)

    @property
    def of_names(self) -> bool:
        """It divides by names of requests, whose work may differ."""
        return "name" in self.by.split(" / ")


IN_NO_AVERAGE: Final = "in no average"
"""In the reason of a rule on an average that is of the successful requests alone."""
CHUNKS_AS_TOKENS: Final = "each chunk counts as a token"
"""The words in the reason of a rule on tokens that the server did not count."""


class GoodRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The number of requests that met every condition. Its rate has a 95 % interval. A cut request
    is certainly not among them."""

    conditions: str  # in words, and where they come from
    attainment: float
    """Their share, of a stage among the requests that ended in its measured time. Failures and cut
    requests are in the denominator."""
    attainment_most: float | None = None
    """The attainment if each cut request were good that may be. None: there is none."""
    goodput_per_s: float
    low: float | None
    high: float | None


class SteadyState(msgspec.Struct, frozen=True, kw_only=True):
    """The requests in flight and the throughput in the measured time of a stage."""

    in_flight: float
    """The time-weighted mean of requests at the gate, in prefill or decoding."""
    residual: float | None = None
    """The deviation from Little's law by the records. None: nothing ended, or the stage leaves out
    no waves."""
    per_s_error: float | None = None
    """The standard error of the requests answered a second. None: there are too few."""
    answered_share: float | None = None
    """For an open loop: the requests answered in this time, over the ones that were due in it. It is
    above 1 where more were in flight at the begin than at the end."""
    by_chance: int = 0
    """The missing ones of these that may be in flight by chance."""
    completed_share: float | None = None
    """(answered + ``by_chance``) / due, at most 1. None: the time is too short."""
    kept_up: bool | None = None
    """For an open loop: ``completed_share`` is at least 95 %. None: the time is too short."""

    @property
    def stationary(self) -> bool:
        """Its rates, its requests in flight and their times fit together (Little's law). Of a stage
        that is short for its requests they do not, and its rates may be far off."""
        return is_stationary(self.residual)


def is_stationary(residual: float | None) -> bool:
    """``residual`` of Little's law. None: not known."""
    return residual is None or residual < MAX_RESIDUAL


class LoadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a sweep or of repeats, as a row of its table. Its values are of the measured
    part."""

    number: int
    value: float
    """The value that the sweep changes."""
    users: int | None
    """The requested concurrent sessions. None: as many as the arrivals needed."""
    duration_s: float | None
    requests: int
    succeeded: int
    warmup: int = 0
    """The requests that had ended before it was measured."""
    first_wave: dict[str, Row] = {}
    """The latencies of the first wave by tag, where no request was measured."""
    failure_rate: float | None
    residual: float | None
    """The residual of Little's law. Above 5 % the stage was not stationary."""
    why: str  # why it ended
    client: str | None  # the client verdict
    client_reasons: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()
    """The metrics whose median, mean or rate the load generator may have wrong."""
    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    requests_per_s_error: float | None = None
    """The standard error of requests a second. None: unknown."""
    latencies: dict[str, Row]
    """The rows by tag: time_to_first_token, inter_token_latency, time_to_first_token_from_due,
    request_latency, prefill_gate_wait, output_token_throughput_per_user, as in its own summary."""
    in_flight: float | None = None
    answered_share: float | None = None
    kept_up: bool | None = None
    """These three fields are as in SteadyState."""
    delivered: float | None = None
    """``Delivery.share``"""
    completed: float | None = None
    """``Delivery.completed_share``"""
    attainment: float | None = None
    """The share of the requests that ended in its measured time and meet every condition. None: no
    rule has any."""
    goodput_per_s: float | None = None
    goodput_low: float | None = None
    goodput_high: float | None = None
    """The ends of its 95 % interval."""
    slowdown: float | None = None
    """The slowdown of gaps with another request in prefill."""
    lost_share: float | None = None
    """The share of the decode time lost to prefills. Both are as in PrefillInterference."""
    slos: tuple[SloResult, ...] = ()
    slo_status: str | None = None
    arrivals_per_s: float | None = None
    """For an open loop: the requests that were due a second in the measured time."""
    inexact_rates: tuple[str, ...] = ()
    """The tags of the rates that the load generator may have too wrong."""
    evidence: StageEvidence | None = None
    """What it shows about the rules. None: nothing."""
    silence: str = ""
    """``no token came from 9.7 to 15.7 s``: when nothing came as its requests were measured. Empty:
    never so long."""
    unanswered: str = ""
    """``2 requests were in flight all the while``: the requests without an answer then."""
    silent_s: float = 0.0
    """The part of its measured time in which nothing came, which its rates count."""
    died: bool = False
    """Nothing answered to its end. It shows nothing about its load, and no rule is judged by it."""

    @property
    def distorted(self) -> bool:
        """The load generator may have its rate, its latency or everything wrong."""
        wrong = {"requests_per_s", "request_latency"} & {*self.uncertain}
        return self.client == "INVALID" or bool(wrong)

    def rate_without_silence(self, per_s: float | None) -> float | None:
        """One of its rates without the time in which nothing came. None: nothing else is left."""
        if per_s is None or self.duration_s is None or self.silent_s >= self.duration_s:
            return None
        return per_s * self.duration_s / (self.duration_s - self.silent_s)

    @property
    def stationary(self) -> bool:
        """See SteadyState."""
        return is_stationary(self.residual)

    @property
    def sound(self) -> bool:
        """Conclusions may use it: requests succeeded, their values are not distorted, and no rate
        counts a time without answers."""
        return self.succeeded > 0 and not self.distorted and not self.silence


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """A knee of a sweep, by one named rule."""

    rule: str
    """The name of the rule: see report/sections/sweep/knee.py."""
    value: float | None
    """The value of the swept axis. None: this rule finds no knee, and ``text`` has the reason."""
    low: float | None = None
    high: float | None = None
    """The values between which it lies. None: open on that side, or this rule has no bounds."""
    reach: float | None = None
    """How far the truth may lie from a value that is no stage (95 %). None: unknown."""
    text: str  # what was found and how, one or two sentences


class SweepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a sweep, or of repeats of one load."""

    axis: str
    """concurrency, request-rate, prefill-concurrency, input-tokens or repeat."""
    unit: str
    levels: tuple[LoadLevel, ...]
    """The levels in the order of their values; for repeats in the order of time."""
    ended: str
    """Why there are no more stages."""
    conditions: str = ""
    """The conditions of a good request, in words. Empty: there are none."""
    knees: tuple[Knee, ...] = ()
    findings: tuple[str, ...] = ()
    """The consequences, in one sentence or two each: slope, limits for a gateway, cost."""
    spread: tuple[Row, ...] = ()
    """For repeats: a value over all of them. ``count`` is how many had it."""
    missing: tuple[str, ...] = ()
    """The stages that are not among the levels, with the reason, one sentence each."""
    unreached: str = ""
    """The values for which the time was too short, and what took it. Empty: all had a stage."""
    searched: bool = False
    """``--find-max`` chose the stages, and a level may have several."""
    capacity: CapacityEstimate | None = None
    """For a search: the highest load within all rules. None: there was none, or nothing is
    known."""

    @property
    def repeats(self) -> bool:
        """The stages have one load: all of them together are as good as one long run."""
        return self.axis == REPEAT


class TtftGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """How the time to the first token grows with the length of the prompt, over successful
    requests."""

    short_tokens: float
    long_tokens: float
    """The quartiles of the input lengths."""
    short_ttft_ms: float
    long_ttft_ms: float
    """The medians of TTFT in the quarters with the shortest and the longest prompts."""
    ms_per_1k: float
    """How much longer TTFT is for each 1,000 tokens."""
    low: float
    high: float
    """The ends of its 95 % interval."""
    count: int


class ModelShare(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a mix; shares are of 1."""

    model: str
    asked: float
    """The share of the sessions, each of which keeps its model."""
    sent: float | None
    """The share of the requests. None: there were none."""
