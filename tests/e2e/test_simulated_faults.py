"""The simulator's quirks and faults with each protocol, as the client sees them."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.simulated import started

from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.requests_bridge import make_target
from locust_llm.gate.gate import Gate
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.record import Record

TOKENS = 9
INPUTS = 4
STREAMED = ("chat", "completions", "responses", "messages")
POOLED = ("embeddings", "rerank")


@pytest.fixture(scope="module")
def simulator() -> Iterator[Any]:
    with started("--ttft-ms", "2", "--itl-ms", "1") as simulator:
        yield simulator


def ask(simulator: Any, kind: str, quirks: str, **body: Any) -> Record:
    messages = [{"role": "user", "content": "Hello there"}] * (
        INPUTS + (kind == "rerank") if kind in POOLED else 1
    )
    data = encode_request_body(
        kind, None, messages, TOKENS, **{"streaming": kind in STREAMED, **body}
    )
    head = (
        f"POST {PROTOCOLS[kind].path} HTTP/1.1\r\nHost: x\r\nX-Simulate: "
        f"{quirks}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    labels = {"id": "one"} | ({"inputs": INPUTS} if kind in POOLED else {})
    to, line = make_target(f"http://127.0.0.1:{simulator.port}/", True, None), UserConnection()
    try:
        asked = Request(
            target=to,
            data=head.encode() + data,
            labels=labels,
            timeout_s=30.0,
            gap_timeout_s=10.0,
            kind=kind,
        )
        return exchange_request(line, Gate(), asked, 0.0)
    finally:
        line.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quirks", "streamed", "pooled"),
    [
        ("", ("ok", TOKENS), "ok"),
        ("status=429", ("rate_limited", 0), "rate_limited"),
        ("status=503", ("unavailable", 0), "unavailable"),
        ("error=3", ("stream_error", 3), "http_status"),
        ("error=0", ("stream_error", 0), "http_status"),
        ("cut=3", ("closed", 3), "closed"),
        ("reset=3", ("reset", 3), "reset"),
        ("malformed=1", ("malformed", TOKENS - 1), "malformed"),
        ("split_utf8=yes", ("ok", TOKENS), "ok"),
        ("stall=3,stall_s=0.05", ("ok", TOKENS), "ok"),
        ("slow_headers_s=0.05", ("ok", TOKENS), "ok"),
        ("ping_s=0.001", ("ok", TOKENS), "ok"),
        ("finish=none", ("truncated", TOKENS), "ok"),
        ("usage=none", ("ok", TOKENS), "ok"),
        ("reasoning=2", ("ok", TOKENS), "ok"),
        ("eos=3", ("ok", 3), "ok"),
        ("tokens_per_chunk=4", ("ok", 3), "ok"),
        ("draft_tokens=3,acceptance=1", ("ok", 3), "ok"),
        ("draft_tokens=3,acceptance=0", ("ok", TOKENS), "ok"),
        ("draft_tokens=3,acceptance=1,cut=4", ("closed", 2), "closed"),
        ("role=early,done=no,finish=own", ("ok", TOKENS), "ok"),
    ],
)
def test_what_the_simulator_does_is_what_the_client_sees(
    simulator: Any, quirks: str, streamed: tuple[str, int], pooled: str
) -> None:
    for kind in STREAMED:
        record = ask(simulator, kind, quirks)
        assert (record.outcome, len(record.chunk_us)) == streamed, (kind, record.error)
        if record.outcome == "ok":
            assert record.finish_reason == ("stop" if "eos" in quirks else "length"), kind
            tokens = 3 if "eos" in quirks else TOKENS
            assert (record.output_tokens, record.tokens_from) == (
                tokens,
                "chunks" if "usage=none" in quirks else "usage",
            )
            assert record.first_output == (
                2 if "reasoning" in quirks and kind != "completions" else 0
            ), kind
    for kind in POOLED:
        record = ask(simulator, kind, quirks)
        assert record.outcome == pooled, (kind, record.error)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_tokens_of_each_chunk(simulator: Any, kind: str) -> None:
    def chunks(quirks: str, **body: Any) -> Any:
        return ask(simulator, kind, quirks, **{"per_chunk_usage": True, **body}).chunk_tokens

    assert chunks("") == ((1, TOKENS),)
    assert chunks("draft_tokens=3,acceptance=1") == ((1, 1), (4, 2))
    assert chunks("tokens_per_chunk=3") == ((1, 1), (3, 2), (2, 1))
    assert chunks("", per_chunk_usage=False) == ()


@pytest.mark.parametrize("kind", STREAMED)
def test_an_answer_in_one_piece_fails_as_it_is_asked_to(simulator: Any, kind: str) -> None:
    for quirks, outcome in (
        ("", "ok"), ("error=3", "http_status"), ("cut=3", "closed"), ("malformed=1", "malformed"),
        ("eos=3", "ok"),
        ("draft_tokens=3,acceptance=1", "ok"),
    ):  # fmt: skip
        record = ask(simulator, kind, quirks, streaming=False)
        assert record.outcome == outcome, (quirks, record.error)
        if outcome == "ok":
            assert record.output_tokens == (3 if "eos" in quirks else TOKENS)


def test_its_metrics_count_drafts() -> None:
    """A prefill's token, then two steps of a draft of three tokens, all accepted."""
    with started(
        "--ttft-ms", "1", "--itl-ms", "1", "--quirks", "draft_tokens=3,acceptance=1"
    ) as simulator:

        def counters() -> list[float]:
            lines = dict(
                line.rsplit(" ", 1)
                for line in simulator.text("/metrics")[1].splitlines()
                if line[:1] != "#"
            )
            names = ("drafts", "draft_tokens", "accepted_tokens")
            return [
                float(
                    lines[
                        f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="llama-3.1-8b"}}'
                    ]
                )
                for name in names
            ]

        assert counters() == [0, 0, 0]
        assert ask(simulator, "chat", "").output_tokens == TOKENS
        assert counters() == [2, 6, 6]
