"""One exchange with the timed upstream itself: the moments of both sides lie in their order, and
faults have the outcomes that a user would see."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from locust_llm.client.request_exchange import UserConnection
from locust_llm.lab.gateway.gateway_client import (
    API_PATHS,
    DIRECT,
    GatewayAddress,
    exchange_script,
    make_address,
    merge_headers,
    write_request,
)
from locust_llm.lab.gateway.trial_request import Trial, make_trial_request
from locust_llm.lab.gateway.upstream_log import read_upstream_log
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas
from locust_llm.lab.gateway.upstream_script import UpstreamScript
from locust_llm.records.outcomes import OK


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[UpstreamReplicas]:
    with UpstreamReplicas(tmp_path) as replicas:
        yield replicas


@pytest.fixture
def direct(upstream: UpstreamReplicas) -> GatewayAddress:
    return make_address(DIRECT, upstream.urls[0])


@pytest.fixture
def line() -> Iterator[UserConnection]:
    line = UserConnection()
    yield line
    line.close()


@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages"])
def test_the_moments_of_a_stream_are_in_order(
    direct: GatewayAddress, line: UserConnection, kind: str
) -> None:
    for name in ("a", "b"):
        script = UpstreamScript(id=name, ttft_ms=3, gap_ms=3, tokens=4)
        exchange = exchange_script(line, direct, script, kind=kind)
        assert (exchange.outcome, exchange.message) == (OK, "")
        assert (exchange.connect_s is None) == (name == "b")
        times = exchange.times()
        assert times.received_ns is not None
        assert [word.number for word in times.words] == [0, 1, 2, 3]
        sent = [exchange.sent_ns, times.received_ns, *[word.sent_ns for word in times.words]]
        came = [word.at_ns for word in times.words]
        assert sent == sorted(sent)
        assert came == sorted(came)
        for word in times.words:
            assert 0 < word.at_ns - word.sent_ns < 1e9
        assert times.end_ns == times.words[-1].at_ns == exchange.ended_ns


@pytest.mark.parametrize("kind", [*API_PATHS])
def test_an_answer_in_one_piece(
    direct: GatewayAddress, line: UserConnection, upstream: UpstreamReplicas, kind: str
) -> None:
    script = UpstreamScript(id="a", ttft_ms=1, tokens=2)
    exchange = exchange_script(line, direct, script, kind=kind, stream=False)
    assert exchange.outcome == OK
    if kind != "embeddings":
        assert [word.number for word in exchange.times().words] == [0, 1]
    upstream.close()
    (row,) = read_upstream_log(upstream.folder)
    end_ns = exchange.times().end_ns
    assert end_ns is not None
    assert exchange.sent_ns < row.received_ns < row.last_sent_ns < end_ns


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("http_500", "http_status"),
        ("close_unanswered", "closed"),
        ("reset_midstream", "reset"),
        ("close_midstream", "closed"),
        ("stall_midstream", "timeout"),
        ("error_midstream", "stream_error"),
    ],
)
def test_faults_have_their_outcomes(
    direct: GatewayAddress, line: UserConnection, fault: str, outcome: str
) -> None:
    script = UpstreamScript(id="a", ttft_ms=1, gap_ms=1, fault=fault)
    exchange = exchange_script(line, direct, script, timeout_s=0.3)
    assert exchange.outcome == outcome
    assert exchange_script(line, direct, UpstreamScript(id="b")).outcome == OK


def test_a_connection_that_the_server_closed_is_replaced(
    direct: GatewayAddress, line: UserConnection, upstream: UpstreamReplicas
) -> None:
    assert exchange_script(line, direct, UpstreamScript(id="a")).outcome == OK
    upstream.kill(0)
    refused = exchange_script(line, direct, UpstreamScript(id="b"))
    assert refused.outcome == "refused"
    assert "Connection refused" in refused.message
    upstream.restart(0)
    assert exchange_script(line, direct, UpstreamScript(id="c")).outcome == OK


def test_later_headers_replace_earlier_ones_in_whatever_case() -> None:
    merged = merge_headers({"Authorization": "a", "X-A": "1"}, {"authorization": "b"}, {})
    assert merged == {"authorization": "b", "X-A": "1"}


def test_the_address_of_an_ipv6_host_is_in_brackets() -> None:
    address = make_address("a", "http://user:pw@[::1]:4000/v1")
    trial = Trial(UpstreamScript(id="x"), headers={"x-a": "b"})
    request = make_trial_request(address, trial)
    assert request.target.host == "::1"
    head = request.data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[:2] == [b"POST /v1/chat/completions HTTP/1.1", b"Host: [::1]:4000"]
    assert b"x-a: b" in head


def test_the_bytes_of_a_request() -> None:
    address = make_address(
        "a", "http://localhost:4000/v1/?team=2", {"Authorization": "Bearer k"}, model="m"
    )
    script = UpstreamScript(id="x", tokens=3, features=("tools", "gzip"))
    head, _, body = write_request(
        address, "messages", script, stream=False, headers={"X-A": "b"}
    ).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/messages?team=2 HTTP/1.1"
    assert {b"Host: localhost:4000", b"Authorization: Bearer k", b"X-A: b"} <= set(lines)
    assert b"Content-Length: %d" % len(body) in lines
    assert b"Accept-Encoding: gzip" in lines
    assert b'"input_schema"' in body
    assert b'"stream"' not in body
