"""Records of all kinds, for hypothesis: answers and failures, retries, tool calls, merged chunks,
several choices, hidden reasoning, missing values."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK, RETRIED
from locust_llm.records.record import Record
from locust_llm.records.server_times import METRICS, ServerTimes

TEXTS = st.sampled_from(["", "a", "é", 'he said "no"', "x\ny", "\ud800", "reset after 17 bytes"])
COUNTS = st.none() | st.integers(0, 2**62)
FEW = st.none() | st.integers(0, 300)
SECONDS = st.floats(0, 50, allow_nan=False).map(lambda value: round(value, 9))
STAMPS = st.lists(st.integers(0, 90_000_000), max_size=12).map(sorted)
FAR_STAMPS = st.lists(st.integers(0, 10**13), max_size=3).map(sorted)
SAME_STAMPS = st.integers(0, 10**6).flatmap(
    lambda us: st.integers(1, 5).map(lambda count: [us] * count)
)
OUTCOMES = st.sampled_from([OK] * 6 + [CANCELLED, CUT, RETRIED, *FAILURES])


@st.composite
def random_records(draw: Callable[..., Any]) -> Record:
    """A record that does not contradict itself."""
    outcome = draw(OUTCOMES)
    asked_at = 12345.678901234 + draw(SECONDS)
    sent_at = draw(st.none() | SECONDS) if outcome != OK else draw(SECONDS)
    us = tuple(draw(STAMPS | STAMPS | SAME_STAMPS | FAR_STAMPS)) if sent_at is not None else ()
    fields: dict[str, Any] = {}
    if us:
        merged = sorted(draw(st.sets(st.integers(0, len(us) - 1), max_size=4)))
        if draw(st.booleans()):
            fields["merged"] = tuple((i, draw(st.integers(0, us[i]))) for i in merged)
        fields["first_output"] = draw(st.none() | st.integers(0, len(us) - 1))
        if draw(st.integers(0, 3)) == 0:
            fields["chunk_tokens"] = ((draw(st.integers(0, 5)), len(us)),)
    if draw(st.integers(0, 3)) == 0:
        fields |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "choices": st.integers(1, 3),
                    "hidden_tokens": FEW,
                    "reasoning_tokens": FEW,
                    "after": st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
                    "tool_s": st.none() | SECONDS,
                    "rejected_counts": st.just((("input_tokens", "-1"),)),
                    "lacks": st.sampled_from([(), ("due",), ("gaps",), ("due", "gaps")]),
                    "answer": st.just(AnswerChecks(marker=5, foreign=(7, 8), text="né")),
                    "server": st.just(ServerTimes(source=METRICS, queue_us=5, arrived_at=1.5)),
                    "schema_valid": st.none() | st.booleans(),
                    "read_lag_us": st.none() | st.integers(-5, 5000),
                    "retry_after_s": st.none() | SECONDS,
                    "image_bytes": COUNTS,
                    "streamed": st.booleans(),
                    "turnaround_us": FEW,
                    "paused_us": FEW,
                    "resent": st.integers(0, 2),
                    "attempt": st.integers(1, 3),
                    "clock": st.sampled_from(["kernel", "thread"]),
                },
            )
        )
    closed_s = max(draw(SECONDS), (sent_at or 0.0), us[-1] / 1e6 if us else 0.0)
    return Record(
        id=draw(st.text("0123456789abcdef", min_size=1, max_size=8)),
        worker=draw(st.sampled_from(["local", "w1"])),
        name=draw(TEXTS),
        model=draw(TEXTS),
        phase=draw(st.sampled_from(["warmup", "profiling"])),
        session=draw(TEXTS),
        clock_offset_s=1.7e9 + draw(SECONDS),
        due_at=asked_at - draw(SECONDS),
        asked_at=asked_at,
        admitted_at=draw(st.none() | SECONDS.map(lambda wait_s: asked_at + wait_s)),
        sent_at=None if sent_at is None else asked_at + sent_at,
        closed_at=asked_at + closed_s,
        chunk_us=us,
        outcome=outcome,
        status=draw(FEW),
        error="" if outcome == OK else draw(TEXTS),
        finish_reason=draw(st.sampled_from([None, "stop", "length", "tool_calls"])),
        output_tokens=draw(FEW),
        first_chunk_tokens=draw(st.integers(0, 3)),
        input_tokens=draw(FEW),
        tokens_from=draw(st.sampled_from(["usage", "chunks", ""])),
        reconnect_s=draw(st.none() | SECONDS),
        limit=draw(FEW),
        **fields,
    )


def without_surrogates(record: Record) -> Record:
    """The record as files have it: no encoding has a lone surrogate."""
    texts = {
        name: getattr(record, name).encode("utf-8", "replace").decode()
        for name in ("name", "model", "session", "error")
    }
    return msgspec.structs.replace(record, **texts)
