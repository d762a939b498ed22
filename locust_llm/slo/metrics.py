"""Metrics: every number of a request with its names and definition, and the measures of rules."""

from collections.abc import Mapping
from typing import Final, NamedTuple

EXPORTED: Final = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
"""The percentiles of AIPerf's exports: always computed, besides those asked for."""


class Metric(NamedTuple):
    """A number of each request."""

    label: str
    tag: str
    unit: str
    column: str
    scale: float
    means: str
    adjusted: bool = False
    """There is also a row with failures as +infinity."""

    @property
    def base(self) -> float:
        """From its column to seconds, or the unit of a rule's limit."""
        return self.scale / (SHARE["%"] if self.unit == "%" else 1e3)


LATENCIES: Final = (
    Metric("Request Latency", "request_latency", "ms", "latency_s", 1e3,
           "last chunk - send; without a stream: end of the answer - send", True),
    Metric("Time to First Token", "time_to_first_token", "ms", "ttft_s", 1e3,
           "first chunk with content, reasoning or a tool call - send, on an open connection", True),
    Metric("Time to First Output Token", "time_to_first_output_token", "ms", "ttfo_s", 1e3,
           "first chunk that is no reasoning - send", True),
    Metric("Inter Token Latency", "inter_token_latency", "ms", "itl_s", 1e3,
           "one value per request: (request latency - TTFT) / (output tokens - tokens of the first chunk); "
           "many tools call it TPOT", True),
    Metric("Inter Chunk Latency", "inter_chunk_latency", "ms", "", 1e3,
           "every gap between neighbouring chunks, pooled over all requests; gaps beside merged chunks are left out"),
    Metric("Longest Stall", "longest_stall", "ms", "longest_stall_s", 1e3, "the largest gap of a request", True),
    Metric("Gate Wait", "prefill_gate_wait", "ms", "gate_wait_s", 1e3, "admission by the prefill gate - request for a slot"),
    Metric("Schedule Delay", "schedule_delay", "ms", "late_s", 1e3,
           "send - due time; what coordinated omission hides"),
    Metric("TTFT from Due", "time_to_first_token_from_due", "ms", "ttft_from_due_s", 1e3,
           "first chunk - due time: what a user would have waited", True),
    Metric("Connect Time", "http_req_connecting", "ms", "connect_s", 1e3,
           "opening a connection, before the request: in no other latency. To an address the kernel's own time; the lookup "
           "of a name, a proxy and TLS are timed here"),
    Metric("TCP Round Trip", "tcp_round_trip", "ms", "rtt_us", 1e-3,
           "the kernel's shortest round trip of the connection until the end of the answer: was it the network?"),
    Metric("Read Lag", "read_lag", "ms", "read_lag_us", 1e-3,
           "longest time that bytes of the answer lay in the kernel unread: health of the load generator"),
)  # fmt: skip
PER_USER: Final = Metric(
    "Output Token Throughput per User", "output_token_throughput_per_user", "tokens/s", "itl_s", 1.0,
    "1 / inter token latency, one value per request",
)  # fmt: skip
FELT: Final = (
    Metric("Fluidity", "fluidity", "%", "fluidity", 1e2,
           "share of token deadlines that were met (--token-deadline): Etalon's fluidity index"),
    Metric("Quality of Experience", "qoe", "%", "qoe", 1e2,
           "area under what was read at --reading-pace, over that of a reader who gets all in time: Andes' QoE"),
    Metric("Reading Stall", "reading_stall", "ms", "reading_stall_s", 1e3,
           "how long a reader at --reading-pace waits for text after the first token"),
)  # fmt: skip
"""What a reader feels: report/reading.py."""
LENGTHS: Final = (
    Metric("Input Tokens per Request", "input_sequence_length", "tokens", "input_tokens", 1.0, "as the server counted"),
    Metric("Inputs per Request", "inputs", "inputs", "inputs", 1.0, "texts of embeddings, documents of rerank"),
    Metric("Images per Request", "num_images", "images", "images", 1.0, "pictures, those of earlier turns too"),
    Metric("Image Pixels per Request", "image_pixels", "megapixels", "image_pixels", 1e-6, "of all of them"),
    Metric("Image Bytes per Request", "image_bytes", "MB", "image_bytes", 1e-6, "of their files, before base64"),
    Metric("Audio per Request", "audio_duration", "s", "audio_s", 1.0, "how long the sounds are, together"),
    Metric("Output Tokens per Request", "output_sequence_length", "tokens", "output_tokens", 1.0,
           "as the server counted, with reasoning; else one per chunk, and the report notes the estimate"),
    Metric("Tokens per Chunk", "tokens_per_chunk", "tokens", "tokens_per_chunk", 1.0,
           "mean over the chunks of a request: as the server counted with each chunk, else output tokens / chunks; "
           "where it is above one, Inter Chunk Latency is longer than Inter Token Latency"),
    Metric("Cached Tokens per Request", "usage_prompt_cache_read_tokens", "tokens", "cached_tokens", 1.0,
           "input tokens that the server had in its prefix cache"),
    Metric("Reasoning Tokens per Request", "reasoning_token_count", "tokens", "reasoning_tokens", 1.0,
           "output tokens spent on reasoning"),
)  # fmt: skip
CANCELLED_METRICS: Final = (
    Metric("Time to First Token", "time_to_first_token", "ms", "ttft_s", 1e3, "of those that had one"),
    Metric("Time until the Cancel", "time_until_cancel", "ms", "", 1e3, "close - send"),
    Metric("Output Tokens until then", "output_sequence_length", "tokens", "output_tokens", 1.0, "of those that had any"),
)  # fmt: skip
"""Rows of requests that were cancelled on purpose."""
INTERFERENCE_DEFINITIONS: Final = {
    "In Prefill": "sent, without a chunk, error or end yet: seen from the load generator, so the server's queue counts; "
                  "only requests of this run, with the warmup",
    "Disturbed Gaps": "gaps of Inter Chunk Latency with another request in prefill, by the mean number over the gap, "
                      "rounded half up, so a short overlap does not count",
    "Slower": "mean of disturbed gaps / mean of undisturbed gaps at as many decoding streams (within 9%, at least 30 "
              "gaps), or at the next larger number that has them; only where 90% of the disturbed gaps have such; the "
              "length of contexts is not controlled",
    "Decode Time lost to Prefill": "the excess of all gaps that a prefill touched over those that none did, summed, over "
                                   "the sum of all gaps; only where 90% of them have such to compare with",
    "Ahead": "requests in prefill when a request was sent, and their input tokens, whole prompts",
}  # fmt: skip
"""Of the tables of interference."""
DEFINITIONS: Final = {metric.label: metric.means for metric in (*LATENCIES, PER_USER, *FELT, *LENGTHS)} | {
    "Throughputs": "of successful requests and their tokens, over first send to last end of the phase",
    "Percentiles": "exact, linear interpolation; with failures as +infinity: nearest rank",
    "Failures": "in no latency above, but in the rate and in the table with failures as +infinity; requests cut at the end "
                "of the run or cancelled on purpose are neither failures nor successes",
    "Cut": "still running when the grace period ended: in no latency above; in SLO rules and in the table with failures as "
           "+infinity with its age, as a lower bound. Rules count it at its best and at its worst, and decide if both agree",
} | INTERFERENCE_DEFINITIONS  # fmt: skip
WAIT_TAGS: Final = frozenset({"prefill_gate_wait", "schedule_delay", "http_req_connecting"})
"""Waits before the send, which failed requests have too, so these rows include them."""
TWO_TOKEN_COLUMNS: Final = ("itl_s", "longest_stall_s")
"""Columns that an answer of one token, or of one chunk, does not have: a condition on them is met then."""


