"""Settings: what was asked of a run, frozen, and the rules that tell a possible run from an impossible one."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What was asked. Never holds a key or a password: of headers only the names are kept here."""

    host: str = ""
    """Base URL, scheme included, without ``/v1``."""
    endpoint: str = "/v1/chat/completions"
    endpoint_type: str = "chat"
    model: str | None = None
    streaming: bool = True
    max_tokens_field: str = "max_tokens"
    header_names: tuple[str, ...] = ()

    users: int | None = None
    """Concurrent sessions. None: as many as the arrivals need, up to ``max_users``."""
    max_users: int = 1000
    processes: int = 1
    prefill_concurrency: int | None = None
    prefill_concurrency_ramp_duration: float | None = None
    request_count: int | None = None
    num_sessions: int | None = None
    run_time_s: float | None = None
    """Of the profiling phase."""
    stop_timeout_s: float = 30.0

    request_rate: float | None = None
    arrival_pattern: str = "poisson"
    arrival_smoothness: float | None = None
    request_rate_ramp_duration: float | None = None
    request_rate_series: str | None = None
    user_centric_rate: float | None = None
    fixed_schedule: bool = False
    fixed_schedule_auto_offset: bool = True
    fixed_schedule_start_offset: float | None = None
    fixed_schedule_end_offset: float | None = None
    replay_speedup: float = 1.0

    warmup_request_count: int | None = None
    warmup_duration: float | None = None
    warmup_concurrency: int | None = None
    warmup_request_rate: float | None = None
    warmup_prefill_concurrency: int | None = None
    warmup_prefill_concurrency_ramp_duration: float | None = None

    request_cancellation_rate: float | None = None
    """Percent of the profiling requests."""
    request_cancellation_delay: float = 0.0
    request_timeout_s: float = 3600.0
    first_token_timeout_s: float = 1800.0
    gap_timeout_s: float = 600.0
    wait_for_model_timeout_s: float = 0.0

    synthetic_input_tokens_mean: float = 550.0
    synthetic_input_tokens_stddev: float = 0.0
    output_tokens_mean: float = 128.0
    output_tokens_stddev: float = 0.0
    seq_dist: str | None = None
    extra_inputs: str | None = None
    shared_system_prompt_length: int | None = None
    num_prefix_prompts: int | None = None
    prefix_prompt_length: int | None = None
    tokenizer: str | None = None
    input_file: str | None = None
    custom_dataset_type: str | None = None
    dataset_columns: str | None = None
    dataset_sampling_strategy: str = "sequential"
    skip_broken_rows: bool = False
    session_turns_mean: float = 1.0
    session_turns_stddev: float = 0.0
    session_turn_delay_mean: float = 0.0
    """Milliseconds, as AIPerf's."""
    session_turn_delay_stddev: float = 0.0
    session_header: str | None = None
    random_seed: int | None = None
    probe: bool = True

    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)
    report_dir: str = ""
    locustfile: str = ""
    command: str = ""

    @property
    def open_loop(self) -> bool:
        """Requests come by a schedule, whatever the server does."""
        return bool(self.request_rate or self.request_rate_series or self.user_centric_rate or self.fixed_schedule)

    @property
    def warms_up(self) -> bool:
        return bool(self.warmup_request_count or self.warmup_duration)

    @property
    def warmup_limit(self) -> int | None:
        """The prefill limit of the warmup phase: its own, else the main one."""
        if self.warmup_prefill_concurrency is not None:
            return self.warmup_prefill_concurrency
        return self.prefill_concurrency

    @property
    def warmup_ramp_s(self) -> float | None:
        """The ramp of the warmup phase: its own, else the main one."""
        if self.warmup_prefill_concurrency_ramp_duration is not None:
            return self.warmup_prefill_concurrency_ramp_duration
        return self.prefill_concurrency_ramp_duration


def mistakes(s: Settings) -> Iterator[str]:
    """Each reason why this run cannot be, as one line that says what to do. Nothing is asked of the network."""
    limits = (
        ("--prefill-concurrency", s.prefill_concurrency, "--prefill-concurrency-ramp-duration",
         s.prefill_concurrency_ramp_duration),
        ("--warmup-prefill-concurrency", s.warmup_prefill_concurrency, "--warmup-prefill-concurrency-ramp-duration",
         s.warmup_prefill_concurrency_ramp_duration),
    )  # fmt: skip
    if s.users is not None and s.users < 1:
        yield f"-u must be at least 1, got {s.users}"
    for flag, limit, ramp_flag, ramp_s in limits:
        if limit is not None and limit < 1:
            yield f"{flag} must be at least 1, got {limit}"
        elif limit is not None and s.users is not None and limit > s.users:
            yield f"{flag} {limit} is above the {s.users} users (-u): at most {s.users} requests can run at a time"
        elif limit is not None and limit < s.processes:
            yield f"{flag} {limit} is below the {s.processes} processes: each needs at least one slot, use fewer processes"
        if limit is not None and not s.streaming:
            yield f"{flag} needs --streaming: without a stream nobody can tell when the first token came"
        if ramp_s is not None and not ramp_s > 0:
            yield f"{ramp_flag} must be above 0 seconds, got {ramp_s:g}"
        if ramp_s is not None and limit is None and s.prefill_concurrency is None:  # to which the warmup falls back
            yield f"{ramp_flag} has nothing to ramp: give {flag} too"
    for flag, value, least in (
        ("--synthetic-input-tokens-mean", s.synthetic_input_tokens_mean, 1),
        ("--output-tokens-mean", s.output_tokens_mean, 1),
        ("--synthetic-input-tokens-stddev", s.synthetic_input_tokens_stddev, 0),
        ("--output-tokens-stddev", s.output_tokens_stddev, 0),
        ("--request-count", s.request_count, 1),
        ("--warmup-request-count", s.warmup_request_count, 1),
        ("--wait-for-model-timeout", s.wait_for_model_timeout_s, 0),
    ):
        if value is not None and not value >= least:
            yield f"{flag} must be at least {least}, got {value:g}"
    if "@" in urlsplit(s.host).netloc:
        yield "--host must not hold a user and a password, every report would: use --header 'Authorization: Basic ...'"
    if not s.request_timeout_s > 0:
        yield f"--request-timeout must be above 0 seconds, got {s.request_timeout_s:g}"
    for p in s.percentiles:
        if not 0 < p <= 99.9:
            yield f"--percentiles must lie above 0 and at most at 99.9, got {p:g}"


def base_url(host: str) -> str:
    """``localhost:8000``, ``http://localhost:8000/``, ``http://localhost:8000/v1``: all ``http://localhost:8000``."""
    if host and "://" not in host:
        host = "http://" + host
    parts = urlsplit(host)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}" if host else ""
