"""The configurations of deploy/gateway before the timed upstream: streams pass at once and whole,
and a client that leaves ends the generation."""

import http.client
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from support.gateways import GATEWAYS, START, started_gateway

from locust_llm.lab.gateway.upstream_log import CLIENT_GONE, UpstreamRequest, read_upstream_log
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas
from locust_llm.lab.gateway.upstream_script import UpstreamScript, write_prompt

WORD = re.compile(rb"w(\d+)\.(\d+) ")
APART_S = 0.05


def post(port: int, identity: str, **script: Any) -> http.client.HTTPConnection:
    """Sends a chat request, and leaves its response to be read."""
    asked = {
        "model": "gwbench",
        "stream": True,
        "messages": [
            {"role": "user", "content": write_prompt(UpstreamScript(id=identity, **script))}
        ],
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
    return connection


def find_request(folder: Path, identity: str, wait_s: float) -> UpstreamRequest | None:
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        for request in read_upstream_log(folder):
            if request.id == identity:
                return request
        time.sleep(0.05)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", GATEWAYS)
def test_a_stream_passes_and_a_client_that_leaves_ends_it(name: str, tmp_path: Path) -> None:
    with (
        UpstreamReplicas(tmp_path / "upstream") as replicas,
        started_gateway(name, [replicas[0].port], tmp_path) as gateway,
    ):
        whole = post(gateway.port, "whole", tokens=10, gap_ms=APART_S * 1000)
        response = whole.getresponse()
        assert response.status == 200
        body = b""
        late_s = []
        while data := response.read1(65_536):
            now_ns = time.monotonic_ns()
            late_s += [(now_ns - int(word[2])) / 1e9 for word in WORD.finditer(data)]
            body += data
        whole.close()
        assert [int(word[1]) for word in WORD.finditer(body)] == list(range(10))
        # a gateway that holds events back holds the first one for nine times the gap
        assert sorted(late_s)[5] < 4 * APART_S
        assert b"[DONE]" in body
        leaves = post(gateway.port, "leaves", tokens=100, gap_ms=APART_S * 1000)
        leaves.getresponse().read1(100)
        leaves.close()
        request = find_request(tmp_path / "upstream", "leaves", 20)
        assert request is not None
        assert request.end == CLIENT_GONE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nginx", "haproxy", "caddy"])
def test_replicas_share_the_requests(name: str, tmp_path: Path) -> None:
    with (
        UpstreamReplicas(tmp_path / "upstream", 2) as replicas,
        started_gateway(name, [replicas[0].port, replicas[1].port], tmp_path) as gateway,
    ):
        for number in range(6):
            connection = post(gateway.port, f"shared-{number}", tokens=1, ttft_ms=1)
            connection.getresponse().read()
            connection.close()
        assert find_request(tmp_path / "upstream", "shared-5", 5) is not None
        reached = {request.replica for request in read_upstream_log(tmp_path / "upstream")}
    assert reached == {0, 1}


def test_each_gateway_has_its_start() -> None:
    script = START.read_text("utf-8")
    assert [name for name in GATEWAYS if f"\n  {name})" not in script] == []
