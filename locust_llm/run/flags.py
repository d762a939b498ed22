"""Flags: the declared options on Locust's parser, in groups before its own, and the reading of their values."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

from locust_llm.client.api import ENDPOINTS
from locust_llm.core.bounds import MAX_RESPONSE_BYTES
from locust_llm.load.arrivals import PATTERNS
from locust_llm.load.numbers import cut_short, read_number

from .schedule import ORDERS

LINE: Final = 1000
"""Characters of a refusal: what was given may be a whole file."""


class Refused(Exception):
    """There can be no such run: one line that says why, and what to do."""


def refuse(reason: str) -> NoReturn:
    raise Refused(cut_short(reason.replace("\n", " "), LINE))


def number(kind: type, flag: str) -> Callable[[str], Any]:
    """A type for argparse; empty means not set (environment). Raises Refused, as argparse would end with status 2."""

    def parse(text: str) -> Any:
        if not text.strip():
            return None
        try:
            return read_number(kind, text)
        except ValueError:
            refuse(f"{flag} takes {'a whole number' if kind is int else 'a number'}, got {cut_short(text)!r}")

    return parse


def _percentiles(text: str) -> str:
    try:
        [read_number(float, part) for part in text.split(",")]
    except ValueError:
        refuse(f"--percentiles takes numbers with commas between, such as 50,90,95,99, got {cut_short(text)!r}")
    return text


# flag, type, default, help; the destination is the field of Settings
FLAGS: Final[tuple[tuple[str, Any, Any, str], ...]] = (
    ("--model", str, None, "Model to ask for; by default the server's first"),
    # load
    ("--request-rate", float, None, "Requests a second by a schedule (open loop), whatever the server does"),
    ("--arrival-pattern", str, None, "constant, poisson or gamma; by default poisson"),
    ("--arrival-smoothness", float, None, "Shape of the gamma pattern: 1 is poisson, below bursts, above evens out"),
    ("--request-rate-ramp-duration", float, None, "Seconds in which the request rate rises from 0"),
    ("--request-rate-series", str, None, "JSON file of [seconds, rate] points, joined by straight lines"),
    (
        "--user-centric-rate",
        float,
        None,
        "Requests a second over all users (-u): each sends every users / rate seconds",
    ),
    ("--max-users", int, 1000, "Without -u, a rate adds users as arrivals find none free, up to this many"),
    ("--request-count", int, None, "Send exactly this many requests, then end"),
    ("--num-sessions", int, None, "Begin exactly this many sessions, then end"),
    # stages
    (
        "--sweep",
        str,
        None,
        "Stages: concurrency=1..64 (by doubling), request-rate=1,2,4, prefill-concurrency=..., input-tokens=...",
    ),
    ("--stage-duration", str, "10..120", "Seconds that a stage of a sweep is measured at least and at most"),
    (
        "--stage-requests",
        int,
        None,
        "Requests measured at least in a stage; by default as many as the rules need, or 100",
    ),
    ("--repeats", int, 1, "Run the same load so many times, and tell the spread"),
    ("--gpus", int, None, "GPUs of the server: tells tokens a second of each"),
    ("--gpu-hour", float, None, "What an hour of one GPU costs: tells the cost of a million tokens at the SLO"),
    # the prefill gate
    ("--prefill-concurrency", int, None, "At most this many requests wait for their first token at a time"),
    ("--prefill-concurrency-ramp-duration", float, None, "Seconds in which the prefill limit rises from 1"),
    # warmup
    ("--warmup-request-count", int, None, "Send this many requests first, outside the main tables"),
    ("--warmup-duration", float, None, "Warm up for so many seconds first, outside the main tables"),
    ("--warmup-concurrency", int, None, "Users of the warmup; by default the main ones (-u)"),
    ("--warmup-request-rate", float, None, "Request rate of the warmup; by default the main one"),
    ("--warmup-prefill-concurrency", int, None, "Prefill limit of the warmup; by default the main one"),
    ("--warmup-prefill-concurrency-ramp-duration", float, None, "Ramp of the warmup; by default the main one"),
    # what is sent
    ("--synthetic-input-tokens-mean", float, 550.0, "Mean length of synthetic prompts, in tokens"),
    ("--synthetic-input-tokens-stddev", float, 0.0, "Its standard deviation"),
    ("--output-tokens-mean", float, 128.0, "Mean of max_tokens"),
    ("--output-tokens-stddev", float, 0.0, "Its standard deviation"),
    (
        "--seq-dist",
        str,
        None,
        "Mix of lengths instead: ISL,OSL:PERCENT pairs, as 200|20,128:80;uniform:4000..16000,512:20",
    ),
    (
        "--extra-inputs",
        str,
        None,
        "More fields of the request's body: ignore_eos:true temperature:0.5, or a JSON object",
    ),
    ("--shared-system-prompt-length", int, None, "Tokens of a system prompt that every request begins with"),
    ("--num-prefix-prompts", int, None, "Size of a pool of prefixes, one of which each prompt begins with"),
    ("--prefix-prompt-length", int, None, "Tokens of each of these prefixes"),
    ("--tokenizer", str, None, "Folder or file of a tokenizer (tokenizer.json), for prompts of exact lengths"),
    (
        "--input-file",
        str,
        None,
        "Dataset: ShareGPT, OpenAI-style JSONL, multi-turn JSONL, a Mooncake or Azure trace, a log",
    ),
    ("--custom-dataset-type", str, None, "Format of the dataset, where it is not recognised"),
    ("--dataset-columns", str, None, "Columns of an access log: timestamp=ts,input_tokens=prompt_tokens,..."),
    ("--dataset-sampling-strategy", str, "sequential", "sequential, shuffle or random"),
    ("--fixed-schedule-start-offset", float, None, "Replay a trace from this time of its own on, in ms"),
    ("--fixed-schedule-end-offset", float, None, "Replay a trace to this time of its own, in ms"),
    ("--replay-speedup", float, 1.0, "Replay a trace so many times faster"),
    (
        "--session-turns-mean",
        float,
        1.0,
        "Mean number of turns of a session; above 1 the history grows by real replies",
    ),
    ("--session-turns-stddev", float, 0.0, "Its standard deviation"),
    ("--session-turn-delay-mean", float, 0.0, "Mean think time between turns, in ms"),
    ("--session-turn-delay-stddev", float, 0.0, "Its standard deviation"),
    ("--session-header", str, None, "Send the id of the session in this header, for servers that route by it"),
    ("--random-seed", int, None, "Makes prompts, lengths and arrivals the same in every run"),
    # endpoint
    ("--endpoint-type", str, "chat", "Kind of endpoint: chat, or completions (plain, without roles)"),
    ("--endpoint", str, None, "Path of the endpoint; by default that of its kind, such as /v1/chat/completions"),
    ("--max-tokens-field", str, "max_tokens", "max_tokens, or max_completion_tokens where a server wants that"),
    ("--api-key-file", str, None, "File with the API key; by default the environment variable OPENAI_API_KEY"),
    ("--request-timeout", float, 3600.0, "Seconds after which a request is given up"),
    ("--first-token-timeout", float, 1800.0, "Seconds without a first token after which a request is given up"),
    ("--gap-timeout", float, 600.0, "Seconds without anything more after which a stream is given up"),
    ("--max-response-bytes", int, MAX_RESPONSE_BYTES, "Bytes after which an answer is given up"),
    ("--max-retries", int, 0, "Ask again, so often, where the server says 429 or 503 (after its Retry-After)"),
    ("--request-cancellation-rate", float, None, "Percent of the requests to cancel on purpose"),
    ("--request-cancellation-delay", float, 0.0, "Seconds after its send when such a request is cancelled"),
    ("--wait-for-model-timeout", float, 0.0, "Seconds to wait for the server to answer before the run"),
    ("--slo-file", str, None, "File with a rule a line, # begins a comment"),
    ("--slo-preset", str, None, "Preset rules: chat, or those of MLPerf, such as mlperf-llama3.1-8b"),
    ("--goodput", str, None, "AIPerf's form: time_to_first_token:300 inter_token_latency:20"),
    ("--percentiles", _percentiles, "50,90,95,99", "Percentiles of the tables, up to 99.9"),
    ("--report-dir", str, None, "Folder for the reports; by default reports/<time>-<model>"),
    (
        "--web-allowed-host",
        str,
        None,
        "Further names of the web page, of a proxy before it too, with commas between: load.example.com,locust:8089",
    ),
)
CHOICES: Final = {
    "--endpoint-type": tuple(ENDPOINTS),
    "--max-tokens-field": ("max_tokens", "max_completion_tokens"),
    "--arrival-pattern": (None, *PATTERNS),
    "--dataset-sampling-strategy": tuple(ORDERS),
}
SWITCHES: Final = (
    ("--streaming", True, "Ask for a stream of events"),
    ("--probe", True, "Before the run, ask the server how many tokens a few prompts have"),
    ("--fixed-schedule", False, "Replay a trace: each session of the dataset is sent at its own time"),
    ("--fixed-schedule-auto-offset", True, "The first time of the trace is the start of the run"),
    ("--find-max", False, "After a sweep, look between its last stage within the SLO and the first beyond it"),
    ("--server-metrics", True, "Read the server's own figures (/metrics) each second, where it has any"),
    (
        "--insecure",
        False,
        "Do not verify the server's TLS certificate: whoever stands between can read all, the key too",
    ),
    ("--skip-broken-rows", False, "Leave broken rows of the dataset out, and count them"),
)


LOCAL: Final = (
    "--api-key-file", "--slo-file", "--input-file", "--request-rate-series", "--tokenizer", "--report-dir", "--header",
    "--web-allowed-host",
)  # fmt: skip
"""Never of a web form: whoever sees the page could read and write files of this machine, or give the key away."""


def _field(flag: str) -> str:
    return flag[2:].replace("-", "_")
