"""Settings: what was asked of a run, frozen, and the rules that tell a possible run from an impossible one."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from locust_llm.slo import rules as slo
from locust_llm.slo.rules import Rules

from .bounds import MAX_RESPONSE_BYTES
from .foreign_text import is_secret
from .ranges import PERCENTILES, beyond
from .sweep import CONCURRENCY, INPUT, PREFILL, RATE, REPEAT, Sweep, duration, sweep

COLUMNS: Final = 50
"""The most percentiles that tables have."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, dict=True):
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
    max_response_bytes: int = MAX_RESPONSE_BYTES
    max_retries: int = 0
    """Of a request that is refused with HTTP 429 or 503."""
    server_metrics: bool = True
    """The server's own figures are read each second, where it has any."""
    insecure: bool = False
    """The server's TLS certificate is not verified."""

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

    sweep: str | None = None
    """Stages: see stages.py."""
    find_max: bool = False
    repeats: int = 1
    stage_duration: str = "10..120"
    """Seconds at least and at most of a stage of a sweep, or one number for both."""
    stage_requests: int | None = None
    """So many requests a stage of a sweep has at least, if its time allows; None: as many as the rules need."""
    gpus: int | None = None
    """How many the server has."""
    gpu_hour: float | None = None
    """What an hour of one costs, in any currency."""

    slo: tuple[str, ...] = ()
    """Rules as text, as run.json has them; ``rules`` has the objects."""
    slo_preset: str | None = None
    goodput: str | None = None
    """AIPerf's form: tag:limit pairs, in the unit of the tables."""
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)
    report_dir: str = ""
    locustfile: str = ""
    command: str = ""

    @cached_property
    def rules(self) -> Rules:
        """Of ``slo``, ``slo_preset`` and ``goodput``, parsed once."""
        return slo.resolve(self.slo, self.slo_preset, self.goodput)

    @property
    def columns(self) -> tuple[float, ...]:
        """The percentiles of the tables: each once, and no more than fit."""
        return tuple(dict.fromkeys(p for p in self.percentiles if 0 < p <= 99.9))[:COLUMNS]

    @property
    def open_loop(self) -> bool:
        """Requests come by a schedule, whatever the server does."""
        rates = self.request_rate or self.request_rate_series or self.user_centric_rate or self.sweeps(RATE)
        return bool(rates or self.fixed_schedule)

    @property
    def most_users(self) -> int | None:
        """At a time, as far as that was asked for."""
        stages = self.staged
        return int(stages.values[-1]) if stages is not None and self.sweeps(CONCURRENCY) else self.users

    @property
    def first_users(self) -> int | None:
        """How many begin the run: of a warmup or a first stage other than later on. None: nobody said."""
        if self.warmup_concurrency:
            return self.warmup_concurrency
        stages = self.staged
        return int(stages.values[0]) if stages is not None and self.sweeps(CONCURRENCY) else self.users

    def sweeps(self, axis: str) -> bool:
        """Its stages differ in this."""
        return (self.sweep or "").partition("=")[0].strip() == axis

    @property
    def staged(self) -> Sweep | None:
        """The stages that were asked for; None without any. Raises ValueError."""
        if self.sweep:
            return sweep(self.sweep)
        return Sweep(REPEAT, tuple(map(float, range(1, self.repeats + 1)))) if self.repeats > 1 else None

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


def of_stage(s: Settings, axis: str, value: float) -> Settings:
    """The settings of one stage, as if it were a run of its own."""
    limit = s.prefill_concurrency
    changes: dict[str, dict[str, int | float | None]] = {
        CONCURRENCY: {"users": int(value), "prefill_concurrency": min(limit, int(value)) if limit else None},
        RATE: {"request_rate": value},
        PREFILL: {"prefill_concurrency": int(value)},
        INPUT: {"synthetic_input_tokens_mean": value},
        REPEAT: {},
    }
    return msgspec.structs.replace(s, sweep=None, repeats=1, find_max=False, **changes[axis])


def mistakes(s: Settings) -> Iterator[str]:
    """Each reason why this run cannot be, as one line that says what to do. Nothing is asked of the network."""
    yield from beyond(s)
    yield from _limits(s)
    yield from _contradictions(s)
    yield from _stages(s)
    yield from slo.mistakes(s.rules, (s.sweep or "").partition("=")[0].strip())
    if "@" in urlsplit(s.host).netloc:
        yield "--host must not hold a user and a password, every report would: use --header 'Authorization: Basic ...'"
    for name, _ in parse_qsl(urlsplit(s.endpoint).query, keep_blank_values=True):
        if is_secret(name):
            yield f"--endpoint must not hold a key ({name}), every report would: use --header, or --api-key-file"
    if len(s.percentiles) > PERCENTILES:
        yield f"--percentiles takes at most {PERCENTILES}, got {len(s.percentiles)}"
    for p in s.percentiles:
        if not 0 < p <= 99.9:
            yield f"--percentiles must lie above 0 and at most at 99.9, got {p:g}"


def _limits(s: Settings) -> Iterator[str]:
    """Of the prefill gate."""
    limits = (
        ("--prefill-concurrency", s.prefill_concurrency, "--prefill-concurrency-ramp-duration",
         s.prefill_concurrency_ramp_duration),
        ("--warmup-prefill-concurrency", s.warmup_prefill_concurrency, "--warmup-prefill-concurrency-ramp-duration",
         s.warmup_prefill_concurrency_ramp_duration),
    )  # fmt: skip
    most_users = s.users if s.users is not None or not s.open_loop else s.max_users
    for flag, limit, ramp_flag, ramp_s in limits:
        if limit is not None and most_users is not None and limit > most_users:
            users = f"the {most_users} users ({'-u' if s.users is not None else '--max-users'})"
            yield f"{flag} {limit} is above {users}: at most {most_users} requests can run at a time"
        if limit is not None and not s.streaming:
            yield f"{flag} needs --streaming: without a stream nobody can tell when the first token came"
        if ramp_s is not None and limit is None and s.prefill_concurrency is None:  # to which the warmup falls back
            yield f"{ramp_flag} has nothing to ramp: give {flag} too"


