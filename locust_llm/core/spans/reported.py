"""Reported: the server times of a run's requests from its spans.jsonl, and which of them cannot be."""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from locust_llm.core.server_times import ServerTimes

FILE: Final = "spans.jsonl"
"""A line for each request that has a span."""
BLOCK_BYTES: Final = 2**22
"""Read at once: lines together are decoded twice as fast as one by one."""
MAX_LINE_BYTES: Final = 2**14
SLACK_US: Final = 5_000
"""By so much a time of the server may be longer than what the client saw around it: its clock is read beside its writes, not
at them."""


class SpanLine(ServerTimes, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Of spans.jsonl: the times of one request."""

    id: str
    """That of its record."""


class Reported(NamedTuple):
    times: dict[str, SpanLine]
    """By the id of the record."""
    unread: int = 0
    """Lines that could not be read."""


def spans_file(folder: Path) -> Path | None:
    """That of a run's folder, of a stage that of its run; None: there is none."""
    if (path := folder / FILE).exists():
        return path
    path = folder.parent.parent / FILE
    return path if folder.parent.name == "stages" and path.exists() else None


def read_spans(folder: Path) -> Reported:
    """Empty without a file; of two lines of a request the first counts. Raises OSError."""
    times: dict[str, SpanLine] = {}
    path = spans_file(folder)
    if path is None:
        return Reported(times)
    unread, known, decoder = 0, times.setdefault, msgspec.json.Decoder(SpanLine)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES) + file.readline(MAX_LINE_BYTES):
            try:
                lines = decoder.decode_lines(block)
            except (ValueError, RecursionError):
                lines, bad = _readable(block, decoder)
                unread += bad
            for line in lines:
                known(line.id, line)
    return Reported(times, unread)


def _readable(block: bytes, decoder: "msgspec.json.Decoder[SpanLine]") -> tuple[list[SpanLine], int]:
    """The lines of a block that can be read, and how many cannot."""
    found, bad = list[SpanLine](), 0
    for line in block.splitlines():
        try:
            found.append(decoder.decode(line))
        except (ValueError, RecursionError):
            bad += bool(line.strip())
    return found, bad


def impossible(times: ServerTimes, ttft_us: int | None, total_us: int | None) -> str:
    """Why the server's times cannot be, beside what the client saw of the same request; empty if they can. They lie within
    the client's: it stamped before the server had the request, and after the server had written.

    ``ttft_us``: from the send to the first chunk; ``total_us``: from the send to the end of the answer. None: not known.
    """
    queue, prefill, decode = times.queue_us or 0, times.prefill_us or 0, times.decode_us or 0
    first = "TTFT", ttft_us
    last = "request", total_us
    for what, us, (whose, most) in (
        ("queue and prefill", queue + prefill, first),
        ("TTFT", times.ttft_us or 0, first),
        ("queue, prefill and decode", queue + prefill + decode, last),
        ("queue and inference", queue + (times.inference_us or 0), last),
        ("whole time", times.e2e_us or 0, last),
    ):
        if most is not None and us > most + SLACK_US:
            return f"the server's {what}, {us / 1e3:,.1f} ms, is longer than the client's {whose}, {most / 1e3:,.1f} ms"
    return ""
