"""Runs: a probe, or loads, as a child process of their own, and what they tell meanwhile."""

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from locust_llm.exit_status import ENDING_SIGNALS, ERROR_PREFIX
from locust_llm.settings.address import choose_given_host, is_address
from locust_llm.settings.command_line_options import CommandLineOptions
from locust_llm.settings.declare import Option, declared_options
from locust_llm.settings.settings import Settings

Tell = Callable[[str], None]
"""Is given a line of progress."""
SERVER: Final = tuple(
    option
    for option in (*declared_options(Settings), *declared_options(CommandLineOptions))
    if option.group == "server"
)
"""Options of a run that reach the server: its API, keys, headers, certificates, timeouts."""
HEADERS: Final = "LOCUST_LLM_HEADERS"
_LOG: Final = re.compile(r"\[[^]]+\] \S+/(?:INFO|WARNING|ERROR)/locust_llm: (.*)")
_STAGE: Final = re.compile(r"Stage \d+ of \d+, concurrency (\d+): (.*tokens/s.*)")
_PROBE: Final = re.compile(r"probe, (.*)")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """With the names and texts that ``run`` has for them; it checks the values."""
    parser.add_argument("-H", "--host", help="such as localhost:8000")
    group = parser.add_argument_group("Server", "As of locust-llm run.")
    for option in SERVER:
        how: dict[str, Any] = {"metavar": option.unit.upper() or "VALUE", "default": None}
        if option.kind is bool:
            how = {"action": argparse.BooleanOptionalAction, "default": None}
        elif option.repeated:
            how |= {"action": "append", "default": []}
        group.add_argument(option.flag, help=option.help.replace("%", "%%"), **how)


def split_host_and_folders(options: argparse.Namespace, words: Sequence[str]) -> list[Path]:
    """The folders among words without an option; an address among them, with a scheme or a port, is
    the host. Raises ValueError of one sentence."""
    addresses = [
        word for word in words if (":" in word or word == "localhost") and is_address(word)
    ]
    for address in addresses:
        options.host = choose_given_host(address, options.host)
    return [Path(word) for word in words if word not in addresses]


def server_words(options: argparse.Namespace) -> list[str]:
    """For a command line of ``run`` or ``probe``; headers, which may be keys, go by
    ``environment``."""
    return [
        "--host",
        options.host,
        *(word for option in SERVER for word in _words(option, options)),
    ]


def _words(option: Option, options: argparse.Namespace) -> Iterator[str]:
    value = getattr(options, option.dest)
    if option.field == "header" or value is None:
        return
    if option.kind is bool:
        yield option.flag if value else f"--no-{option.flag[2:]}"
        return
    for one in value if isinstance(value, list) else [value]:
        yield f"{option.flag}={one}"


def make_environment(options: argparse.Namespace, own: Mapping[str, str]) -> dict[str, str]:
    lines = [*own.get(HEADERS, "").splitlines(), *options.header]
    return {**own, "PYTHONUNBUFFERED": "1", **({HEADERS: "\n".join(lines)} if lines else {})}


class RunStopped(Exception):
    """A signal ended the run; its folder stays. ``status``: to end with."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def run_locust_llm(words: Sequence[str], env: Mapping[str, str], log: Path, tell: Tell) -> int:
    """The exit status of ``locust-llm`` with these words; all that it prints goes to ``log``, and
    what is worth it to ``tell``. Raises RunStopped, OSError."""
    signals = list[int]()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "locust_llm", *words], stdout=file, stderr=subprocess.PIPE,
            env=dict(env), text=True,
            errors="replace",
        )  # fmt: skip

        def forward(number: int, frame: object) -> None:
            signals.append(number)
            process.send_signal(number)

        # of nohup
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
    """What a line of a run's log tells of the server, or why there is no run; empty: nothing."""
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
    """A new folder for runs. Raises OSError."""
    number, base = 1, folder
    while folder.exists() and any(folder.iterdir()):
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