def waits(metric: Metric) -> bool:
    """Its values of failed requests count too."""
    return metric.tag in WAIT_TAGS


def censored(metric: Metric) -> bool:
    """A failed request counts as beyond every limit, a cut one as unknown; averages leave out both."""
    return metric.adjusted or metric is PER_USER or metric in FELT


OPTIONAL_TAGS: Final = frozenset(
    {
        "time_to_first_output_token",
        "inputs",
        "num_images",
        "image_pixels",
        "image_bytes",
        "audio_duration",
        "usage_prompt_cache_read_tokens",
        "reasoning_token_count",
        "tokens_per_chunk",
    }
)
"""Rows that are left out where they are empty or equal to another row."""
OF_OUTPUT: Final = {
    **dict.fromkeys(
        ("time_to_first_token", "time_to_first_output_token", "inter_token_latency", "inter_chunk_latency",
         "longest_stall", "time_to_first_token_from_due", *(metric.tag for metric in FELT)),
        "request_latency",
    ),
    **dict.fromkeys(
        ("output_token_throughput", "output_token_throughput_per_user", "total_token_throughput"), "input_tokens_per_s"
    ),
    "output_sequence_length": "", "usage_prompt_cache_read_tokens": "", "reasoning_token_count": "", "tokens_per_chunk": "",
}  # fmt: skip
"""What answers that are not generated (embeddings, rerank) have not, by tag; and the measure to use in its place."""
OUTPUT_LABELS: Final = frozenset(
    {metric.label for metric in (*LATENCIES, PER_USER, *FELT, *LENGTHS) if metric.tag in OF_OUTPUT}
    | {*INTERFERENCE_DEFINITIONS}
)
"""Terms of output."""
_BY_TAG: Final = {metric.tag: metric for metric in LATENCIES}
LATENCY: Final = _BY_TAG["request_latency"]
TTFT: Final = _BY_TAG["time_to_first_token"]
ITL: Final = _BY_TAG["inter_token_latency"]
GATE_WAIT: Final = _BY_TAG["prefill_gate_wait"]
TTFT_FROM_DUE: Final = _BY_TAG["time_to_first_token_from_due"]
LATE: Final = _BY_TAG["schedule_delay"]


