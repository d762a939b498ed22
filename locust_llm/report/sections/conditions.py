"""Conditions: what a run was made under, as asked and as it came out."""

import msgspec

from locust_llm.report.rows import ModelShare
from locust_llm.report.time_course import StepSeries


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What makes figures comparable. Counts are of the profiling phase; lengths are means over its
    requests."""

    simulated: bool
    server: str
    server_software: str
    model: str
    model_mix: tuple[ModelShare, ...] = ()
    """In the order asked for; empty: one model."""
    streaming: bool
    loop: str = "closed"
    """closed: a user sends its next request after the last answer; open: requests follow a
    schedule. Empty: of an imported result that does not say."""
    arrivals: str = ""
    """Of an open loop, in words: the pattern or schedule by which requests are due."""
    users: int | None
    processes: int
    rate_per_s: float | None = None
    """Of an open loop: the rate asked for (that at the end of its ramp), of a series or a trace the
    mean of what was due."""
    users_in_force: StepSeries | None = None
    """How many there were; None: not recorded."""
    prefill_limit: int | None
    """The requested prefill limit."""
    prefill_ramp_s: float | None
    limit_in_force: StepSeries | None = None
    """None: there was no gate."""
    asked_input_tokens: float | None
    input_tokens: float | None
    input_deviation: float | None
    """Delivered / asked - 1, over the requests of which both are known."""
    asked_output_tokens: float | None
    output_tokens: float | None
    output_deviation: float | None
    sessions: int | None = None
    """Conversations that began; None where none has a second turn."""
    turns_per_session: float | None = None
    """Turns that were answered, over ``sessions``."""
    cached_share: float | None
    """Cached of all input tokens, over the requests whose answer has the count."""
    cached_share_by_metrics: float | None = None
    """By the counters of the server's metrics, between its first and its last reading of the
    profiling phase."""
    duration_s: float | None
    """First send to last end, without the pauses between repeats; of a stage of a sweep its
    measured time."""
    requests: int
    succeeded: int
    failed: int
    failure_rate: float | None
    """failed / (succeeded + failed)."""
    schema_checked: int = 0
    schema_valid: int = 0
    """Answers that were held against a schema, and those of them that fit it."""
    cut: int
    cancelled: int
    clock: str
    client_verdict: str | None = None
    """OK, DEGRADED or INVALID: can the figures be attributed to the server?"""
