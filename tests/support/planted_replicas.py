"""Planted replicas: simulators behind a proxy that kills, drains, truncates or stops the first one at
SIGUSR1, and writes down what became of each request.

It is a process of its own. Each request has a connection of its own to a replica, the live ones in turn.
Without a live one the connection is closed at once. What is planted:

- ``kill`` ends the replica by SIGKILL, and its clients' connections break.
- ``drain`` sends it no new request, and kills it when its last one is over.
- ``finish`` ends its open streams as if the answers were complete (finish_reason stop), and breaks
  those that have not begun.
- ``stop`` stops it (SIGSTOP), and it still gets requests.

``back_s`` later a spare replica that has long started takes its place, or a stopped one goes on. Each
line of the log is the JSON of a request or a command: ``id``, ``replica``, ``opened`` and ``closed`` in
Unix seconds, and ``end``: ``finished``, ``broken``, ``truncated`` or ``refused``.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

READ_BYTES = 65_536
SIMULATOR = (
    sys.executable, "-m", "locust_llm.simulator", "--port", "0", "--time-scale", "1",
)  # fmt: skip
FALSE_END = json.dumps({
    "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
})  # fmt: skip


# -- what the tests call ---------------------------------------------------------------------------


class Planted(NamedTuple):
    port: int
    command: str
    """The command of ``--disrupt`` that begins what is planted."""


@contextmanager
def planted_replicas(
    log: Path, kind: str, replicas: int = 1, back_s: float | None = None
) -> Iterator[Planted]:
    order = {"log": str(log), "kind": kind, "replicas": replicas, "back_s": back_s}
    process = subprocess.Popen(
        [sys.executable, "-m", "support.planted_replicas", json.dumps(order)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Planted(port, f"sh -c 'kill -USR1 {process.pid}'")
    finally:
        process.communicate()  # it ends with its input


def read_log(log: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the load's requests, the commands)."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    requests = [line for line in lines if "id" in line and line["id"].count("-") >= 2]
    return requests, [line for line in lines if "command" in line]


# -- the process -----------------------------------------------------------------------------------


class Replica:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            SIMULATOR, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.port = 0
        self.lives = True
        self.takes = True
        self.open: set[Exchange] = set()

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])

    def kill(self) -> None:
        self.lives = self.takes = False
        self.process.kill()


class Exchange:
    def __init__(self, request_id: str, replica: int, client: asyncio.StreamWriter) -> None:
        self.id, self.replica, self.client = request_id, replica, client
        self.opened = time.time()
        self.end = ""
        self.last = b""
        """The last bytes of the answer."""

    @property
    def is_whole(self) -> bool:
        return self.last.endswith(b"0\r\n\r\n")


class Proxy:
    def __init__(self, order: dict[str, Any], replicas: list[Replica], spare: Replica) -> None:
        self.replicas, self._spare = replicas, spare
        self._kind, self._back_s = order["kind"], order["back_s"]
        self._log = Path(order["log"])
        self._turn = 0
        self._drain: asyncio.Task[None] | None = None

    def note(self, **line: object) -> None:
        with self._log.open("a") as log:
            log.write(f"{json.dumps(line)}\n")

    def choose(self) -> int | None:
        """The next replica that takes requests."""
        for _ in self.replicas:
            self._turn = (self._turn + 1) % len(self.replicas)
            if self.replicas[self._turn].takes:
                return self._turn
        return None

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            await self.forward(head, body, writer)
        writer.close()

    async def forward(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        found = re.search(rb"(?i)\r\nx-request-id: *([^\r]+)", head)
        request_id = found[1].decode() if found else ""
        place = self.choose()
        if place is None:
            now = time.time()
            self.note(id=request_id, replica=None, opened=now, closed=now, end="refused")
            writer.transport.abort()
            return
        replica = self.replicas[place]
        exchange = Exchange(request_id, place, writer)
        replica.open.add(exchange)
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)
        head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        with suppress(OSError):
            behind, to = await asyncio.open_connection("127.0.0.1", replica.port)
            to.write(head + body)
            while data := await behind.read(READ_BYTES):
                if exchange.end:
                    break
                exchange.last = (exchange.last + data)[-16:]
                writer.write(data)
                await writer.drain()
            to.close()
        if not exchange.end:
            of_load = request_id.count("-") >= 2  # a question before the load has a length
            exchange.end = "finished" if exchange.is_whole or not of_load else "broken"
        if exchange.end == "broken":
            writer.transport.abort()
        replica.open.discard(exchange)
        self.note(
            id=request_id, replica=place, opened=exchange.opened, closed=time.time(),
            end=exchange.end,
        )  # fmt: skip

    def act(self) -> None:
        """What is planted begins."""
        replica, loop = self.replicas[0], asyncio.get_running_loop()
        self.note(command=self._kind, at=time.time())
        if self._kind == "kill":
            replica.kill()
        elif self._kind == "drain":
            replica.takes = False
            self._drain = loop.create_task(self.kill_when_idle(replica))
        elif self._kind == "finish":
            self.finish(replica)
        else:
            replica.process.send_signal(signal.SIGSTOP)
        if self._back_s is not None:
            loop.call_later(self._back_s, self.end_outage)

    def end_outage(self) -> None:
        if self._kind == "stop":
            self.replicas[0].process.send_signal(signal.SIGCONT)
        else:
            self.replicas[0] = self._spare
        self.note(command="back", at=time.time())

    async def kill_when_idle(self, replica: Replica) -> None:
        while replica.open:
            await asyncio.sleep(0.01)
        replica.kill()

    def finish(self, replica: Replica) -> None:
        for exchange in replica.open:
            if exchange.id.count("-") < 2 or exchange.is_whole:
                continue
            if not exchange.last:  # what has not begun cannot look complete
                exchange.end = "broken"
                exchange.client.transport.abort()
                continue
            exchange.end = "truncated"
            for event in (FALSE_END, "[DONE]"):
                data = f"data: {event}\n\n".encode()
                exchange.client.write(b"%x\r\n%b\r\n" % (len(data), data))
            exchange.client.write(b"0\r\n\r\n")
            exchange.client.close()


async def serve(order: dict[str, Any]) -> None:
    started = [Replica() for _ in range(order["replicas"] + 1)]
    for replica in started:
        replica.wait_until_ready()
    proxy = Proxy(order, started[:-1], started[-1])
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, proxy.act)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    try:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        for replica in started:
            replica.process.kill()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