# -- measures --------------------------------------------------------------------------------------------------------

TIME: Final = {"s": 1.0, "ms": 1e3, "us": 1e6}
SHARE: Final = {"%": 100.0, "": 1.0}
RATE: Final = {"/s": 1.0}
"""Units of limits and their factors to seconds, a share of 1, or per second."""

POOLED: Final = "inter_chunk_latency"
"""Its values are the gaps of all requests, not one per request."""


class Measure(NamedTuple):
    """The metric of a rule."""

    word: str
    tag: str
    """AIPerf's name of it, where it has one."""
    units: Mapping[str, float]
    metric: Metric | None = None
    """None: one number of a whole run."""


_SHORT: Final = {
    "time_to_first_token": "ttft", "time_to_first_output_token": "ttfo", "inter_token_latency": "itl", POOLED: "icl",
    "prefill_gate_wait": "gate_wait", "schedule_delay": "late", "time_to_first_token_from_due": "ttft_from_due",
    "http_req_connecting": "connect_time", "tcp_round_trip": "rtt",
}  # fmt: skip
_OTHERS: Final = {"tpot": "itl", "e2el": "request_latency"}
"""Names of vLLM and other tools."""
SCHEMA_VALID: Final = "schema_valid_rate"
"""Of the successful answers that were held against a schema."""
MEASURES: Final = (
    *(Measure(_SHORT.get(metric.tag, metric.tag), metric.tag, TIME, metric) for metric in LATENCIES),
    *(Measure(metric.tag, metric.tag, SHARE if metric.unit == "%" else TIME, metric) for metric in FELT),
    Measure("output_tokens_per_s_per_user", PER_USER.tag, RATE, PER_USER),
    Measure("requests_per_s", "request_throughput", RATE),
    Measure("output_tokens_per_s", "output_token_throughput", RATE),
    Measure("input_tokens_per_s", "input_token_throughput", RATE),
    Measure("inputs_per_s", "input_throughput", RATE),
    Measure("total_tokens_per_s", "total_token_throughput", RATE),
    Measure("goodput", "goodput", RATE),
    Measure("attainment", "good_request_fraction", SHARE),
    Measure("error_rate", "request_error_rate", SHARE),
    Measure(SCHEMA_VALID, SCHEMA_VALID, SHARE),
    Measure("delivered", "delivered", SHARE),
    Measure("completed", "completed", SHARE),
)
OF_SCHEDULE: Final = ("delivered", "completed")
"""The measures of an open loop's schedule."""
BY_WORD: Final = {measure.word: measure for measure in MEASURES}
BY_NAME: Final = BY_WORD | {m.tag: m for m in MEASURES} | {name: BY_WORD[word] for name, word in _OTHERS.items()}
GIVEN: Final = ("attainment", "goodput")
"""The measures with conditions."""
