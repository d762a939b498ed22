"""Simulated spans: makes spans of requests like vLLM (0.32, vllm/v1/engine/output_processor.py),
and adds the true times."""

from __future__ import annotations

import re
import time
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from .scheduling.time_parts import LatencyParts, measure_latency_parts
from .span_sender import SimulatedSpan, SpanSender, Value

if TYPE_CHECKING:
    from .response_stream import SimulatedAnswer

NAME: Final = "llm_request"
TRUTH: Final = "simulator."
"""Attributes with this prefix exist on no real server. They have the seconds of each of the
`LatencyParts`, and ``front_end``."""
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class Parent(NamedTuple):
    trace_id: bytes
    span_id: bytes
    sampled: bool


def parse_traceparent(text: str) -> Parent | None:
    """Parses a W3C Trace Context. Returns None if it is malformed, which begins a new trace."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None or (match[1] == "00" and match[5]):
        return None
    return Parent(bytes.fromhex(match[2]), bytes.fromhex(match[3]), bool(int(match[4], 16) & 1))


class Spans:
    """Makes one span per request that was answered to its end. As with OpenTelemetry's usual
    sampler, a parent that is not sampled gets none."""

    def __init__(self, sender: SpanSender, *, clock_offset_s: float = 0.0) -> None:
        """Takes ``clock_offset_s``, the lead of the server's clock over the machine's."""
        self.sender = sender
        self._unix_s = time.time() - time.monotonic() + clock_offset_s
        self._random = Random()

    def counts(self) -> dict[str, int]:
        return {"sent": self.sender.sent, "dropped": self.sender.dropped}

    def finished(self, answer: SimulatedAnswer, now: float) -> None:
        """Ends a span. ``now`` is the time of its last token in seconds of CLOCK_MONOTONIC."""
        parent = parse_traceparent(answer.traceparent)
        parts = measure_latency_parts(answer.sequence)
        if parts is None or (parent and not parent.sampled):
            return
        arrived_at = answer.row.arrived_at
        ttft_s = answer.first_at - arrived_at
        e2e_s = now - arrived_at
        attributes: dict[str, Value] = {
            **latency_attributes(parts, ttft_s, e2e_s),
            "gen_ai.usage.prompt_tokens": answer.asked.prompt_tokens,
            "gen_ai.usage.completion_tokens": answer.count,
            "gen_ai.request.id": answer.row.answer_id,
            "gen_ai.request.max_tokens": answer.asked.max_tokens,
            "gen_ai.request.n": 1,
            **{f"gen_ai.request.{name}": value for name, value in answer.asked.sampling if value},
        }
        random = self._random.randbytes
        trace_id = parent.trace_id if parent else random(16)
        parent_id = parent.span_id if parent else b""
        start_ns = int(1e9 * (self._unix_s + arrived_at))
        end_ns = int(1e9 * (self._unix_s + now))
        self.sender.add(
            SimulatedSpan(NAME, trace_id, random(8), parent_id, start_ns, end_ns, attributes)
        )


def latency_attributes(parts: LatencyParts, ttft_s: float, e2e_s: float) -> dict[str, Value]:
    """Returns vLLM's attributes, then the true times. queue, prefill and decode are the engine's.
    TTFT and e2e are the front end's, from a request that was read to a token that was written.
    front_end has the difference up to the first token."""
    return {
        "gen_ai.latency.time_to_first_token": ttft_s,
        "gen_ai.latency.e2e": e2e_s,
        "gen_ai.latency.time_in_queue": parts.queue,
        "gen_ai.latency.time_in_model_prefill": parts.prefill,
        "gen_ai.latency.time_in_model_decode": parts.decode,
        "gen_ai.latency.time_in_model_inference": parts.prefill + parts.decode,
        **{f"{TRUTH}{name}": value for name, value in parts._asdict().items()},
        f"{TRUTH}front_end": ttft_s - parts.queue - parts.prefill,
    }
