"""Recorded fault: a wrong answer of a run, and the requests to send again."""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from locust_llm.answers.fault_names import FAULT_SENTENCES
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.answer_fault import (
    ANSWER_FAULTS_FILE,
    NO_BODY,
    AnswerFault,
    RequestBeside,
    decode_answer_fault,
)
from locust_llm.records.outcomes import CANCELLED, CUT
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.run_facts import RECORDS, Run
from locust_llm.settings.ab_arms import CANDIDATE

from .reproduction import TracedRequest

CLIENT_LEFT: Final = frozenset(
    {CANCELLED, CUT, "timeout", "first_token_timeout", "gap_timeout", "too_large", "too_long"}
)
"""The outcomes of requests whose connection the client closed."""
KEY: Final = "{key}"


class RecordedFault(NamedTuple):
    name: str
    """The gravest of its faults."""
    fault: AnswerFault
    requests: tuple[TracedRequest, ...]
    """In the order in which they were sent."""
    left_out: int
    """The requests whose bodies would hold a secret."""


def read_recorded_fault(folder: Path, number: int, session_header: str) -> RecordedFault:
    """The fault of this number, from 1. Raises OSError, or ValueError of one sentence."""
    lines = (folder / ANSWER_FAULTS_FILE).read_bytes().splitlines()
    if number > len(lines):
        raise ValueError(f"{ANSWER_FAULTS_FILE} has no fault {number}: it has {len(lines)}")
    fault = decode_answer_fault(lines[number - 1])
    if is_empty(fault.body):
        raise ValueError("the request of this fault held a secret, so its body was not kept")
    names = [name for name in FAULT_SENTENCES if name in fault.faults]
    if not names:
        raise ValueError(f"this version does not know the fault {', '.join(fault.faults)}")
    own = RequestBeside(
        id=fault.id,
        session=fault.session,
        sent_at=fault.sent_at,
        ended_at=fault.ended_at,
        outcome=fault.outcome,
        body=fault.body,
    )
    kept = [one for one in (*fault.beside, own) if not is_empty(one.body)]
    kept.sort(key=lambda request: request.sent_at)
    requests = [trace_request(one, kept[0].sent_at, session_header) for one in kept]
    return RecordedFault(names[0], fault, tuple(requests), 1 + len(fault.beside) - len(kept))


def is_empty(body: msgspec.Raw) -> bool:
    return bytes(body) in (b"", bytes(NO_BODY))


def trace_request(request: RequestBeside, first_at: float, session_header: str) -> TracedRequest:
    """``first_at``: Unix seconds of the first request."""
    cancel_after_s = None
    if request.ended_at is not None and request.outcome in CLIENT_LEFT:
        cancel_after_s = round(max(0.0, request.ended_at - request.sent_at), 6)
    return TracedRequest(
        id=request.id,
        at_s=round(request.sent_at - first_at, 6),
        cancel_after_s=cancel_after_s,
        open=request.ended_at is None,
        outcome=request.outcome,
        headers={session_header: request.session} if session_header and request.session else {},
        body=msgspec.json.decode(request.body),
    )


def find_host(folder: Path, run: Run, request: str) -> str:
    """The server that gave the answer to this request, by its record."""
    settings = run.settings
    if not settings.hosts and not settings.candidate:
        return settings.host
    records = RecordFile(folder / RECORDS)
    where = next((record for record in records if record.id == request), None)
    if where is None:
        return settings.host
    if where.arm == CANDIDATE and settings.candidate:
        return settings.candidate
    return where.backend if where.backend in settings.hosts else settings.host


def make_header_template(endpoint_type: str) -> dict[str, str]:
    """The headers of each request, with ``{key}`` for the API key."""
    return PROTOCOLS[endpoint_type].headers(KEY)