def _contradictions(s: Settings) -> Iterator[str]:
    """Settings that cannot stand side by side, and those that need another."""
    modes = [
        flag
        for flag, given in (
            ("--fixed-schedule", s.fixed_schedule),
            ("--user-centric-rate", s.user_centric_rate),
            ("--request-rate-series", s.request_rate_series),
            ("--request-rate", s.request_rate),
        )
        if given
    ]
    if len(modes) > 1:
        yield f"{' and '.join(modes)} contradict each other: give one of them"
    if s.user_centric_rate and s.users is None:
        yield "--user-centric-rate needs the number of users (-u)"
    if s.fixed_schedule and not s.input_file:
        yield "--fixed-schedule needs a trace (--input-file)"
    if s.fixed_schedule and s.dataset_sampling_strategy != "sequential":
        yield "--fixed-schedule follows the times of its trace: --dataset-sampling-strategy has no place there"
    start, end = s.fixed_schedule_start_offset, s.fixed_schedule_end_offset
    if start is not None and end is not None and end <= start:
        yield f"--fixed-schedule-end-offset {end:g} must be above --fixed-schedule-start-offset {start:g}"
    if s.arrival_smoothness is not None and s.arrival_pattern != "gamma":
        yield f"--arrival-smoothness belongs to --arrival-pattern gamma, not to {s.arrival_pattern}"
    if s.request_rate_ramp_duration is not None and not s.request_rate:
        yield "--request-rate-ramp-duration has nothing to ramp: give --request-rate too"
    if s.request_cancellation_delay and s.request_cancellation_rate is None:
        yield "--request-cancellation-delay needs --request-cancellation-rate"
    if bool(s.num_prefix_prompts) != bool(s.prefix_prompt_length):
        yield "--num-prefix-prompts and --prefix-prompt-length need each other"
    for flag, given in (
        ("--warmup-concurrency", s.warmup_concurrency),
        ("--warmup-request-rate", s.warmup_request_rate),
    ):
        if given and not s.warms_up:
            yield f"{flag} has nothing to apply to: give --warmup-request-count or --warmup-duration too"
    if s.warmup_concurrency and s.users is None:
        yield "--warmup-concurrency needs the number of users after it (-u)"
    if (s.dataset_columns or s.custom_dataset_type) and not s.input_file:
        yield f"{'--dataset-columns' if s.dataset_columns else '--custom-dataset-type'} needs --input-file"


def _stages(s: Settings) -> Iterator[str]:
    """Of a sweep or repeats: what it is, what it cannot be together with, and each stage as a run of its own."""
    try:
        duration(s.stage_duration)
        stages = s.staged
    except ValueError as error:
        yield str(error)
        return
    if s.find_max and not s.sweep:
        yield "--find-max needs --sweep: between its highest stage that passes and the lowest that does not it looks on"
    if s.find_max and not s.rules.entries:
        yield "--find-max needs a rule (--slo): the highest stage within it is looked for"
    if s.gpu_hour is not None and s.gpus is None:
        yield "--gpu-hour needs the number of GPUs (--gpus)"
    if stages is None:
        return
    if s.sweep and s.repeats > 1:
        yield "--sweep and --repeats contradict each other: repeat the whole sweep, and compare"
    elif s.repeats > 1 and not (s.request_count or s.num_sessions or s.run_time_s or s.fixed_schedule):
        yield "--repeats needs an end of each run: give -t, --request-count or --num-sessions"
    contradicting: dict[str, list[tuple[str, object]]] = {
        CONCURRENCY: [("-u", s.users), ("a request rate", s.open_loop)],
        RATE: [("--request-rate", s.request_rate), ("--request-rate-series", s.request_rate_series)],
        PREFILL: [("--prefill-concurrency", s.prefill_concurrency)],
        INPUT: [("--seq-dist", s.seq_dist), ("--input-file", s.input_file)],
    }
    others = contradicting.get(stages.axis, [])
    if s.sweep:
        others += [
            ("--prefill-concurrency-ramp-duration", s.prefill_concurrency_ramp_duration),
            ("--request-count", s.request_count), ("--num-sessions", s.num_sessions), ("--fixed-schedule", s.fixed_schedule),
            ("--user-centric-rate", s.user_centric_rate), ("--warmup-concurrency", s.warmup_concurrency),
            ("--request-rate-ramp-duration", s.request_rate_ramp_duration),
        ]  # fmt: skip
    for flag, given in others:
        if given:
            yield f"--sweep {stages.axis}=... and {flag} contradict each other: leave {flag} out"
            return
    for value in {stages.values[0], stages.values[-1]} if s.sweep else ():
        for mistake in mistakes(of_stage(s, stages.axis, value)):
            yield f"--sweep {stages.axis}={value:g}: {mistake}"
            return


def base_url(host: str) -> str:
    """``localhost:8000``, ``http://localhost:8000/``, ``http://localhost:8000/v1``: all ``http://localhost:8000``."""
    if host and "://" not in host:
        host = "http://" + host
    parts = urlsplit(host)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}" if host else ""
