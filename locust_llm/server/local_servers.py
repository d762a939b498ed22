"""Local servers: which LLM servers answer at the usual ports of this machine.

A person who gave no address is shown what there is. Each port gets one GET without a key. Nobody is
asked where no person reads the answer, and no load begins by itself.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import gevent
import msgspec

from locust_llm.client.request_exchange import SIMULATOR
from locust_llm.text.console import write_console
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text

from .http_get import FetchedResponse, FetchFailed, decode_response, fetch
from .identity import identify_server, is_simulator

USUAL_PORTS: Final[Mapping[int, str]] = {
    8000: "vLLM",
    8080: "llama.cpp",
    11434: "Ollama",
    1234: "LM Studio",
    30000: "SGLang",
    4000: "LiteLLM",
}
"""The default port of each server."""
LOOK_S: Final = 1.0
"""A server on this machine answers this query within milliseconds."""
MOST_BYTES: Final = 1 << 18
KEY_REQUIRED: Final = (401, 403)


class LocalServer(NamedTuple):
    """One server that answered."""

    port: int
    name: str = ""
    """The name, as its answer shows it. Empty: the answer shows none."""
    models: tuple[str, ...] = ()
    needs_key: bool = False
    """It lists its models to nobody without a key."""

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def __str__(self) -> str:
        """``localhost:8000  vLLM  model llama and 2 more``"""
        usual = USUAL_PORTS.get(self.port)
        name = self.name or (f"the usual port of {usual}" if usual else "unknown server")
        if self.needs_key:
            return f"{self.address}  {name}  requires a key"
        more = f" and {len(self.models) - 1} more" if len(self.models) > 1 else ""
        return f"{self.address}  {name}  model {self.models[0]}{more}"


class _ListedModel(msgspec.Struct):
    id: str


class _ListedModels(msgspec.Struct):
    data: list[_ListedModel]


def find_local_servers(ports: Iterable[int] | None = None) -> list[LocalServer]:
    """The LLM servers that answer at these ports (default: the usual ones), in their order. All
    ports are asked at once."""
    looks = [gevent.spawn(_look_at_port, port) for port in ports or USUAL_PORTS]
    gevent.joinall(looks)
    return [look.value for look in looks if look.value is not None]


def _look_at_port(port: int) -> LocalServer | None:
    """None: there is no server, or it is none for LLMs."""
    try:
        answer = fetch(
            "GET", f"http://localhost:{port}/v1/models", {}, timeout_s=LOOK_S, max_bytes=MOST_BYTES
        )
    except FetchFailed:
        return None
    if answer.status in KEY_REQUIRED:
        refusal = decode_response(answer.body, dict[str, Any])
        return LocalServer(port, _name_server(answer), needs_key=True) if refusal else None
    listed = decode_response(answer.body, _ListedModels) if answer.status == 200 else None
    names = [] if listed is None else [model.id for model in listed.data]
    models = tuple(sanitise_text(name, most=NAME_BYTES) for name in names)
    return LocalServer(port, _name_server(answer), models) if models else None


def _name_server(answer: FetchedResponse) -> str:
    """The name of the server by this one answer. Empty: unknown."""
    if is_simulator(answer.server, answer.body):
        return SIMULATOR
    identity = identify_server(lambda path: None, answer.server, answer.body)
    return "" if identity is None else sanitise_text(identity.name, most=NAME_BYTES)


def is_attended() -> bool:
    """A person starts this process at a terminal and reads its messages there."""
    streams = (sys.stdin, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams)


def describe_local_servers(found: Sequence[LocalServer], command: str) -> Iterator[str]:
    """The lines for a person: each server, and the command that tests it. ``command`` has
    ``{host}`` where the address stands."""
    if not found:
        ports = ", ".join(f"{port} ({name})" for port, name in USUAL_PORTS.items())
        yield f"No LLM server answers at the usual ports of this machine: {ports}."
        return
    yield "On this machine answer:"
    for server in found:
        yield f"  {server}"
    yield "To test it:" if len(found) == 1 else "To test one of them:"
    for server in found:
        yield f"  {command.format(host=server.address)}"


def show_local_servers(command: str) -> None:
    """Print what answers on this machine, where a person reads it. Elsewhere nothing is asked."""
    if is_attended():
        lines = describe_local_servers(find_local_servers(), command)
        write_console("".join(f"{line}\n" for line in lines), sys.stderr)


def name_host_command(started: str) -> str:
    """The command for ``describe_local_servers`` of a process that was started as ``locust-llm
    verify``. A run gets a load that ends by itself."""
    if not started.startswith("locust-llm ") or started == "locust-llm run":
        return "locust-llm run --headless --host {host} -u 10 -t 60"
    return started + " --host {host}"
