"""Run options: every option of a run, declared once as a field of ``Settings``, and what follows
from them. Validation is in settings_validation.py."""

from functools import cached_property
from typing import Annotated, Final

import msgspec

from locust_llm.settings.option_declaration import declared_options
from locust_llm.slo import rules as slo_rules
from locust_llm.slo.best_prefill_limit import GOODPUT, OBJECTIVES, SHORT_TTFT
from locust_llm.slo.published_rules import MODES as PUBLISHED_MODES
from locust_llm.slo.published_rules import WARNS as PUBLISHED_WARNS
from locust_llm.slo.published_rules import PublishedRules
from locust_llm.slo.reading_pace import DEADLINES, PACE, PACES, ReadingPace, parse_reading_pace
from locust_llm.slo.rules import CLOSE, INCONCLUSIVE_POLICIES, INTERVAL, MODES, Rules
from locust_llm.workload.arrivals import PATTERNS
from locust_llm.workload.generated_images_and_audio import (
    GeneratedMediaSettings,
    parse_sample_rates,
)
from locust_llm.workload.model_and_tenant_mix import parse_weights

from .ab_arms import (
    BLOCK_S,
    CANDIDATE,
    LEAST,
    PAIR,
    PAIRS,
    CandidateChanges,
    TrialBlock,
    order_blocks,
    parse_candidate_changes,
)
from .endpoint_types import ENDPOINT_TYPES, POOLING
from .option_declaration import (
    COUNT,
    DELAY,
    DELAY_MS,
    DURATION,
    POSITIVE,
    TOKENS,
    TRACE_MS,
    USERS,
    Option,
    OptionRange,
)
from .selftest_modes import AUTO, OFF, REQUIRE
from .sweep_option import (
    CONCURRENCY,
    INPUT,
    PREFILL,
    RATE,
    REPEAT,
    Sweep,
    parse_duration_range,
    parse_sweep,
)

