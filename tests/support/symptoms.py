"""Symptoms: makes measurements of a server with round numbers: a prompt token costs 50 µs, and a
gap without prefill is 10 ms."""

from typing import Any

from locust_llm.lab.probe.probe_measurements import (
    BurstResult,
    CachedPrompt,
    DecoderStall,
    ProbeMeasurements,
    PromptCost,
    QueuedShortRequest,
)

TOKEN_S = 50e-6
QUIET_S = 0.010
LENGTHS = (2000, 4000, 8000)


def stall(turn: int, tokens: int, kind: str = "stall", **known: Any) -> DecoderStall:
    """Makes a stall by steps of 500 tokens in 30 ms each, so that 1,000 tokens take 60 ms."""
    both = tokens * (2 if kind == "pair" else 1)
    found = DecoderStall(
        kind=kind, round=turn, asked_tokens=tokens, input_tokens=tokens, ttft_s=both * 60e-6,
        meanwhile=both / 500,
        steps=both / 500, surely=both / 500,
        plain=False, rest=0.25, longest_s=0.033, usual_s=0.030, quiet_s=QUIET_S, decoders=3,
        ended=0, after_s=-1.0,
        apart_s=tokens * 60e-6 if kind == "pair" else 0.0,
    )  # fmt: skip
    return type(found)(**({name: getattr(found, name) for name in found.__struct_fields__} | known))


def symptoms(**known: Any) -> ProbeMeasurements:
    """Makes the measurements of a chunked server in two rounds. ``known`` replaces values."""
    stalls: list[DecoderStall] = []
    for turn in (1, 2):
        stalls += [stall(turn, length) for length in LENGTHS]
    stalls += [stall(turn, 4000, "pair") for turn in (1, 2)]
    ttft_s = tuple(0.1 * place for place in range(1, 9))
    found: dict[str, Any] = {
        "requests": 70,
        "failed": 0,
        "episodes": 30,
        "short_s": QUIET_S,
        "costs": tuple(PromptCost(n, n, (n * TOKEN_S,) * 3) for n in LENGTHS),
        "quiet_s": QUIET_S,
        "lost": 0.0,
        "decoders": 3,
        "stalls": tuple(stalls),
        "behind": tuple(QueuedShortRequest(turn, 0.3, 0.3) for turn in (1, 2)),
        "bursts": tuple(BurstResult(turn, 2000, ttft_s) for turn in (1, 2)),
        "cached": tuple(CachedPrompt(4000, 0.2, 0.2) for _ in range(2)),
        "tokens_a_chunk": 1.0,
    }
    return ProbeMeasurements(**(found | known))
