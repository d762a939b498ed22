"""Records to the master: how a worker sends its results: numbered, kept until acknowledged, sent
again if not.

Locust may drop a message without notice. So every record has a serial number, records leave in
batches, and the master takes each once. It takes messages in their order: a batch is lost when the
master has answered a later message and not this one. Until then it may only be late, and a second
copy would make it later.
"""

import logging
import math
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
BATCH_BYTES: Final = 1 << 17
"""A larger batch leaves at once, as the master has other work between two batches."""
MAX_UNDER_WAY: Final = 2
"""With so many batches that are not acknowledged, further records wait here: a master that is
behind would have to keep the records of a thousand workers."""
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
        self._answered_at = -math.inf
        """When the last message that the master has answered was sent."""

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
        """Send the waiting records, and send again what was lost."""
        self._send_lost()
        while (batch := self.take_batch()) is not None:
            self._send(batch)

    def _send_lost(self) -> None:
        now = self._clock()
        for number, (sent_at, batch) in list(self._unacknowledged.items()):
            if now - sent_at > RESEND_AFTER_S and sent_at < self._answered_at:
                self._unacknowledged[number] = (now, batch)
                self._send(batch)

    def take_batch(self) -> Records | None:
        """Waiting records, which the caller sends. None: there are none, or they must wait on."""
        if not self._lines or len(self._unacknowledged) >= MAX_UNDER_WAY:
            return None
        first = self._serial - len(self._lines) + 1
        lines = list[bytes]()
        taken_bytes = 0
        for line in self._lines[:BATCH_RECORDS]:
            if taken_bytes >= BATCH_BYTES:
                break
            lines.append(line)
            taken_bytes += len(line)
        del self._lines[: len(lines)]
        self._line_bytes -= taken_bytes
        batch = Records(first, lines)
        self._unacknowledged[first] = (self._clock(), batch)
        return batch

    def answered(self, at: float) -> None:
        """The master has answered a message that was sent at this moment."""
        self._answered_at = max(self._answered_at, at)

    def acknowledged(self, number: int) -> None:
        if number not in self._unacknowledged:
            return
        sent_at, _ = self._unacknowledged.pop(number)
        self.answered(sent_at)
        if self.journal is not None and not self.waiting:
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
