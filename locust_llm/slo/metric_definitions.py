"""Metric definitions: every number of a request with its names and definition, and the measures of
rules."""

from collections.abc import Mapping
from typing import Final, NamedTuple

EXPORTED: Final = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
"""The percentiles of AIPerf's exports. They are always computed, besides the requested ones."""


class Metric(NamedTuple):
    """A number of each request, declared once. Rules, tables, exports, schemas and the docs read it
    here."""

    label: str
    tag: str
    """AIPerf's name, where it has one."""
    unit: str
    column: str
    """The column of records that holds it. Empty: its values are pooled gaps."""
    scale: float
    """The factor from its column to its unit."""
    means: str
    word: str = ""
    """Its name in rules. Empty: there are no rules on it."""
    adjusted: bool = False
    """A second row counts failures as +infinity."""
    waits: bool = False
    """It is a wait before the send. Failed requests have one too, so its row includes them."""
    felt: bool = False
    """It depends on a reading pace. The report computes it."""
    two_tokens: bool = False
    """An answer of one token, or of one chunk, has none, and meets every condition on it."""
    inverse: bool = False
    """Its value is 1 / column."""
    optional: bool = False
    """Its row is left out where it is empty or equal to another row."""
    instead: str | None = None
    """It exists for generated answers alone. A rule on embeddings or rerank takes this measure in
    its place; empty: none. None: all answers have it."""
    short: str = ""
    """Its abbreviation, in the heads of tables and in sentences."""
    spoken: str = ""
    """Its name in sentences, where that is neither ``short`` nor ``word``."""
    buckets: tuple[float, ...] = ()
    """The bounds of its Prometheus histogram in seconds, for a time. Empty: it has none."""

    @property
    def prometheus_name(self) -> str:
        """The name of its histogram."""
        return f"{self.tag}_seconds"

    @property
    def censored(self) -> bool:
        """A failed request counts as beyond every limit, and a cut one as unknown. Averages leave
        out both."""
        return self.adjusted or self.felt or self.inverse

    @property
    def base(self) -> float:
        """Converts its column to seconds, or to the unit of a rule's limit."""
        return self.scale / (SHARE["%"] if self.unit == "%" else 1e3)


