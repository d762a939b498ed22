"""Operator command: a program that the operator names on the command line of a run, such as one that
prints a server's memory, or one that stops the server.

It runs without a shell, gets no API key in its environment and has a time limit. ``end`` kills it
with all processes that it started. Reports show its text without secrets.
"""

import os
import re
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple, Self

import gevent
from gevent.event import Event
from gevent.os import make_nonblocking, nb_read

from locust_llm.text.hide_secrets import MASK, Secrets, hide_url_secrets, is_secret
from locust_llm.text.sanitise import sanitise_text

MAX_PRINTED_BYTES: Final = 1 << 16
ERROR_BYTES: Final = 200
LAST_OUTPUT_S: Final = 0.5
"""What a program printed just before its end is read for so long."""
MAX_SHOWN_BYTES: Final = 1000
MARK: Final = "LOCUST_LLM_COMMAND"
"""An environment variable. A process that the command started keeps it, also in another session."""
KEPT: Final = frozenset(("SSH_AUTH_SOCK", "XAUTHORITY", "PWD", "OLDPWD"))
"""These names look like a key's or a password's, and hold the path of a socket, file or folder."""
OWN_PREFIX: Final = "LOCUST_"
"""Settings of this program have this prefix, also headers with keys."""
MIN_KEY_CHARS: Final = 6
PROC: Final = Path("/proc")
ROUNDS: Final = 20
"""A process may start another one while it is killed, so its children are looked for again."""

_ASSIGNED: Final = re.compile(
    r"(?P<name>[A-Za-z][\w.-]*)(?P<between>['\"]?\s*[=:]\s*['\"]?(?:(?:Bearer|Basic|Token)\s+)?)"
    r"(?P<value>[^\s'\"]+)",
    re.IGNORECASE,
)
_FLAG_VALUE: Final = re.compile(
    r"(?P<name>(?<![\w-])--?[A-Za-z][\w-]*)(?P<between>\s+['\"]?)(?P<value>[^\s'\"-][^\s'\"]*)"
)
_LOGIN_FLAG: Final = re.compile(
    r"(?P<name>(?<![\w-])(?:-u|--user|--proxy-user)[= ]?)(?P<between>\s*['\"]?[^\s'\":]*:)"
    r"(?P<value>[^\s'\"]+)"
)


class CommandFailed(ValueError):
    """The command is not valid, or cannot be started. The text is one line without secrets."""


class CommandEnd(NamedTuple):
    """How one run of a command ended."""

    status: int | None
    """The exit status. None: it was killed, as it did not end in time or printed too much."""
    seconds: float
    printed: str
    error: str
    """The last line of its standard error, without secrets."""


