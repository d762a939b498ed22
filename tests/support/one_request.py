"""One request: sends it to a real server, and returns its record."""

from typing import Any

from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.requests_bridge import make_target
from locust_llm.gate.gate import Gate
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.record import Record


def ask(
    url: str, text: str = "Hello there", tokens: int = 6, *, kind: str = "chat",
    model: str = "tiny", key: str = "none",
    **body: Any,
) -> Record:  # fmt: skip
    """Sends a request on a connection of its own. ``body`` adds fields."""
    data = encode_request_body(kind, model, [{"role": "user", "content": text}], tokens, **body)
    head = (
        f"POST {PROTOCOLS[kind].path} HTTP/1.1\r\nHost: server\r\nContent-Type: "
        f"application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    to = make_target(url, True, None)
    line = UserConnection()
    try:
        request = Request(
            target=to, data=head.encode() + data, labels={"id": "one"}, timeout_s=60.0, kind=kind
        )
        return exchange_request(line, Gate(), request, 0.0)
    finally:
        line.close()
