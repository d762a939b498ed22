"""Gateways: nginx, HAProxy, Caddy and LiteLLM as deploy/gateway configures them, in front of the
upstream's ports. Where a program is missing, the test is skipped with the reason."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from support.runs import free_port

ROOT: Final = Path(__file__).parents[2]
START: Final = ROOT / "deploy" / "gateway" / "start_gateway.sh"
GATEWAYS: Final = ("nginx", "haproxy", "caddy", "litellm")
REAL_HOME: Final = Path(os.environ.get("REAL_SERVERS_HOME", ROOT / "tests" / ".real-servers"))
WAIT_S: Final = 120.0
"""LiteLLM takes half a minute to start on a busy machine."""


class Gateway(NamedTuple):
    port: int
    pid: int


def find_program(name: str) -> str | None:
    """LiteLLM is looked for where tests/real/start_litellm.sh installs it."""
    if name == "litellm":
        return shutil.which(str(REAL_HOME / "litellm" / "bin" / "litellm"))
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def started_gateway(name: str, upstreams: Sequence[int], folder: Path) -> Iterator[Gateway]:
    """Runs one until the end of the block. Skips the test where it is not installed."""
    program = find_program(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    ports = ",".join(map(str, upstreams))
    environment = os.environ | {"LITELLM": program, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(START), name, str(port), ports, str(folder / name)],
            stdout=log, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_open(port, process, folder / f"{name}.log")
        yield Gateway(port, process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(
        f"not open after {WAIT_S:.0f} s: {log.read_text('utf-8', 'replace')[-2000:]}"
    )
