"""What an answer says of its own times, in the words of llama.cpp, of TGI and of W3C's
Server-Timing."""

from __future__ import annotations

from time import monotonic
from typing import Any

from .scheduling.sequence import Sequence
from .scheduling.time_parts import queue_and_prefill


def llamacpp_timings(sequence: Sequence, output_tokens: int) -> dict[str, Any]:
    """Of a finished one, as llama.cpp has them in its last event: milliseconds of computing,
    without the wait for it. The first token belongs to the prompt, so output is counted from the
    second."""
    _, prefill_s = queue_and_prefill(sequence) or (0.0, 0.0)
    prompt, cached = sequence.num_prompt_tokens, sequence.num_cached_tokens
    decode_s = (sequence.last_at or 0.0) - (sequence.first_at or 0.0)
    return {
        "cache_n": cached,
        **_list_timings("prompt", prompt - cached, prompt - cached, prefill_s),
        **_list_timings("predicted", output_tokens, output_tokens - 1, decode_s),
    }


def _list_timings(name: str, count: int, steps: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": round(1e3 * seconds, 3),
        f"{name}_per_token_ms": round(1e3 * seconds / steps, 3) if steps else 0.0,
        f"{name}_per_second": round(steps / seconds, 3) if seconds else 0.0,
    }


def timing_headers(sequence: Sequence, output_tokens: int, arrived_at: float) -> str:
    """Lines of the response: TGI's (router/src/server.rs), whole milliseconds; and Server-Timing.
    Of a stream those that are known with its first token; none of an answer without one.
    ``arrived_at``: at the front end."""
    known = queue_and_prefill(sequence)
    if known is None:
        return ""
    queue_s, prefill_s = known
    validation_s = (sequence.arrived_at or arrived_at) - arrived_at
    parts = {"queue": queue_s, "prefill": prefill_s}
    times_s = {"x-validation-time": validation_s, "x-queue-time": queue_s}
    if sequence.last_at is not None and sequence.first_at is not None:
        parts["decode"] = sequence.last_at - sequence.first_at
        inference_s = prefill_s + parts["decode"]
        times_s |= {
            "x-inference-time": inference_s,
            "x-time-per-token": inference_s / output_tokens,
            "x-total-time": monotonic() - arrived_at,
        }
    lines = [f"{name}: {int(1e3 * seconds)}\r\n" for name, seconds in times_s.items()]
    header = ", ".join(f"{name};dur={1e3 * seconds:.3f}" for name, seconds in parts.items())
    return "".join(lines) + f"Server-Timing: {header}\r\n"
