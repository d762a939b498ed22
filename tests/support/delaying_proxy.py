"""Delaying proxy: forwards bytes between a client and a server on this machine, each a fixed time
after its arrival.

It is a process of its own, so that other threads do not extend its delays, which are known.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PIECE = 1 << 16


@contextmanager
def delaying_proxy(port: int, seconds: float) -> Iterator[int]:
    """Forwards to this port of 127.0.0.1, with ``seconds`` each way, and yields its own port."""
    command = [sys.executable, __file__, str(port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    """Forwards bytes in order, as many at a time as arrive."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(PIECE):
            loop.call_later(seconds, writer.write, data)
    except ConnectionError:
        pass
    loop.call_later(seconds, writer.close)


async def _serve(port: int, seconds: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pass_on(reader, back, seconds), _pass_on(there, writer, seconds))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
