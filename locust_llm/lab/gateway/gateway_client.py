"""Gateway client: one request through an address, with the raw reads of its answer and the kernel's
stamp of each. Stamps come first; what the reads mean is found out later.

The connection, the reading thread and the first reading of the answer are the load generator's own.
What that makes of an answer stands for what a client library would notice.
"""

import socket
import time
from array import array
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from locust_llm.client.connection import ConnectFailed, Target
from locust_llm.client.reader.open_streams import OpenStream
from locust_llm.client.reader.reader_choice import get_open_streams
from locust_llm.client.request_exchange import STALE_OUTCOMES, UserConnection
from locust_llm.client.requests_bridge import make_target
from locust_llm.client.response_chunks import Response, describe_exception
from locust_llm.settings.server_address import join_server_url, normalise_base_url

from .raw_answer import AnswerTimes, RawAnswer, Read, parse_reads, read_times
from .upstream_script import UpstreamScript, write_prompt

API_PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
DIRECT: Final = "direct"
"""The way without a gateway."""
MODEL: Final = "gwbench"
TIMEOUT_S: Final = 30.0
TOOL: Final = {
    "name": "note",
    "description": "Writes words down.",
    "parameters": {
        "type": "object",
        "properties": {"words": {"type": "string"}},
        "required": ["words"],
    },
}


class GatewayAddress(NamedTuple):
    """Where requests go: the upstream itself, or a gateway before it."""

    name: str
    """DIRECT, or the name of a gateway."""
    url: str
    """The base URL, as ``normalise_base_url`` makes it."""
    target: Target
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of every request, such as the gateway's key."""
    model: str = MODEL


def make_address(
    name: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    model: str = MODEL,
    verify: bool | str = True,
) -> GatewayAddress:
    """Raises OSError for a file of certificates."""
    base = normalise_base_url(url)
    target = make_target(base, verify, None)
    if target.tls is None:
        # else only one of two ways would look a name up for each connection
        target = msgspec.structs.replace(target, host=_look_up(target.host, target.port))
    return GatewayAddress(name, base, target, tuple((headers or {}).items()), model)


def _look_up(host: str, port: int) -> str:
    """The first address of a name. A name that has none stays, and its connections fail."""
    with suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    return host


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and all that came back. Moments are ns of the monotonic clock."""

    script: UpstreamScript
    kind: str
    sent_ns: int
    """Just before its first byte was written."""
    ended_ns: int
    """Nothing more was awaited."""
    connect_s: float | None
    """The connection took so long to open. None: it was there."""
    reads: tuple[Read, ...]
    closed: bool
    """The peer closed the connection in order."""
    outcome: str
    """What the load generator calls it: see records/outcomes.py."""
    message: str

    def parse(self) -> RawAnswer:
        return parse_reads(self.reads, closed=self.closed)

    def times(self) -> AnswerTimes:
        return read_times(self.parse())


class KeptResponse(Response):
    """An answer that also keeps its reads as they came."""

    def __init__(self, sent_ns: int, *, kind: str) -> None:
        super().__init__(sent_ns, kind=kind, keep_text=True)
        self.kept: list[Read] = []

    def append_read(self, stamp_ns: int, since_ns: int, data: bytes) -> bool:
        self.kept.append((stamp_ns, data))
        return super().append_read(stamp_ns, since_ns, data)

    def append_reads(self, stamps: bytes, since: bytes, data: list[bytes]) -> None:
        self.kept += zip(array("q", stamps), data, strict=True)
        super().append_reads(stamps, since, data)


# -- the bytes of a request ------------------------------------------------------------------------


def make_body(kind: str, script: UpstreamScript, *, stream: bool, model: str) -> dict[str, Any]:
    """The body of a request of this API that carries the script."""
    prompt = write_prompt(script)
    body: dict[str, Any] = {"model": model}
    match kind:
        case "chat" | "messages":
            body["messages"] = [{"role": "user", "content": prompt}]
            body["max_tokens"] = script.tokens
        case "completions":
            body["prompt"] = prompt
            body["max_tokens"] = script.tokens
        case "responses":
            body["input"] = prompt
            body["max_output_tokens"] = max(16, script.tokens)
        case "embeddings":
            return {**body, "input": prompt, "encoding_format": "float"}
    if stream:
        body["stream"] = True
        if kind in ("chat", "completions"):
            body["stream_options"] = {"include_usage": True}
    if "tools" in script.features and kind != "completions":
        body["tools"] = [_make_tool(kind)]
    return body


def _make_tool(kind: str) -> dict[str, Any]:
    if kind == "chat":
        return {"type": "function", "function": TOOL}
    if kind == "responses":
        return {"type": "function", **TOOL}
    schema = TOOL["parameters"]
    return {"name": TOOL["name"], "description": TOOL["description"], "input_schema": schema}


def make_headers_of_request(
    address: GatewayAddress,
    kind: str,
    script: UpstreamScript,
    *,
    stream: bool = True,
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All but Content-Length. ``headers`` replace those of the address."""
    lines = {
        "Host": urlsplit(address.url).netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if stream else "application/json",
        "Accept-Encoding": "gzip" if "gzip" in script.features else "identity",
        "User-Agent": "locust-llm-gateway",
    }
    if kind == "messages":
        lines["anthropic-version"] = "2023-06-01"
    return merge_headers(lines, dict(address.headers), headers or {})


