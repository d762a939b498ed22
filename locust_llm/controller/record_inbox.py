"""Record inbox: takes each record of each worker once, however often a batch or a journal brings
it.

It is the other end of worker/records_to_master.py.
"""

from collections.abc import Iterable

from locust_llm.records.profile_export_jsonl import EncodedRecord, decode_record
from locust_llm.wire.worker_messages import Records


class RecordInbox:
    """The records of all workers that are here, by their serial numbers."""

    def __init__(self) -> None:
        self._below: dict[str, int] = {}
        """For each worker, every serial below this one is here."""
        self._early: dict[str, set[int]] = {}
        """The serials that came before their turn."""

    def take(self, worker: str, frames: Iterable[tuple[int, bytes]]) -> list[EncodedRecord]:
        """The new records of a batch or a journal of (serial, line). Raises ValueError for an
        invalid record; then none was taken."""
        below = self._below.get(worker, 1)
        early = self._early.setdefault(worker, set())
        came = {
            serial: decode_record(line)
            for serial, line in frames
            if serial >= below and serial not in early
        }
        early.update(came)
        while below in early:
            early.remove(below)
            below += 1
        self._below[worker] = below
        return list(came.values())

    def taken(self, worker: str) -> int:
        """How many of its records are here."""
        return self._below.get(worker, 1) - 1 + len(self._early.get(worker, ()))


def list_record_frames(batch: Records) -> Iterable[tuple[int, bytes]]:
    """The lines of a batch with their serials."""
    return enumerate(batch.lines, batch.number)