INPUT_TOKENS: Final = 550.0
OUTPUT_TOKENS: Final = 128.0
"""The default mean lengths."""
LENGTH_SHARE: Final = 0.1
"""Their standard deviation, as users whose requests are all equal go on in step."""
UNASKED_STDDEV: Final = "10% of the default mean; 0 if a mean is given"
START_SHARE: Final = 0.1
"""A run, a stage or a block spends at most this share of its time on the start of its users."""
WARMUP_START_SHARE: Final = 0.5
"""A warmup whose load goes on spends at most this share of its time on the start of its users."""
LOOK_STEP: Final = 1.5
"""Each look comes after so many times the time of the one before."""
SESSION_HEADERS: Final = {
    "aiperf": "X-Session-Affinity", "mlperf": "X-Session-ID", "dynamo": "X-Dynamo-Session-ID",
}  # fmt: skip
"""The headers with the session's id, by the system that reads them."""
OUR_LOCUSTFILES: Final = ("", "run.py")
"""The settings describe what these locustfiles send. Others may have their own prompts."""
MAX_COLUMNS: Final = 50
"""The percentiles in a table."""
MAX_RESPONSE_BYTES: Final = 1 << 26
"""The default for a whole answer, with headers and framing: 200,000 chunks of 300 bytes, more than
any model writes."""
PIXELS: Final = OptionRange(0, 16_384)
AUDIO_S: Final = OptionRange(0, 600)


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, dict=True):
    """All settings of a run, frozen. The order of the fields is the order of ``run.json`` and of
    the help.

    It never holds a key or a password: of headers only the names are kept here.
    """

    # The scenario, the rules, the report and the comparison of two servers
    scenario: Annotated[
        str | None,
        Option(
            "prompts",
            "Preset workload whose options become this run's defaults: a name from locust-llm "
            "scenario, or a TOML file",
            "interactive-chat",
            "NAME|FILE",
            in_form=False,
        ),
    ] = None
    scenario_changed: tuple[str, ...] = ()
    """The scenario's options that this run changes."""
    published: PublishedRules | None = None
    """The rules of the scenario's benchmark. None: it belongs to none."""
    published_rules: Annotated[
        str,
        Option(
            "rules",
            "Action when the run breaks its scenario's published rules: warn, or fail with "
            "exit status 4",
            "fail",
            choices=PUBLISHED_MODES,
        ),
    ] = PUBLISHED_WARNS
    slo: Annotated[
        tuple[str, ...],
        Option(
            "rules",
            "SLO that must hold (repeatable)",
            "ttft p95 < 500ms",
            "RULE",
            repeated=True,
        ),
    ] = ()
    """The rules as text, as run.json has them. ``rules`` has the objects."""
    slo_preset: Annotated[
        str | None,
        Option(
            "rules", "Named set of SLOs: chat, or one of MLPerf's", "mlperf-llama3.1-8b", "NAME"
        ),
    ] = None
    until_decided_s: Annotated[
        float | None,
        Option(
            "rules",
            "Extend the run past -t until every SLO is decided, up to this total time",
            "600",
            "seconds",
            flag="--until-decided",
            range=DURATION,
        ),
    ] = None
    inconclusive: Annotated[
        str,
        Option(
            "rules",
            "Action for an INCONCLUSIVE SLO. fail: exit status 4; close: only warn if the value "
            "is close to the limit",
            "warn",
            choices=INCONCLUSIVE_POLICIES,
            otherwise="close; fail where CI is set, or with --slo-file",
        ),
    ] = CLOSE
    slo_mode: Annotated[
        str,
        Option(
            "rules",
            "Judge SLOs by their 95% interval or the measured value (point)",
            "point",
            choices=MODES,
        ),
    ] = INTERVAL
    goodput: Annotated[
        str | None,
        Option(
            "rules",
            "Limits of a good request in AIPerf's format, in ms",
            "time_to_first_token:300 inter_token_latency:20",
        ),
    ] = None
    reading_pace: Annotated[
        float,
        Option(
            "rules",
            "Reading speed in tokens per second, for qoe and reading_stall",
            "3.3",
            range=OptionRange(*PACES),
        ),
    ] = PACE
    token_deadline: Annotated[
        str,
        Option(
            "rules",
            "Deadlines of the first and each next token, for fluidity and qoe",
            "450ms,40ms",
            "TTFT,TPOT",
        ),
    ] = DEADLINES
    check_answers: Annotated[
        bool,
        Option(
            "answers",
            "Check whether answers are right: each synthetic prompt gets six words, which no other "
            "session's answer may contain",
        ),
    ] = False
    reference_file: Annotated[
        str | None,
        Option(
            "answers",
            "Prompts whose answers are compared with the idle server's. Per line a prompt, or "
            "JSON with messages and max_tokens",
            "prompts.jsonl",
            "FILE",
            otherwise="a built-in set",
            in_form=False,
        ),
    ] = None
    mark_replayed: Annotated[
        bool,
        Option("answers", "Add markers to the prompts of --input-file, too"),
    ] = False
    keep_text: Annotated[
        bool,
        Option(
            "answers",
            "Record the text of all answers, not only of faults and reference prompts",
        ),
    ] = False
    selftest: Annotated[
        str,
        Option(
            "report",
            "Measure the load generator's timing error. With require, a run without this "
            "measurement is INVALID",
            "require",
            choices=(AUTO, OFF, REQUIRE),
        ),
    ] = AUTO
    percentiles: Annotated[
        tuple[float, ...],
        Option(
            "report",
            "Percentiles in the tables, up to 99.9",
            "50,95,99.9",
            "numbers",
        ),
    ] = (50.0, 90.0, 95.0, 99.0)
    report_dir: Annotated[
        str,
        Option(
            "report",
            "Folder for the reports",
            "out",
            "FOLDER",
            otherwise="reports/<time>-<model>",
            in_form=False,
        ),
    ] = ""
    jsonl: Annotated[
        bool,
        Option(
            "report",
            "Write profile_export.jsonl. Without it the records are in records/*.parquet alone",
            in_form=False,
        ),
    ] = True
    label: Annotated[
        tuple[str, ...],
        Option(
            "report",
            "Label by which history and compare find the run (repeatable)",
            "gpu=h200",
            "KEY=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    git: Annotated[
        bool,
        Option(
            "report",
            "Record the Git commit and branch of the working directory or CI job",
            in_form=False,
        ),
    ] = True
    candidate: Annotated[
        str,
        Option(
            "ab",
            "Address of the candidate",
            "localhost:8001",
            "URL",
            otherwise="the base's",
            in_form=False,
        ),
    ] = ""
    candidate_set: tuple[str, ...] = ()
    """Its differences beside its address, never with the value of a header."""
    aa: Annotated[
        bool,
        Option(
            "ab",
            "A/A test: compare the base with itself, to measure the false-positive rate",
            in_form=False,
        ),
    ] = False
    block_duration: Annotated[
        float | None,
        Option(
            "ab",
            "Mean time for which a block sends requests",
            "10",
            "seconds",
            DURATION,
            otherwise="15, less with a short -t",
            in_form=False,
        ),
    ] = None
    washout: Annotated[
        float | None,
        Option(
            "ab",
            "Settling time at the start of each block, whose requests are not counted",
            "2",
            "seconds",
            DURATION,
            otherwise="a fifth of the block",
            in_form=False,
        ),
    ] = None

    # What is sent: prompts, pictures, sounds, datasets and sessions

    synthetic_input_tokens_mean: Annotated[
        float,
        Option(
            "prompts",
            "Mean input length of synthetic prompts",
            "8000",
            "tokens",
            TOKENS,
            otherwise=f"{INPUT_TOKENS:g}",
        ),
    ] = INPUT_TOKENS
    synthetic_input_tokens_stddev: Annotated[
        float,
        Option(
            "prompts",
            "Standard deviation of the input length",
            "1000",
            "tokens",
            OptionRange(0, TOKENS.most),
            otherwise=UNASKED_STDDEV,
        ),
    ] = 0.0
    output_tokens_mean: Annotated[
        float,
        Option(
            "prompts",
            "Mean output length, sent as max_tokens",
            "200",
            "tokens",
            TOKENS,
            otherwise=f"{OUTPUT_TOKENS:g}",
        ),
    ] = OUTPUT_TOKENS
    output_tokens_stddev: Annotated[
        float,
        Option(
            "prompts",
            "Standard deviation of the output length",
            "50",
            "tokens",
            OptionRange(0, TOKENS.most),
            otherwise=UNASKED_STDDEV,
        ),
    ] = 0.0
    batch_size_text: Annotated[
        int,
        Option(
            "prompts",
            "Texts per embeddings request, or documents per rerank request",
            "32",
            range=OptionRange(1, 4096),
        ),
    ] = 1
    image_width_mean: Annotated[
        float,
        Option(
            "prompts",
            "Mean width of synthetic images; 0 sends none",
            "1024",
            "pixels",
            PIXELS,
        ),
    ] = 0.0
    image_width_stddev: Annotated[
        float, Option("prompts", "Standard deviation of the image width", "200", "pixels", PIXELS)
    ] = 0.0
    image_height_mean: Annotated[
        float, Option("prompts", "Mean height of synthetic images", "768", "pixels", PIXELS)
    ] = 0.0
    image_height_stddev: Annotated[
        float, Option("prompts", "Standard deviation of the image height", "150", "pixels", PIXELS)
    ] = 0.0
    image_batch_size: Annotated[
        int,
        Option("prompts", "Synthetic images per request", "4", range=OptionRange(0, 256)),
    ] = 1
    image_format: Annotated[
        str,
        Option(
            "prompts",
            "Format of synthetic images. jpeg and random need the extra locust-llm[images]",
            "jpeg",
            choices=("png", "jpeg", "random"),
        ),
    ] = "png"
    audio_length_mean: Annotated[
        float,
        Option(
            "prompts",
            "Mean length of synthetic audio clips; 0 sends none",
            "10",
            "seconds",
            AUDIO_S,
        ),
    ] = 0.0
    audio_length_stddev: Annotated[
        float, Option("prompts", "Standard deviation of the audio length", "3", "seconds", AUDIO_S)
    ] = 0.0
    audio_sample_rates: Annotated[
        str,
        Option(
            "prompts",
            "Sample rates of synthetic audio clips, one per clip",
            "16,44.1",
            "kHz,...",
        ),
    ] = "16"
    audio_format: Annotated[
        str,
        Option(
            "prompts",
            "Format of synthetic audio clips (16 bits, one channel)",
            "wav",
            choices=("wav",),
        ),
    ] = "wav"
    audio_batch_size: Annotated[
        int,
        Option(
            "prompts",
            "Synthetic audio clips per request",
            "2",
            range=OptionRange(0, 256),
        ),
    ] = 1
    seq_dist: Annotated[
        str | None,
        Option(
            "prompts",
            "Mix of lengths instead of the means, as ISL,OSL:PERCENT pairs. A length is a "
            "number, mean|stddev, uniform:A..B or lognormal:...",
            "200|20,128:80;uniform:4000..16000,512:20",
        ),
    ] = None
    extra_inputs: Annotated[
        str | None,
        Option(
            "prompts",
            "Additional fields of the request body, as key:value pairs or JSON",
            "ignore_eos:true temperature:0.5",
        ),
    ] = None
    tools: Annotated[
        str | None,
        Option(
            "prompts",
            "JSON list of tools that every request sends",
            "tools.json",
            "FILE",
            in_form=False,
        ),
    ] = None
    shared_system_prompt_length: Annotated[
        int | None,
        Option("prompts", "Length of a shared system prompt", "1000", "tokens", TOKENS),
    ] = None
    user_context_prompt_length: Annotated[
        str | None,
        Option(
            "prompts",
            "Length of each session's own context: a number, or a distribution as in --seq-dist",
            "lognormal:4000|2500",
            "LENGTH",
        ),
    ] = None
    num_prefix_prompts: Annotated[
        int | None,
        Option(
            "prompts",
            "Number of shared prefixes; each prompt begins with one",
            "10",
            range=OptionRange(1, 10**5),
        ),
    ] = None
    prefix_prompt_length: Annotated[
        int | None, Option("prompts", "Length of each shared prefix", "2000", "tokens", TOKENS)
    ] = None
    prefix_cache_hit_rate: Annotated[
        float | None,
        Option(
            "prompts",
            "Target hit rate of the prefix cache: share of input tokens that repeat",
            "80%",
            "percent",
            OptionRange(0, 99),
        ),
    ] = None
    working_set: Annotated[
        int | None,
        Option(
            "prompts",
            "Total length of the prefixes that repeat",
            "200000",
            "tokens",
            TOKENS,
            otherwise="10 prefixes",
        ),
    ] = None
    cache_block_size: Annotated[
        int | None,
        Option(
            "prompts",
            "Block size of the server's prefix cache",
            "32",
            "tokens",
            TOKENS,
            otherwise="vLLM's own or 16",
        ),
    ] = None
    cache_tokens: Annotated[
        int | None,
        Option(
            "prompts",
            "Size of the server's prefix cache",
            "500000",
            "tokens",
            TOKENS,
            otherwise="vLLM's own",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "prompts",
            "Tokenizer (tokenizer.json or its folder) for prompts of exact length",
            "llama/",
            "FILE",
            in_form=False,
        ),
    ] = None
    input_file: Annotated[
        str | None,
        Option(
            "prompts",
            "Dataset: ShareGPT, OpenAI-style or multi-turn JSONL, a trace, or an access log",
            "prompts.jsonl",
            "FILE",
            in_form=False,
        ),
    ] = None
    custom_dataset_type: Annotated[
        str | None,
        Option("prompts", "Format of --input-file", "mooncake_trace", otherwise="recognised"),
    ] = None
    dataset_columns: Annotated[
        str | None,
        Option(
            "prompts",
            "Columns of an access log, as OURS=YOURS pairs",
            "timestamp=ts,input_tokens=prompt_tokens",
        ),
    ] = None
    dataset_sampling_strategy: Annotated[
        str,
        Option(
            "prompts",
            "Order of the dataset's rows",
            "shuffle",
            choices=("sequential", "shuffle", "random"),
        ),
    ] = "sequential"
    skip_broken_rows: Annotated[
        bool,
        Option(
            "prompts",
            "Skip and count broken rows of the dataset",
        ),
    ] = False
    idle_cap: Annotated[
        float | None,
        Option(
            "prompts",
            "Maximum wait between turns of a dataset",
            "60",
            "seconds",
            OptionRange(0, 10**7),
        ),
    ] = None
    trajectory_start: Annotated[
        str | None,
        Option(
            "prompts",
            "Share of its turns after which each session of a dataset starts",
            "0.25..0.75",
        ),
    ] = None
    session_turns_mean: Annotated[
        float,
        Option(
            "prompts",
            "Mean number of turns per session. Each turn sends the real responses so far as "
            "history",
            "3",
            range=OptionRange(1, 10**5),
        ),
    ] = 1.0
    session_turns_stddev: Annotated[
        float,
        Option(
            "prompts", "Standard deviation of the number of turns", "1", range=OptionRange(0, 10**5)
        ),
    ] = 0.0
    session_turn_delay_mean: Annotated[
        float,
        Option("prompts", "Mean think time between turns", "2000", "ms", DELAY_MS),
    ] = 0.0
    session_turn_delay_stddev: Annotated[
        float, Option("prompts", "Standard deviation of the think time", "500", "ms", DELAY_MS)
    ] = 0.0
    responses_state: Annotated[
        str,
        Option(
            "prompts",
            "Who keeps the conversation (Responses API): the client resends it, or the server "
            "uses previous_response_id",
            "server",
            choices=("client", "server"),
        ),
    ] = "client"
    session_header: Annotated[
        str | None,
        Option(
            "prompts",
            "Header with the session ID: a name, or aiperf, mlperf or dynamo",
            "mlperf",
            "NAME",
        ),
    ] = None
    echo_header: Annotated[
        str | None,
        Option(
            "prompts",
            "Response header to copy into the session's next request",
            "x-session-token",
            "NAME",
        ),
    ] = None

    # The server, the load, the gate, the stages and the cost

    host: str = ""
    """The base URL with its scheme, without ``/v1``; the first of several."""
    hosts: tuple[str, ...] = ()
    """All addresses, where there are several. A session stays with one."""
    endpoint: Annotated[
        str,
        Option(
            "server",
            "Path of the endpoint, below --host",
            "/v1/completions",
            "PATH",
            otherwise="by the endpoint type",
        ),
    ] = "/v1/chat/completions"
    endpoint_type: Annotated[
        str,
        Option(
            "server",
            "API of the server",
            "responses",
            choices=tuple(ENDPOINT_TYPES),
        ),
    ] = "chat"
    model: Annotated[
        str | None,
        Option(
            "server", "Model to request", "llama-3.1-8b", "NAME", otherwise="the server's first"
        ),
    ] = None
    model_mix: Annotated[
        str | None,
        Option(
            "server",
            "Models with weights, such as a base model and its adapters; one per session",
            "base=60,adapter-a=30,adapter-b=10",
            "NAME=WEIGHT,...",
        ),
    ] = None
    tenant_mix: Annotated[
        str | None,
        Option(
            "tenants",
            "Tenants and their shares of the arrivals (with a request rate) or users",
            "gold=20,free=80",
            "NAME=WEIGHT,...",
        ),
    ] = None
    tenant_header: tuple[str, ...] = ()
    """The headers of tenants, never with a value."""
    tenant_priority: Annotated[
        str | None,
        Option(
            "tenants",
            "Value of the body's field priority per tenant (vLLM serves the lowest first)",
            "gold=0,free=10",
            "NAME=N,...",
        ),
    ] = None
    tenant_weight: Annotated[
        str | None,
        Option(
            "tenants",
            "Weights for the fairness metrics, which divide service by weight",
            "gold=4,free=1",
            "NAME=WEIGHT,...",
        ),
    ] = None
    isolate: Annotated[
        str | None,
        Option(
            "tenants",
            "Compare this tenant alone and with the others, in alternating blocks "
            "(--block-duration)",
            "gold",
            "TENANT",
            in_form=False,
        ),
    ] = None
    model_check: Annotated[
        bool,
        Option(
            "server",
            "Require --model to be in /v1/models",
        ),
    ] = True
    streaming: Annotated[
        bool,
        Option(
            "server",
            "Stream responses. Without streaming there is no TTFT",
        ),
    ] = True
    per_chunk_usage: Annotated[
        bool,
        Option(
            "server",
            "Request a token count with each chunk (vLLM)",
        ),
    ] = False
    max_tokens_field: Annotated[
        str,
        Option(
            "server",
            "Request field that limits the output length",
            "max_completion_tokens",
            choices=("max_tokens", "max_completion_tokens"),
        ),
    ] = "max_tokens"
    header_names: tuple[str, ...] = ()

    users: Annotated[int | None, Option("locust", flag="-u", range=USERS)] = None
    """Concurrent sessions. None: as many as the arrivals need, up to ``max_users``."""
    spawn_rate: Annotated[float | None, Option("locust", flag="-r", range=POSITIVE)] = None
    """The requested users started a second. None: the users of a closed loop send their first
    requests evenly over one response time."""
    max_users: Annotated[
        int,
        Option(
            "load",
            "Maximum users that a request rate adds without -u",
            "5000",
            range=USERS,
        ),
    ] = 1000
    processes: Annotated[int, Option("locust", flag="--processes", range=OptionRange(1, 1024))] = 1
    prefill_concurrency: Annotated[
        int | None,
        Option(
            "gate",
            "Prefill concurrency limit: maximum number of requests awaiting their first token",
            "5",
            range=USERS,
        ),
    ] = None
    prefill_concurrency_ramp_duration: Annotated[
        float | None,
        Option(
            "gate",
            "Time over which the prefill concurrency limit rises from 1",
            "30",
            "seconds",
            DURATION,
        ),
    ] = None
    request_count: Annotated[
        int | None, Option("load", "Stop after exactly this many requests", "500", range=COUNT)
    ] = None
    num_sessions: Annotated[
        int | None,
        Option("load", "Stop after exactly this many sessions", "100", range=COUNT),
    ] = None
    run_time_s: Annotated[
        float | None, Option("locust", flag="-t", range=OptionRange(1, DELAY.most))
    ] = None
    """The seconds of the profiling phase."""
    stop_timeout_s: Annotated[float, Option("locust", range=DELAY)] = 30.0

    request_rate: Annotated[
        float | None,
        Option(
            "load",
            "Requests per second on a schedule, however fast the server is (open loop)",
            "2.5",
            range=POSITIVE,
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
            "Shape of the gamma pattern: 1 equals poisson, lower is burstier",
            "0.5",
            range=OptionRange(0.001, POSITIVE.most),
        ),
    ] = None
    request_rate_ramp_duration: Annotated[
        float | None,
        Option("load", "Time over which the request rate rises from 0", "60", "seconds", DURATION),
    ] = None
    request_rate_series: Annotated[
        str | None,
        Option(
            "load",
            "JSON file of [seconds, rate] points, interpolated between them",
            "day.json",
            "FILE",
            in_form=False,
        ),
    ] = None
    user_centric_rate: Annotated[
        float | None,
        Option(
            "load",
            "Requests per second of all users (-u) together, at fixed intervals per user",
            "4",
            range=POSITIVE,
        ),
    ] = None
    fixed_schedule: Annotated[
        bool,
        Option("load", "Replay a trace (--input-file) at its recorded times"),
    ] = False
    fixed_schedule_auto_offset: Annotated[
        bool, Option("load", "Shift the trace so that it starts with the run")
    ] = True
    fixed_schedule_start_offset: Annotated[
        float | None,
        Option("load", "Replay the trace from this timestamp", "60000", "ms", TRACE_MS),
    ] = None
    fixed_schedule_end_offset: Annotated[
        float | None,
        Option("load", "Replay the trace up to this timestamp", "120000", "ms", TRACE_MS),
    ] = None
    replay_speedup: Annotated[
        float, Option("load", "Replay the trace faster by this factor", "2", range=POSITIVE)
    ] = 1.0

    warmup_request_count: Annotated[
        int | None,
        Option("load", "Warmup requests, which the main tables leave out", "20", range=COUNT),
    ] = None
    warmup_duration: Annotated[
        float | None,
        Option(
            "load",
            "Duration of the warmup",
            "30",
            "seconds",
            DURATION,
        ),
    ] = None
    warmup_concurrency: Annotated[
        int | None,
        Option("load", "Users during the warmup", "4", range=USERS, otherwise="-u"),
    ] = None
    warmup_request_rate: Annotated[
        float | None,
        Option(
            "load",
            "Requests per second during the warmup",
            "1",
            range=POSITIVE,
            otherwise="--request-rate",
        ),
    ] = None
    warmup_prefill_concurrency: Annotated[
        int | None,
        Option(
            "gate",
            "Prefill concurrency limit during the warmup",
            "2",
            range=USERS,
            otherwise="--prefill-concurrency",
        ),
    ] = None
    warmup_prefill_concurrency_ramp_duration: Annotated[
        float | None,
        Option(
            "gate",
            "Time over which the warmup's limit rises from 1",
            "10",
            "seconds",
            DURATION,
            otherwise="--prefill-concurrency-ramp-duration",
        ),
    ] = None

    request_cancellation_rate: Annotated[
        float | None,
        Option(
            "load",
            "Share of requests to cancel on purpose",
            "10",
            "percent",
            OptionRange(1e-6, 100),
        ),
    ] = None
    request_cancellation_delay: Annotated[
        float,
        Option("load", "Time from send to cancellation", "0.5", "seconds", DELAY),
    ] = 0.0
    check_cancellations: Annotated[
        bool, Option("load", "Count the tokens that the server generates after cancellations")
    ] = False
    soak: Annotated[
        bool,
        Option(
            "load",
            "Find what grows, as locust-llm soak does",
            in_form=False,
        ),
    ] = False
    soak_interval: Annotated[
        float | None,
        Option(
            "load",
            "Time between two readings",
            "60",
            "seconds",
            DURATION,
            otherwise="1/240 of the run",
            in_form=False,
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        Option(
            "load",
            "Memory of the server",
            "16GiB",
            "SIZE",
            otherwise="with --pid: this machine's",
            in_form=False,
        ),
    ] = None
    request_timeout_s: Annotated[
        float, Option("server", "Maximum duration of a request", "120", "seconds", DURATION)
    ] = 3600.0
    first_token_timeout_s: Annotated[
        float,
        Option(
            "server",
            "Maximum time to the first token",
            "60",
            "seconds",
            DURATION,
        ),
    ] = 1800.0
    gap_timeout_s: Annotated[
        float, Option("server", "Maximum time without data in a stream", "30", "seconds", DURATION)
    ] = 600.0
    wait_for_model_timeout_s: Annotated[
        float,
        Option(
            "server",
            "Maximum wait until the server has loaded its model",
            "300",
            "seconds",
            DELAY,
        ),
    ] = 0.0
    max_response_bytes: Annotated[
        int,
        Option(
            "server",
            "Maximum size of a response",
            "1000000",
            "bytes",
            OptionRange(1, 2**40),
        ),
    ] = MAX_RESPONSE_BYTES
    max_retries: Annotated[
        int,
        Option(
            "server",
            "Maximum retries after HTTP 429 or 503, each after its Retry-After",
            "3",
            range=OptionRange(0, 1000),
        ),
    ] = 0
    server_metrics: Annotated[bool, Option("server", "Read the server's /metrics every second")] = (
        True
    )
    metrics_url: Annotated[
        tuple[str, ...],
        Option(
            "server",
            "Metrics page of a replica or DCGM exporter (repeatable)",
            "http://replica-1:8000/metrics",
            "URL",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    traceparent: Annotated[
        bool,
        Option(
            "server",
            "Send a W3C traceparent header, to join the server's spans",
        ),
    ] = True
    otlp_receiver: Annotated[
        str | None,
        Option(
            "server",
            "Receive the server's OpenTelemetry spans: queue and prefill times. Without a value: "
            "at 127.0.0.1:4318",
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
            "Share of requests whose spans --otel sends",
            "0.1",
            range=OptionRange(0, 1),
            in_form=False,
        ),
    ] = 1.0
    metrics_port: Annotated[
        str | None,
        Option(
            "server",
            "Serve Prometheus metrics at this port (/llm/metrics)",
            "9646",
            "[ADDR:]PORT",
            in_form=False,
        ),
    ] = None
    insecure: Annotated[
        bool,
        Option(
            "server",
            "Do not verify the server's TLS certificate. Anyone on the network path can read "
            "everything, including the API key",
            in_form=False,
        ),
    ] = False
    api_key_lifetime: Annotated[
        float | None,
        Option(
            "server",
            "Age at which the key from --api-key-command is renewed",
            "3000",
            "seconds",
            OptionRange(1, DELAY.most),
            in_form=False,
        ),
    ] = None
    backend_header: Annotated[
        str | None,
        Option(
            "report",
            "Response header that names the replica",
            "x-backend",
            "NAME",
        ),
    ] = None
    random_seed: Annotated[
        int | None,
        Option(
            "prompts",
            "Seed of prompts, lengths and arrivals. The server's prefix cache may still hold "
            "these prompts",
            "42",
            range=OptionRange(-(2**53), 2**53),
        ),
    ] = None
    fresh_words: Annotated[
        bool,
        Option(
            "prompts",
            "With --random-seed: same lengths, order and arrivals, but new words",
        ),
    ] = False
    probe: Annotated[
        bool,
        Option(
            "prompts",
            "Send a few short requests before the run, to test the server and count tokens",
        ),
    ] = True

    sweep: Annotated[
        str | None,
        Option(
            "sweep",
            "Run several load levels (stages): A..B doubles, commas make a list. Axes: "
            "concurrency, request-rate, input-tokens, prefill-concurrency",
            "concurrency=1..64",
            "AXIS=VALUES",
        ),
    ] = None
    """The stages: see sweep_option.py."""
    objective: Annotated[
        str | None,
        Option(
            "sweep",
            "Metric that compares prefill limits: good requests/s, p95 of TTFT from due, p95 "
            "of the longest stall, or output tokens/s",
            "ttft",
            choices=tuple(OBJECTIVES),
            otherwise="goodput with rules on latencies, else ttft",
        ),
    ] = None
    find_max: Annotated[
        bool,
        Option(
            "sweep",
            "Search the range of --sweep for the highest load that meets the SLOs",
        ),
    ] = False
    repeats: Annotated[
        int,
        Option(
            "sweep",
            "Repeat the same load this many times, to show the spread",
            "3",
            range=OptionRange(1, 1000),
        ),
    ] = 1
    stage_duration: Annotated[
        str,
        Option(
            "sweep",
            "Minimum and maximum duration of a stage, or one number for both",
            "30..60",
            "seconds",
        ),
    ] = "10..120"
    stage_requests: Annotated[
        int | None,
        Option(
            "sweep",
            "Minimum requests in a stage, if its maximum duration allows",
            "200",
            range=COUNT,
            otherwise="as many as the rules need, or 100",
        ),
    ] = None
    stage_requests_per_user: Annotated[
        int | None,
        Option(
            "sweep",
            "Minimum requests per user in a stage",
            "10",
            range=OptionRange(1, 1000),
        ),
    ] = None
    stage_warmup_per_user: Annotated[
        int,
        Option(
            "sweep",
            "Requests of each user before the stage is measured",
            "2",
            range=OptionRange(1, 1000),
        ),
    ] = 1
    gpus: Annotated[
        int | None,
        Option(
            "report",
            "GPUs of the server, for tokens per second per GPU",
            "8",
            range=USERS,
        ),
    ] = None
    gpu_hour: Annotated[
        float | None,
        Option(
            "report",
            "Price of a GPU hour, for the cost of a million tokens",
            "2.5",
            range=POSITIVE,
        ),
    ] = None
    locustfile: str = ""
    command: str = ""

    @cached_property
    def looks(self) -> tuple[float, ...]:
        """When the rules are judged, in seconds of profiling. At the last one the run ends at the
        latest."""
        return interim_analysis_times(self.run_time_s, self.until_decided_s)

    @property
    def has_own_code(self) -> bool:
        """The locustfile is the user's."""
        return self.locustfile not in OUR_LOCUSTFILES

    @property
    def longest_s(self) -> float | None:
        """How long profiling may last."""
        return self.looks[-1] if self.looks else None

    @cached_property
    def rules(self) -> Rules:
        """The rules of ``slo``, ``slo_preset`` and ``goodput``, parsed once."""
        return slo_rules.resolve_rules(self.slo, self.slo_preset, self.goodput)

    @property
    def reader(self) -> ReadingPace:
        """The pace and deadlines of tokens. Raises ValueError."""
        return parse_reading_pace(self.reading_pace, self.token_deadline)

    @property
    def columns(self) -> tuple[float, ...]:
        """The percentiles of the tables: each once, and no more than fit."""
        return tuple(dict.fromkeys(p for p in self.percentiles if 0 < p <= 99.9))[:MAX_COLUMNS]

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models by name: of the mix, or the one. Empty: the server's first model is taken.
        Raises ValueError."""
        if self.model_mix:
            return tuple(parse_weights(self.model_mix))
        return (self.model,) if self.model else ()

    @property
    def generates(self) -> bool:
        """Answers have output tokens, streamed or not."""
        return self.endpoint_type not in POOLING

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the server, or of its replicas."""
        return self.hosts or (self.host,)

    @property
    def texts(self) -> int:
        """The texts of a synthetic request: prompts, or inputs with the query of rerank."""
        return self.batch_size_text + (self.endpoint_type == "rerank")

    @property
    def media(self) -> GeneratedMediaSettings:
        """The synthetic images and audio. Raises ValueError."""
        return GeneratedMediaSettings(
            width=(self.image_width_mean, self.image_width_stddev),
            height=(self.image_height_mean, self.image_height_stddev),
            images=self.image_batch_size,
            formats=("png", "jpeg") if self.image_format == "random" else (self.image_format,),
            seconds=(self.audio_length_mean, self.audio_length_stddev),
            rates=parse_sample_rates(self.audio_sample_rates),
            sounds=self.audio_batch_size,
            seed=self.random_seed or 0,
        )

    @property
    def open_loop(self) -> bool:
        """Requests follow a schedule, whatever the server does."""
        rates = (
            self.request_rate
            or self.request_rate_series
            or self.user_centric_rate
            or self.sweeps(RATE)
        )
        return bool(rates or self.fixed_schedule)

    @property
    def max_users_asked(self) -> int | None:
        """The largest number of users of the run. None: not given."""
        stages = self.staged
        return (
            int(stages.values[-1])
            if stages is not None and self.sweeps(CONCURRENCY)
            else self.users
        )

    @property
    def first_users(self) -> int | None:
        """The users at the start, as a warmup or a first stage may have its own number. None: not
        given."""
        if self.warmup_concurrency:
            return self.warmup_concurrency
        stages = self.staged
        return (
            int(stages.values[0]) if stages is not None and self.sweeps(CONCURRENCY) else self.users
        )

    @property
    def spreads_start(self) -> bool:
        """No option sets how fast users start: a closed loop's start over one response time."""
        return not self.open_loop and self.spawn_rate is None and (self.max_users_asked or 1) > 1

    @property
    def longest_start_s(self) -> float | None:
        """The longest start of users: a share of the time in which they send. None: it has no
        bound."""
        if self.compares:
            return START_SHARE * self.block_s
        if self.sweep:
            return START_SHARE * parse_duration_range(self.stage_duration)[0]
        if self.warmup_goes_on and self.warmup_duration is not None:
            return WARMUP_START_SHARE * self.warmup_duration
        return None if self.run_time_s is None else START_SHARE * self.run_time_s

    def sweeps(self, axis: str) -> bool:
        """Its stages differ in this."""
        return (self.sweep or "").partition("=")[0].strip() == axis

    @property
    def staged(self) -> Sweep | None:
        """The requested stages. None: there are none. Raises ValueError."""
        if self.sweep:
            swept = parse_sweep(self.sweep)
            return None if swept.axis == PREFILL else swept
        if self.compares:
            return Sweep(PAIR, tuple(map(float, range(1, len(self.blocks) + 1))))
        return (
            Sweep(REPEAT, tuple(map(float, range(1, self.repeats + 1))))
            if self.repeats > 1
            else None
        )

    @cached_property
    def swept_limits(self) -> tuple[int | None, ...]:
        """The prefill limits that are compared in short blocks of one load; no limit is the first.
        Empty: none are compared. Raises ValueError."""
        if not self.sweeps(PREFILL):
            return ()
        return (None, *map(int, parse_sweep(self.sweep or "").values))

    @property
    def chosen_objective(self) -> str:
        """The measure of the best prefill limit."""
        if self.objective is not None:
            return self.objective
        return GOODPUT if slo_rules.define_good_request(self.rules)[0] else SHORT_TTFT

    @property
    def traced_share(self) -> float:
        """The share of the requests that ask the server to trace them. The receiver of its spans
        wants all."""
        return 1.0 if self.otlp_receiver else self.otel_sample

    @property
    def compares(self) -> bool:
        """The run has two arms, and its stages are blocks of either."""
        return bool(self.candidate or self.candidate_set or self.same_server)

    @property
    def same_server(self) -> bool:
        """Both arms have the same server without changes: the base against itself, or a tenant
        alone and beside the others."""
        return self.aa or self.isolate is not None

    @property
    def pairs(self) -> int:
        """The counted pairs of blocks: as many as the time allows beside the first, which does not
        count."""
        if not self.run_time_s:
            return PAIRS
        blocks = round(self.run_time_s / self.block_s, 6)  # 50 blocks of 7.2 s are 360 s
        return LEAST if self.shortens_blocks else int(blocks // 2) - 1

    @property
    def shortens_blocks(self) -> bool:
        """Blocks are shorter than usual, as the time is too short for enough pairs of usual ones."""
        usual_s = 2 * (LEAST + 1) * BLOCK_S
        return self.block_duration is None and 0 < (self.run_time_s or 0) < usual_s

    @property
    def block_s(self) -> float:
        """The mean length of a block: as requested, else the usual one, or a shorter one with which
        the time has enough pairs."""
        if self.block_duration is not None:
            return self.block_duration
        if self.shortens_blocks and self.run_time_s:
            return self.run_time_s / (2 * (LEAST + 1))
        return BLOCK_S

    @cached_property
    def blocks(self) -> tuple[TrialBlock, ...]:
        """The blocks in the order of time. Empty: there are no arms."""
        if not self.compares:
            return ()
        return order_blocks(
            self.pairs, self.random_seed or 0, block_s=self.block_s, washout_s=self.washout_s
        )

    def block(self, stage: int) -> TrialBlock | None:
        """The block of the stage with this number (from 1). None: there are no arms, or it is 0."""
        return self.blocks[stage - 1] if 0 < stage <= len(self.blocks) else None

    def stage_s(self, stage: int) -> float | None:
        """How long requests begin in the stage with this number (0: the run has none). With arms
        each block is bounded in time, else the run. None: nothing bounds it."""
        block = self.block(stage)
        return self.longest_s if block is None else block.load_s

    @property
    def sends_fresh_words(self) -> bool:
        """Its prompts begin unlike any earlier run's: as requested, or because it is compared. A
        dataset is changed only on request."""
        compared = self.compares or any(
            entry.rule is not None and entry.rule.base for entry in self.rules.entries
        )
        return (
            self.fresh_words
            or self.prefix_cache_hit_rate is not None
            or (compared and self.input_file is None)
        )

    @property
    def washout_s(self) -> float:
        return self.block_s / 5 if self.washout is None else self.washout

    @cached_property
    def changes(self) -> CandidateChanges:
        """The candidate's changes, without the values of its headers. Raises ValueError."""
        return parse_candidate_changes(self.candidate_set)

    @property
    def warms_up(self) -> bool:
        return bool(self.warmup_request_count or self.warmup_duration or self.prefix_cache_hit_rate)

    @property
    def warmup_goes_on(self) -> bool:
        """The warmup's load goes on into the profiling phase. The warmup is bounded by time alone,
        has the same load, and nothing is counted or replayed from the begin of profiling on."""
        other_load = (
            self.warmup_concurrency not in (None, self.users)
            or self.warmup_request_rate not in (None, self.request_rate)
            or self.warmup_limit != self.prefill_concurrency
            or self.warmup_ramp_s != self.prefill_concurrency_ramp_duration
            or self.request_rate_series
            or self.user_centric_rate
            or self.fixed_schedule
        )
        counted = (
            self.warmup_request_count
            or self.num_sessions
            or self.prefix_cache_hit_rate is not None
            or (self.input_file and not (self.longest_s or self.request_count))
        )
        staged = self.sweep or self.compares or self.repeats > 1
        return bool(self.warmup_duration) and not (other_load or counted or staged)

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


def make_stage_settings(s: Settings, axis: str, value: float) -> Settings:
    """The settings of one stage, as if it were a run of its own."""
    limit = s.prefill_concurrency
    differs: dict[str, dict[str, int | float | None]] = {
        CONCURRENCY: {
            "users": int(value),
            "prefill_concurrency": min(limit, int(value)) if limit else None,
        },
        RATE: {"request_rate": value},
        INPUT: {"synthetic_input_tokens_mean": value},
        REPEAT: {},
        PAIR: {},
    }
    if (block := s.block(int(value))) is not None and axis == PAIR:
        own = s.changes.prefill_concurrency if block.arm == CANDIDATE else None
        differs[PAIR] = {"prefill_concurrency": own or limit}
    return msgspec.structs.replace(s, sweep=None, repeats=1, find_max=False, **differs[axis])


def interim_analysis_times(first_s: float | None, most_s: float | None) -> tuple[float, ...]:
    """Seconds from the start of profiling: the first look, then each LOOK_STEP times as late, the
    last one at ``most_s``. A run that is judged once, at its end, has one; without a length there
    is none.

    Each look may be the one that is wrong, so each gets an equal part of the tails (Bonferroni): an
    interval of one of K looks holds the truth in 1 - 0.05 / K, all of them together in 95 %.
    """
    if not first_s:
        return ()
    times = [first_s]
    while most_s is not None and times[-1] < most_s:
        times.append(min(times[-1] * LOOK_STEP, most_s))
    if len(times) > 2 and times[-1] < times[-2] * 1.1:  # hardly longer than the one before
        del times[-2]
    return tuple(times)


SETTING_OPTIONS: Final = tuple(
    option for option in declared_options(Settings) if option.group != "locust"
)