def merge_headers(*groups: Mapping[str, str]) -> dict[str, str]:
    """Later ones replace earlier ones of the same name, in whatever case it is written."""
    merged = dict[str, tuple[str, str]]()
    for group in groups:
        merged |= {name.lower(): (name, value) for name, value in group.items()}
    return dict(merged.values())


def write_request(
    address: GatewayAddress,
    kind: str,
    script: UpstreamScript,
    *,
    stream: bool = True,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Head and body. ``headers`` replace those of the address."""
    body = msgspec.json.encode(make_body(kind, script, stream=stream, model=address.model))
    url = urlsplit(join_server_url(address.url, API_PATHS[kind]))
    path = f"{url.path}?{url.query}" if url.query else url.path
    lines = make_headers_of_request(address, kind, script, stream=stream, headers=headers)
    lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


# -- one exchange ----------------------------------------------------------------------------------


def exchange_script(
    line: UserConnection,
    address: GatewayAddress,
    script: UpstreamScript,
    *,
    kind: str = "chat",
    stream: bool = True,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Exchange:
    """Send one request and wait for the end of its answer, for ``timeout_s`` at most, whatever
    becomes of it.

    ``line`` keeps the connection from request to request.
    """
    data = write_request(address, kind, script, stream=stream, headers=headers)
    exchange = _exchange_once(line, address, script, kind, data, timeout_s)
    if exchange is not None:
        return exchange
    line.close()
    again = _exchange_once(line, address, script, kind, data, timeout_s)
    assert again is not None  # a new connection is not stale
    return again


def _exchange_once(
    line: UserConnection,
    address: GatewayAddress,
    script: UpstreamScript,
    kind: str,
    data: bytes,
    timeout_s: float,
) -> Exchange | None:
    """None: the server was closing the used connection when the request came."""
    response = KeptResponse(time.monotonic_ns(), kind=kind)
    reader = get_open_streams()
    connect_s: float | None = None
    try:
        connect_s = line.open(address.target)
    except ConnectFailed as error:
        response.failure = (error.outcome, str(error))
    else:
        connection = line.connection
        assert connection is not None
        wire = connection.encrypt((data,))
        response.sent_ns = time.monotonic_ns()
        reading = reader.add(connection, response)
        try:
            reader.sent(reading, connection.send(wire))
        except OSError as error:
            response.failure = ("send_failed", describe_exception(error))
        _wait_for_end(line, reading, timeout_s)
        used = connection.used > 1
        if not response.frame.reusable:
            line.close()
        stale = response.failure is not None and response.failure[0] in STALE_OUTCOMES
        if used and stale and not response.kept:
            return None
    outcome, message = response.finish()
    return Exchange(
        script=script,
        kind=kind,
        sent_ns=response.sent_ns,
        ended_ns=response.ended_ns or time.monotonic_ns(),
        connect_s=connect_s,
        reads=tuple(response.kept),
        closed=response.frame.closed_by_peer,
        outcome=outcome,
        message=message,
    )


def _wait_for_end(line: UserConnection, reading: OpenStream, timeout_s: float) -> None:
    if reading.ended.wait(timeout_s):
        return
    get_open_streams().drop(reading, "timeout", f"no end within {timeout_s:g} s")
    reading.ended.wait()
    line.close()
