"""The proxy of the tests: it forwards what nobody planted as it came, and each plant does its own
change alone."""

import gzip
import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.planted_changes import PLANTS
from support.planted_proxy import planted_proxy, read_proxy_log

from locust_llm.lab.gateway.upstream_log import UpstreamRequest, read_upstream_log
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas
from locust_llm.lab.gateway.upstream_script import UpstreamScript, write_prompt

STAMP = re.compile(rb"(?<=[wr.])\d{18}|(?<=r)\d{18}")
WORD = re.compile(rb"w(\d+)\.\d+ ")


class Came(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def words(self) -> list[int]:
        return [int(index) for index in WORD.findall(self.body)]

    @property
    def plain(self) -> bytes:
        """The body without its times."""
        return STAMP.sub(b"#", self.body)


def ask(port: int, identity: str, path: str = "/v1/chat/completions", **script: Any) -> Came:
    prompt = write_prompt(UpstreamScript(id=identity, ttft_ms=2, gap_ms=1, tokens=10, **script))
    asked: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": 10}
    if path.endswith("/completions") and "chat" not in path:
        asked["prompt"] = prompt
    elif path.endswith("/responses"):
        asked["input"] = prompt
    else:
        asked["messages"] = [{"role": "user", "content": prompt}]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(asked), {"X-Own": "1", "User-Agent": "test"})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        try:
            body = response.read()
        except (http.client.IncompleteRead, ConnectionError) as error:
            body = getattr(error, "partial", b"")
        return Came(response.status, headers, body)
    finally:
        connection.close()


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamReplicas]:
    with UpstreamReplicas(tmp_path_factory.mktemp("upstream")) as replicas:
        yield replicas


