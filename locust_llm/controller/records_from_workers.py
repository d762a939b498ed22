"""Records from workers: takes each finished request's record, writes it to the disk before anything
else, and then counts it where it belongs."""

import logging
from collections.abc import Callable
from typing import Final

from locust_llm.client.event_loop_yields import WorkSlices
from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import PROFILING, profiling_phase
from locust_llm.records.profile_export_jsonl import EncodedRecord, encode_record
from locust_llm.records.record import Record
from locust_llm.wire.worker_messages import Ack, Records

from .phases import PhaseRunner
from .run_context import RunContext
from .shutdown import Shutdown

logger = logging.getLogger("locust_llm")

FLUSH_S: Final = 1.0
"""The interval of writes of records to the disk."""


class RecordsFromWorkers:
    def __init__(
        self,
        context: RunContext,
        phases: PhaseRunner,
        shutdown: Shutdown,
        on_record_over: Callable[[Record], object],
    ) -> None:
        """``on_record_over`` is called with each record of a finished request, once it is kept."""
        self._context, self._phases, self._shutdown = context, phases, shutdown
        self._store, self._workers = context.store, context.workers
        self._on_record_over = on_record_over

    def add(self, record: Record) -> None:
        """Add a record of this process."""
        self._add(encode_record(record))

    def _add(self, encoded: EncodedRecord) -> None:
        """Write a record to the disk before anything else."""
        record = encoded.record
        phase = profiling_phase(record.stage) if record.phase == PROFILING else record.phase
        if (
            self._phases.stages is not None
            and record.stage == self._phases.stages.number
            and record.stage
        ):
            encoded = self._phases.stages.add_record(encoded)
        if self._phases.limit_sweep is not None and encoded.record.phase == PROFILING:
            encoded = self._phases.limit_sweep.add_record(encoded)
        record = encoded.record
        self._phases.sends.over(record)
        self._phases.add_response(record)
        if self._store.spans is not None:
            self._store.spans.request(record.id, ok=record.outcome == OK)
        if not self._store.write(encoded, gated=self._phases.limit.now is not None):
            return  # the request is not over
        self._on_record_over(record)
        if not self._phases.allocator.recorded(record, phase):  # of a process that was given up
            found = self._workers.found(record)
            self._store.lost -= found
            if self._phases.stages is not None:
                self._phases.stages.note_found(record.stage, found)

    def take_batch(self, worker: str, batch: Records) -> None:
        """Take records of a worker, and acknowledge them."""
        if self.take_records(worker, batch):
            self._context.send(Ack(batch.number), worker)

    def take_records(self, worker: str, batch: Records) -> bool:
        """Take records of a worker. Whether they are on the disk, and so to be acknowledged."""
        self._workers.seen(worker)
        slices = WorkSlices(self._context.time.monotonic)
        try:
            records = self._workers.take(worker, batch)
        except ValueError as error:
            logger.error(
                f"{len(batch.lines)} records of worker {worker} are damaged and were ignored: "
                f"{error}"
            )
            return False
        for record in records:
            slices.pause()
            self._add(record)
        self.flush()  # what is acknowledged outlives this process
        self._shutdown.note_records()
        return True

    def recover(self, worker: str) -> int:
        """Add the undelivered records of a process to the records. Returns their number. The event
        loop goes on meanwhile."""
        recovered = 0
        slices = WorkSlices(self._context.time.monotonic)
        for records in self._workers.recover(worker):
            for record in records:
                self._add(record)
            recovered += len(records)
            slices.pause()
        self.flush()
        return recovered

    def flush_each_second(self) -> None:
        while True:
            self._context.time.sleep(FLUSH_S)
            self.flush()
            slices = WorkSlices(self._context.time.monotonic)
            self._store.pack_records(slices.pause)
            if self._phases.stages is not None:
                self._phases.stages.pack_records(slices.pause)

    def flush(self) -> None:
        """Flush each second, and at the end."""
        self._store.flush()
        if self._phases.stages is not None:
            self._phases.stages.flush()
