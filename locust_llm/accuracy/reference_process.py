"""Reference process: the reference server in a process of its own. It starts without a fork and
ends when this process lets go of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSYS
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import Final

SERVER: Final = Path(__file__).with_name("reference_server.py")
PATIENCE_S: Final = 1.0
"""The process is killed after so long."""
BACKLOG: Final = 4096
NEEDED: Final = ("LD_LIBRARY_PATH",)
"""The environment variables that it gets. The rest may hold a key."""


class TruthServer:
    """The server accepts connections from the moment it is made: they wait in the kernel until it
    runs."""

    def __init__(self, gap_s: float, spread: float = 0.0, certificate: Path | None = None) -> None:
        """Each stream gets a chunk every ``gap_s`` seconds, give or take ``spread`` of that. With a
        ``certificate`` (a file that also has the key) the server speaks TLS.

        Raises OSError, also where the kernel does not stamp arrivals.
        """
        if sys.platform != "linux":
            raise OSError(ENOSYS, "it needs Linux")
        self._alive, theirs = os.pipe()
        try:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen(BACKLOG)
                self.port: int = listener.getsockname()[1]
                self.pid = _spawn(
                    [
                        f"{gap_s * 1e3:g}",
                        f"{spread:g}",
                        *([str(certificate)] if certificate else []),
                    ],
                    listener.fileno(),
                    theirs,
                )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(theirs)

    def close(self, sleep: Callable[[float], object] = time.sleep) -> float | None:
        """End the process. Returns the CPU seconds that it used, None where the kernel does not
        report them."""
        cpu_s = self._cpu_s()
        os.close(self._alive)
        until = time.monotonic() + PATIENCE_S
        with suppress(ChildProcessError):  # an event loop may have asked for it first
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    with suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)
                sleep(0.005)
        return cpu_s

    def _cpu_s(self) -> float | None:
        """The kernel reports nanoseconds for the only thread: see
        Documentation/scheduler/sched-stats.rst."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9 or None
        except (OSError, ValueError, IndexError):
            return None


def _spawn(arguments: list[str], listener: int, alive: int) -> int:
    """Uses posix_spawn(3), as a fork of a process with many pages and a thread would cost more than
    the server itself."""
    # none of them is 0 or 1 before it shall be
    high = [fcntl(fd, F_DUPFD_CLOEXEC, 3) for fd in (listener, alive)]
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(SERVER), *arguments],
            {name: os.environ[name] for name in NEEDED if name in os.environ},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 0),
                (os.POSIX_SPAWN_DUP2, high[1], 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
        )
    finally:
        for fd in high:
            os.close(fd)


def self_signed(folder: Path) -> Path:
    """A certificate for 127.0.0.1 and its key in one file. The openssl command makes them, as the
    standard library cannot.

    Raises OSError and subprocess.CalledProcessError.
    """
    both = folder / "both.pem"
    key = folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
        "/CN=localhost "
        f"-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out {both}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    both.write_bytes(both.read_bytes() + key.read_bytes())
    return both
