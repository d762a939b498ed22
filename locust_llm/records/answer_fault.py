"""Answer fault: the evidence of one wrong answer, a line of answer_faults.jsonl in the folder of a
run: what was asked and answered, and the requests beside it."""

from typing import Final

import msgspec

ANSWER_FAULTS_FILE: Final = "answer_faults.jsonl"
REPRODUCE_COMMAND: Final = "locust-llm verify reproduce DIR"
"""What replays a wrong answer that this file has."""
NO_BODY: Final = msgspec.Raw(b"null")


class RequestBeside(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that the same process sent while the one with the wrong answer was open, or shortly
    before. Times are Unix seconds."""

    id: str
    session: str = ""
    sent_at: float
    """Of one that was still open: when it was due."""
    ended_at: float | None = None
    """None: it was still open."""
    outcome: str = ""
    """Empty: it was still open."""
    marker: int | None = None
    body: msgspec.Raw = NO_BODY
    """The request's JSON. Null: it would hold a secret."""


class AnswerFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One wrong answer. Times are Unix seconds."""

    id: str
    """The X-Request-Id of its request."""
    session: str = ""
    turn: int = 0
    worker: str
    faults: tuple[str, ...]
    """What is wrong, by the names in answers/fault_names.py."""
    markers: tuple[int, ...] = ()
    """The markers of other sessions in the answer."""
    own_marker: int | None = None
    sent_at: float
    ended_at: float
    outcome: str
    text: str
    """The begin of the answer's text, at most 4 kB."""
    body: msgspec.Raw = NO_BODY
    """The request's JSON. Null: it would hold a secret."""
    beside: tuple[RequestBeside, ...] = ()
    """In the order in which they were sent. A process keeps its last requests only."""


decode_answer_fault: Final = msgspec.json.Decoder(AnswerFault).decode
"""One line of the file."""
