"""Truth: builds and starts the benchmarks' truth server, and reads its output."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("truth_server.c")
CLIENT = Path(__file__).with_name("reading_client.c")
TLS = ("-DTLS", "-l:libssl.so.3", "-l:libcrypto.so.3")


class Program(NamedTuple):
    """Holds the programs. ``certificate`` None: there is no TLS, and ``without_tls`` explains
    it."""

    path: Path
    client: Path
    certificate: Path | None
    without_tls: str = ""


class Sent:
    """Holds the truth of a server at its end."""

    def __init__(self) -> None:
        self.port = 0
        self.cpu_us = self.tokens = self.connections = self.most_open = self.dropped = 0
        """CPU since the first stream, sent tokens, connections with streams, most open streams, and
        streams dropped because the client was gone or did not read."""
        self.times: dict[str, NDArray[np.float64]] = {}
        """Each request id has its arrival and sends in seconds: the moments just before each."""
        self.after: dict[str, NDArray[np.float64]] = {}
        """Each request id has the moments just after."""


def build(folder: Path) -> Program | None:
    """Builds the programs, or returns None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    program = folder / "truth_server"
    client = folder / "reading_client"
    plain = [
        [compiler, "-O2", "-o", str(out), str(source), "-lm"]
        for out, source in ((program, SOURCE), (client, CLIENT))
    ]
    with_tls = [
        subprocess.run([*command, *TLS], capture_output=True, check=False) for command in plain
    ]
    if any(done.returncode for done in with_tls):
        for command in plain:
            subprocess.run(command, check=True)
        return Program(program, client, None, "no OpenSSL 3 to link with (libssl.so.3)")
    certificate = self_signed(folder)
    return Program(
        program,
        client,
        certificate,
        "" if certificate else "no openssl command to make a certificate with",
    )


def self_signed(folder: Path) -> Path | None:
    """Makes a certificate for 127.0.0.1 with its key in one file, or returns None without the
    openssl command."""
    both = folder / "both.pem"
    key = folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
        "/CN=localhost "
        f"-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out {both}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    both.write_bytes(both.read_bytes() + key.read_bytes())
    return both


@contextmanager
def server(
    program: Program, folder: Path, *, ttft_ms: int, gap_ms: int, tokens: int, tls: bool = False,
    options: Sequence[str] = (),
) -> Iterator[Sent]:  # fmt: skip
    """Runs a server. Its truth is available after the block. ``options`` are its own, see
    truth_server.c."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    if tls:
        options = [*options, "-t", str(program.certificate)]
    truth = folder / "truth"
    arguments = map(str, (port, ttft_ms * 1000, gap_ms * 1000, tokens, truth))
    process = subprocess.Popen(
        [program.path, *options, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    sent = Sent()
    sent.port = port
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the truth server does not start")
        yield sent
    finally:
        process.send_signal(signal.SIGTERM)
        last_line, _ = process.communicate(timeout=60)
    sent.cpu_us, sent.tokens, sent.connections, sent.most_open, sent.dropped = map(
        int, last_line.split()
    )
    sends = np.fromfile(truth.with_name("truth.sends"), np.int64) / 1e9
    afters = np.fromfile(truth.with_name("truth.after"), np.int64) / 1e9
    at = 0
    for line in truth.read_text().splitlines():
        name, arrived, count = line.split()
        sent.times[name] = np.concatenate([[int(arrived) / 1e9], sends[at : at + int(count)]])
        sent.after[name] = np.concatenate([[int(arrived) / 1e9], afters[at : at + int(count)]])
        at += int(count)
