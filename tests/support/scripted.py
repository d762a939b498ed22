"""Scripted: runs an HTTP server with known times in a process of its own, and makes the scripts
that it plays.

The server only plays: it takes a request, does the steps that the request itself names (send these
bytes, sleep, close), and keeps a row of what happened on the clock that all processes of a machine
share, CLOCK_MONOTONIC. What a chat server would send is built in the test's process, by ``stream``
and ``whole``. Its rows are the truth: a chunk became visible between the stamps just before and
just after the send that ended it.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from typing import Any

Step = list[Any]
"""Steps are ["sleep", ms], ["send", latin-1 text, number of chunks that are out by its end],
["close"], ["reset"], ["stall"] (until the client closes) and ["linger", s] (close without a request
for this time). Without a close the server waits for the next request."""

# -- the scripts, in the test's process ------------------------------------------------------------


def send(data: bytes, chunks: int = 0) -> Step:
    return ["send", data.decode("latin-1"), chunks]


def event(message: Any, end: str = "\n") -> bytes:
    data = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return f"data: {data}{end}{end}".encode()


def delta(finish: str | None = None, **content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


def head(status: int = 200, kind: str = "text/event-stream", /, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(
    body: Any,
    status: int = 200,
    kind: str = "application/json",
    first_ms: float = 0,
    **headers: str,
) -> list[Step]:
    """Makes a plain response. ``body`` is a text, or becomes JSON."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return [
        ["sleep", first_ms],
        send(head(status, kind, Content_Length=str(len(data)), **headers) + data),
    ]


def stream(
    tokens: int = 4,
    *,
    first_ms: float = 1,
    each_ms: float = 1,
    end_ms: float = 0,
    role: bool = True,
    frame: str = "chunked",
    ends: str = "\n",
    usage: str = "own",
    finish: str = "own",
    done: bool = True,
    reasoning: int = 0,
    tools: int = 0,
    batch: int = 1,
    error: Any = None,
    split: int = 0,
    split_ms: float = 0,
    cut: str = "",
    word: str = "µ",
) -> list[Step]:
    """Makes a chat completion. It has the headers and the role at once, and after ``first_ms`` a
    token each ``each_ms``.

    frame: ``chunked``, ``close`` or ``length``. usage: ``own`` event, beside the ``finish``, in
    ``each`` event or none. finish: ``own`` event, beside the ``last`` token or none. The first
    tokens are ``reasoning``, the last are ``tools``. ``batch`` events go out in one send; with
    ``split`` each send goes out in parts of so many bytes. ``error``: an error event comes after
    the tokens instead of the finish. ``cut``: ``close``, ``reset`` or ``stall`` after the tokens.
    The tokens are ``word`` with their numbers; µ has two bytes, for the splits.
    """
    counted = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    sends: list[tuple[float, list[bytes]]] = []  # (ms before it, events)
    if role:
        sends.append((0, [event(delta(role="assistant", content=""), ends)]))
    first = len(sends)
    for number in range(tokens):
        token = _token(
            number, word, is_reasoning=number < reasoning, is_tool=number >= tokens - tools
        )
        if usage == "each":
            token["usage"] = {**counted, "completion_tokens": number + 1}
        if finish == "last" and number == tokens - 1 and error is None:
            token["choices"][0]["finish_reason"] = "length"
        if number % batch == 0:
            sends.append((each_ms if number else first_ms, []))
        sends[-1][1].append(event(token, ends))
    last: list[bytes] = []
    if error is not None:
        last.append(event({"error": error}, ends))
    elif finish == "own":
        last.append(
            event({**delta("stop"), **({"usage": counted} if usage == "finish" else {})}, ends)
        )
    if usage == "own" and error is None:
        last.append(event({"choices": [], "usage": counted}, ends))
    if done:
        last.append(event("[DONE]", ends))
    after = len(sends)
    if not cut:
        sends.append((end_ms, last))
    length = {"Content_Length": str(sum(sum(map(len, events)) for _, events in sends))}
    framing = {
        "chunked": {"Transfer_Encoding": "chunked"},
        "length": length,
        "close": {"Connection": "close"},
    }[frame]
    steps = [send(head(**framing))]
    out = 0
    for number, (pause_ms, events) in enumerate(sends):
        steps.append(["sleep", pause_ms])
        wire, whole_at = _frame_events(events, in_chunks=frame == "chunked")
        if events is last and frame == "chunked":
            wire += chunked(b"")
        if not first <= number < after:
            whole_at = []  # these events are no chunks of the answer
        steps += _send_in_parts(wire, whole_at, out, split, split_ms)
        out += len(whole_at)
    if cut or frame == "close":
        steps.append([cut or "close"])
    return steps