REQUEST_BUCKETS: Final = (
    0.01, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_BUCKETS: Final = (
    0.0005, 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS: Final = (
    0.0005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
"""The buckets of vLLM's own histograms, after a first one. Prometheus gets finer ones between
them."""
MIN_CUT_SHARE: Final = 0.05
"""The share of answered and cut requests, from which on cut ones move p95."""
POOLED: Final = "inter_chunk_latency"
"""Its values are the gaps of all requests, not one for each request."""
LATENCY: Final = Metric(
    "Request Latency", "request_latency", "ms", "latency_s", 1e3,
    "last chunk - send; without a stream: end of the response - send", word="request_latency",
    adjusted=True, buckets=REQUEST_BUCKETS,
)  # fmt: skip
TTFT: Final = Metric(
    "Time to First Token", "time_to_first_token", "ms", "ttft_s", 1e3,
    "first chunk with content, reasoning or a tool call - send, on an open connection",
    word="ttft", adjusted=True, instead="request_latency", short="TTFT",
    buckets=FIRST_TOKEN_BUCKETS,
)  # fmt: skip
ITL: Final = Metric(
    "Inter Token Latency", "inter_token_latency", "ms", "itl_s", 1e3,
    "one value per request: (request latency - TTFT) / (output tokens - tokens of the first "
        "chunk); many tools call it TPOT",
    word="itl", adjusted=True, two_tokens=True, instead="request_latency", short="ITL",
    buckets=TOKEN_BUCKETS,
)  # fmt: skip
LONGEST_STALL: Final = Metric(
    "Longest Stall", "longest_stall", "ms", "longest_stall_s", 1e3, "the largest gap of a request",
    word="longest_stall", adjusted=True, two_tokens=True, instead="request_latency",
)  # fmt: skip
GATE_WAIT: Final = Metric(
    "Gate Wait", "prefill_gate_wait", "ms", "gate_wait_s", 1e3,
    "grant of a prefill slot - request for it",
    word="gate_wait", waits=True, buckets=FIRST_TOKEN_BUCKETS,
)  # fmt: skip
LATE: Final = Metric(
    "Schedule Delay", "schedule_delay", "ms", "late_s", 1e3,
    "send - due time; the wait that coordinated omission hides",
    word="late", waits=True, spoken="schedule delay",
)  # fmt: skip
TTFT_FROM_DUE: Final = Metric(
    "TTFT from Due", "time_to_first_token_from_due", "ms", "ttft_from_due_s", 1e3,
    "first chunk - due time; the wait of a real user",
    word="ttft_from_due", adjusted=True, instead="request_latency", spoken="TTFT from due",
)  # fmt: skip
LATENCIES: Final = (
    LATENCY,
    TTFT,
    Metric("Time to First Output Token", "time_to_first_output_token", "ms", "ttfo_s", 1e3,
           "first chunk that is not reasoning - send", word="ttfo", adjusted=True, optional=True,
           instead="request_latency", spoken="TTFO"),
    ITL,
    Metric("Inter Chunk Latency", POOLED, "ms", "", 1e3,
           "every gap between neighbouring chunks, pooled over all requests; gaps next to merged "
           "chunks are left out",
           word="icl", instead="request_latency", short="ICL"),
    LONGEST_STALL,
    GATE_WAIT,
    LATE,
    TTFT_FROM_DUE,
    Metric("Connect Time", "http_req_connecting", "ms", "connect_s", 1e3,
           "opening a connection before the request; part of no other latency. The kernel "
           "times a plain connection, the load generator name lookup, proxy and TLS", word="connect_time", waits=True),
    Metric("TCP Round Trip", "tcp_round_trip", "ms", "rtt_us", 1e-3,
           "shortest round trip of the connection (kernel) until the end of the response; shows "
           "delays of the network",
           word="rtt", spoken="round trip"),
    Metric("Read Lag", "read_lag", "ms", "read_lag_us", 1e-3,
           "longest time from the newest byte of a read to that read; health of the load "
           "generator", word="read_lag"),
)  # fmt: skip
PER_USER: Final = Metric(
    "Output Token Throughput per User", "output_token_throughput_per_user", "tokens/s", "itl_s",
    1.0,
    "1 / inter token latency, one value per request",
    word="output_tokens_per_s_per_user", inverse=True, instead="input_tokens_per_s",
    spoken="output token throughput per user",
)  # fmt: skip
FELT: Final = (
    Metric("Fluidity", "fluidity", "%", "fluidity", 1e2,
           "share of token deadlines that were met (--token-deadline): Etalon's fluidity index",
           word="fluidity", felt=True, instead="request_latency"),
    Metric("Quality of Experience", "qoe", "%", "qoe", 1e2,
           "reading progress at --reading-pace, as a share of the progress without any delay (QoE "
           "of Andes)",
           word="qoe", felt=True, instead="request_latency"),
    Metric("Reading Stall", "reading_stall", "ms", "reading_stall_s", 1e3,
           "how long a user who reads at --reading-pace waits for text after the first token",
           word="reading_stall", felt=True, instead="request_latency"),
)  # fmt: skip
"""The readability metrics: report/fluidity_and_qoe.py."""
LENGTHS: Final = (
    Metric("Input Tokens per Request", "input_sequence_length", "tokens", "input_tokens", 1.0,
        "the server's count"),
    Metric("Inputs per Request", "inputs", "inputs", "inputs", 1.0,
        "texts of embeddings, documents of rerank",
           optional=True),
    Metric("Images per Request", "num_images", "images", "images", 1.0,
        "images, also of earlier turns",
           optional=True),
    Metric("Image Pixels per Request", "image_pixels", "megapixels", "image_pixels", 1e-6,
        "sum over its images", optional=True),
    Metric("Image Bytes per Request", "image_bytes", "MB", "image_bytes", 1e-6,
        "size of its image files, before base64",
           optional=True),
    Metric("Audio per Request", "audio_duration", "s", "audio_s", 1.0,
        "total length of the audio clips", optional=True),
    Metric("Output Tokens per Request", "output_sequence_length", "tokens", "output_tokens", 1.0,
           "the server's count, with reasoning; else one per chunk, and the report notes the "
           "estimate", instead=""),
    Metric("Tokens per Chunk", "tokens_per_chunk", "tokens", "tokens_per_chunk", 1.0,
           "mean over the chunks of a request, by the server's count with each chunk, else "
           "output tokens / chunks. Above one, Inter Chunk Latency is longer than Inter Token "
           "Latency",
           optional=True, instead=""),
    Metric("Cached Tokens per Request", "usage_prompt_cache_read_tokens", "tokens", "cached_tokens",
        1.0,
           "input tokens that the server had in its prefix cache", optional=True, instead=""),
    Metric("Reasoning Tokens per Request", "reasoning_token_count", "tokens", "reasoning_tokens",
        1.0,
           "output tokens spent on reasoning", optional=True, instead=""),
)  # fmt: skip
METRICS: Final = (*LATENCIES, PER_USER, *FELT, *LENGTHS)
"""All numbers of a request, in the order of the tables."""
CANCELLED_METRICS: Final = (
    Metric("Time to First Token", "time_to_first_token", "ms", "ttft_s", 1e3,
        "of the requests that had one"),
    Metric("Time until the Cancel", "time_until_cancel", "ms", "", 1e3, "close - send"),
    Metric("Output Tokens until then", "output_sequence_length", "tokens", "output_tokens", 1.0,
        "of the requests that had any"),
)  # fmt: skip
"""The rows of requests that were cancelled on purpose."""
INTERFERENCE_DEFINITIONS: Final = {
    "Awaiting First Token": "sent, without a chunk, error or end yet: seen from the load "
        "generator, so the server's queue "
                            "counts; only requests of this run, with the warmup",
    "Disturbed Gaps": (
        "gaps of Inter Chunk Latency while another request awaits its first token; the number is "
        "the rounded mean over the gap, so a short overlap does not count"
    ),
    "Slower": (
        "mean of disturbed gaps / mean of undisturbed gaps with as many decoding streams (within "
        "9%, at least 30 gaps) or the next larger number; only if 90% of the disturbed gaps can "
        "be compared; context lengths are not controlled"
    ),
    "Decode Time lost to Prefill": (
        "total excess of disturbed gaps over undisturbed gaps / total time of all gaps; only if "
        "90% of the gaps can be compared"
    ),
    "Ahead": "requests that await their first token when a request is sent, and their input "
        "tokens, whole prompts",
}  # fmt: skip
"""The definitions for the tables of interference."""
DEFINITIONS: Final = {metric.label: metric.means for metric in METRICS} | {
    "Throughputs": "successful requests that ended in the duration, and their tokens, over the "
        "duration: first send to last end of the phase; end of the warmup to the stop, if the load "
        "continued from the warmup",
    "Percentiles": "exact, linear interpolation; with failures as +infinity: nearest rank",
    "Failures": "count in the error rate, and in the table with failures as +infinity, but not in the "
        "other latencies; requests cut at the end of the run or cancelled on purpose are neither "
        "failures nor successes",
    "Cut": "still running when the grace period, or a second Ctrl-C, ended the run. Its age, a lower "
        "bound, counts in SLO rules and in the table with failures as +infinity, not in other "
        "latencies. Rules count it at its best and at its worst, and decide if both "
        "agree",
    "Cancelled": "ended on purpose: not in the latencies of the first table, because nobody waited for "
        "the end. SLO rules and the table with failures as +infinity count the values that it had. For a missing value, it takes "
        "the value of a request that had none at the same age",
} | INTERFERENCE_DEFINITIONS  # fmt: skip
# -- measures --------------------------------------------------------------------------------------

TIME: Final = {"s": 1.0, "ms": 1e3, "us": 1e6}
SHARE: Final = {"%": 100.0, "": 1.0}
RATE: Final = {"/s": 1.0}
COUNT: Final = {"": 1.0}
"""Units of limits and their factors to seconds, a share of 1, a number a second, or a number."""


class RuleMeasure(NamedTuple):
    """The subject of a rule: a number of each request, or one number of the whole run."""

    word: str
    tag: str
    """AIPerf's name of it, where it has one."""
    units: Mapping[str, float]
    metric: Metric | None = None
    """None: it is one number of a whole run."""
    label: str = ""
    """The label of a throughput that the tables show."""
    unit: str = ""
    sums: tuple[str, ...] | None = None
    """For a throughput: the columns whose sums are divided by the time; empty: the number of
    successful requests. None: it is no throughput."""
    instead: str | None = None
    """The same as for a metric."""
    flag: str = ""
    """For a share: the column that is true for successful answers that count for it, false for the
    others, and null for answers that it does not cover. Empty: it is computed in another way."""
    against: str = "not good"
    """For a share: the name of the requests that count against it, as in *3 of 40 requests
    failed*."""
    means: str = ""
    """Its definition for the docs. A metric has its own."""
    short: str = ""
    """Its label in tables that compare runs. Empty: its word."""
    spoken: str = ""
    """Its name in sentences. A metric has its own."""

    @property
    def spoken_name(self) -> str:
        """The name in sentences."""
        of_metric = "" if self.metric is None else self.metric.spoken or self.metric.short
        return self.spoken or of_metric or self.word.replace("_", " ")

    @property
    def less_is_better(self) -> bool:
        """True for times and errors, false for throughputs, attainment and goodput."""
        bad = (ERROR_RATE, *OF_ANSWERS, *OF_WHOLE_RUN)
        return self.units is TIME or self.word in bad


def name_token_rate(from_usage: int, from_chunks: int) -> str:
    """The unit of a token rate, from the numbers of requests whose tokens the server counted, and
    whose chunks count as one token each."""
    if not from_chunks:
        return "tokens/s"
    return "tokens/s, in part chunks" if from_usage else "chunks/s"


def _units_of(metric: Metric) -> Mapping[str, float]:
    """The units of a rule's limit."""
    if metric.unit == "tokens/s":
        return RATE
    return SHARE if metric.unit == "%" else TIME


_OTHERS: Final = {"tpot": "itl", "e2el": "request_latency"}
"""The names of vLLM and other tools."""
ERROR_RATE: Final = "error_rate"
LEAKS: Final = "leaks"
MISMATCH_RATE: Final = "mismatch_rate"
BROKEN_TEXT: Final = "broken_text"
GHOST_TOKENS: Final = "ghost_tokens"
OF_ANSWERS: Final = (LEAKS, MISMATCH_RATE, BROKEN_TEXT)
"""The measures of ``--check-answers``."""
RECOVERY_TIME: Final = "recovery_time"
TRUNCATED_SILENTLY: Final = "truncated_silently"
GROWING: Final = "growing"
OF_DISRUPTIONS: Final = (RECOVERY_TIME, TRUNCATED_SILENTLY)
"""The measures of ``--disrupt``."""
OF_WHOLE_RUN: Final = (*OF_DISRUPTIONS, GHOST_TOKENS, GROWING)
"""Those of ``--check-cancellations`` and ``--soak`` too."""
SCHEMA_VALID: Final = "schema_valid_rate"
"""The share of the successful answers with a schema that fit it."""
THROUGHPUTS: Final = (
    RuleMeasure("requests_per_s", "request_throughput", RATE, label="Request Throughput",
        unit="requests/s", sums=(), means="successful requests / duration",
        short="Throughput (requests/s)", spoken="request throughput"),
    RuleMeasure("inputs_per_s", "input_throughput", RATE, label="Input Throughput", unit="inputs/s",
        sums=("inputs",), means="texts of embeddings, documents of rerank, of successful requests / "
            "duration", spoken="input throughput"),
    RuleMeasure("output_tokens_per_s", "output_token_throughput", RATE,
        label="Output Token Throughput", unit="tokens/s",
            sums=("output_tokens",), instead="input_tokens_per_s",
            means="output tokens of successful requests / duration",
            short="Output (tokens/s)", spoken="output token throughput"),
    RuleMeasure("input_tokens_per_s", "input_token_throughput", RATE,
        label="Input Token Throughput", unit="tokens/s",
            sums=("input_tokens",), means="input tokens of successful requests / duration",
            spoken="input token throughput"),
    RuleMeasure("total_tokens_per_s", "total_token_throughput", RATE,
        label="Total Token Throughput", unit="tokens/s",
            sums=("input_tokens", "output_tokens"), instead="input_tokens_per_s",
            means="input and output tokens of successful requests / duration",
            spoken="token throughput"),
)  # fmt: skip
"""The throughputs in the order of the tables."""
MEASURES: Final = (
    *(
        RuleMeasure(metric.word, metric.tag, _units_of(metric), metric, instead=metric.instead)
        for metric in METRICS
        if metric.word
    ),
    *THROUGHPUTS,
    RuleMeasure("goodput", "goodput", RATE, short="Goodput (requests/s)",
        means="requests that meet every given limit, per second"),
    RuleMeasure("attainment", "good_request_fraction", SHARE, short="Attainment (%)",
        means="share of requests that meet every given limit; failures do not meet it",
        spoken="share of good requests"),
    RuleMeasure(ERROR_RATE, "request_error_rate", SHARE, short="Failures (%)", against="failed",
        means="failed / (failed + successful)"),
    RuleMeasure(SCHEMA_VALID, SCHEMA_VALID, SHARE, flag="schema_valid",
        means="share of the responses that match their schema; failures are not checked",
        against="without a valid answer", spoken="share of valid answers"),
    RuleMeasure("delivered", "delivered", SHARE, spoken="share delivered",
        means="sent / due, of the arrivals that a schedule had for the profiling phase"),
    RuleMeasure("completed", "completed", SHARE, spoken="share completed",
        means="answered without a failure by the stop / due; a stage: in its time"),
    RuleMeasure(LEAKS, LEAKS, COUNT, spoken="number of leaks",
        means="answers that contain the session marker of another session"),
    RuleMeasure(MISMATCH_RATE, MISMATCH_RATE, SHARE, spoken="mismatch rate",
        against="other than idle",
        means="share of the reference answers under load that differ from the idle answer; near "
            "ties do not count"),
    RuleMeasure(BROKEN_TEXT, BROKEN_TEXT, SHARE, spoken="share of broken answers",
        against="broken", means="share of the searched answers whose text is broken"),
    RuleMeasure(RECOVERY_TIME, RECOVERY_TIME, TIME, spoken="recovery time",
        means="longest time until failures and TTFT p95 are back in their former range"),
    RuleMeasure(TRUNCATED_SILENTLY, TRUNCATED_SILENTLY, COUNT,
        spoken="number of silently truncated answers",
        means="answers that ended early without an error"),
    RuleMeasure(GHOST_TOKENS, GHOST_TOKENS, COUNT, spoken="number of ghost tokens",
        means="tokens that the server generated after a client left, for each of them"),
    RuleMeasure(GROWING, GROWING, COUNT, spoken="number of growing quantities",
        means="quantities that grow"),
)  # fmt: skip
OF_SCHEDULE: Final = ("delivered", "completed")
"""The measures of an open loop's schedule."""
OF_RUN: Final = (*OF_SCHEDULE, *OF_ANSWERS, *OF_WHOLE_RUN)
"""The measures of a run or a stage as a whole: no request has one, and no selector chooses."""
OF_OUTPUT_TOKENS: Final = (
    "itl", "output_tokens_per_s", "output_tokens_per_s_per_user", "total_tokens_per_s",
)  # fmt: skip
"""The measures that a count of output tokens is in."""
BY_WORD: Final = {measure.word: measure for measure in MEASURES}
BY_NAME: Final = (
    BY_WORD | {m.tag: m for m in MEASURES} | {name: BY_WORD[word] for name, word in _OTHERS.items()}
)
GIVEN: Final = ("attainment", "goodput")
"""The measures with conditions."""
OF_OUTPUT: Final = frozenset(
    [metric.tag for metric in METRICS if metric.instead is not None]
    + [measure.tag for measure in MEASURES if measure.instead is not None]
)
"""Tags of rows that answers that are not generated (embeddings, rerank) do not have."""
OUTPUT_LABELS: Final = frozenset(
    {metric.label for metric in METRICS if metric.instead is not None} | {*INTERFERENCE_DEFINITIONS}
)
"""Terms that only generated answers need."""
