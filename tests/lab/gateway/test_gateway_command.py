"""The command: its options, its refusals, and a short run of all parts through a proxy that only
forwards bytes."""

import argparse
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from support.byte_forwarder import byte_forwarder
from support.planted_proxy import planted_proxy

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.gateway.gateway_command import (
    describe_busy_machine,
    name_gateways,
    parse_gateway_time,
    parse_levels,
    parse_numbers,
    parse_parts,
    parse_replicas,
    parse_upstream,
    run_gateway,
)
from locust_llm.lab.gateway.gateway_result import RESULT_NAME, GatewayResult, read_gateway_result
from locust_llm.lab.gateway.hidden_failures import HIDDEN, KEPT
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas


def run_command(
    folder: Path, *words: str, timeout_s: float = 240
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "locust_llm", "gateway", "-o", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def find_free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def test_values_of_options() -> None:
    assert [parse_gateway_time(text) for text in ("5ms", "20", "2m", "100us")] == pytest.approx(
        [0.005, 20.0, 120.0, 0.0001]
    )
    assert (parse_numbers("1,16, 64"), parse_numbers("")) == ((1.0, 16.0, 64.0), ())
    assert parse_parts("times, faults") == ("times", "faults")
    assert parse_replicas("2") == 2
    for parse, text in (
        (parse_gateway_time, "5 minutes"),
        (parse_gateway_time, "0s"),
        (parse_numbers, "1,a"),
        (parse_numbers, "0"),
        (parse_parts, "all"),
        (parse_parts, ""),
        (parse_replicas, "0"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=text or "takes some"):
            parse(text)


def test_the_address_of_the_upstream() -> None:
    assert parse_upstream("9000") == ("127.0.0.1", 9000)
    assert parse_upstream("0.0.0.0:9000") == ("0.0.0.0", 9000)
    assert parse_upstream("[::1]:9000") == ("::1", 9000)
    for text, why in (
        ("http://other:9000", "need one clock"),
        ("port", "takes a port"),
        ("70000", "takes a port"),
    ):
        with pytest.raises(ValueError, match=why):
            parse_upstream(text)


def test_an_upstream_at_an_ipv6_address(tmp_path: Path) -> None:
    with UpstreamReplicas(tmp_path, host="::1") as replicas:
        port = replicas[0].port
        assert replicas.urls == [f"http://[::1]:{port}"]
        assert urlopen(f"http://[::1]:{port}/v1/models").status == 200
        with pytest.raises(OSError, match=rf"cannot listen at \[::1\]:{port} \(address already in"):
            UpstreamReplicas(tmp_path, port=port, host="::1")


def test_names_of_gateways() -> None:
    assert name_gateways(["nginx=localhost:1/v1", "http://a:2"]) == [
        ("nginx", "http://localhost:1"),
        ("a:2", "http://a:2"),
    ]
    for texts in (["a=x:1", "a=x:2"], ["direct=x:1"]):
        with pytest.raises(ValueError, match="a name of its own"):
            name_gateways(texts)


def test_a_busy_machine_is_named() -> None:
    assert describe_busy_machine(1.9, 2) == ""
    assert "load average 9.0 on 2 CPUs" in describe_busy_machine(9.0, 2)


@pytest.mark.slow
def test_a_gateway_that_is_not_there_is_refused(tmp_path: Path) -> None:
    port, upstream = find_free_port(), find_free_port()
    done = run_command(tmp_path, "--gateway", f"127.0.0.1:{port}", "--upstream", str(upstream))
    assert done.returncode == ExitStatus.REFUSED
    assert f"the gateway 127.0.0.1:{port} at http://127.0.0.1:{port} gave no answer" in done.stderr
    assert "--gateway" in done.stderr


@pytest.mark.slow
def test_a_gateway_that_forwards_elsewhere_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        in_use = run_command(tmp_path, "--gateway", "127.0.0.1:1", "--upstream", port)
    assert in_use.returncode == ExitStatus.REFUSED
    assert f"the upstream cannot listen at 127.0.0.1:{port}" in in_use.stderr
    with planted_proxy([find_free_port()], tmp_path / "proxy.jsonl") as elsewhere:
        upstream = find_free_port()
        done = run_command(
            tmp_path, "--gateway", f"127.0.0.1:{elsewhere}", "--upstream", str(upstream)
        )
    assert done.returncode == ExitStatus.REFUSED
    assert "answered HTTP 502, but its request did not reach the upstream" in done.stderr
    assert f"point its backend to http://127.0.0.1:{upstream}" in done.stderr


@pytest.mark.slow
def test_a_port_that_a_replica_does_not_get_again_is_told_on_one_line(tmp_path: Path) -> None:
    """Another program takes it while the replica is dead."""
    upstream = find_free_port()
    with byte_forwarder(upstream) as port:
        command = [
            sys.executable, "-c", TAKE_PORT_ON_DEATH, "-o", str(tmp_path), "--gateway",
            f"proxy=127.0.0.1:{port}", "--upstream", str(upstream), "--replicas", "2",
            "--parts", "routing",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ExitStatus.INCOMPLETE
    (line,) = done.stderr.splitlines()
    assert f"the upstream cannot listen at 127.0.0.1:{upstream + 1} (address already in" in line


TAKE_PORT_ON_DEATH = """
import socket, sys
from locust_llm.lab.gateway.gateway_command import run_gateway
from locust_llm.lab.gateway.upstream_process import UpstreamReplica

def kill_and_take_port(replica, kill=UpstreamReplica.kill):
    kill(replica)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind((replica.host, replica.port))
    taken.listen()
    kept.append(taken)

kept = []
UpstreamReplica.kill = kill_and_take_port
sys.exit(run_gateway(sys.argv[1:]))
"""


@pytest.mark.slow
def test_all_parts_through_a_proxy_that_forwards(tmp_path: Path) -> None:
    upstream = find_free_port()
    with byte_forwarder(upstream) as port:
        done = run_command(
            tmp_path, "--gateway", f"proxy=127.0.0.1:{port}", "--upstream", str(upstream),
            "-t", "40s", "--levels", "4", "--rates", "20", "--json", "--limit", "1s",
            "--slo", "hidden_failures == 0", "--slo", "lost_chunks == 0",
            "--slo", "added_token p50 < 1s",
        )  # fmt: skip
    assert done.returncode == ExitStatus.OK, done.stderr
    result = read_gateway_result(tmp_path)
    assert msgspec.json.decode(done.stdout, type=list[GatewayResult]) == [result]
    assert result == read_gateway_result(tmp_path / RESULT_NAME)
    assert [rule.verdict for rule in result.rules] == ["PASS"] * 3
    assert len(result.faults) > 50
    assert HIDDEN not in [fault.verdict for fault in result.faults]
    late = ("in time", "silence")  # a busy machine answers so
    unlike = {
        fault.fault
        for fault in result.faults
        if fault.verdict != KEPT and not any(words in fault.through for words in late)
    }
    assert unlike == {"reset_unanswered", "reset_midstream"}  # the forwarder closes them
    assert [cancel.never for cancel in result.cancels] == [0, 0, 0]
    assert result.headers
    streams, rate = result.levels
    assert (result.changes, result.direct_changes) == ((), ())
    assert (streams.streams, rate.requests_per_s) == (4, 20)
    assert [added.quantity for added in streams.added] == [
        "ttft",
        "token",
        "itl",
        "latency",
    ]
    assert [added.quantity for added in result.without_load] == ["setup", "embeddings"]
    assert result.lost_chunks == 0
    assert [added.quantity for added in rate.added] == ["latency"]
    ttft = streams.find("ttft")
    assert ttft is not None
    assert 0 < ttft.p50_ms < 1000
    assert "proxy at http://127.0.0.1" in done.stderr
    assert "SLO PASS: hidden_failures == 0 (0)" in done.stderr
    page = (tmp_path / "gateway.html").read_text("utf-8")
    assert "<h1>Gateway proxy</h1>" in page
    again = tmp_path / "again.html"
    assert run_gateway(["report", str(tmp_path), "-o", str(again)]) == ExitStatus.OK
    assert again.read_text("utf-8") == page
    assert run_gateway(["report", str(tmp_path / "absent")]) == ExitStatus.REFUSED


def test_a_login_and_a_query_are_in_no_name() -> None:
    ((name, url),) = name_gateways(["http://ann:pw@localhost:8080/v1?key=k"])
    assert (name, "pw" in url) == ("localhost:8080", True)  # the client needs it


def test_levels_are_whole_numbers() -> None:
    assert parse_levels("1,16") == (1, 16)
    with pytest.raises(argparse.ArgumentTypeError, match="whole numbers"):
        parse_levels("0.5")


@pytest.mark.slow
def test_several_gateways_are_measured_in_turn(tmp_path: Path) -> None:
    """The one that adds 30 ms passes the limit at the first load, and takes no part in the next."""
    upstream = find_free_port()
    with (
        byte_forwarder(upstream) as quick,
        planted_proxy([upstream], tmp_path / "proxy.jsonl", delay_ms=30.0) as slow,
    ):
        done = run_command(
            tmp_path, "--gateway", f"quick=127.0.0.1:{quick}",
            "--gateway", f"slow=127.0.0.1:{slow}", "--upstream", str(upstream),
            "-t", "5s", "--levels", "1,2", "--rates", "", "--parts", "times", "--limit", "25ms",
        )  # fmt: skip
    assert done.returncode == ExitStatus.OK, done.stderr
    found = [read_gateway_result(tmp_path / name) for name in ("quick", "slow")]
    first, second = (result.levels[0].find("ttft") for result in found)
    assert first is not None
    assert second is not None
    # the way and the first token wait 30 ms each
    assert second.p50_ms > 60 > first.p50_ms
    assert first.direct_p50_ms == second.direct_p50_ms
    assert [level.streams for level in found[1].levels] == [1]
    assert "time added at 1 stream: quick, slow\n" in done.stdout
    assert "<h1>Gateways quick, slow</h1>" in (tmp_path / "gateway.html").read_text("utf-8")
