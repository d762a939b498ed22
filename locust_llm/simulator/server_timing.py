"""Server timing: reports an answer's times in the fields of llama.cpp, TGI and W3C's
Server-Timing."""

from __future__ import annotations

from time import monotonic
from typing import Any

from .scheduling.sequence import Sequence
from .scheduling.time_parts import queue_and_prefill


def llamacpp_timings(sequence: Sequence, output_tokens: int) -> dict[str, Any]:
    """Returns the times of a finished answer as in llama.cpp's last event: milliseconds of
    computation without waiting. The first token belongs to the prompt, so output counts from the
    second."""
    _, prefill_s = queue_and_prefill(sequence) or (0.0, 0.0)
    prompt = sequence.num_prompt_tokens
    cached = sequence.num_cached_tokens
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
    """Returns header lines: TGI's (router/src/server.rs) in whole milliseconds, and Server-Timing.
    A stream has the times known at its first token, and an answer without a token has none.
    ``arrived_at`` is the arrival at the front end."""
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
