"""Tutorials: runs the commands of a page one after the other, with simulators in the place of its
servers, and holds the shape of each output against the one that the page shows.

A page marks what it has by the language of a block: `sh` is commands, `text` the output of the last
block of commands, and any other language with a `title` the file of that name.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.demo_command import start_simulator
from support.planted_proxy import planted_proxy
from support.runs import free_port

BLOCK: Final = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PORT: Final = re.compile(r"(?P<before>(?:localhost|127\.0\.0\.1):|--port )(?P<port>\d{4,5})")
SERVERS: Final = ("locust-llm simulate", "vllm serve")
"""A command that begins so is run by a simulator, which the rest of the page uses."""
GATEWAY: Final = "deploy/gateway/start_gateway.sh"
"""A command that begins so is run by the proxy of the tests."""
NOT_RUN: Final = ("pip install", "kubectl ", "docker ", "kind ", "git ", "export ", "curl ", "aiperf ", "guidellm ", "vllm bench ")  # fmt: skip
"""A command that begins so needs what a test has not: a cluster, a network, another tool."""
TIMEOUT_S: Final = 180.0
NUMBER: Final = re.compile(
    r"(?<![\w.])[<>~≥]?\s?[-+−]?\d[\d,.]*\s?(?:%|ms|s|min|us|µs|x|MB|kB|/s)?"
)
VARIABLES: Final = re.compile(r"^(?:\w+=\S* )+")
"""Variables of one command. They are of servers, which the tests replace."""
PERCENTILE: Final = re.compile(r"\bp\d[\d.]*\b")
"""A shortened run may have too few requests for the one that a page shows."""
VERDICT: Final = re.compile(
    r"PASS|FAIL|INCONCLUSIVE|GROWS|STABLE|CANNOT TELL YET|\bgrows\b|\bstable\b|\bcannot tell yet\b"
)
WORD: Final = re.compile(r"[A-Za-z][\w/()'-]*")


class Block(NamedTuple):
    language: str
    title: str
    text: str


class CommandResult(NamedTuple):
    command: str
    status: int
    output: str


def find_blocks(page: str) -> list[Block]:
    return [
        Block(match["language"], match["title"] or "", match["text"])
        for match in BLOCK.finditer(page)
    ]


def split_commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [VARIABLES.sub("", line.strip()) for line in lines if line.strip()]


def find_words(text: str) -> str:
    """Returns the words of a text without its numbers and verdicts, each behind one space."""
    plain = VERDICT.sub(" ", NUMBER.sub(" ", PERCENTILE.sub("p", text)))
    return " ".join(WORD.findall(plain))


def find_label(line: str) -> str:
    """Returns the words of a line before its first number or verdict."""
    return find_words(VERDICT.split(NUMBER.split(line, maxsplit=1)[0], maxsplit=1)[0])


def find_missing_labels(shown: str, output: str) -> list[str]:
    """Returns the labels of the lines shown that the output has not, whatever its line breaks. A
    label has two words or more. Indented lines go on with the one before, or head a table."""
    words = find_words(output)
    labels = [find_label(line) for line in shown.splitlines() if not line.startswith(" ")]
    return [label for label in labels if " " in label and label not in words]


class Tutorial:
    """Runs a page in an empty folder."""

    def __init__(
        self, page: Path, folder: Path, shorter: Mapping[str, str], timeout_s: float = TIMEOUT_S
    ) -> None:
        self.blocks = find_blocks(page.read_text("utf-8"))
        self.folder = folder
        self.shorter = shorter
        self.timeout_s = timeout_s
        self.used: set[str] = set()
        """Those texts of `shorter` that occurred."""
        self.missing: list[str] = []
        """Labels that the page shows and the output has not."""
        self._ports: dict[str, str] = {}
        self._servers: dict[str, ExitStack] = {}
        self._commands: list[subprocess.Popen[str]] = []

    def run(self) -> Iterator[CommandResult]:
        """Runs all commands that are no servers, and gives what each came to."""
        output = ""
        try:
            for block in self.blocks:
                if block.title:
                    self._write(block)
                elif block.language == "sh":
                    output = ""
                    for command in split_commands(block.text):
                        if command.startswith(SERVERS):
                            self._start_server(command)
                        elif command.startswith(GATEWAY):
                            self._start_gateway(command)
                        elif not command.startswith(NOT_RUN):
                            result = self._run(command)
                            output += result.output
                            yield result
                elif block.language == "text" and output:
                    self.missing += find_missing_labels(block.text, self.show_ports(output))
        finally:
            for server in self._servers.values():
                server.close()
            for process in self._commands:
                # what it left in the background
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def show_ports(self, text: str) -> str:
        """Returns a text with the ports that the page names."""
        for name, port in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"localhost:{name}")
        return text

    def _write(self, block: Block) -> None:
        file = self.folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._move_ports(block.text))

    def _start_server(self, command: str) -> None:
        words = shlex.split(self._move_ports(command), comments=True)
        port = re.search(r"--port (\d+)", command)
        name = port[1] if port else "8000"
        flags = words[2:] if words[0] == "locust-llm" else []
        if name in self._servers:
            self._servers.pop(name).close()
        self._servers[name] = ExitStack()
        # the last --port wins
        url = self._servers[name].enter_context(
            start_simulator(*flags, "--port", self._port_of(name))
        )
        assert url.endswith(f":{self._port_of(name)}")

    def _start_gateway(self, command: str) -> None:
        """``start_gateway.sh NAME PORT UPSTREAM ...``"""
        _, _, name, upstream, *_ = command.split()
        self._servers[name] = ExitStack()
        proxy = planted_proxy([int(self._port_of(upstream))], self.folder / f"proxy-{name}.jsonl")
        self._ports[name] = str(self._servers[name].enter_context(proxy))

    def _run(self, command: str) -> CommandResult:
        short = command
        for text, instead in self.shorter.items():
            if text in short:
                self.used.add(text)
                short = short.replace(text, instead)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LOCUST", "OPENAI")) and name != "CI"
        }
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        process = subprocess.Popen(
            ["bash", "-c", self._move_ports(short)], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._commands.append(process)
        output, _ = process.communicate(timeout=self.timeout_s)
        return CommandResult(short, process.returncode, output)

    def _port_of(self, name: str) -> str:
        return self._ports.setdefault(name, str(free_port()))

    def _move_ports(self, text: str) -> str:
        def move(match: re.Match[str]) -> str:
            before = match["before"].replace("localhost", "127.0.0.1")
            return f"{before}{self._port_of(match['port'])}"

        return PORT.sub(move, text)


def main() -> None:
    """Prints the outputs of a page, for its author: run without anything shortened."""
    page, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    tutorial = Tutorial(page, folder, {}, timeout_s=3600.0)
    for result in tutorial.run():
        print(
            f"$ {result.command}\n{tutorial.show_ports(result.output)}[{result.status}]\n",
            flush=True,
        )
    print("Labels that the page shows and the output has not:", tutorial.missing)


if __name__ == "__main__":
    main()
