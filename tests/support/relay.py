"""Relay: connects hosts by TCP in user space, and delays, drops or holds their bytes.

A process of its own: ``python relay.py`` reads what to do from its standard input, a JSON object a
line, and answers each with a line. ``serve``: an address to listen on, and where it leads;
``link``: the delays of a host, there and back, in seconds, for one port or all; ``part``: bytes of
a host stay where they are until ``heal``; ``drop``: its connections are reset.
"""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

PIECE = 1 << 16


class Link:
    """Connects one host with one port, both ways."""

    def __init__(self, there_s: float = 0.0, back_s: float = 0.0) -> None:
        self.there_s, self.back_s = there_s, back_s
        self.whole = asyncio.Event()
        self.whole.set()
        self.open: set[asyncio.StreamWriter] = set()


class Relay:
    def __init__(self) -> None:
        self._delays: dict[tuple[str, int | None], tuple[float, float]] = {}
        self._links: dict[tuple[str, int], Link] = {}

    async def do(self, order: dict[str, Any]) -> None:
        match order:
            case {"serve": [address, port], "to": [host, at]}:

                async def connected(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
                ) -> None:
                    await self._connected(reader, writer, port, host, at)

                await asyncio.start_server(connected, address, port)
            case {"link": host, "port": port, "there_s": there_s, "back_s": back_s}:
                self._delays[host, port] = there_s, back_s
            case {"part": host, "port": port}:
                self._link(host, port).whole.clear()
            case {"heal": host, "port": port}:
                self._link(host, port).whole.set()
            case {"drop": host, "port": port}:
                for writer in list(self._link(host, port).open):
                    writer.transport.abort()
            case _:
                raise ValueError(order)

    def _link(self, host: str, port: int) -> Link:
        if (host, port) not in self._links:
            delays = self._delays.get((host, port)) or self._delays.get((host, None)) or (0.0, 0.0)
            self._links[host, port] = Link(*delays)
        return self._links[host, port]

    async def _connected(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        port: int,
        host: str,
        at: int,
    ) -> None:
        link = self._link(writer.get_extra_info("peername")[0], port)
        await asyncio.sleep(link.there_s + link.back_s)  # of the handshake
        await link.whole.wait()
        try:
            there, back = await asyncio.open_connection(host, at)
        except OSError:
            writer.transport.abort()
            return
        link.open |= {writer, back}
        await asyncio.gather(
            self._pass(reader, back, link, link.there_s),
            self._pass(there, writer, link, link.back_s),
        )
        link.open -= {writer, back}

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, after_s: float
    ) -> None:
        """Forwards pieces in order, each ``after_s`` after its arrival, or when the link is whole
        again."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def written() -> None:
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await link.whole.wait()
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        writing = asyncio.create_task(written())
        with suppress(ConnectionError):
            while data := await reader.read(PIECE):
                pieces.put_nowait((loop.time() + after_s, data))
        pieces.put_nowait((loop.time() + after_s, b""))
        with suppress(ConnectionError):
            await writing


async def main() -> None:
    relay = Relay()
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await relay.do(json.loads(line))
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
