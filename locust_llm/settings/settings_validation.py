"""Settings validation: find settings that cannot make a run, before any load and without the
network."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from locust_llm.answers.reference_prompts import load_reference_prompts
from locust_llm.slo import rules as slo
from locust_llm.slo.best_prefill_limit import GOODPUT
from locust_llm.slo.binomial_intervals import count_needed_values
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    GHOST_TOKENS,
    GROWING,
    OF_ANSWERS,
    OF_SCHEDULE,
    OF_WHOLE_RUN,
    POOLED,
    SCHEMA_VALID,
)
from locust_llm.slo.reading_pace import parse_token_deadlines
from locust_llm.slo.rules import ABORT
from locust_llm.text.format import find_nearest_names
from locust_llm.text.hide_secrets import find_secret_fields, is_secret
from locust_llm.text.numbers import parse_size
from locust_llm.workload.answer_schema import MISSING, has_jsonschema
from locust_llm.workload.length_distributions import parse_length
from locust_llm.workload.model_and_tenant_mix import parse_tenant_priorities, parse_tenant_weights
from locust_llm.workload.prefix_reuse import max_cached_blocks
from locust_llm.workload.traces.session_start_point import parse_start_shares

from .ab_arms import BASE, LEAST, SHORTEST_S
from .endpoint_types import POOLING
from .limit_sweep_length import explain_short_limit_sweep
from .option_declaration import declared_options, find_out_of_range
from .run_labels import parse_labels
from .run_options import Settings, make_stage_settings
from .sweep_option import CONCURRENCY, INPUT, PREFILL, RATE, parse_duration_range

MAX_PERCENTILES: Final = 50
LEAST_SHARE: Final = 0.01
"""The least share of the load for a tenant that is compared."""
MAX_METRICS_URLS: Final = 64
MAX_PIXELS: Final = 64e6
MAX_SAMPLES: Final = 32e6
"""The most samples of a synthetic image or sound. Making it takes seconds, and some 200 MB."""
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING: Final = (
    "host", "content-length", "content-type", "transfer-encoding", "connection", "x-request-id",
    "authorization", "cookie",
    "accept-encoding", "expect", "upgrade",
)  # fmt: skip


def validate_settings(settings: Settings) -> Iterator[str]:
    """Each reason why this run cannot start, as one line with what to do."""
    yield from find_out_of_range(settings, declared_options(Settings))
    yield from _limits(settings)
    yield from _contradictions(settings)
    yield from _dataset(settings)
    yield from _prompts(settings)
    yield from _stages(settings)
    yield from _limit_sweep(settings)
    yield from _until_decided(settings)
    yield from _tenants(settings)
    yield from _arms(settings)
    yield from slo.validate_rules(settings.rules, (settings.sweep or "").partition("=")[0].strip())
    if "@" in urlsplit(settings.candidate).netloc:
        yield (
            "--candidate must not hold a user and a password: use --candidate-set "
            "'header:Authorization=Basic ...'"
        )
    if any("@" in urlsplit(host).netloc for host in settings.addresses):
        yield (
            "--host must not hold a user and a password, as reports show it: use --header "
            "'Authorization: Basic ...'"
        )
    for flag, url in (
        ("--endpoint", settings.endpoint),
        *(("--host", address) for address in settings.addresses),
        ("--candidate", settings.candidate),
    ):
        for name in find_secret_fields(url):
            yield (
                f"{flag} must not hold a key ({name}), as reports show it: use --header, or "
                f"--api-key-file"
            )
    yield from _routers(settings)
    yield from _metrics_urls(settings)
    if any(rule.metric == SCHEMA_VALID for rule in settings.rules.readable) and (
        not has_jsonschema()
    ):
        yield f"an SLO on {SCHEMA_VALID} cannot be judged: {MISSING}"
    try:
        parse_labels(settings.label)
        parse_token_deadlines(settings.token_deadline)
    except ValueError as error:
        yield str(error)
    if len(settings.percentiles) > MAX_PERCENTILES:
        yield f"--percentiles takes at most {MAX_PERCENTILES}, got {len(settings.percentiles)}"
    for p in settings.percentiles:
        if not 0 < p <= 99.9:
            yield f"--percentiles must be above 0 and at most 99.9, got {p:g}"


def _routers(settings: Settings) -> Iterator[str]:
    """Check replicas and the headers by which requests find them."""
    if settings.hosts and settings.compares:
        yield "base and candidate have one address each: use one --host (--base) and one --candidate"
    flags = {
        "--session-header": settings.session_header, "--echo-header": settings.echo_header,
        "--backend-header": settings.backend_header,
    }  # fmt: skip
    for flag, name in flags.items():
        if name is not None and not HEADER_NAME.fullmatch(name):
            yield f"{flag} takes the name of a header, and {name!r} is not a valid one"
        elif name is not None and flag != "--backend-header" and name.lower() in _FRAMING:
            yield f"{flag} {name}: the load generator sets this header itself"
    if settings.backend_header and (
        settings.backend_header.lower() == (settings.echo_header or "").lower()
        or is_secret(settings.backend_header)
    ):
        yield (
            f"--backend-header {settings.backend_header} may hold a secret, and its values are "
            "written to reports: use another header"
        )


def _metrics_urls(settings: Settings) -> Iterator[str]:
    if settings.metrics_url and not settings.server_metrics:
        yield ("--metrics-url and --no-server-metrics exclude each other: leave one of them out")
    if len(settings.metrics_url) > MAX_METRICS_URLS:
        yield (
            f"--metrics-url can be given {MAX_METRICS_URLS} times at most, got {len(settings.metrics_url)}"
        )
    for url in settings.metrics_url:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            yield f"--metrics-url {url!r} is not a valid URL: {error}"
            continue
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield f"--metrics-url {url!r} is not a metrics URL: write http://HOST:PORT/metrics"
        if "@" in parts.netloc or find_secret_fields(url):
            yield "--metrics-url must not hold a key or a password, as reports show it"


def _limits(settings: Settings) -> Iterator[str]:
    """Check the prefill limits."""
    limits = (
        ("--prefill-concurrency", settings.prefill_concurrency, "--prefill-concurrency-ramp-duration",
         settings.prefill_concurrency_ramp_duration),
        ("--warmup-prefill-concurrency", settings.warmup_prefill_concurrency,
            "--warmup-prefill-concurrency-ramp-duration",
         settings.warmup_prefill_concurrency_ramp_duration),
    )  # fmt: skip
    most_users = (
        settings.users
        if settings.users is not None or not settings.open_loop
        else settings.max_users
    )
    for flag, limit, ramp_flag, ramp_s in limits:
        if limit is not None and most_users is not None and limit > most_users:
            users = (
                f"the {most_users} users ({'-u' if settings.users is not None else '--max-users'})"
            )
            yield (
                f"{flag} {limit} is above {users}: at most {most_users} requests can run at the "
                "same time"
            )
        if limit is not None and not settings.streaming and settings.generates:
            yield f"{flag} needs --streaming: without a stream there is no time to first token"
        # which the warmup uses then
        if ramp_s is not None and limit is None and settings.prefill_concurrency is None:
            yield f"{ramp_flag} has nothing to ramp: add {flag}"


def _contradictions(settings: Settings) -> Iterator[str]:
    """Find settings that exclude each other, or need another one."""
    yield from _modes(settings)
    yield from _requests(settings)
    yield from _cancellation_check(settings)
    yield from _soak(settings)
    yield from _arrivals(settings)
    yield from _prompt_parts(settings)
    yield from _warmup(settings)
    if settings.responses_state == "server" and settings.endpoint_type != "responses":
        yield (
            f"--responses-state server needs --endpoint-type responses: {settings.endpoint_type} has no "
            f"state"
        )
    if settings.responses_state == "server" and settings.candidate:
        yield (
            "--responses-state server and --candidate exclude each other: each server keeps only "
            "its own responses"
        )


def _modes(settings: Settings) -> Iterator[str]:
    """Find a run with more than one source of its send times."""
    modes = [
        flag
        for flag, given in (
            ("--fixed-schedule", settings.fixed_schedule),
            ("--user-centric-rate", settings.user_centric_rate),
            ("--request-rate-series", settings.request_rate_series),
            ("--request-rate", settings.request_rate),
        )
        if given
    ]
    if len(modes) > 1:
        yield f"{' and '.join(modes)} exclude each other: give one of them"


def _requests(settings: Settings) -> Iterator[str]:
    """Check what a request asks for and how it ends."""
    if settings.model and settings.model_mix:
        yield "--model and --model-mix exclude each other: give one of them"
    if settings.per_chunk_usage and settings.endpoint_type in (*POOLING, "responses", "messages"):
        yield (
            f"--per-chunk-usage works with chat and completions only: {settings.endpoint_type} has "
            "no such count"
        )
    elif settings.per_chunk_usage and not settings.streaming:
        yield "--per-chunk-usage needs --streaming: a response without streaming has no chunks"
    if settings.otlp_receiver and not settings.traceparent:
        yield (
            "--otlp-receiver needs the traceparent header to join spans to requests: leave out "
            "--no-traceparent"
        )
    if settings.check_answers and settings.endpoint_type in POOLING:
        yield (
            "--check-answers checks generated text, and an endpoint of type "
            f"{settings.endpoint_type} generates none"
        )
    for flag, given in (
        ("--reference-file", settings.reference_file),
        ("--mark-replayed", settings.mark_replayed),
        ("--keep-text", settings.keep_text),
    ):
        if given and not settings.check_answers:
            yield f"{flag} needs --check-answers"
    if settings.mark_replayed and not settings.input_file:
        yield "--mark-replayed needs --input-file: synthetic prompts have markers without it"
    if settings.reference_file:
        try:
            load_reference_prompts(settings.reference_file)
        except ValueError as error:
            yield str(error)
        except OSError as error:
            yield f"--reference-file {settings.reference_file}: {error.strerror}"
    for rule in settings.rules.readable:
        if rule.metric in OF_ANSWERS and not settings.check_answers:
            yield f"SLO {str(rule)!r} needs --check-answers"
    if settings.request_cancellation_delay and settings.request_cancellation_rate is None:
        yield "--request-cancellation-delay needs --request-cancellation-rate"


def _cancellation_check(settings: Settings) -> Iterator[str]:
    """Find what makes the ghost tokens of a run unknowable."""
    if not settings.check_cancellations:
        for rule in settings.rules.readable:
            if rule.metric == GHOST_TOKENS:
                yield f"SLO {str(rule)!r} needs --check-cancellations"
        return
    if settings.request_cancellation_rate is None:
        yield "--check-cancellations needs --request-cancellation-rate"
    if not settings.server_metrics:
        yield "--check-cancellations needs the server's metrics: leave out --no-server-metrics"
    if not settings.streaming:
        yield (
            "--check-cancellations needs --streaming: an answer in one piece does not show what "
            "came before the cancellation"
        )
    if settings.sweep or settings.compares or settings.check_answers:
        yield (
            "--check-cancellations needs one load of one server: leave out sweeps, A/B tests and "
            "--check-answers"
        )


def _soak(settings: Settings) -> Iterator[str]:
    """Check what a soak needs."""
    if not settings.soak:
        for rule in settings.rules.readable:
            if rule.metric == GROWING:
                yield f"SLO {str(rule)!r} needs --soak"
        for flag, value in (
            ("--memory-limit", settings.memory_limit),
            ("--soak-interval", settings.soak_interval),
        ):
            if value is not None:
                yield f"{flag} needs --soak"
        return
    if settings.sweep or settings.compares:
        yield "--soak needs one load of one server: leave out sweeps and A/B tests"
    if settings.memory_limit is not None:
        try:
            parse_size(settings.memory_limit)
        except ValueError as error:
            yield f"--memory-limit {settings.memory_limit}: {error}"


def _arrivals(settings: Settings) -> Iterator[str]:
    """Check the times at which requests are sent."""
    if settings.user_centric_rate and settings.users is None:
        yield "--user-centric-rate needs the number of users (-u)"
    if settings.fixed_schedule and not settings.input_file:
        yield "--fixed-schedule needs a trace (--input-file)"
    if settings.fixed_schedule and settings.dataset_sampling_strategy != "sequential":
        yield (
            "--fixed-schedule follows the timestamps of the trace: leave out "
            "--dataset-sampling-strategy"
        )
    start, end = settings.fixed_schedule_start_offset, settings.fixed_schedule_end_offset
    if start is not None and end is not None and end <= start:
        yield (
            f"--fixed-schedule-end-offset {end:g} must be above --fixed-schedule-start-offset "
            f"{start:g}"
        )
    if settings.arrival_smoothness is not None and settings.arrival_pattern != "gamma":
        yield f"--arrival-smoothness needs --arrival-pattern gamma, got {settings.arrival_pattern}"
    if settings.request_rate_ramp_duration is not None and not settings.request_rate:
        yield "--request-rate-ramp-duration has nothing to ramp: add --request-rate"


def _prompt_parts(settings: Settings) -> Iterator[str]:
    """Check the parts that prompts share."""
    if bool(settings.num_prefix_prompts) != bool(settings.prefix_prompt_length):
        yield "give both --num-prefix-prompts and --prefix-prompt-length"
    if settings.user_context_prompt_length:
        try:
            parse_length(settings.user_context_prompt_length)
        except ValueError as error:
            yield f"--user-context-prompt-length: {error}"


def _warmup(settings: Settings) -> Iterator[str]:
    """Find warmup options that have no effect."""
    for flag, given in (
        ("--warmup-concurrency", settings.warmup_concurrency),
        ("--warmup-request-rate", settings.warmup_request_rate),
    ):
        if given and not settings.warms_up:
            yield (f"{flag} needs a warmup: add --warmup-request-count or --warmup-duration")
    if settings.warmup_concurrency and settings.users is None:
        yield "--warmup-concurrency needs the number of users after the warmup (-u)"


def _dataset(settings: Settings) -> Iterator[str]:
    if (settings.dataset_columns or settings.custom_dataset_type) and not settings.input_file:
        yield (
            f"{'--dataset-columns' if settings.dataset_columns else '--custom-dataset-type'} needs "
            f"--input-file"
        )
    for flag, asked in (
        ("--idle-cap", settings.idle_cap),
        ("--trajectory-start", settings.trajectory_start),
    ):
        if asked is not None and not settings.input_file:
            yield f"{flag} needs --input-file"
    if settings.trajectory_start is not None:
        try:
            parse_start_shares(settings.trajectory_start)
        except ValueError as error:
            yield f"--trajectory-start {settings.trajectory_start}: {error}"
        if settings.fixed_schedule:
            yield (
                "--trajectory-start and --fixed-schedule exclude each other: the timestamps of a "
                "trace mark the starts of sessions"
            )


def find_rules_that_cannot_pass(settings: Settings) -> Iterator[str]:
    """Find rules that no run passes or decides, and rules for which this run has too few requests.
    Each is a sentence."""
    for rule in settings.rules.readable:
        if rule.metric in OF_SCHEDULE and not settings.open_loop:
            yield f"{rule} cannot be decided: {slo.NO_SCHEDULE.format(rule.metric)}"
    if settings.slo_mode != slo.POINT:
        for rule in settings.rules.readable:
            if rule.is_at_edge:
                yield (
                    f"{rule} cannot pass: no number of requests can prove exactly this limit; "
                    f"{slo.AT_EDGE}"
                )
    yield from _too_few_requests(settings)


def _too_few_requests(settings: Settings) -> Iterator[str]:
    """Find rules whose percentile has an extrapolated interval in this run. Each is a sentence."""
    if settings.staged is not None:
        return  # stages go on until they have enough
    asked = f"--request-count {settings.request_count}"
    most: float | None = settings.request_count
    if most is None and settings.request_rate and settings.longest_s:
        most = settings.request_rate * settings.longest_s
        asked = f"{settings.request_rate:g} requests/s for {settings.longest_s:g} s"
    for rule in settings.rules.readable if most is not None else ():
        if (
            most is not None
            and rule.percentile is not None
            and not rule.base
            and most < (least := count_needed_values(rule.percentile))
        ):
            yield (
                f"{asked} may be too few for {rule}: an interval of {rule.stat} within the "
                f"measured values needs {least} independent requests. With fewer requests, one end "
                "of it is extrapolated"
            )


def _until_decided(settings: Settings) -> Iterator[str]:
    """A run that goes on until it is decided has a first look, rules, and no other end."""
    if settings.until_decided_s is None:
        return
    if settings.run_time_s is None:
        yield ("--until-decided needs -t, the time at which the SLOs are judged for the first time")
    elif settings.until_decided_s <= settings.run_time_s:
        yield (
            f"--until-decided ({settings.until_decided_s:g} s) must exceed -t "
            f"({settings.run_time_s:g} s): it is the maximum total time"
        )
    if not settings.rules.entries:
        yield "--until-decided needs an SLO (--slo)"
    others = {
        "--sweep": settings.sweep, "--repeats": settings.repeats > 1, "--request-count": settings.request_count,
        "--num-sessions": settings.num_sessions, "--fixed-schedule": settings.fixed_schedule,
    }  # fmt: skip
    for flag, given in others.items():
        if given:
            yield f"--until-decided and {flag} exclude each other: leave out {flag}"


def _stages(settings: Settings) -> Iterator[str]:
    """Check a sweep or repeats: the options that exclude it, and its first and last stage as
    runs."""
    try:
        parse_duration_range(settings.stage_duration)
        stages = None if settings.compares else settings.staged
    except ValueError as error:
        yield str(error)
        return
    if settings.find_max and not settings.sweep:
        yield ("--find-max needs --sweep: it searches the range of the sweep")
    if settings.find_max and not settings.rules.entries:
        yield "--find-max needs an SLO (--slo): it searches for the highest load that meets the SLOs"
    if settings.gpu_hour is not None and settings.gpus is None:
        yield "--gpu-hour needs the number of GPUs (--gpus)"
    if stages is None:
        return
    if settings.sweep and settings.repeats > 1:
        yield (
            "--sweep and --repeats exclude each other: run the sweep several times and compare "
            "the runs"
        )
    elif settings.repeats > 1 and not (
        settings.request_count
        or settings.num_sessions
        or settings.run_time_s
        or settings.fixed_schedule
    ):
        yield "--repeats needs a length of each repeat: add -t, --request-count or --num-sessions"
    excluded: dict[str, list[tuple[str, object]]] = {
        CONCURRENCY: [("-u", settings.users), ("a request rate", settings.open_loop)],
        RATE: [
            ("--request-rate", settings.request_rate),
            ("--request-rate-series", settings.request_rate_series),
        ],
        INPUT: [("--seq-dist", settings.seq_dist), ("--input-file", settings.input_file)],
    }
    others = excluded.get(stages.axis, [])
    if settings.sweep:
        others += [
            ("--prefill-concurrency-ramp-duration", settings.prefill_concurrency_ramp_duration),
            ("--request-count", settings.request_count), ("--num-sessions", settings.num_sessions),
            ("--fixed-schedule", settings.fixed_schedule),
            ("--user-centric-rate", settings.user_centric_rate),
            ("--warmup-concurrency", settings.warmup_concurrency),
            ("--request-rate-ramp-duration", settings.request_rate_ramp_duration),
        ]  # fmt: skip
    for flag, given in others:
        if given:
            yield f"--sweep {stages.axis}=... and {flag} exclude each other: leave out {flag}"
            return
    for value in {stages.values[0], stages.values[-1]} if settings.sweep else ():
        for mistake in validate_settings(make_stage_settings(settings, stages.axis, value)):
            yield f"--sweep {stages.axis}={value:g}: {mistake}"
            return


def _limit_sweep(settings: Settings) -> Iterator[str]:
    """Check a comparison of prefill limits: the options that exclude it, and the highest limit as a
    run."""
    if not settings.sweeps(PREFILL):
        if settings.objective is not None:
            yield (
                "--objective needs a comparison of prefill limits: add --sweep "
                "prefill-concurrency=1..8"
            )
        return
    try:
        limits = settings.swept_limits
    except ValueError:
        return  # the error is in the list already
    excluded = (
        ("--prefill-concurrency", settings.prefill_concurrency),
        ("--prefill-concurrency-ramp-duration", settings.prefill_concurrency_ramp_duration),
        ("--find-max", settings.find_max), ("--repeats", settings.repeats > 1),
        ("--request-count", settings.request_count), ("--num-sessions", settings.num_sessions),
        ("--fixed-schedule", settings.fixed_schedule), ("--user-centric-rate", settings.user_centric_rate),
        ("--request-rate-series", settings.request_rate_series),
        ("--request-rate-ramp-duration", settings.request_rate_ramp_duration),
        ("--warmup-concurrency", settings.warmup_concurrency),
    )  # fmt: skip
    for flag, given in excluded:
        if given:
            yield f"--sweep {PREFILL}=... and {flag} exclude each other: leave out {flag}"
            return
    if settings.chosen_objective == GOODPUT and not slo.define_good_request(settings.rules)[0]:
        yield (
            "--objective goodput needs a limit on a latency: add --goodput or an SLO such as "
            "--slo 'ttft p95 < 1s'"
        )
    for rule in settings.rules.readable:
        if rule.kind == ABORT:
            yield (
                f"SLO {str(rule)!r}: a comparison of prefill limits cannot abort under one limit: "
                "leave out abort:"
            )
        if rule.staged:
            yield (
                f"SLO {str(rule)!r}: SLOs are judged at the best prefill limit: leave out the "
                "braces"
            )
    if why := explain_short_limit_sweep(settings, 0.0):
        yield why
    highest = msgspec.structs.replace(
        settings, sweep=None, objective=None, prefill_concurrency=limits[-1]
    )
    for mistake in validate_settings(highest):
        yield f"--sweep {PREFILL}={limits[-1]}: {mistake}"
        return


def _tenants(settings: Settings) -> Iterator[str]:
    """Check the tenant mix, and that all other options name its tenants."""
    if settings.isolate and not settings.tenant_mix:
        yield "--isolate needs --tenant-mix with the load of the other tenants"
    try:
        mix = parse_tenant_weights(settings.tenant_mix) if settings.tenant_mix else {}
        named = {
            "--tenant-header": [text.partition(":")[0] for text in settings.tenant_header],
            "--tenant-priority": [*parse_tenant_priorities(settings.tenant_priority)]
            if settings.tenant_priority
            else [],
            "--tenant-weight": [*parse_tenant_weights(settings.tenant_weight, "--tenant-weight")]
            if settings.tenant_weight
            else [],
            "--isolate": [settings.isolate] if settings.isolate else [],
        }
    except ValueError as error:
        yield str(error)
        return
    for rule in settings.rules.readable:
        named.setdefault(f"SLO {str(rule)!r}", []).extend(
            value for key, value in rule.where if key == "tenant"
        )
    for flag, names in named.items() if mix else ():
        if unknown := next((name for name in names if name not in mix), None):
            yield (
                f"{flag}: there is no tenant {unknown}{find_nearest_names(unknown, mix)}; "
                f"--tenant-mix has {', '.join(mix)}"
            )
    if settings.tenant_priority and settings.endpoint_type not in ("chat", "completions"):
        yield (
            "--tenant-priority works with vLLM's chat and completions only: "
            f"{settings.endpoint_type} has no priority field"
        )
    share = mix.get(settings.isolate or "", 0.0) / sum(mix.values()) if mix else 0.0
    if settings.isolate and len(mix) < 2:
        yield "--isolate needs a second tenant in --tenant-mix"
    elif (
        settings.isolate
        and settings.users
        and not settings.open_loop
        and not 1 <= (own := round(settings.users * share)) < settings.users
    ):
        yield (
            f"--isolate {settings.isolate}: it has {own} of {settings.users} users (-u), and both "
            "sides need at least one"
        )
    elif settings.isolate and 0 < share < LEAST_SHARE:
        yield (
            f"--isolate {settings.isolate}: it has {share:.2%} of the load, too little to compare "
            f"(at least {LEAST_SHARE:.0%})"
        )


def check_dataset_tenants(settings: Settings, named: Sequence[str]) -> str:
    """Why a dataset whose rows name these tenants cannot be in this run. Empty: it can."""
    if settings.tenant_mix and (
        others := [name for name in named if name not in parse_tenant_weights(settings.tenant_mix)]
    ):
        return f"its rows name the tenant {others[0]}, which is missing in --tenant-mix"
    if settings.isolate and named and (settings.isolate not in named or not settings.open_loop):
        why = (
            "a request rate is required"
            if settings.isolate in named
            else f"no row names {settings.isolate}"
        )
        return f"its rows name their tenants, and with --isolate {settings.isolate} {why}"
    return ""


def _arms(settings: Settings) -> Iterator[str]:
    """Check base and candidate in pairs of blocks."""
    if not settings.compares:
        if settings.washout is not None:
            yield "--washout is an option of locust-llm ab only"
        return
    name = "--isolate" if settings.isolate else "locust-llm ab"
    if settings.isolate and (settings.candidate or settings.candidate_set or settings.aa):
        yield (
            "--isolate and locust-llm ab exclude each other: --isolate compares the tenant alone "
            "and with the others"
        )
    elif settings.tenant_mix and not settings.isolate:
        yield (
            "locust-llm ab and --tenant-mix exclude each other: leave out --tenant-mix, or use "
            "run --isolate"
        )
    if settings.aa and (settings.candidate or settings.candidate_set):
        yield "--aa compares the base with itself: leave out --candidate and --candidate-set"
    if settings.candidate == settings.host and not (settings.candidate_set or settings.same_server):
        yield (
            "the candidate is the same server as the base: use --aa to measure the false-positive "
            "rate"
        )
    contradicting = (
        ("--sweep", settings.sweep), ("--repeats", settings.repeats > 1), ("--find-max", settings.find_max),
        ("--request-count", settings.request_count),
        ("--until-decided", settings.until_decided_s),
        ("--num-sessions", settings.num_sessions), ("--fixed-schedule", settings.fixed_schedule),
        ("--user-centric-rate", settings.user_centric_rate),
        ("--request-rate-series", settings.request_rate_series),
        ("--request-rate-ramp-duration", settings.request_rate_ramp_duration),
        ("--prefill-concurrency-ramp-duration", settings.prefill_concurrency_ramp_duration),
        ("--warmup-request-count and --warmup-duration", settings.warms_up),
        ("--request-cancellation-rate", settings.request_cancellation_rate),
    )  # fmt: skip
    for flag, given in contradicting:
        if given:
            yield f"{name} and {flag} exclude each other: leave out {flag}"
    if settings.washout_s >= settings.block_s:
        yield (
            f"--washout {settings.washout_s:g} must be shorter than a block "
            f"({settings.block_s:.3g} s, --block-duration)"
        )
    blocks = 2 * (LEAST + 1)
    if settings.pairs < LEAST:
        yield (
            f"-t allows {max(0, settings.pairs)} pairs of blocks of {settings.block_s:g} s "
            f"besides the first, which is not counted, and {LEAST} are needed: use -t "
            f"{math.ceil(blocks * settings.block_s)}s or a shorter --block-duration"
        )
    if settings.shortens_blocks and settings.block_s < SHORTEST_S:
        yield (
            f"-t {settings.run_time_s:g} leaves {settings.block_s:.2g} s for each of {blocks} "
            f"blocks, and {SHORTEST_S:g} s are needed: use -t {math.ceil(blocks * SHORTEST_S)}s"
        )
    if limit := settings.changes.prefill_concurrency:
        yield from (
            f"the candidate: {why}"
            for why in _limits(msgspec.structs.replace(settings, prefill_concurrency=limit))
        )
    yield from _paired_rules(settings)


def _paired_rules(settings: Settings) -> Iterator[str]:
    """Find rules that a comparison of two arms cannot judge."""
    for rule in settings.rules.readable:
        if rule.kind == ABORT:
            yield (
                f"SLO {str(rule)!r}: base and candidate are compared after the run: leave out "
                "abort:"
            )
        if rule.base and rule.base != BASE:
            yield (
                f"SLO {str(rule)!r}: an A/B test can only compare with its base: write 'within ... "
                f"of {BASE}'"
            )
        if rule.metric in (*OF_ANSWERS, *OF_WHOLE_RUN):
            yield f"SLO {str(rule)!r}: {rule.metric} is not judged in an A/B test"
        if rule.base == BASE and (rule.metric in OF_SCHEDULE or BY_WORD[rule.metric].tag == POOLED):
            yield f"SLO {str(rule)!r}: {rule.metric} is not compared in an A/B test"


def _prompts(settings: Settings) -> Iterator[str]:
    """Check prompts, images and prefixes against each other and the protocol."""
    yield from _pooling(settings)
    yield from _media(settings)
    yield from _prefix_cache(settings)


def _pooling(settings: Settings) -> Iterator[str]:
    """Check embeddings and rerank, which have no output."""
    kind = f"--endpoint-type {settings.endpoint_type}"
    usual = Settings()
    if settings.generates:
        if settings.batch_size_text != usual.batch_size_text:
            yield (
                "--batch-size-text works with --endpoint-type embeddings or rerank only: "
                f"{settings.endpoint_type} has one prompt per request"
            )
        return
    if settings.streaming:
        yield f"{kind} does not stream: leave out --streaming"
    for flag, given in (
        ("--output-tokens-mean", settings.output_tokens_mean != usual.output_tokens_mean),
        ("--output-tokens-stddev", settings.output_tokens_stddev),
        ("--first-token-timeout", settings.first_token_timeout_s != usual.first_token_timeout_s),
        ("--gpu-hour", settings.gpu_hour),
        ("--tools", settings.tools),
    ):
        if given:
            yield f"{kind} generates no tokens: leave out {flag}"
    for flag, given in (
        ("--session-turns-mean", settings.session_turns_mean > 1),
        ("--shared-system-prompt-length", settings.shared_system_prompt_length),
        ("--user-context-prompt-length", settings.user_context_prompt_length),
    ):
        if given:
            yield f"{kind} has no conversation: leave out {flag}"
    if settings.input_file and settings.batch_size_text > 1:
        yield (
            "--batch-size-text works with synthetic prompts only: with --input-file each message "
            "of a row is an input"
        )
    used = list[tuple[str, str]]()
    for rule in settings.rules.readable:
        metrics = [rule.metric, *(condition.metric for condition in rule.given)]
        used += [(f"SLO {str(rule)!r}", metric) for metric in metrics]
    used += [("--goodput", condition.metric) for condition in settings.rules.good]
    for what, metric in dict.fromkeys(used):
        if instead := BY_WORD[metric].instead:
            yield (
                f"{what}: {settings.endpoint_type} generates no tokens and has no {metric}: use "
                f"{instead}"
            )


def _media(settings: Settings) -> Iterator[str]:
    """Check synthetic images and audio."""
    if bool(settings.image_width_mean) != bool(settings.image_height_mean):
        yield "give both --image-width-mean and --image-height-mean"
    for kind, mean, usual in (
        ("image", settings.image_width_mean, Settings()),
        ("audio", settings.audio_length_mean, Settings()),
    ):
        others = (
            option.field
            for option in declared_options(Settings)
            if option.field.startswith(f"{kind}_")
        )
        for name in others if not mean else ():
            if "mean" not in name and getattr(settings, name) != getattr(usual, name):
                first = (
                    "--image-width-mean and --image-height-mean"
                    if kind == "image"
                    else "--audio-length-mean"
                )
                yield f"--{name.replace('_', '-')} has no effect alone: add {first}"
    try:
        kinds = settings.media.kinds
    except ValueError as error:
        yield str(error)
        return
    pixels = settings.image_width_mean * settings.image_height_mean
    samples = settings.audio_length_mean * max(settings.media.rates) * 1000
    if pixels > MAX_PIXELS:
        yield (
            f"images of {pixels / 1e6:.0f} megapixels are too large: the maximum is "
            f"{MAX_PIXELS / 1e6:.0f}"
        )
    if samples > MAX_SAMPLES:
        yield (
            f"audio clips of {samples / 1e6:.0f} million samples are too long: the maximum is "
            f"{MAX_SAMPLES / 1e6:.0f}"
        )
    if kinds and settings.input_file:
        yield (
            "--image-... and --audio-... work with synthetic prompts only: with --input-file each "
            "row has its own image and audio"
        )


def _prefix_cache(settings: Settings) -> Iterator[str]:
    """Check prompts that share a given part with earlier ones."""
    flag = "--prefix-cache-hit-rate"
    if settings.prefix_cache_hit_rate is None:
        of_it = {
            "--working-set": settings.working_set,
            "--cache-block-size": settings.cache_block_size,
            "--cache-tokens": settings.cache_tokens,
        }
        for other, tokens in of_it.items():
            if tokens:
                yield f"{other} has no effect alone: add {flag}"
        return
    if not settings.prefix_cache_hit_rate and settings.working_set:
        yield f"{flag} 0 repeats no tokens: leave out --working-set"
    for other, given, why in (
        ("--input-file", settings.input_file, "the prompts of a file cannot be changed"),
        (
            "--shared-system-prompt-length",
            settings.shared_system_prompt_length,
            "it would raise the hit rate",
        ),
        ("--num-prefix-prompts", settings.num_prefix_prompts, "they would raise the hit rate"),
        (
            "--session-turns-mean",
            settings.session_turns_mean > 1 or settings.session_turns_stddev,
            "each turn repeats the turns before it",
        ),
        ("--model-mix", settings.model_mix, "each model has its own cache"),
        (
            f"--endpoint-type {settings.endpoint_type}",
            not settings.generates,
            "it has no prefix cache",
        ),
        (
            "--image-... and --audio-...",
            settings.image_width_mean or settings.audio_length_mean,
            "their tokens are not counted",
        ),
        (
            "--warmup-duration",
            settings.warmup_duration,
            "a warmup by time may end before every prefix was sent; use --warmup-request-count",
        ),
        ("--sweep input-tokens", settings.sweeps(INPUT), "its stages need other prefixes"),
        ("locust-llm ab", settings.compares, "base and candidate may share one cache or have two"),
    ):
        if given:
            yield f"{flag} and {other} exclude each other: {why}"
    block = settings.cache_block_size or 1
    mean = round(settings.synthetic_input_tokens_mean)
    most = max_cached_blocks(mean, block) * block / mean
    if (
        not settings.seq_dist
        and not settings.synthetic_input_tokens_stddev
        and settings.prefix_cache_hit_rate > 100 * most
    ):
        of = f" of blocks of {block}" if block > 1 else ""
        yield (
            f"{flag} {settings.prefix_cache_hit_rate:g} is more than prompts of {mean} tokens can "
            f"repeat{of}: {most:.0%} at most"
        )