def _token(number: int, word: str, *, is_reasoning: bool, is_tool: bool) -> dict[str, Any]:
    if is_reasoning:
        return delta(reasoning_content=f"hm{number}")
    if is_tool:
        return delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    return delta(content=f"{word}{number} ")


def _frame_events(events: list[bytes], *, in_chunks: bool) -> tuple[bytes, list[int]]:
    """Returns the bytes of these events, and the place where each event is complete: two bytes
    before the end of its HTTP chunk."""
    wire = b""
    whole_at = list[int]()
    for data in events:
        wire += chunked(data) if in_chunks else data
        whole_at.append(len(wire) - (2 if in_chunks else 0))
    return wire, whole_at


def _send_in_parts(
    wire: bytes, whole_at: list[int], out: int, split: int, split_ms: float
) -> list[Step]:
    """Sends bytes at once, or in parts of ``split``. ``out`` chunks were sent before them."""
    steps = list[Step]()
    for at in range(0, len(wire), split or len(wire)):
        part = wire[at : at + split] if split else wire
        if at:
            steps.append(["sleep", split_ms])
        ended = sum(end <= at + len(part) for end in whole_at)
        steps.append(send(part, out + ended))
    return steps


class Row:
    """Holds the truth of one request, with times in monotonic ns."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.id: str = row["id"]
        self.connection: int = row["connection"]
        self.arrived: int = row["arrived"]
        self.sends: list[tuple[int, int, int]] = row["sends"]
        """Each entry has (just before, just after, number of chunks that were out by then)."""
        self.ended: int = row["ended"]
        """This is just before the final send or close, or when the client's close was found."""
        self.end: str = row["end"]
        """``played``: all steps were done. ``gone``: the client closed before."""

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Returns for each chunk the interval of the send that ended it."""
        intervals: list[tuple[int, int]] = []
        for before, after, chunks in self.sends:
            intervals += [(before, after)] * (chunks - len(intervals))
        return intervals


class Scripted:
    """Runs the server's process for a test."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports: dict[str, int] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def request(
        self,
        name: str,
        steps: list[Step],
        *,
        port: str = "plain",
        unread: bytes = b"",
        tls: Any = None,
        **options: Any,
    ) -> Any:
        """Makes the argument of ``exchange``. ``unread`` is a body that the server does not read,
        so the steps are in a header."""
        # the server's own process has no need of the package
        from locust_llm.client.connection import Target
        from locust_llm.client.request_bytes import Request

        script = json.dumps({"steps": steps})
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: scripted", f"X-Request-Id: {name}"]
        if unread:
            lines.append(f"X-Script: {script}")
        body = unread or script.encode()
        data = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
        target = Target("::1" if port == "ipv6" else "127.0.0.1", self.ports[port], tls)
        return Request(target=target, data=data, labels={"id": name}, **options)

    def rows(
        self, prefix: str = "", count: int = 0, patience_s: float = 20.0
    ) -> dict[str, list[Row]]:
        """Returns the rows of all finished requests whose id begins so, by id (a request that came
        twice has two). The server may need a moment to finish a row, so ``count`` rows are
        awaited."""
        assert self._process.stdin is not None
        until = time.monotonic() + patience_s
        while True:
            self._process.stdin.write(prefix + "\n")
            self._process.stdin.flush()
            rows = [Row(row) for row in self._answer()]
            if len(rows) >= count or time.monotonic() > until:
                break
            time.sleep(0.005)
        by_id: dict[str, list[Row]] = {}
        for row in rows:
            by_id.setdefault(row.id, []).append(row)
        return by_id

    def row(self, name: str) -> Row:
        """Returns the one row of this request."""
        (row,) = self.rows(name, 1)[name]
        return row

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=5)  # the end of its input ends it


def most_in_prefill(rows: list[Row], gave_up: dict[str, int] | None = None) -> int:
    """Returns the most requests that were between arrival and first chunk at any moment. A request
    leaves when the server begins to send the first chunk or, without one, when it ends. ``gave_up``
    has earlier closes by the client, by id."""
    moments: list[tuple[int, int]] = []
    for row in rows:
        left = min(
            [
                row.ended,
                *[before for before, _ in row.chunks[:1]],
                *[(gave_up or {}).get(row.id, row.ended)],
            ]
        )
        moments += [(row.arrived, 1), (max(left, row.arrived), -1)]
    level = most = 0
    for _, change in sorted(moments):  # those that leave first
        level += change
        most = max(most, level)
    return most


# -- the server, in its own process ----------------------------------------------------------------

rows: list[dict[str, Any]] = []
connections = 0


