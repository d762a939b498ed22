"""Byte forwarder: a gateway that knows no HTTP. It passes bytes, ends and resets of connections on as
they come. A process of its own: ``python -m support.byte_forwarder UPSTREAM_PORT``."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READ_BYTES = 65_536


@contextmanager
def byte_forwarder(upstream: int) -> Iterator[int]:
    """Forwards to this port of 127.0.0.1, and yields its own port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.byte_forwarder", str(upstream)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def forward(reader: asyncio.StreamReader, *writers: asyncio.StreamWriter) -> None:
    """From one side to the first writer. The end or the reset of a side is that of both."""
    to, own = writers
    try:
        while data := await reader.read(READ_BYTES):
            to.write(data)
            await to.drain()
        to.close()
    except OSError:
        to.transport.abort()
    own.close()


async def serve(upstream: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = await asyncio.open_connection("127.0.0.1", upstream)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(
            forward(reader, behind[1], writer), forward(behind[0], writer, behind[1])
        )

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
