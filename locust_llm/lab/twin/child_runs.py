"""Child runs: run a probe or loads as a child process, and report its progress."""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from locust_llm.exit_status import ENDING_SIGNALS, ERROR_PREFIX, PARENT
from locust_llm.settings.option_declaration import Option, declared_options, format_metavar
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import choose_given_host, is_address
from locust_llm.settings.unrecorded_options import UnrecordedOptions

Tell = Callable[[str], None]
"""The function receives a line of progress."""
SERVER: Final = tuple(
    option
    for option in (*declared_options(Settings), *declared_options(UnrecordedOptions))
    if option.group == "server"
)
"""These options of a run concern the server: its API, keys, headers, certificates, timeouts."""
HEADERS: Final = "LOCUST_LLM_HEADERS"
_LOG: Final = re.compile(r"\[[^]]+\] \S+/(?:INFO|WARNING|ERROR)/locust_llm: (.*)")
_STAGE: Final = re.compile(r"Stage \d+(?: of \d+)?, concurrency (\d+): (.*tokens/s.*)")
_PROBE: Final = re.compile(r"probe, (.*)")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options with the names and texts of ``run``, which checks the values."""
    parser.add_argument("-H", "--host", metavar="URL", help="the server, such as localhost:8000")
    group = parser.add_argument_group("Server", "The same options as in locust-llm run.")
    for option in SERVER:
        settings: dict[str, Any] = {"metavar": format_metavar(option), "default": None}
        if option.kind is bool:
            settings = {"action": argparse.BooleanOptionalAction, "default": None}
        elif option.repeated:
            settings |= {"action": "append", "default": []}
        group.add_argument(option.flag, help=option.help.replace("%", "%%"), **settings)


def split_host_and_folders(options: argparse.Namespace, words: Sequence[str]) -> list[Path]:
    """Returns the folders among words without an option. An address among them, with a scheme or a
    port, becomes the host. Raises ValueError."""
    addresses = [
        word for word in words if (":" in word or word == "localhost") and is_address(word)
    ]
    for address in addresses:
        options.host = choose_given_host(address, options.host)
    return [Path(word) for word in words if word not in addresses]


def server_words(options: argparse.Namespace) -> list[str]:
    """Returns the words for a command line of ``run`` or ``probe``. Headers, which may be keys, go
    into the environment."""
    words = ["--host", options.host]
    for option in SERVER:
        words += _words(option, options)
    return words


def _words(option: Option, options: argparse.Namespace) -> Iterator[str]:
    value = getattr(options, option.dest)
    if option.field == "header" or value is None:
        return
    if option.kind is bool:
        yield option.flag if value else f"--no-{option.flag[2:]}"
        return
    for one in value if isinstance(value, list) else [value]:
        yield f"{option.flag}={one}"


def split_withheld(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words that may be stored, flags of those that may hold a secret)."""
    secret = {
        option.flag: option.kind is not bool for option in declared_options(UnrecordedOptions)
    }
    stored = list[str]()
    withheld = list[str]()
    skip = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag in secret:
            withheld.append(flag)
            skip = secret[flag] and not equals
        elif skip:
            skip = False
        else:
            stored.append(word)
    return stored, list(dict.fromkeys(withheld))


def make_environment(options: argparse.Namespace, own: Mapping[str, str]) -> dict[str, str]:
    environment = {**own, "PYTHONUNBUFFERED": "1"}
    if lines := [*own.get(HEADERS, "").splitlines(), *options.header]:
        environment[HEADERS] = "\n".join(lines)
    return environment


class RunStopped(Exception):
    """A signal ended the run, and its folder stays. The command ends with ``status``."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def run_locust_llm(words: Sequence[str], env: Mapping[str, str], log: Path, tell: Tell) -> int:
    """Runs ``locust-llm`` with these words, and returns its exit status. Its output goes to
    ``log``, and its progress to ``tell``. It ends in order if this process is killed. Raises
    RunStopped and OSError."""
    signals = list[int]()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "locust_llm", *words], stdout=file, stderr=subprocess.PIPE,
            env={**env, PARENT: str(os.getpid())}, text=True,
            errors="replace",
        )  # fmt: skip

        def forward(number: int, frame: object) -> None:
            signals.append(number)
            process.send_signal(number)

        # nohup ignores a signal
        heard = [number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, forward) for number in heard}
        try:
            assert process.stderr is not None
            for line in process.stderr:
                file.write(line)
                if text := read_log_line(line):
                    tell(text)
            status = process.wait()
        finally:
            for number, action in before.items():
                signal.signal(number, action)
    if signals:
        raise RunStopped(128 + signals[0])
    return status


def read_log_line(line: str) -> str:
    """Returns the progress, or the failure, in a line of a run's log. Empty: the line has
    neither."""
    if line.startswith(ERROR_PREFIX):
        return line.removeprefix(ERROR_PREFIX).strip()
    if not (found := _LOG.match(line)):
        return ""
    if stage := _STAGE.match(found[1]):
        users = int(stage[1])
        return f"sweep, {users} user{'s' * (users != 1)}: {stage[2]}"
    if probe := _PROBE.match(found[1]):
        return f"probe, {probe[1]}"
    return found[1] if "/ERROR/" in line or "/WARNING/" in line else ""


def make_session_folder(folder: Path) -> Path:
    """Makes a new folder for runs. Raises OSError."""
    number = 1
    base = folder
    while folder.exists() and any(folder.iterdir()):
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