class Wire:
    """Is a socket, with or without TLS. ``send`` returns after the bytes went out."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self.sock = sock
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = (
            context.wrap_bio(self.incoming, self.outgoing, server_side=True) if context else None
        )

    async def send(self, data: bytes) -> None:
        if self.tls is not None:
            self.tls.write(data)
            data = self.outgoing.read()
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            await asyncio.get_running_loop().sock_sendall(self.sock, data[sent:])

    async def receive(self) -> bytes:
        loop = asyncio.get_running_loop()
        if self.tls is None:
            return await loop.sock_recv(self.sock, 65_536)
        while True:
            try:
                return self.tls.read(65_536)
            except ssl.SSLWantReadError:
                if not await self._more():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def handshake(self) -> None:
        while self.tls is not None:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if not await self._more():
                    raise ConnectionResetError from None
        await self._flush()  # the session tickets among it

    async def _more(self) -> bool:
        await self._flush()
        data = await asyncio.get_running_loop().sock_recv(self.sock, 65_536)
        self.incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        if data := self.outgoing.read():
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def close(self) -> None:
        if self.tls is not None and self.sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.tls.unwrap()  # says close_notify, and that there is no answer to it yet
            with contextlib.suppress(OSError):
                await self._flush()
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


async def request(wire: Wire, wait_s: float | None) -> tuple[str, list[Step], int] | None:
    """Returns (id, steps, arrival), or None without a further request. Steps in a header come
    before the body is read."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await asyncio.wait_for(wire.receive(), None if data else wait_s)
        if not more:
            return None
        data += more
    arrived = time.monotonic_ns()
    top, _, body = data.partition(b"\r\n\r\n")
    lines = (line.split(": ", 1) for line in top.decode().split("\r\n")[1:])
    headers = {name.lower(): value for name, value in lines}
    if "x-script" in headers:
        return headers["x-request-id"], json.loads(headers["x-script"])["steps"], arrived
    while len(body) < int(headers["content-length"]):
        body += await wire.receive()
    return headers["x-request-id"], json.loads(body)["steps"], arrived


async def play(wire: Wire, steps: list[Step], row: dict[str, Any]) -> float | None:
    """Does the steps, and returns how long to wait for the next request. Raises ConnectionError
    when the connection is over."""
    linger, played = None, row["arrived"]
    for step, *values in steps:
        if step == "sleep":
            if values[0]:
                await asyncio.sleep(values[0] / 1000)
        elif step == "send":
            data = values[0].encode("latin-1")
            before = time.monotonic_ns()
            await wire.send(data)
            row["sends"].append((before, time.monotonic_ns(), values[1]))
            played = before
        elif step == "stall":
            while await wire.receive():
                pass
            raise ConnectionResetError
        elif step == "linger":
            linger = values[0]
        else:
            row["end"] = "played"
            row["ended"] = time.monotonic_ns()
            wire.reset() if step == "reset" else await wire.close()
            raise ConnectionAbortedError
    row["end"], row["ended"] = "played", played
    return linger


async def serve(sock: socket.socket, context: ssl.SSLContext | None) -> None:
    global connections
    connections += 1
    number = connections
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = Wire(sock, context)
    wait_s: float | None = None
    try:
        await wire.handshake()
        while asked := await request(wire, wait_s):
            name, steps, arrived = asked
            row = {
                "id": name,
                "connection": number,
                "arrived": arrived,
                "sends": [],
                "end": "gone",
                "ended": 0,
            }
            try:
                wait_s = await play(wire, steps, row)
            finally:
                row["ended"] = row["ended"] or time.monotonic_ns()
                rows.append(row)
    except (OSError, TimeoutError):
        pass
    finally:
        await wire.close()


async def listen(family: int, host: str, context: ssl.SSLContext | None, keep: set[Any]) -> int:
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, 0))
    server.listen(1024)
    server.setblocking(False)

    async def accept() -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(server)
            task = asyncio.create_task(serve(sock, context))
            keep.add(task)
            task.add_done_callback(keep.discard)

    keep.add(asyncio.create_task(accept()))
    port: int = server.getsockname()[1]
    return port


async def main(certificate: str = "") -> None:
    keep: set[Any] = set()  # asyncio itself holds tasks only weakly
    ports = {"plain": await listen(socket.AF_INET, "127.0.0.1", None, keep)}
    with contextlib.suppress(OSError):  # no IPv6 on this machine
        ports["ipv6"] = await listen(socket.AF_INET6, "::1", None, keep)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        ports["tls"] = await listen(socket.AF_INET, "127.0.0.1", context, keep)
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(answer)


def answer() -> None:
    """Answers questions for rows by the beginning of their ids. The end of the questions is the
    end."""
    for line in sys.stdin:
        print(
            json.dumps([row for row in list(rows) if row["id"].startswith(line.strip())]),
            flush=True,
        )
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
