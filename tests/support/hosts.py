"""Hosts: network namespaces of this machine have a name, a clock and a disk of their own, and a
relay connects them.

A host has an address, and a way to the relay only, which listens on the addresses of services as
all hosts know them (relay.py). Its monotonic clock belongs to a time namespace, so the kernel's
timers go by it too; a drift, and a wrong wall clock, are put over Python's. Needs root: ``why_not``
names what is missing.
"""

import ctypes
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
NET: Final = "198.18"
"""This is a network for tests (RFC 2544)."""
SERVICE: Final = f"{NET}.255.1"
"""All hosts know every service by this address. The port distinguishes services."""
_NEWNS, _NEWTIME, _NEWUTS, _NEWNET = 0x20000, 0x80, 0x4000000, 0x40000000
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)

DRIFTING: Final = """
import json, os, time
true, true_ns, wall = time.monotonic, time.monotonic_ns, time.time
began_ns, fast = true_ns(), float(os.environ["CLOCK_FAST"])
began = began_ns / 1e9
time.monotonic = lambda: began + (true() - began) * (1 + fast)
time.monotonic_ns = lambda: began_ns + round((true_ns() - began_ns) * (1 + fast))
time.time = lambda: wall() + float(os.environ["CLOCK_WRONG"])
with open(os.environ["CLOCK_FILE"], "a") as file:
    file.write(f"{os.getpid()} {began!r}\\n")
"""
"""This is a sitecustomize. ``time.time_ns``, which is read only beside the kernel's stamps, stays
consistent with those stamps."""


@cache
def why_not() -> str:
    """Explains why there can be no hosts here, or returns an empty text."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for network namespaces"
    if shutil.which("ip") is None:
        return "needs ip: apt install iproute2"
    if not Path("/proc/self/timens_offsets").exists():
        return "needs time namespaces (Linux 5.6)"
    name = f"llm-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "needs the right to make network namespaces"
    _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter(file: str, kind: int) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        _must(_libc.setns(fd, kind))
    finally:
        os.close(fd)


class Host:
    """The host's monotonic clock is ``ahead_s`` before this machine's, and gains ``fast`` seconds
    per second. Its wall clock is off by ``wrong_s``."""

    def __init__(
        self, space: str, address: str, folder: Path, ahead_s: float, fast: float, wrong_s: float
    ) -> None:
        self.space, self.address, self.folder, self.label = space, address, folder, folder.name
        self.ahead_s, self.fast, self.wrong_s = ahead_s, fast, wrong_s
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        (folder / "clock").mkdir()
        (folder / "clock" / "sitecustomize.py").write_text(DRIFTING)
        (folder / "nothing").mkdir()

    def start(self, log: str, *words: str, hidden: Path | None = None) -> "subprocess.Popen[bytes]":
        """Starts a process of this host. ``hidden`` is a folder on another host's disk, so it is
        invisible."""
        path = os.pathsep.join(
            [str(self.folder / "clock"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        )
        clock = {"CLOCK_FAST": repr(self.fast), "CLOCK_WRONG": repr(self.wrong_s)}
        environment = {
            **os.environ,
            **clock,
            "PYTHONPATH": path,
            "CLOCK_FILE": str(self.folder / "clocks"),
        }

        def enter() -> None:
            _enter(f"/run/netns/{self.space}", _NEWNET)
            _must(_libc.unshare(_NEWTIME))
            seconds, rest = divmod(self.ahead_s, 1)
            Path("/proc/self/timens_offsets").write_text(
                f"monotonic {int(seconds)} {int(rest * 1e9)}\n"
            )
            _enter("/proc/self/ns/time_for_children", _NEWTIME)
            _must(_libc.unshare(_NEWUTS))
            socket.sethostname(self.label)
            if hidden is not None:
                _must(_libc.unshare(_NEWNS))
                _must(_libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
                _must(_libc.mount(bytes(self.folder / "nothing"), bytes(hidden), None, _BIND, None))

        with (self.folder / log).open("wb") as file:
            process = subprocess.Popen(
                words,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=environment,
                preexec_fn=enter,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def machine_s(self, at: float, process: "subprocess.Popen[bytes]") -> float:
        """Converts a moment of this host's processes to the machine's monotonic clock."""
        began = next(
            float(line.split()[1])
            for line in self.log("clocks").splitlines()
            if line.split()[0] == str(process.pid)
        )
        return began + (at - began) / (1 + self.fast) - self.ahead_s

    def get(self, port: int, path: str, method: str = "GET") -> Any:
        """Fetches JSON from a server of this host."""
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            _enter(f"/run/netns/{self.space}", _NEWNET)
            try:
                sock = socket.create_connection(("127.0.0.1", port), timeout=10)
            finally:
                _must(_libc.setns(own, _NEWNET))
        finally:
            os.close(own)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.sock = sock
        with sock:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())


class Network:
    def __init__(self, folder: Path) -> None:
        self._folder, self._prefix = folder, f"llm{os.getpid()}"
        self.hosts: list[Host] = []
        self._hub = f"{self._prefix}-hub"
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "set", "lo", "up")
        _ip("-n", self._hub, "addr", "add", f"{SERVICE}/32", "dev", "lo")

        def enter() -> None:
            _enter(f"/run/netns/{self._hub}", _NEWNET)

        self._relay = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("relay.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=enter,
        )  # fmt: skip

    def host(
        self, label: str, *, ahead_s: float = 0.0, fast: float = 0.0, wrong_s: float = 0.0
    ) -> Host:
        """Adds a host."""
        number = len(self.hosts)
        name, gate = f"{self._prefix}-{label}", f"v{number}"
        host = Host(name, f"{NET}.{number}.2", self._folder / label, ahead_s, fast, wrong_s)
        _ip("netns", "add", name)
        self.hosts.append(host)
        _ip(
            "-n",
            self._hub,
            "link",
            "add",
            gate,
            "type",
            "veth",
            "peer",
            "name",
            "up0",
            "netns",
            name,
        )
        _ip("-n", self._hub, "addr", "add", f"{NET}.{number}.1/30", "dev", gate)
        _ip("-n", self._hub, "link", "set", gate, "up")
        _ip("-n", name, "addr", "add", f"{host.address}/30", "dev", "up0")
        _ip("-n", name, "link", "set", "up0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", f"{NET}.{number}.1")
        return host

    def serve(self, port: int, host: Host) -> None:
        """Directs this port of every host's SERVICE to ``host``."""
        self._do(serve=[SERVICE, port], to=[host.address, port])

    def link(self, host: Host, there_s: float, back_s: float, port: int | None = None) -> None:
        """Sets the delays of a host's connections, before there are any."""
        self._do(link=host.address, port=port, there_s=there_s, back_s=back_s)

    def part(self, host: Host, port: int) -> None:
        """Holds all bytes between this host and there from now on."""
        self._do(part=host.address, port=port)

    def heal(self, host: Host, port: int) -> None:
        """Delivers all held bytes."""
        self._do(heal=host.address, port=port)

    def drop(self, host: Host, port: int) -> None:
        """Resets its connections to there."""
        self._do(drop=host.address, port=port)

    def _do(self, **order: Any) -> None:
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        print(json.dumps(order), file=self._relay.stdin, flush=True)
        assert self._relay.stdout.readline() == "done\n"

    def close(self) -> None:
        for host in self.hosts:
            for process in host.processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        self._relay.kill()
        self._relay.communicate()
        for name in (self._hub, *(host.space for host in self.hosts)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    its = Network(folder)
    try:
        yield its
    finally:
        its.close()


def until(true: Any, seconds: float = 60.0, why: Any = lambda: "") -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.05)
