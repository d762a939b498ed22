"""Captured answers: the bytes of real servers in tests/captures, as the client reads them."""

from pathlib import Path

from locust_llm.answers.received_answer import EventReader
from locust_llm.client.sse import EventDecoder
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import OK

CAPTURES = Path(__file__).parents[1] / "captures"
KINDS = ("completions", "messages", "responses")


def parse_capture(path):
    """(what the protocol of the client makes of it, its events), or None for a refusal."""
    head, _, body = path.read_bytes().partition(b"\r\n\r\n")
    if head.split()[1] != b"200":
        return None
    kind = next((kind for kind in KINDS if kind in path.name), "chat")
    answer, reader = Completion(PROTOCOLS[kind], keep_text=True), EventReader()
    if body.lstrip().startswith(b"{"):
        reader.add(body)
        answer.whole(body)
    else:
        for event in EventDecoder().feed([(0, body)]):
            reader.add(event[2])
            answer.add(event)
    return (answer, reader) if answer.outcome()[0] == OK else None
