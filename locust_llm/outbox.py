"""The outbox: records of a worker on their way to the master; numbered, kept until acknowledged, sent again if not.

Locust's messages may be dropped without a word, so every batch carries a number and the master takes each one once.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from .record import Record

BATCH_RECORDS: Final = 200
RESEND_AFTER_S: Final = 3.0

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(list[Record]).decode


class Outbox:
    """``send`` gets a dictionary that Locust's messages can carry."""

    def __init__(self, send: Callable[[dict[str, Any]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._records: list[Record] = []
        self._number = 0
        self._unacknowledged: dict[int, tuple[float, dict[str, Any]]] = {}

    def add(self, record: Record) -> None:
        self._records.append(record)
        if len(self._records) >= BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Send what is there; send again what was not acknowledged in time."""
        now = self._clock()
        if self._records:
            self._number += 1
            batch = {"number": self._number, "count": len(self._records), "records": encode(self._records)}
            self._records = []
            self._unacknowledged[self._number] = (now, batch)
            self._send(batch)
        for number, (sent_at, batch) in list(self._unacknowledged.items()):
            if now - sent_at > RESEND_AFTER_S:
                self._unacknowledged[number] = (now, batch)
                self._send(batch)

    def acknowledged(self, number: int) -> None:
        self._unacknowledged.pop(number, None)

    @property
    def waiting(self) -> int:
        """Records that the master is not known to have."""
        return len(self._records) + sum(int(batch["count"]) for _, batch in self._unacknowledged.values())


class Inbox:
    """The other end: each batch of each worker once."""

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}

    def take(self, worker: str, batch: dict[str, Any]) -> list[Record]:
        """The records of a batch; none if it came before. Raises msgspec.DecodeError for what is no batch."""
        seen = self._seen.setdefault(worker, set())
        if batch["number"] in seen:
            return []
        records = decode(batch["records"])
        seen.add(batch["number"])
        return records
