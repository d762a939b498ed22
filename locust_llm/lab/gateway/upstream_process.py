"""Upstream process: starts the timed upstream, one process for each replica, and ends it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from locust_llm.client.proxy_tunnel import format_authority
from locust_llm.text.hide_secrets import is_secret

from .upstream_log import ARRIVALS_NAME

MODULE: Final = "locust_llm.lab.gateway.timed_upstream"
BACKLOG: Final = 4096
START_S: Final = 20.0
READ_BYTES: Final = 4096
NEAR_HOSTS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address for this machine where a server listens at all of them."""
PATIENCE_S: Final = 2.0
"""A process is killed after so long."""


class UpstreamReplica:
    """One process. It accepts connections from the moment it is made: they wait in the kernel until
    it runs."""

    def __init__(
        self, folder: Path, number: int = 0, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        """``port`` 0: any free one. The log is in ``folder``. Raises OSError, whose text names the
        port."""
        self._alive, theirs = os.pipe()
        self._folder = folder
        self.number = number
        self.host = host
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listener.bind((host, port))
                except OSError as error:
                    raise OSError(error.errno, explain_taken_port(host, port, error)) from None
                listener.listen(BACKLOG)
                self.port: int = listener.getsockname()[1]
                self._process = subprocess.Popen(
                    [sys.executable, "-m", MODULE, str(number), str(folder)],
                    stdin=listener.fileno(),
                    stdout=theirs,
                    start_new_session=True,
                    env={name: value for name, value in os.environ.items() if not is_secret(name)},
                )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def near_host(self) -> str:
        """The address by which this machine reaches it."""
        return NEAR_HOSTS.get(self.host, self.host)

    def wait_until_it_answers(self) -> None:
        """Raises OSError if it does not within START_S."""
        with socket.create_connection((self.near_host, self.port), START_S) as connection:
            connection.settimeout(START_S)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: gwbench\r\n\r\n")
            if not connection.recv(READ_BYTES):
                raise OSError("the timed upstream ended when it was started")

    def kill(self) -> None:
        """End it as a crash would: the kernel closes its connections."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self, clock: Callable[[], float] = time.monotonic) -> None:
        """End it, and wait until its log is whole."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class UpstreamReplicas:
    """All replicas of a run, at ports in a row."""

    def __init__(
        self, folder: Path, count: int = 1, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        """``port`` 0: any free ones. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._replicas: list[UpstreamReplica] = []
        try:
            for number in range(count):
                own = port + number if port else 0
                self._replicas.append(UpstreamReplica(folder, number, own, host))
            for replica in self._replicas:
                replica.wait_until_it_answers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __getitem__(self, number: int) -> UpstreamReplica:
        return self._replicas[number]

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def urls(self) -> Sequence[str]:
        places = [format_authority(one.near_host, one.port) for one in self._replicas]
        return [f"http://{place}" for place in places]

    def kill(self, number: int) -> None:
        """End one replica as a crash would."""
        self._replicas[number].kill()

    def restart(self, number: int) -> None:
        """Start a replica again at its port, after ``kill``. Its log goes on. Raises OSError."""
        old = self._replicas[number]
        old.close()
        replica = UpstreamReplica(self.folder, number, old.port, old.host)
        self._replicas[number] = replica
        replica.wait_until_it_answers()

    def close(self) -> None:
        for replica in self._replicas:
            replica.close()
        (self.folder / ARRIVALS_NAME).unlink(missing_ok=True)


def explain_taken_port(host: str, port: int, error: OSError) -> str:
    """Why the upstream cannot listen there, and what to do."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return (
        f"the upstream cannot listen at {format_authority(host, port)} ({why.lower()}): end what listens there, or "
        f"give another --upstream port and point the gateway to it"
    )
