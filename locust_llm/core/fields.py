"""Fields: every setting of a run, declared once: its type, default, range, help and group; the rules' in rule_fields.py."""

from typing import Annotated, Final

from locust_llm.load.arrivals import PATTERNS

from .option import COUNT, DELAY, DELAY_MS, DURATION, POSITIVE, TOKENS, TRACE_MS, USERS, Option, Range
from .rule_fields import RuleFields

PIXELS: Final = Range(0, 16_384)
AUDIO_S: Final = Range(0, 600)
MAX_RESPONSE_BYTES: Final = 1 << 26
"""Default for a whole answer, with headers and framing: 200,000 chunks of 300 bytes, more than any model writes."""


class Fields(RuleFields, frozen=True, kw_only=True, omit_defaults=False):
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
    insecure: Annotated[
        bool,
        Option(
            "server",
            "Do not verify the server's TLS certificate: anybody in between can then read everything, the key too",
        ),
    ] = False

    synthetic_input_tokens_mean: Annotated[
        float, Option("prompts", "Mean length of synthetic prompts", "8000", "tokens", TOKENS)
    ] = 550.0
    synthetic_input_tokens_stddev: Annotated[
        float, Option("prompts", "Its standard deviation", "1000", "tokens", Range(0, TOKENS.most))
    ] = 0.0
    output_tokens_mean: Annotated[float, Option("prompts", "Mean of max_tokens", "200", "tokens", TOKENS)] = 128.0
    output_tokens_stddev: Annotated[
        float, Option("prompts", "Its standard deviation", "50", "tokens", Range(0, TOKENS.most))
    ] = 0.0
    batch_size_text: Annotated[
        int,
        Option("prompts", "Inputs of a request: texts of embeddings, documents of rerank", "32", range=Range(1, 4096)),
    ] = 1
    image_width_mean: Annotated[
        float, Option("prompts", "Mean width of synthetic pictures; 0: there are none", "1024", "pixels", PIXELS)
    ] = 0.0
    image_width_stddev: Annotated[float, Option("prompts", "Its standard deviation", "200", "pixels", PIXELS)] = 0.0
    image_height_mean: Annotated[
        float, Option("prompts", "Mean height of synthetic pictures", "768", "pixels", PIXELS)
    ] = 0.0
    image_height_stddev: Annotated[float, Option("prompts", "Its standard deviation", "150", "pixels", PIXELS)] = 0.0
    image_batch_size: Annotated[
        int, Option("prompts", "Synthetic pictures in each request", "4", range=Range(0, 256))
    ] = 1
    image_format: Annotated[
        str,
        Option(
            "prompts",
            "Format of synthetic pictures; jpeg and random need the extra images",
            "jpeg",
            choices=("png", "jpeg", "random"),
        ),
    ] = "png"
    audio_length_mean: Annotated[
        float,
        Option("prompts", "Mean length of synthetic sounds; 0: there are none", "10", "seconds", AUDIO_S),
    ] = 0.0
    audio_length_stddev: Annotated[float, Option("prompts", "Its standard deviation", "3", "seconds", AUDIO_S)] = 0.0
    audio_sample_rates: Annotated[
        str, Option("prompts", "Sample rates of synthetic sounds, each has one of them", "16,44.1", "kHz,...")
    ] = "16"
    audio_format: Annotated[
        str, Option("prompts", "Format of synthetic sounds: 16 bits, one channel", "wav", choices=("wav",))
    ] = "wav"
    audio_batch_size: Annotated[
        int, Option("prompts", "Synthetic sounds in each request", "2", range=Range(0, 256))
    ] = 1
    seq_dist: Annotated[
        str | None,
        Option(
            "prompts",
            "Mix of lengths instead, as ISL,OSL:PERCENT pairs; a length may be mean|stddev, uniform:A..B or lognormal:...",
            "200|20,128:80;uniform:4000..16000,512:20",
        ),
    ] = None
    extra_inputs: Annotated[
        str | None,
        Option(
            "prompts", "More fields of the request's body, as pairs or a JSON object", "ignore_eos:true temperature:0.5"
        ),
    ] = None
    tools: Annotated[
        str | None, Option("prompts", "JSON list of tools, put into every request", "tools.json", "FILE", in_form=False)
    ] = None
    shared_system_prompt_length: Annotated[
        int | None, Option("prompts", "Length of a system prompt that all requests share", "1000", "tokens", TOKENS)
    ] = None
    user_context_prompt_length: Annotated[
        str | None,
        Option(
            "prompts",
            "Length of what each session begins with, of its own: a number of tokens, or a distribution as in --seq-dist",
            "lognormal:4000|2500",
            "LENGTH",
        ),
    ] = None
    num_prefix_prompts: Annotated[
        int | None, Option("prompts", "Number of prefixes; each prompt begins with one", "10", range=Range(1, 10**5))
    ] = None
    prefix_prompt_length: Annotated[
        int | None, Option("prompts", "Length of each of these prefixes", "2000", "tokens", TOKENS)
    ] = None
    prefix_cache_hit_rate: Annotated[
        float | None,
        Option("prompts", "Share of the input tokens that repeats earlier ones", "80%", "percent", Range(0, 99)),
    ] = None
    working_set: Annotated[
        int | None,
        Option("prompts", "Length of all that repeats", "200000", "tokens", TOKENS, otherwise="10 prefixes"),
    ] = None
    cache_block_size: Annotated[
        int | None, Option("prompts", "Block of the prefix cache", "32", "tokens", TOKENS, otherwise="vLLM's own or 16")
    ] = None
    cache_tokens: Annotated[
        int | None, Option("prompts", "Size of the prefix cache", "500000", "tokens", TOKENS, otherwise="vLLM's own")
    ] = None
    tokenizer: Annotated[
        str | None,
        Option("prompts", "tokenizer.json or its folder, for prompts of exact length", "llama/", "FILE", in_form=False),
    ] = None
    input_file: Annotated[
        str | None,
        Option(
            "prompts",
            "Dataset: ShareGPT, OpenAI-style or multi-turn JSONL, a trace of requests or of agents, an access log",
            "prompts.jsonl",
            "FILE",
            in_form=False,
        ),
    ] = None
    custom_dataset_type: Annotated[
        str | None, Option("prompts", "Format of the dataset", "mooncake_trace", otherwise="recognised")
    ] = None
    dataset_columns: Annotated[
        str | None, Option("prompts", "Columns of an access log", "timestamp=ts,input_tokens=prompt_tokens")
    ] = None
    dataset_sampling_strategy: Annotated[
        str, Option("prompts", "Order of the dataset's rows", "shuffle", choices=("sequential", "shuffle", "random"))
    ] = "sequential"
    skip_broken_rows: Annotated[bool, Option("prompts", "Leave broken rows of the dataset out, and count them")] = False
    idle_cap: Annotated[
        float | None, Option("prompts", "Longest wait between turns of a dataset", "60", "seconds", Range(0, 10**7))
    ] = None
    trajectory_start: Annotated[
        str | None,
        Option("prompts", "Begin each session of a dataset in its middle, after this share of its turns", "0.25..0.75"),
    ] = None
    session_turns_mean: Annotated[
        float, Option("prompts", "Mean number of turns, with real replies as history", "3", range=Range(1, 10**5))
    ] = 1.0
    session_turns_stddev: Annotated[float, Option("prompts", "Its standard deviation", "1", range=Range(0, 10**5))] = (
        0.0
    )
    session_turn_delay_mean: Annotated[
        float, Option("prompts", "Mean think time between turns", "2000", "ms", DELAY_MS)
    ] = 0.0
    session_turn_delay_stddev: Annotated[float, Option("prompts", "Its standard deviation", "500", "ms", DELAY_MS)] = (
        0.0
    )
    responses_state: Annotated[
        str,
        Option(
            "prompts",
            "Who keeps the conversation of Responses: client sends all of it in each turn, server goes on by "
            "previous_response_id",
            "server",
            choices=("client", "server"),
        ),
    ] = "client"
    session_header: Annotated[
        str | None,
        Option(
            "prompts", "Header for the id of the session, by name or as of aiperf, mlperf, dynamo", "mlperf", "NAME"
        ),
    ] = None
    echo_header: Annotated[
        str | None,
        Option(
            "prompts", "Header of an answer that its session sends back in its next turn", "x-session-token", "NAME"
        ),
    ] = None
    backend_header: Annotated[
        str | None, Option("report", "Header of an answer that names its replica, for a table", "x-backend", "NAME")
    ] = None
    random_seed: Annotated[
        int | None,
        Option("prompts", "Seed: same prompts, lengths and arrivals each time", "42", range=Range(-(2**53), 2**53)),
    ] = None
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
