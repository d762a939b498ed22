"""Records to the master: how a worker sends its results: numbered, kept until acknowledged, sent
again if not.

Locust may drop a message without notice. So every record has a serial number, records leave in
batches, and the master takes each once.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from locust_llm.records.journal import Journal
from locust_llm.records.profile_export_jsonl import decode_record, format_record_line
from locust_llm.records.record import Record
from locust_llm.wire.worker_messages import Records

logger = logging.getLogger("locust_llm")

BATCH_RECORDS: Final = 200
BATCH_BYTES: Final = 1 << 20
"""A larger batch leaves at once, as the master has other work between two batches."""
RESEND_AFTER_S: Final = 3.0


class RecordOutbox:
    """The records of one worker. ``send`` sends a message to the master, which may get lost."""

    def __init__(
        self, send: Callable[[Records], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self.begin(None)

    def begin(self, journal: Journal | None) -> None:
        """Begin a run. ``journal`` keeps the records until they are delivered."""
        self.journal = journal
        self.kept: Path | None = None
        """The place of records that were not delivered."""
        self._lines: list[bytes] = []
        self._line_bytes = 0
        self._serial = 0
        self._unacknowledged: dict[int, tuple[float, Records]] = {}

    def add(self, record: Record) -> None:
        line = format_record_line(record)
        self._lines.append(line)
        self._line_bytes += len(line)
        self._serial += 1
        if self.journal is not None:
            self._journaled(self.journal.add, self._serial, line)
        if len(self._lines) >= BATCH_RECORDS or self._line_bytes >= BATCH_BYTES:
            self.flush()

    def count(self, admitted: int, begun: int, ended: int) -> None:
        """Count the requests that the gate admitted, and the sessions that have begun and ended so
        far."""
        if self.journal is not None:
            self._journaled(self.journal.count, admitted, begun, ended)

    def _journaled(self, write: Callable[..., None], *what: Any) -> None:
        try:
            write(*what)
        except OSError as error:
            logger.warning(
                "this worker can no longer copy records to disk, so some are lost if it dies: "
                f"{error}"
            )
            self.journal = None

    def close(self, *, keep: bool) -> None:
        """End the run. ``keep``: undelivered records stay on the disk."""
        if self.journal is not None:
            self.journal.close(keep=keep)
            self.kept = self.journal.path if keep else None
            self.journal = None

    def flush(self) -> None:
        """Send the waiting records, and send again what was not acknowledged in time."""
        if (batch := self.take_batch()) is not None:
            self._send(batch)

    def take_batch(self) -> Records | None:
        """The waiting records, which the caller sends. None: there are none. What was not
        acknowledged in time is sent again."""
        now = self._clock()
        for number, (sent_at, batch) in list(self._unacknowledged.items()):
            if now - sent_at > RESEND_AFTER_S:
                self._unacknowledged[number] = (now, batch)
                self._send(batch)
        if not self._lines:
            return None
        first = self._serial - len(self._lines) + 1
        batch = Records(first, self._lines)
        self._lines, self._line_bytes = [], 0
        self._unacknowledged[first] = (now, batch)
        return batch

    def acknowledged(self, number: int) -> None:
        if (
            self._unacknowledged.pop(number, None) is not None
            and self.journal is not None
            and not self.waiting
        ):
            self.journal.delivered()

    @property
    def made(self) -> int:
        return self._serial

    @property
    def waiting(self) -> int:
        """The number of records that the master may not have."""
        return len(self._lines) + sum(
            len(batch.lines) for _, batch in self._unacknowledged.values()
        )

    def undelivered(self) -> list[Record]:
        """The records that the master may not have."""
        lines = list[bytes]()
        for _, (_, batch) in sorted(self._unacknowledged.items()):
            lines += batch.lines
        return [decode_record(line).record for line in (*lines, *self._lines)]
