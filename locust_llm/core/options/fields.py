"""Fields: the settings of the load, the server and the report; those of prompts and rules in files of their own."""

from typing import Annotated, Final

from locust_llm.load.arrivals import PATTERNS

from .option import COUNT, DELAY, DURATION, POSITIVE, TRACE_MS, USERS, Option, Range
from .prompt_fields import PromptFields

MAX_RESPONSE_BYTES: Final = 1 << 26
"""Default for a whole answer, with headers and framing: 200,000 chunks of 300 bytes, more than any model writes."""


class Fields(PromptFields, frozen=True, kw_only=True, omit_defaults=False):
    """What was asked. Never holds a key or a password: of headers only the names are kept here."""

    host: str = ""
    """Base URL, scheme included, without ``/v1``; the first of several."""
    hosts: tuple[str, ...] = ()
    """All of them, where there are several: a session stays with one."""
    endpoint: Annotated[
        str, Option("server", "Path of the endpoint", "/v1/completions", "PATH", otherwise="that of the endpoint type")
    ] = "/v1/chat/completions"
    endpoint_type: Annotated[
        str,
        Option(
            "server",
            "Protocol: chat or plain completions, OpenAI's Responses, Anthropic's Messages, embeddings, rerank",
            "responses",
            choices=("chat", "completions", "responses", "messages", "embeddings", "rerank"),
        ),
    ] = "chat"
    model: Annotated[
        str | None, Option("server", "Model to ask for", "llama-3.1-8b", "NAME", otherwise="the server's first")
    ] = None
    model_mix: Annotated[
        str | None,
        Option(
            "server",
            "Several models, each session one of them, by weight: a base model and its adapters",
            "base=60,adapter-a=30,adapter-b=10",
            "NAME=WEIGHT,...",
        ),
    ] = None
    tenant_mix: Annotated[
        str | None,
        Option(
            "load",
            "Tenants and their shares: of the arrivals, with a rate; of the users, in a closed loop",
            "gold=20,free=80",
            "NAME=WEIGHT,...",
        ),
    ] = None
    tenant_header: tuple[str, ...] = ()
    """Headers of tenants, never with a value."""
    tenant_priority: Annotated[
        str | None,
        Option(
            "load",
            "The field priority of the body, by tenant (vLLM: the lowest goes first)",
            "gold=0,free=10",
            "NAME=N,...",
        ),
    ] = None
    tenant_weight: Annotated[
        str | None,
        Option(
            "load",
            "What each tenant is entitled to, in proportion; Jain's index and the service gap are of service / weight",
            "gold=4,free=1",
            "NAME=WEIGHT,...",
        ),
    ] = None
    isolate: Annotated[
        str | None,
        Option(
            "load",
            "Compare this tenant's load alone with the same load beside the others, in pairs of blocks (--block-duration)",
            "gold",
            "TENANT",
            in_form=False,
        ),
    ] = None
    model_check: Annotated[
        bool, Option("server", "Refuse a --model that the server does not list; without, it is sent as it is given")
    ] = True
    streaming: Annotated[bool, Option("server", "Ask for a stream of events")] = True
    per_chunk_usage: Annotated[
        bool,
        Option("server", "Ask for a count of tokens with each chunk (vLLM), as a chunk may hold several"),
    ] = False
    max_tokens_field: Annotated[
        str,
        Option(
            "server",
            "Field of the request that limits the answer",
            "max_completion_tokens",
            choices=("max_tokens", "max_completion_tokens"),
        ),
    ] = "max_tokens"
    header_names: tuple[str, ...] = ()

    users: Annotated[int | None, Option("locust", flag="-u", range=USERS)] = None
    """Concurrent sessions. None: as many as the arrivals need, up to ``max_users``."""
    max_users: Annotated[
        int, Option("load", "Maximum number of users that a rate adds without -u", "5000", range=USERS)
    ] = 1000
    processes: Annotated[int, Option("locust", flag="--processes", range=Range(1, 1024))] = 1
    prefill_concurrency: Annotated[
        int | None, Option("gate", "Maximum number of requests that wait for their first token", "5", range=USERS)
    ] = None
    prefill_concurrency_ramp_duration: Annotated[
        float | None, Option("gate", "Time in which the limit rises from 1", "30", "seconds", DURATION)
    ] = None
    request_count: Annotated[
        int | None, Option("load", "Send exactly this many requests, then end", "500", range=COUNT)
    ] = None
    num_sessions: Annotated[
        int | None, Option("load", "Begin exactly this many sessions, then end", "100", range=COUNT)
    ] = None
    run_time_s: Annotated[float | None, Option("locust", flag="-t", range=Range(1, DELAY.most))] = None
    """Of the profiling phase."""
    stop_timeout_s: Annotated[float, Option("locust", range=DELAY)] = 30.0

    request_rate: Annotated[
        float | None,
        Option(
            "load", "Requests per second by a schedule (open loop), however fast the server is", "2.5", range=POSITIVE
        ),
    ] = None
    arrival_pattern: Annotated[
        str,
        Option(
            "load",
            "Distribution of the times between requests",
            "constant",
            choices=PATTERNS,
            otherwise="poisson; gamma with --arrival-smoothness",
        ),
    ] = "poisson"
    arrival_smoothness: Annotated[
        float | None,
        Option(
            "load",
            "Shape of the gamma pattern: 1 is poisson, less is burstier",
            "0.5",
            range=Range(0.001, POSITIVE.most),
        ),
    ] = None
    request_rate_ramp_duration: Annotated[
        float | None, Option("load", "Time in which the request rate rises from 0", "60", "seconds", DURATION)
    ] = None
    request_rate_series: Annotated[
        str | None,
        Option("load", "JSON of [seconds, rate] points, interpolated linearly", "day.json", "FILE", in_form=False),
    ] = None
    user_centric_rate: Annotated[
        float | None,
        Option(
            "load", "Requests per second of all users (-u): each sends every users / rate seconds", "4", range=POSITIVE
        ),
    ] = None
    fixed_schedule: Annotated[bool, Option("load", "Replay a trace: each session begins at its own time")] = False
    fixed_schedule_auto_offset: Annotated[
        bool, Option("load", "The first timestamp of the trace is the start of the run")
    ] = True
    fixed_schedule_start_offset: Annotated[
        float | None, Option("load", "Replay a trace from this time on", "60000", "ms", TRACE_MS)
    ] = None
    fixed_schedule_end_offset: Annotated[
        float | None, Option("load", "Replay a trace up to this time", "120000", "ms", TRACE_MS)
    ] = None
    replay_speedup: Annotated[float, Option("load", "Replay a trace faster by this factor", "2", range=POSITIVE)] = 1.0

    warmup_request_count: Annotated[
        int | None, Option("load", "Send this many requests first, outside the main tables", "20", range=COUNT)
    ] = None
    warmup_duration: Annotated[
        float | None, Option("load", "Warm up for this time first, outside the main tables", "30", "seconds", DURATION)
    ] = None
    warmup_concurrency: Annotated[
        int | None, Option("load", "Users of the warmup", "4", range=USERS, otherwise="-u")
    ] = None
    warmup_request_rate: Annotated[
        float | None, Option("load", "Request rate of the warmup", "1", range=POSITIVE, otherwise="--request-rate")
    ] = None
    warmup_prefill_concurrency: Annotated[
        int | None, Option("gate", "Prefill limit of the warmup", "2", range=USERS, otherwise="--prefill-concurrency")
    ] = None
    warmup_prefill_concurrency_ramp_duration: Annotated[
        float | None,
        Option(
            "gate", "Ramp of the warmup", "10", "seconds", DURATION, otherwise="--prefill-concurrency-ramp-duration"
        ),
    ] = None

    request_cancellation_rate: Annotated[
        float | None, Option("load", "Share of the requests to cancel on purpose", "10", "percent", Range(1e-6, 100))
    ] = None
    request_cancellation_delay: Annotated[
        float, Option("load", "Time from the send to the cancellation", "0.5", "seconds", DELAY)
    ] = 0.0
    request_timeout_s: Annotated[float, Option("server", "Time limit of a request", "120", "seconds", DURATION)] = (
        3600.0
    )
    first_token_timeout_s: Annotated[
        float, Option("server", "Time limit from the send to the first token", "60", "seconds", DURATION)
    ] = 1800.0
    gap_timeout_s: Annotated[
        float, Option("server", "Time limit without data in a stream", "30", "seconds", DURATION)
    ] = 600.0
    wait_for_model_timeout_s: Annotated[
        float, Option("server", "Maximum wait for the server to answer before the run", "300", "seconds", DELAY)
    ] = 0.0
    max_response_bytes: Annotated[
        int, Option("server", "Maximum length of an answer; a longer one fails", "1000000", "bytes", Range(1, 2**40))
    ] = MAX_RESPONSE_BYTES
    max_retries: Annotated[
        int, Option("server", "Retries after HTTP 429 or 503, each after its Retry-After", "3", range=Range(0, 1000))
    ] = 0
    server_metrics: Annotated[
        bool, Option("server", "Read the server's metrics (/metrics) each second, if it has any")
    ] = True
    metrics_url: Annotated[
        tuple[str, ...],
        Option(
            "server",
            "Metrics of a replica, or of a DCGM exporter; a line each in the charts. The environment variable has one per "
            "line",
            "http://replica-1:8000/metrics",
            "URL",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    traceparent: Annotated[
        bool,
        Option(
            "server", "Send a W3C traceparent header with each request, by which the server's spans are joined to it"
        ),
    ] = True
    otlp_receiver: Annotated[
        str | None,
        Option(
            "server",
            "Receive the server's OpenTelemetry spans, which say how long each request queued and prefilled; without a "
            "value on 127.0.0.1:4318",
            "0.0.0.0:4318",
            "ADDR:PORT",
            in_form=False,
            alone="127.0.0.1:4318",
        ),
    ] = None
    otel_sample: Annotated[
        float,
        Option(
            "server",
            "Share of the requests whose spans --otel sends, chosen by their trace ids. Metrics are of all requests",
            "0.1",
            range=Range(0, 1),
            in_form=False,
        ),
    ] = 1.0
    metrics_port: Annotated[
        str | None,
        Option(
            "server",
            "Serve the metrics of the run for Prometheus at this port, headless too: /llm/metrics",
            "9646",
            "[ADDR:]PORT",
            in_form=False,
        ),
    ] = None
    insecure: Annotated[
        bool,
        Option(
            "server",
            "Do not verify the server's TLS certificate: anybody in between can then read everything, the key too",
            in_form=False,
        ),
    ] = False
    api_key_lifetime: Annotated[
        float | None,
        Option(
            "server",
            "Age at which the key of --api-key-command is renewed",
            "3000",
            "seconds",
            Range(1, DELAY.most),
            in_form=False,
        ),
    ] = None
    backend_header: Annotated[
        str | None, Option("report", "Header of an answer that names its replica, for a table", "x-backend", "NAME")
    ] = None
    random_seed: Annotated[
        int | None,
        Option(
            "prompts",
            "Seed: same prompts, lengths and arrivals in each run; the server's prefix cache may hold these prompts",
            "42",
            range=Range(-(2**53), 2**53),
        ),
    ] = None
    fresh_words: Annotated[
        bool,
        Option(
            "prompts",
            "With a seed: lengths, order and arrivals of the seed, but words that no earlier run sent; also for a dataset",
        ),
    ] = False
    probe: Annotated[
        bool,
        Option("prompts", "Before the run, try a short request, and let the server count the tokens of a few prompts"),
    ] = True

    sweep: Annotated[
        str | None,
        Option(
            "sweep",
            "Stages by doubling or from a list, of concurrency, request-rate, prefill-concurrency or input-tokens",
            "concurrency=1..64",
            "AXIS=VALUES",
        ),
    ] = None
    """Stages: see sweep.py."""
    find_max: Annotated[
        bool,
        Option(
            "sweep",
            "Sweep on while the rules pass, then bisect between the last stage within the SLO and the first beyond",
        ),
    ] = False
    repeats: Annotated[
        int, Option("sweep", "Number of runs of the same load, to show the spread", "3", range=Range(1, 1000))
    ] = 1
    stage_duration: Annotated[
        str,
        Option(
            "sweep", "Minimum and maximum duration of a stage of a sweep, or one number for both", "30..60", "seconds"
        ),
    ] = "10..120"
    stage_requests: Annotated[
        int | None,
        Option(
            "sweep",
            "Minimum number of requests in a stage, if its time allows",
            "200",
            range=COUNT,
            otherwise="as many as the rules need, or 100",
        ),
    ] = None
    stage_requests_per_user: Annotated[
        int | None,
        Option("sweep", "The same for each user of a stage, as some benchmarks ask", "10", range=Range(1, 1000)),
    ] = None
    stage_warmup_per_user: Annotated[
        int,
        Option("sweep", "Requests of each user of a stage that end before it is measured", "2", range=Range(1, 1000)),
    ] = 1
    gpus: Annotated[
        int | None, Option("report", "GPUs of the server, for tokens per second per GPU", "8", range=USERS)
    ] = None
    gpu_hour: Annotated[
        float | None,
        Option(
            "report", "Price of an hour of one GPU, for the cost of a million tokens at the SLO", "2.5", range=POSITIVE
        ),
    ] = None
    locustfile: str = ""
    command: str = ""
