"""--source-ip in whole runs: what the server sees, and more connections than one address has
ports."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.runs import ROOT, Server, command, records, run
from support.tiny_server import TinyServer

from locust_llm.exit_status import ExitStatus

SPACE = f"llm-{os.getpid()}-ports"
TWO = ("--source-ip", "127.0.0.2,127.0.0.3")
PORTS = range(40_000, 40_050)
COUNT = """
import socket, sys
from locust_llm.client.source_address_rotation import SourceAddresses, connect_socket
listeners = [socket.create_server(("127.0.0.1", port), backlog=400) for port in (50_001, 50_002)]
held, counts = [], []
for listener in listeners:
    counts.append(0)
    try:
        while True:
            held.append(connect_socket(*listener.getsockname(), SourceAddresses(sys.argv[1:])))
            counts[-1] += 1
    except OSError as error:
        print(counts[-1], error.strerror)
"""
"""As many connections as there can be, to one port and then to another."""


class Seeing(TinyServer):
    """Keeps where connections come from."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
        self.seen[client_address[0]] += 1
        return True


@pytest.fixture
def seeing() -> Iterator[Seeing]:
    server = Seeing()
    server.start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_server_sees_each_address_and_the_run_says_so(seeing: Seeing, tmp_path: Path) -> None:
    """Of two processes too, of which each has a certificate of its own where the run is long
    enough."""
    words = ("-u", "8", "--request-count", "16", "--processes", "2", "--no-probe", *TWO)
    done = run(Server(seeing.url), tmp_path / "r", *words)
    assert done.returncode == ExitStatus.OK, done.stderr
    assert {record.worker for record in records(tmp_path / "r")} != {""}
    assert set(seeing.seen) == {"127.0.0.2", "127.0.0.3"}
    first, second = seeing.seen.values()
    assert abs(first - second) <= 2  # one of each process; how many users come to send is by chance
    said = json.loads((tmp_path / "r" / "run.json").read_bytes())["run"]
    assert "connections leave from 127.0.0.2, 127.0.0.3 in turn (--source-ip)" in said["notes"]
    assert said["settings"]["processes"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--source-ip", "192.0.2.1"), "--source-ip 192.0.2.1 is not an address of this machine"),
        (("--source-ip", "::1"), "--source-ip has no IPv4 address, as 127.0.0.1 has"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(
    seeing: Seeing, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = run(Server(seeing.url), tmp_path / "r", "-u", "1", "-t", "1", *words)
    assert done.returncode == ExitStatus.REFUSED
    assert said in done.stderr
    assert not seeing.seen


# -- more connections than one address has ports ---------------------------------------------------


@pytest.fixture(scope="module")
def space() -> Iterator[tuple[str, ...]]:
    """The beginning of a command in a network of its own, where connections have 50 ports."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for a network namespace")
    if subprocess.run(["ip", "netns", "add", SPACE], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make network namespaces")
    inside = ("ip", "netns", "exec", SPACE)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        ports = f"net.ipv4.ip_local_port_range={PORTS[0]} {PORTS[-1]}"
        subprocess.run([*inside, "sysctl", "-qw", ports], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=True)


@pytest.mark.parametrize(("sources", "most"), [(1, 50), (2, 100), (3, 150)])
def test_each_address_has_all_ports_to_each_destination(
    space: tuple[str, ...], sources: int, most: int
) -> None:
    words = [sys.executable, "-c", COUNT, *(f"127.0.0.{n + 2}" for n in range(sources))]
    done = subprocess.run(
        [*space, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [f"{most} Cannot assign requested address"] * 2


def test_more_users_than_one_address_has_ports(space: tuple[str, ...], tmp_path: Path) -> None:
    simulate = [
        sys.executable,
        "-m",
        "locust_llm",
        "simulate",
        "--port",
        "8000",
        "--ttft-ms",
        "2000",
        "--itl-ms",
        "1",
    ]
    server = subprocess.Popen([*space, *simulate], cwd=ROOT, stdout=subprocess.DEVNULL)
    asked = command(
        Server("http://127.0.0.1:8000"),
        tmp_path / "r",
        "-u",
        "80",
        "-r",
        "80",
        "--request-count",
        "80",
        "--no-probe",
    )
    try:
        refused = subprocess.run(
            [*space, *asked], capture_output=True, text=True, timeout=60, check=False
        )
        assert refused.returncode == ExitStatus.REFUSED
        assert (
            "80 users (-u) need as many ports to the server, but this machine has 50 (40000 to "
            "40049)" in refused.stderr
        )
        assert "2 source addresses (--source-ip)" in refused.stderr
        done = subprocess.run(
            [*space, *asked, *TWO], capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == ExitStatus.OK, done.stderr
    finally:
        server.terminate()
        server.wait()
    some = records(tmp_path / "r")
    assert [record.outcome for record in some] == ["ok"] * 80
    ended, began = (
        min(record.closed_at for record in some),
        max(record.sent_at or 0.0 for record in some),
    )
    assert began < ended  # all were open at once