def find_arrivals(upstream: UpstreamReplicas, identity: str, count: int) -> list[UpstreamRequest]:
    """The upstream's lines about a request, when there are so many."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = [one for one in read_upstream_log(upstream.folder) if one.id == identity]
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the upstream has no {count} lines of {identity}")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
)
def test_what_nobody_planted_comes_as_it_was_sent(
    upstream: UpstreamReplicas, tmp_path: Path, path: str
) -> None:
    direct = ask(upstream[0].port, "same", path, features=("usage",))
    with planted_proxy([upstream[0].port], tmp_path / "log") as port:
        through = ask(port, "same", path, features=("usage",))
    assert through.plain == direct.plain
    assert through.words[:10] == list(range(10))
    assert (through.status, through.headers) == (direct.status, direct.headers)


@pytest.mark.parametrize("delay_ms", [0.0, 0.1, 1.0, 10.0])
def test_it_waits_and_writes_down_how_long(
    upstream: UpstreamReplicas, tmp_path: Path, delay_ms: float
) -> None:
    log = tmp_path / "log"
    with planted_proxy([upstream[0].port], log, delay_ms=delay_ms) as port:
        ask(port, f"delay-{delay_ms}")
    (exchange,) = read_proxy_log(log)
    assert exchange.id == f"delay-{delay_ms}"
    assert exchange.request[1] - exchange.request[0] >= delay_ms * 1e6
    assert [index for index, _, _ in exchange.words] == list(range(10))
    assert all(wrote - read >= delay_ms * 1e6 for _, read, wrote in exchange.words)
    assert all(wrote - read < (delay_ms + 1000) * 1e6 for _, read, wrote in exchange.words)


def test_delays_of_chance_keep_the_order(upstream: UpstreamReplicas, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with planted_proxy([upstream[0].port], log, delay_ms=5.0, spread=True) as port:
        assert ask(port, "spread").words == list(range(10))
    (exchange,) = read_proxy_log(log)
    delays = {wrote - read for _, read, wrote in exchange.words}
    assert len(delays) > 1


CHANGED = {
    "lose": lambda words: len(words) == 9,
    "double": lambda words: len(words) == 11,
    "swap": lambda words: words != sorted(words),
}
FEATURES = {
    "drop_keep_alives": ("comments",),
    "change_usage": ("usage",),
    "drop_usage": ("usage",),
    "drop_reasoning": ("reasoning",),
    "empty_tool_arguments": ("tools",),
}
FAULTS = {"translate_errors": "http_500", "hide_errors": "error_midstream", "retry": "http_500"}
SAME_BYTES = (
    "resend", "request_headers", "response_headers", "close", "hold", "hold_all", "cut_write",
)  # fmt: skip
"""These leave the body as it is."""


@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "ignore_cancel"])
def test_each_plant_acts_and_leaves_the_rest(
    upstream: UpstreamReplicas, tmp_path: Path, plant: str
) -> None:
    log = tmp_path / "log"
    script: dict[str, Any] = {
        "features": FEATURES.get(plant, ()),
        "fault": FAULTS.get(plant, ""),
        "fault_arrivals": int(plant == "retry"),
    }
    direct = ask(upstream[0].port, f"{plant}-direct", **script | {"fault_arrivals": 0})
    with planted_proxy([upstream[0].port], log, plants=[plant]) as port:
        through = ask(port, f"{plant}-planted", **script)
    (exchange,) = read_proxy_log(log)
    assert (exchange.plant, exchange.acted > 0) == (plant, True)
    same = through.plain.replace(b"-planted", b"-direct") == direct.plain
    assert same == (plant in SAME_BYTES)
    if plant in CHANGED:
        assert CHANGED[plant](through.words)
    elif plant == "compress":
        assert WORD.findall(gzip.decompress(through.body)) == [b"%d" % index for index in range(10)]
    elif plant == "hide_errors":
        assert through.body.endswith(b"data: [DONE]\n\n")
        assert b'"error"' in direct.body
        assert b'"error"' not in through.body
    elif plant == "translate_errors":
        assert (direct.status, through.status) == (500, 502)


def test_a_request_is_sent_twice(upstream: UpstreamReplicas, tmp_path: Path) -> None:
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=["resend"]) as port:
        assert ask(port, "twice").words == list(range(10))
    assert len(find_arrivals(upstream, "twice", 2)) == 2


def test_a_failed_request_is_sent_again(upstream: UpstreamReplicas, tmp_path: Path) -> None:
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=["retry"]) as port:
        healed = ask(port, "healed", fault="http_500", fault_arrivals=1)
    assert (healed.status, healed.words) == (200, list(range(10)))
    assert [one.status for one in find_arrivals(upstream, "healed", 2)] == [500, 200]


def test_headers_of_requests_are_rewritten(upstream: UpstreamReplicas, tmp_path: Path) -> None:
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=["request_headers"]) as port:
        ask(port, "heads")
    (request,) = find_arrivals(upstream, "heads", 1)
    headers = {name.lower(): value for name, value in request.headers}
    assert (headers["user-agent"], headers["x-planted"]) == ("planted", "1")
    assert "x-own" not in headers


@pytest.mark.parametrize(("plant", "end"), [("", "client gone"), ("ignore_cancel", "complete")])
def test_a_client_that_leaves(
    upstream: UpstreamReplicas, tmp_path: Path, plant: str, end: str
) -> None:
    identity = f"leaves-{plant}"
    prompt = write_prompt(UpstreamScript(id=identity, ttft_ms=2, gap_ms=5, tokens=40))
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    plants = [plant] if plant else []
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=plants) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("POST", "/v1/chat/completions", json.dumps(asked))
        connection.getresponse().read(100)
        connection.close()
        (request,) = find_arrivals(upstream, identity, 1)
    assert request.end == end


@pytest.mark.parametrize("fault", ["close_midstream", "reset_midstream"])
def test_a_broken_stream_stays_broken_or_is_hidden(
    upstream: UpstreamReplicas, tmp_path: Path, fault: str
) -> None:
    with planted_proxy([upstream[0].port], tmp_path / "log") as port:
        kept = ask(port, f"kept-{fault}", fault=fault)
    assert b"[DONE]" not in kept.body
    with planted_proxy([upstream[0].port], tmp_path / "log2", plants=["hide_errors"]) as port:
        hidden = ask(port, f"hidden-{fault}", fault=fault)
    assert hidden.body.endswith(b"data: [DONE]\n\n")


def test_requests_go_to_the_upstreams_in_turn(tmp_path: Path) -> None:
    with (
        UpstreamReplicas(tmp_path, 2) as replicas,
        planted_proxy([replicas[0].port, replicas[1].port], tmp_path / "log") as port,
    ):
        for number in range(4):
            ask(port, f"turn-{number}")
    assert sorted(one.replica for one in read_upstream_log(tmp_path)) == [0, 0, 1, 1]


@pytest.mark.parametrize(("fault", "status"), [("not_http", 502), ("bad_chunk", 200)])
def test_an_upstream_that_speaks_no_http_ends_one_exchange_alone(
    upstream: UpstreamReplicas, tmp_path: Path, fault: str, status: int
) -> None:
    with planted_proxy([upstream[0].port], tmp_path / "log") as port:
        assert ask(port, f"broken-{fault}", fault=fault).status == status
        assert ask(port, f"behind-{fault}").words == list(range(10))
