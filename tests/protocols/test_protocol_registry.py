"""The protocols by name, and one that a locustfile adds."""

import runpy
from pathlib import Path

import pytest
from support import unpatched_locust  # noqa: F401  the locustfile imports Locust

from locust_llm.client.response_chunks import Response
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.outcomes import OK
from locust_llm.settings.option_declaration import declared_options
from locust_llm.settings.run_options import Settings

LOCUSTFILE = Path(__file__).parents[2] / "locustfiles" / "llamacpp.py"
EVENTS = (  # of llama.cpp, shortened
    b'{"index":0,"content":"ient","stop":false,"tokens_predicted":1,"tokens_evaluated":2}',
    b'{"index":0,"content":"ks","stop":false,"tokens_predicted":2,"tokens_evaluated":2}',
    b'{"index":0,"content":"","stop":true,"tokens_predicted":2,"tokens_evaluated":2,"stop_type":"limit"}',
)


def test_ours_are_those_that_the_option_names() -> None:
    option = next(
        option for option in declared_options(Settings) if option.field == "endpoint_type"
    )
    assert option.choices == tuple(PROTOCOLS)
    assert len({protocol.path for protocol in PROTOCOLS.values()}) == len(PROTOCOLS)


def test_one_that_a_locustfile_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PROTOCOLS, "llamacpp", raising=False)
    try:
        runpy.run_path(str(LOCUSTFILE))
        assert encode_request_body("llamacpp", None, [{"role": "user", "content": "Hello"}], 2) == (
            b'{"prompt":"Hello","n_predict":2,"stream":true}'
        )
        stream = Response(0, kind="llamacpp", keep_text=True)
        body = b"".join(b"data: %b\n\n" % event for event in EVENTS)
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            % len(body)
        )
        if stream.append_read(1, 0, head + body):
            stream.decode_pending()
        answer = stream.answer
        assert (stream.finish(), answer.finish_reason, answer.text) == (
            (OK, ""),
            "length",
            ["ient", "ks"],
        )
        assert (answer.chunk_reads, answer.input_tokens, answer.output_tokens) == ([0, 0], 2, 2)
    finally:
        PROTOCOLS.pop("llamacpp", None)
