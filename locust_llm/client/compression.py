"""Compression: bodies that arrive compressed. No request asks for it, unless a header of the run
does, but a proxy may compress its error page."""

import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

brotli: Any = None
with suppress(ImportError):  # geventhttpclient needs it too
    brotli = import_module("brotli")
zstd: Any = None
for _name in ("compression.zstd", "backports.zstd"):  # Python has it from 3.14 on
    with suppress(ImportError):
        zstd = import_module(_name)
        break
zstandard: Any = None
with suppress(ImportError):
    zstandard = import_module("zstandard")

NAMES: Final = frozenset({"gzip", "x-gzip", "deflate", "br", "compress", "x-compress", "zstd"})
"""Codings that change the bytes. Other values, such as ``none``, are written to keep proxies from
compressing."""
UNCOMPRESSED: Final = "leave out a header Accept-Encoding, or switch compression off"
"""What to do about a compressed response: its chunks have no times of their own."""
MOST: Final = 3
"""A body may have so many codings, one over the other."""
WINDOW_LOG: Final = 23
"""The largest window of zstd, as a power of two. RFC 9659 allows 8 MiB, so no body takes more
memory."""


def parse_codings(header: str) -> tuple[str, ...]:
    """The codings of a Content-Encoding that change the bytes, in the order in which they were
    applied."""
    names = (name.strip().lower() for name in header.split(","))
    return tuple(name for name in names if name in NAMES)


def decompress_body(data: bytes, applied: tuple[str, ...], most: int) -> bytes | None:
    """Decompress what can be read of ``data``, to at most ``most`` bytes. None: nothing can be
    read."""
    if len(applied) > MOST:
        return None
    for name in reversed(applied):
        decoder = DECODERS.get(name)
        if decoder is None:
            return None
        try:
            data = decoder(data, most)
        except Exception:  # brotli has an error of its own
            return None
    return data or None


def _unzipped(data: bytes, most: int) -> bytes:
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, most)


def _inflated(data: bytes, most: int) -> bytes:
    """Some servers leave out the header of zlib, which RFC 9110 requires: both forms are read."""
    try:
        return zlib.decompressobj().decompress(data, most)
    except zlib.error:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)


def _unbrotlied(data: bytes, most: int) -> bytes:
    # its older versions know no limit
    data_read: bytes = brotli.Decompressor().process(data, output_buffer_limit=most)
    return data_read[:most]


def _unpacked(data: bytes, most: int) -> bytes:
    """Uses Python's zstd or an installed package. Raises where there is neither, as the other
    decoders do for data that they cannot read."""
    if zstd is not None:
        data_read: bytes = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
        ).decompress(data, most)
        return data_read
    read: bytes = (
        zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).stream_reader(data).read(most)
    )
    return read


DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _unzipped,
    "x-gzip": _unzipped,
    "deflate": _inflated,
    "br": _unbrotlied,
    "zstd": _unpacked,
}
