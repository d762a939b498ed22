"""Exposition: the counters and histograms of a run in the text format of Prometheus, version 0.0.4.

Sixty lines, where its client library would be a dependency that registers metrics for a process, not for a run. Buckets are
those of vLLM's own metrics, so that what users saw and what the server says of itself lie in the same ones.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from locust_llm.core.record import FAILURES, OK, Record
from locust_llm.slo.client_verdict import LEVELS

from .live_stats import LiveStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "locust_llm_"

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]
"""What follows on the name of its family (``_sum``), labels, value."""

SECONDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
HISTOGRAMS: Final = (
    ("time_to_first_token_seconds", "ttft_s", TTFT, "First chunk with content after the send, of successful requests"),
    ("inter_token_latency_seconds", "itl_s", ITL,
     "(Request latency - TTFT) / tokens after the first chunk: one number a request, of successful requests"),
    ("request_latency_seconds", "latency_s", SECONDS, "Last chunk after the send, of successful requests"),
    ("prefill_gate_wait_seconds", "gate_wait_s", TTFT, "Wait at the prefill gate, of requests that succeeded or failed"),
)  # fmt: skip


class Histogram:
    """How many values were at most as large as each bucket."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        count = 0
        for bound, here in zip((*self._buckets, float("inf")), self._counts, strict=True):
            count += here
            yield "_bucket", {**labels, "le": number(bound)}, count
        yield "_sum", labels, self._sum
        yield "_count", labels, count


class Totals:
    """What a run amounts to so far, by phase."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._chunks: Counter[str] = Counter()
        self._input_tokens: Counter[str] = Counter()
        self._output_tokens: Counter[str] = Counter()
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def add(self, record: Record) -> None:
        """A request is over."""
        phase = record.phase
        self._requests[phase, record.outcome] += 1
        self._chunks[phase] += len(record.chunk_us)
        self._input_tokens[phase] += record.input_tokens or 0
        self._output_tokens[phase] += record.output_tokens or 0
        for name, what, buckets, _ in HISTOGRAMS:
            if record.outcome == OK or (what == "gate_wait_s" and record.outcome in FAILURES):
                value = getattr(record, what)
                if value is not None:
                    if (name, phase) not in self._histograms:
                        self._histograms[name, phase] = Histogram(buckets)
                    self._histograms[name, phase].add(value)

    def families(self) -> Iterator[str]:
        """As text, each with its help and its type."""
        by_outcome = (("", {"phase": phase, "outcome": outcome}, n) for (phase, outcome), n in self._requests.items())
        yield from family("requests_total", "counter", "Requests that are over, by what became of them", by_outcome)
        for name, of, text in (
            ("chunks_total", self._chunks, "Events with content in them, of requests that are over"),
            ("input_tokens_total", self._input_tokens, "Tokens of the prompts of requests that are over"),
            ("output_tokens_total", self._output_tokens, "Tokens of the answers of requests that are over"),
        ):
            yield from family(name, "counter", text, (("", {"phase": phase}, n) for phase, n in of.items()))
        for name, _, _, text in HISTOGRAMS:
            found = (h.samples({"phase": phase}) for (of_name, phase), h in self._histograms.items() if of_name == name)
            yield from family(name, "histogram", text, (sample for samples in found for sample in samples))


def standing(pulse: LiveStats, *, users: int, limit: int | None, info: Labels) -> Iterator[str]:
    """How the run stands: gauges. ``limit``: of the prefill gate; ``info``: what run it is."""
    client = pulse.client()
    for name, text, value in (
        ("users", "Users of Locust", users),
        ("prefill_gate_limit", "At most so many requests wait for their first token at a time", limit),
        ("prefill_gate_waiting", "Requests that wait at the prefill gate", pulse.waiting),
        ("requests_in_prefill", "Requests sent, the first token still to come", pulse.used),
        ("requests_decoding", "Requests whose first token has come", pulse.decoding),
        ("output_tokens_per_second", "Estimate over the last seconds, with answers that are still on",
         pulse.tokens_per_s()),
        ("client_level", f"The load generator: {', '.join(f'{i} {level}' for i, level in enumerate(LEVELS))}",
         None if client is None else LEVELS.index(client.level)),
    ):  # fmt: skip
        yield from family(name, "gauge", text, [] if value is None else [("", {}, value)])
    yield from family("run_info", "gauge", "What this run is; always 1", [("", info, 1)])


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Its lines; none without a sample."""
    name = PREFIX + name
    lines = [f"{name}{suffix}{_labels(labels)} {number(value)}\n" for suffix, labels, value in samples]
    if lines:
        yield f"# HELP {name} {_escaped(text)}\n# TYPE {name} {kind}\n"
        yield from lines


def number(value: float) -> str:
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))


def _labels(labels: Labels) -> str:
    told = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text
