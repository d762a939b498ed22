"""What companies have between a load generator and a server: a real proxy with TLS, client
certificates, keys that expire, a base path and a query in the address."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.runs import free_port, records
from support.tiny_server import Asked, TinyServer

from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.run_facts import read_run
from locust_llm.server.http_get import PROBE_HEADER

PASSWORD = "lovelace-1815"
NAME = socket.gethostname()
QUERY = "api-version=2024-10-21"
BASE = "/openai/deployments/y"


def locust_llm(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run without a key of the environment, in ``folder``."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if "PROXY" not in name.upper() and "OPENAI" not in name
    }
    return subprocess.run(
        [sys.executable, "-m", "locust_llm", *words], cwd=folder, env=clean | environment,
        capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip


def written(folder: Path) -> bytes:
    """All that a run has left."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def certificate(folder: Path, name: str) -> Path:
    """Self-signed, of this machine's name, with its key."""
    both, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2",
         "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", key, "-out",
         both],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(both.read_bytes() + key.read_bytes())
    return both


@pytest.fixture
def tinyproxy(tmp_path: Path) -> Iterator[int]:
    """The port of one that wants a login."""
    program = shutil.which("tinyproxy")
    if program is None:
        pytest.skip("needs tinyproxy: apt install tinyproxy-bin")
    port = free_port()
    config = tmp_path / "tinyproxy.conf"
    config.write_text(
        f"Port {port}\nListen 127.0.0.1\nBasicAuth ada {PASSWORD}\nLogFile "
        f'"{tmp_path / "tinyproxy.log"}"\n'
    )
    with subprocess.Popen([program, "-d", "-c", config], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionRefusedError:
                continue
        try:
            yield port
        finally:
            process.terminate()


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[int]:
    """The port of one that speaks TLS, and wants a certificate of its clients."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    server, client = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    command = [
        sys.executable,
        "-m",
        "locust_llm.simulator",
        "--port",
        "0",
        "--ttft-ms",
        "30",
        "--itl-ms",
        "3",
    ]
    tls = ["--ssl-certfile", str(server), "--ssl-ca-certs", str(client), "--truth", "full"]
    with subprocess.Popen([*command, *tls], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
        finally:
            process.send_signal(signal.SIGTERM)


def truth(port: int, folder: Path) -> dict[str, Any]:
    """By id, as the simulator has it; asked directly."""
    context = ssl.create_default_context(cafile=str(folder / "server.pem"))
    context.load_cert_chain(folder / "client.pem")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(f"https://{NAME}:{port}/truth") as answer:
        return {row["id"]: row for row in msgspec.json.decode(answer.read())["requests"]}


@pytest.mark.slow
def test_through_a_real_proxy_with_tls_and_a_client_certificate(
    tinyproxy: int, simulator: int, tmp_path: Path
) -> None:
    """No stamp is before what it is of was sent; the password is nowhere; the metrics come the same
    way."""
    host, way = (
        f"https://{NAME}:{simulator}",
        {"HTTPS_PROXY": f"http://ada:{PASSWORD}@127.0.0.1:{tinyproxy}"},
    )
    load = (
        "run",
        "--headless",
        "--host",
        host,
        "-u",
        "2",
        "--request-count",
        "24",
        "--output-tokens-mean",
        "12",
    )
    files = ("--ca-cert", "server.pem", "--client-cert", "client.pem")
    done = locust_llm(tmp_path, *load, *files, "--report-dir", "out", **way)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    run = read_run(out)
    assert run.proxy == run.health[0].proxy == f"127.0.0.1:{tinyproxy}"
    assert (
        f"requests pass through the proxy 127.0.0.1:{tinyproxy} (a CONNECT tunnel)"
        in (out / "summary.md").read_text()
    )
    rows = truth(simulator, tmp_path)
    found = records(out)
    assert [(one.outcome, one.clock, one.rtt_us) for one in found] == [(OK, "kernel", None)] * 24
    for one in found:
        sent = [before for before, _ in rows[one.id]["token_at"]]
        assert len(sent) == len(one.chunk_us) == 12
        assert all(
            us / 1e6 + (one.sent_at or 0) >= at for us, at in zip(one.chunk_us, sent, strict=True)
        )
    metrics = [
        msgspec.json.decode(line)
        for line in (out / "server_metrics.jsonl").read_bytes().splitlines()
    ]
    assert metrics
    assert not any(one.get("failure") for one in metrics)
    assert PASSWORD.encode() not in written(out)
    assert PASSWORD not in done.stdout + done.stderr
    for words, more, said in (
        (
            files,
            {"HTTPS_PROXY": f"http://ada:no{PASSWORD}@127.0.0.1:{tinyproxy}"},
            "it refuses the user name and password",
        ),
        (files[:2], way, "PROBLEM reachable"),  # without a certificate of its own
        (files[2:], way, "may have replaced the certificate with its own: see --ca-cert"),
    ):
        refused = locust_llm(tmp_path, "check", host, *words, **more)
        assert refused.returncode != 0
        assert said in refused.stdout + refused.stderr
        assert PASSWORD not in refused.stdout + refused.stderr


class Expiring(TinyServer):
    """Takes each key for six requests of a load; knows one base path and one query."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.taken, self.lock = 1, 0, threading.Lock()
        self.answered: list[int] = []
        """Status of the requests of the load."""

    def answer(self, asked: Asked) -> tuple[int, Any]:
        path, _, query = asked.path.partition("?")
        if not path.startswith(BASE) or query != QUERY:
            return 400, {"error": {"message": f"no {asked.path}"}}
        probe = PROBE_HEADER.lower() in asked.headers
        with self.lock:
            status = (
                200
                if asked.headers.get("authorization") == f"Bearer secret-key-{self.key}"
                else 401
            )
            if not probe:
                self.answered.append(status)
                self.taken += status == 200
                self.key, self.taken = (
                    (self.key + 1, 0) if self.taken == 6 else (self.key, self.taken)
                )
        if status == 401:
            return status, {
                "error": {"message": f"{asked.headers.get('authorization')} has expired"}
            }
        return super().answer(asked._replace(path=path.removeprefix(BASE)))


def test_keys_that_expire_behind_a_base_path_with_a_query(tmp_path: Path) -> None:
    """The command is run once for each key, whoever is refused; the requests that were are sent
    again, and no key is shown."""
    server = Expiring()
    server.start()
    (tmp_path / "key.sh").write_text("echo run >> runs; echo secret-key-$(wc -l < runs)\n")
    try:
        done = locust_llm(
            tmp_path, "run", "--headless", "--host", f"{server.url}{BASE}?{QUERY}", "-u", "3",
            "--request-count", "20",
            "--api-key-command", "sh key.sh", "--report-dir", "out",
        )  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    keys = (tmp_path / "runs").read_text().count("run")
    assert (server.answered.count(200), keys) == (20, 4)  # 6, 6, 6 and 2
    refused = server.answered.count(401)
    assert 3 <= refused <= 9
    outcomes = [one.outcome for one in records(tmp_path / "out")]
    assert (outcomes.count(OK), outcomes.count(RETRIED)) == (20, refused)
    assert {path.partition("?")[2] for path in server.paths()} == {QUERY}
    asked = {path.partition("?")[0].removeprefix(BASE) for path in server.paths()}
    assert {"/v1/models", "/v1/chat/completions", "/metrics", "/tokenize"} <= asked
    told = written(tmp_path / "out") + done.stdout.encode() + done.stderr.encode()
    assert b"secret-key" not in told
    assert b"sh key.sh" not in told
