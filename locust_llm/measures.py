"""Measures: what an SLO rule can be about, by the words of this project and by AIPerf's tags, and the units of limits."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from .definitions import LATENCIES, PER_USER, Metric

TIME: Final = {"s": 1.0, "ms": 1e3, "us": 1e6}
SHARE: Final = {"%": 100.0, "": 1.0}
RATE: Final = {"/s": 1.0}
"""Units: by what a limit in them is divided for seconds, a share of 1, or a number a second."""

POOLED: Final = "inter_chunk_latency"
"""Its values are the gaps of all requests, not one a request."""


class Measure(NamedTuple):
    """Something that a rule can be about."""

    word: str
    tag: str
    """AIPerf's name of it, where it has one."""
    units: Mapping[str, float]
    metric: Metric | None = None
    """None: one number, made of all requests."""


_SHORT: Final = {
    "time_to_first_token": "ttft", "time_to_first_output_token": "ttfo", "inter_token_latency": "itl", POOLED: "icl",
    "prefill_gate_wait": "gate_wait", "schedule_delay": "late", "time_to_first_token_from_due": "ttft_from_due",
    "http_req_connecting": "connect_time", "tcp_round_trip": "rtt",
}  # fmt: skip
_OTHERS: Final = {"tpot": "itl", "e2el": "request_latency"}
"""What vLLM and others call the same numbers."""
MEASURES: Final = (
    *(Measure(_SHORT.get(metric.tag, metric.tag), metric.tag, TIME, metric) for metric in LATENCIES),
    Measure("output_tokens_per_s_per_user", PER_USER.tag, RATE, PER_USER),
    Measure("requests_per_s", "request_throughput", RATE),
    Measure("output_tokens_per_s", "output_token_throughput", RATE),
    Measure("input_tokens_per_s", "input_token_throughput", RATE),
    Measure("total_tokens_per_s", "total_token_throughput", RATE),
    Measure("goodput", "goodput", RATE),
    Measure("attainment", "good_request_fraction", SHARE),
    Measure("error_rate", "request_error_rate", SHARE),
    Measure("delivered", "delivered", SHARE),
)
BY_WORD: Final = {measure.word: measure for measure in MEASURES}
BY_NAME: Final = BY_WORD | {m.tag: m for m in MEASURES} | {name: BY_WORD[word] for name, word in _OTHERS.items()}
GIVEN: Final = ("attainment", "goodput")
"""The measures that have conditions."""