class OperatorCommand:
    """A command that may run several times, also at the same time."""

    def __init__(
        self,
        flag: str,
        text: str,
        secrets: Iterable[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """``flag`` is the option that has the ``text``. ``secrets`` are the keys of the run. Raises
        CommandFailed."""
        try:
            self._words: Sequence[str] = shlex.split(text)
        except ValueError as error:
            raise CommandFailed(f"{flag} is not a valid command: {error}") from None
        if not self._words:
            raise CommandFailed(f"{flag} is empty")
        keys = {*secrets, *find_environment_keys(environment)}
        self.flag = flag
        self._secrets = Secrets(keys)
        self.shown = show_command(text, self._secrets)
        """The text for reports, without secrets."""
        self._mark = token_hex(16)
        self._environment = {**remove_keys(environment, keys), MARK: self._mark}

    def run(
        self,
        limit_s: float,
        most_bytes: int = MAX_PRINTED_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> CommandEnd:
        """Runs the command in this greenlet, while others run. Raises CommandFailed if it cannot be
        started."""
        began = clock()
        with tempfile.TemporaryFile() as errors:
            try:
                program = ChildProgram(self._words, errors.fileno(), self._environment)
            except OSError as error:
                raise CommandFailed(
                    f"{self.flag} cannot be started: {error.strerror or error}"
                ) from None
            with program:
                data, status = program.wait_for_end(limit_s, most_bytes)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4 * ERROR_BYTES))
            said = errors.read().decode("utf-8", "replace").strip().splitlines()
        last = sanitise_text(said[-1] if said else "", self._secrets, most=ERROR_BYTES)
        printed = data[:most_bytes].decode("utf-8", "replace")
        return CommandEnd(status, clock() - began, printed, last)

    def end(self) -> None:
        """Kills all processes that the command started and that still run."""
        for _ in range(ROUNDS):
            found = list(find_marked_processes(self._mark))
            if not found:
                return
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            gevent.sleep(0.01)


class ChildProgram:
    """A child of this process, without a shell, in a session of its own. At the end of a ``with``
    block its process group is killed if the child still runs.

    It uses posix_spawn(3): a fork of a process with many pages holds its event loop for some 10 ms.
    """

    def __init__(self, words: Sequence[str], errors: int, environment: Mapping[str, str]) -> None:
        """``errors`` is the file of its standard error. Raises OSError."""
        self._read, write = os.pipe()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
        ]
        loop = gevent.get_hub().loop
        loop.install_sigchld()
        try:
            self._pid = os.posix_spawnp(
                words[0], [*words], environment, file_actions=actions, setsid=True
            )
        except ValueError as error:  # a zero byte
            os.close(self._read)
            raise OSError(str(error)) from None
        except OSError:
            os.close(self._read)
            raise
        finally:
            os.close(write)
        self._ended = Event()
        self._watcher = loop.child(self._pid)
        self._watcher.start(self._ended.set)
        make_nonblocking(self._read)
        self._printed = b""

    def wait_for_end(self, limit_s: float, most_bytes: int) -> tuple[bytes, int | None]:
        """(what it printed, its status). None: it did not end in ``limit_s``, or it printed more
        than ``most_bytes``. A process that it left behind may hold its output open."""
        until = time.monotonic() + limit_s
        reader = gevent.spawn(self._collect, most_bytes)
        try:
            # a timeout of gevent.wait counts from when the event loop last turned, which may be
            # longer ago than the limit
            with gevent.Timeout(limit_s, False):
                gevent.wait([self._ended, reader], count=1)
            if reader.ready() and len(self._printed) <= most_bytes:
                self._ended.wait(max(0.0, until - time.monotonic()))
            if self._ended.is_set():
                reader.join(LAST_OUTPUT_S)
        finally:  # also where this greenlet is killed, as the pipe is closed next
            reader.kill()
        if not self._ended.is_set() or len(self._printed) > most_bytes:
            return self._printed, None
        return self._printed, os.waitstatus_to_exitcode(self._watcher.rstatus)

    def _collect(self, most_bytes: int) -> None:
        while len(self._printed) <= most_bytes:
            more = nb_read(self._read, most_bytes + 1)
            if not more:
                return
            self._printed += more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended.is_set():
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            self._ended.wait()
        self._watcher.close()
        os.close(self._read)


def find_environment_keys(environment: Mapping[str, str]) -> set[str]:
    """The values of all variables whose names are a key's."""
    return {
        value
        for name, value in environment.items()
        if is_secret(name) and name not in KEPT and len(value) >= MIN_KEY_CHARS
    }


def remove_keys(environment: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """The environment without this program's own settings, and without variables whose name or
    value holds a key."""
    known = [key for key in keys if len(key) >= MIN_KEY_CHARS]

    def holds_key(name: str, value: str) -> bool:
        if name in KEPT:
            return False
        return name.startswith(OWN_PREFIX) or is_secret(name) or any(key in value for key in known)

    return {name: value for name, value in environment.items() if not holds_key(name, value)}


def show_command(text: str, secrets: Secrets) -> str:
    """The text of a command with ``***`` for keys, passwords and logins."""
    text = secrets.hide(hide_url_secrets(text))
    for pattern in (_ASSIGNED, _FLAG_VALUE):
        text = pattern.sub(_hide_secret_value, text)
    text = _LOGIN_FLAG.sub(_hide_value, text)
    return sanitise_text(text, most=MAX_SHOWN_BYTES)


def _hide_secret_value(found: re.Match[str]) -> str:
    return _hide_value(found) if is_secret(found["name"].lstrip("-")) else found[0]


def _hide_value(found: re.Match[str]) -> str:
    return found["name"] + found["between"] + MASK


def find_marked_processes(mark: str, proc: Path = PROC) -> Iterator[int]:
    """The processes whose environment has the mark of a command, except zombies."""
    wanted = f"{MARK}={mark}".encode()
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
