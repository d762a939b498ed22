"""Ranges: what each number of the settings may be, by its flag, and the reading of numbers from text.

The upper ends are far above what anybody needs, and low enough that a run with them can be made: its numbers fit into
messages between processes (64 bits), its times into timers.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from locust_llm.load.numbers import SECONDS, TOKENS, shown

COUNT: Final = 10**9
USERS: Final = 10**6
PROCESSES: Final = 1024
PERCENTILES: Final = 50


class Range(NamedTuple):
    """Both ends belong to it."""

    flag: str
    field: str
    least: float
    most: float


RANGES: Final = (
    Range("-u", "users", 1, USERS),
    Range("-t", "run_time_s", 1, SECONDS),
    Range("--stop-timeout", "stop_timeout_s", 0, SECONDS),
    Range("--processes", "processes", 1, PROCESSES),
    Range("--max-users", "max_users", 1, USERS),
    Range("--prefill-concurrency", "prefill_concurrency", 1, USERS),
    Range("--warmup-prefill-concurrency", "warmup_prefill_concurrency", 1, USERS),
    Range("--request-count", "request_count", 1, COUNT),
    Range("--num-sessions", "num_sessions", 1, COUNT),
    Range("--warmup-request-count", "warmup_request_count", 1, COUNT),
    Range("--warmup-concurrency", "warmup_concurrency", 1, USERS),
    Range("--stage-requests", "stage_requests", 1, COUNT),
    Range("--repeats", "repeats", 1, 1000),
    Range("--gpus", "gpus", 1, 10**6),
    Range("--synthetic-input-tokens-mean", "synthetic_input_tokens_mean", 1, TOKENS),
    Range("--synthetic-input-tokens-stddev", "synthetic_input_tokens_stddev", 0, TOKENS),
    Range("--output-tokens-mean", "output_tokens_mean", 1, TOKENS),
    Range("--output-tokens-stddev", "output_tokens_stddev", 0, TOKENS),
    Range("--shared-system-prompt-length", "shared_system_prompt_length", 1, TOKENS),
    Range("--num-prefix-prompts", "num_prefix_prompts", 1, 10**5),
    Range("--prefix-prompt-length", "prefix_prompt_length", 1, TOKENS),
    Range("--session-turns-mean", "session_turns_mean", 1, 10**5),
    Range("--session-turns-stddev", "session_turns_stddev", 0, 10**5),
    Range("--session-turn-delay-mean", "session_turn_delay_mean", 0, SECONDS * 1000),
    Range("--session-turn-delay-stddev", "session_turn_delay_stddev", 0, SECONDS * 1000),
    Range("--random-seed", "random_seed", -(2**53), 2**53),  # as far as JSON keeps whole numbers
    Range("--request-cancellation-delay", "request_cancellation_delay", 0, SECONDS),
    Range("--max-retries", "max_retries", 0, 1000),
    Range("--fixed-schedule-start-offset", "fixed_schedule_start_offset", 0, 10**15),  # Unix time in ms: 2 * 10**12
    Range("--fixed-schedule-end-offset", "fixed_schedule_end_offset", 0, 10**15),
    Range("--wait-for-model-timeout", "wait_for_model_timeout_s", 0, SECONDS),
    Range("--request-rate", "request_rate", 1e-6, 10**6),
    Range("--user-centric-rate", "user_centric_rate", 1e-6, 10**6),
    Range("--warmup-request-rate", "warmup_request_rate", 1e-6, 10**6),
    Range("--arrival-smoothness", "arrival_smoothness", 0.001, 10**6),
    Range("--replay-speedup", "replay_speedup", 1e-6, 10**6),
    Range("--request-rate-ramp-duration", "request_rate_ramp_duration", 0.001, SECONDS),
    Range("--prefill-concurrency-ramp-duration", "prefill_concurrency_ramp_duration", 0.001, SECONDS),
    Range("--warmup-prefill-concurrency-ramp-duration", "warmup_prefill_concurrency_ramp_duration", 0.001, SECONDS),
    Range("--warmup-duration", "warmup_duration", 0.001, SECONDS),
    Range("--request-timeout", "request_timeout_s", 0.001, SECONDS),
    Range("--first-token-timeout", "first_token_timeout_s", 0.001, SECONDS),
    Range("--gap-timeout", "gap_timeout_s", 0.001, SECONDS),
    Range("--request-cancellation-rate", "request_cancellation_rate", 1e-6, 100),
    Range("--max-response-bytes", "max_response_bytes", 1, 2**40),
    Range("--gpu-hour", "gpu_hour", 1e-6, 10**6),
)


def beyond(settings: object) -> Iterator[str]:
    """Each number that lies outside of its range, as one line."""
    for flag, field, least, most in RANGES:
        value = getattr(settings, field)
        if value is None or least <= value <= most:
            continue
        if value > most:
            yield f"{flag} must be at most {shown(most)}, got {shown(value)}"
        elif 0 < least < 1 and not value > 0:
            yield f"{flag} must be above 0{' seconds' if 'ramp-duration' in flag else ''}, got {shown(value)}"
        else:
            yield f"{flag} must be at least {shown(least)}, got {shown(value)}"
