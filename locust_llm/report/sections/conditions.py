"""Conditions: what a run was made under, as requested and as it came out."""

import msgspec

from locust_llm.report.summary_rows import ModelShare
from locust_llm.report.users_and_limit_over_time import StepSeries


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What makes runs comparable. Counts are of the profiling phase; lengths are means over its
    requests."""

    simulated: bool
    server: str
    server_software: str
    model: str
    model_mix: tuple[ModelShare, ...] = ()
    """The models of the mix in the requested order. Empty: there is one model."""
    streaming: bool
    loop: str = "closed"
    """closed: a user sends its next request after the last answer. open: requests follow a
    schedule. Empty: an imported result that does not name it."""
    arrivals: str = ""
    """The pattern or schedule of an open loop, in words."""
    users: int | None
    processes: int
    rate_per_s: float | None = None
    """The requested rate of an open loop (at the end of its ramp); for a series or a trace the mean
    rate of what was due."""
    users_in_force: StepSeries | None = None
    """The numbers of users over time. None: not recorded."""
    prefill_limit: int | None
    """The requested prefill limit."""
    prefill_ramp_s: float | None
    limit_in_force: StepSeries | None = None
    """The prefill limits over time. None: there was no gate."""
    asked_input_tokens: float | None
    input_tokens: float | None
    input_deviation: float | None
    """Delivered / requested - 1, over the requests of which both are known."""
    asked_output_tokens: float | None
    output_tokens: float | None
    output_deviation: float | None
    sessions: int | None = None
    """Conversations that began. None: none has a second turn."""
    turns_per_session: float | None = None
    """The mean answered turns of a session."""
    cached_share: float | None
    """The cached share of all input tokens, over the requests whose answer has the count."""
    cached_share_by_metrics: float | None = None
    """The cached share by the server's counters, between the first and the last reading of the
    profiling phase."""
    duration_s: float | None
    """The seconds from the first send to the last end, without the pauses between repeats. A stage
    of a sweep has its measured time."""
    requests: int
    succeeded: int
    failed: int
    failure_rate: float | None
    """failed / (succeeded + failed)."""
    schema_checked: int = 0
    schema_valid: int = 0
    """Answers that were checked against a schema, and the ones that fit it."""
    cut: int
    cancelled: int
    clock: str
    client_verdict: str | None = None
    """OK, DEGRADED or INVALID: whether the values can be attributed to the server."""
