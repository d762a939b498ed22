"""Telemetry frames: what the load generator sends to the exporting process: a description of the
run first, then each record."""

from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import msgspec

from locust_llm.records.record import Record
from locust_llm.settings.ab_arms import CANDIDATE

_LENGTH: Final = Struct("<I")


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests of a process in a run have in common."""

    trace: str
    """The run's part of the trace ids: ``Run.trace``."""
    operation: str
    """``gen_ai.operation.name``."""
    provider: str
    """``gen_ai.provider.name``."""
    host: str
    """The address of the server."""
    hosts: tuple[str, ...] = ()
    """The hosts of its replicas, where they differ."""
    candidate: str = ""
    """The address of the second arm, where it differs."""
    streaming: bool = True
    share: float = 1.0
    """The share of the requests that are sampled."""
    resource: dict[str, str] = {}
    version: str = ""
    """The version of this package."""
    began_ns: int = 0
    """When the run began here, in Unix nanoseconds."""

    def server(self, record: Record) -> tuple[str, int]:
        """(address, port) that a request was sent to."""
        address = record.backend if record.backend in self.hosts else self.host
        if record.arm == CANDIDATE and self.candidate:
            address = self.candidate
        parts = urlsplit(address)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


encode_record: Final = msgspec.msgpack.Encoder().encode
_decode_record: Final = msgspec.msgpack.Decoder(Record).decode


def add_frame_length(packed: bytes) -> bytes:
    return _LENGTH.pack(len(packed)) + packed


def _frames(source: BinaryIO) -> Iterator[bytes]:
    """The frames up to the end of ``source``, or to the first one that is not whole: its writer was
    killed."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        if len(packed := source.read(length)) < length:
            return
        yield packed


def read_record_frames(source: BinaryIO) -> tuple[RunDescription, Iterator[Record]]:
    """(description of the run, its records as they come). Raises ValueError where not even the
    first frame is whole."""
    frames = _frames(source)
    about = msgspec.msgpack.decode(next(frames, b""), type=RunDescription)
    return about, map(_decode_record, frames)
