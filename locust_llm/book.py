"""The book of a run: its records on the disk, what is known of it beside them, and its reports."""

import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import dropwhile
from typing import Final

from .buffering import Buffering
from .examination import NAMED, UNTOLD
from .exit_status import ExitStatus
from .exposition import Totals
from .folder import RECORDS, RUN, make_folder, read_probe, read_status, write_run
from .gauges import diagnosis, out_of_memory, told
from .journal import lock
from .jsonl import line
from .meter import Meter
from .pulse import Pulse
from .record import CANCELLED, CUT, OK, RETRIED, Record
from .reporter import make_reports
from .retries import remarks_on
from .run import Health, LimitChange, Run
from .settings import Settings
from .slo import EXIT_STATUS
from .spool import Spool, left_over
from .survey import Survey

logger = logging.getLogger("locust_llm")

PACKAGES: Final = ("locust-llm", "locust", "gevent", "geventhttpclient", "sseclient-py", "msgspec", "pandas")


PROBED: Final = {NAMED: ExitStatus.OK, UNTOLD: ExitStatus.INCONCLUSIVE}


class Book:
    """Made when the run begins: it has a folder of its own from then on. Raises OSError."""

    def __init__(self, settings: Settings, survey: Survey) -> None:
        self.settings, self.survey = settings, survey
        self.folder = make_folder(settings, survey.model)
        self.pulse, self.totals, self.buffering = Pulse(), Totals(), Buffering()
        self.started_at = time.time()
        self.profiling_at = self.started_at
        self.stopping_at: float | None = None
        self.limits: list[LimitChange] = []
        self.health: list[Health] = []
        self.turned_away = self.lost = 0
        """Requests at the gate at the end; those without a record."""
        self._notes = list(survey.notes)
        self._missing: list[str] = []
        """What the result lacks, a line each."""
        self._retried = self._resent = 0
        """Attempts that were refused and followed by another one."""
        self._out_of_memory = ""
        """The first message of a failure that speaks of it."""
        self.meter: Meter | None = None
        """None: nobody asks the server how it stands."""
        self._file = Spool(self.folder / RECORDS)
        self._lock = lock(self.folder / RECORDS)

    # -- records and notes ---------------------------------------------------------------------------------------------

    def write(self, record: Record, *, gated: bool) -> bool:
        """Onto the disk, before anything else is made of it. False: an attempt that is followed by another one."""
        self._file.write(line(record))
        self._resent += record.resent
        if record.outcome == RETRIED:
            self._retried += 1
            return False
        self.pulse.add(record)
        self.totals.add(record)
        if record.failed and not self._out_of_memory and out_of_memory(record.message, None):
            self._out_of_memory = record.message
        if self.buffering.add(record):
            for remark in self.buffering.remarks():
                logger.warning(remark)
        if self.settings.streaming and not record.streamed and record.outcome == OK:
            self.say(
                "the server answered a streaming request with one JSON body: such answers have no time to first token"
                + (", and their slots of the prefill gate are free only at their end" if gated else "")
            )
        return True

    def say(self, note: str) -> None:
        """Once a run, on the console and in the reports."""
        if note not in self._notes:
            self._notes.append(note)
            logger.warning(note)

    def lacks(self, what: str) -> None:
        """The result is incomplete: said first on the console and in the reports, and the exit status is not 0."""
        if what not in self._missing:
            self._missing.append(what)
            logger.error(what)

    def since_start(self) -> str:
        return f"{time.time() - self.started_at:.1f} s after the start"

    def flush(self) -> None:
        """Each second, and at the end. What the disk does not take stays in memory."""
        if not self._file.flush():
            self.say(f"records could not be written at once: {self._file.error}; they were kept in memory meanwhile")

    # -- the end -------------------------------------------------------------------------------------------------------

    def facts(self, **more: object) -> Run:
        """The run as it is known now; ``more``: what else is known of it."""
        s = self.survey
        known: dict[str, object] = {
            "name": self.folder.name,
            "settings": self.settings,
            "started_at": self.started_at,
            "profiling_at": self.profiling_at,
            "stopping_at": self.stopping_at,
            "ended_at": None if self.stopping_at is None else time.time(),
            "simulated": s.simulated,
            "model": s.model or "",
            "server": s.server,
            "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "probes": s.probes,
            "dataset_sessions": s.dataset_sessions,
            "health": tuple(self.health),
            "limits": known_limits(self.limits),
            "turned_away": self.turned_away,
            "records_lost": self.lost,
            "notes": (
                *self._missing,
                *self._notes,
                *self.buffering.remarks(),
                *remarks_on(self._retried, self._resent),
                *self._servers_own(),
            ),
        }
        return Run(**(known | more))  # type: ignore[arg-type]

    def _servers_own(self) -> Iterator[str]:
        """What the server said of itself in the profiling phase, and what of its memory."""
        limit = self.settings.prefill_concurrency
        if self.meter is not None:
            ended_at = self.stopping_at or time.time()
            yield from diagnosis(told(self.meter.between(self.profiling_at, ended_at)), limit)
        if self._out_of_memory:
            yield out_of_memory(self._out_of_memory, limit)

    def look(self) -> None:
        """Once, when the last record is here: what the result lacks."""
        self.flush()
        try:
            if self._file.restore():
                self.lacks(
                    f"the report folder {self.folder} was deleted during the run: it was made anew with the records, "
                    "and all else that was in it is lost"
                )
        except OSError as error:
            self.lacks(f"the records were deleted during the run, and could not be restored: {error}")
        if self.lost:
            self.lacks(f"{self.lost} requests have no record: their workers were lost")
        counts = self.pulse.counts
        if not counts.total():
            self.lacks("no request was made: there is nothing to report")
        elif not (counts[OK] or counts[CANCELLED]):
            cut = f"{counts[CUT]} were cut when the run ended" if counts[CUT] else "all of them failed"
            self.lacks(f"none of the {counts.total()} requests succeeded: {cut}")

    def report(self, facts: Run) -> str:
        """Make the reports; what the console shall show."""
        try:
            write_run(self.folder, facts)
        except OSError as error:
            self.lacks(f"{self.folder / RUN} cannot be written: {error.strerror}")
        if self._file.waiting:
            self.lacks(left_over(self._file))
            return ""
        made = make_reports(self.folder)
        first = "".join(f"INCOMPLETE: {line}\n" for line in self._missing)  # the report knows of other things
        if made.missing and not self._missing:
            self._missing.append(made.missing)
        return first + made.text

    def exit_status(self) -> int | None:
        """What the rules say of this run, once it has its report; without rules what a probe came to. None: neither, or the
        server failed, and Locust has a status for that."""
        if not (self.settings.slo or self.settings.slo_preset):
            return PROBED.get(read_probe(self.folder))
        return EXIT_STATUS.get(read_status(self.folder), ExitStatus.INCONCLUSIVE)

    @property
    def incomplete(self) -> bool:
        """Whatever the rules say of what is there, it is not all."""
        return bool(self._missing)

    def close(self) -> None:
        if self.meter is not None:
            self.meter.close()
        self._file.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove_if_empty(self) -> None:
        """Of a run that did not begin."""
        with suppress(OSError):
            if not (self.folder / RECORDS).stat().st_size:
                (self.folder / RECORDS).unlink()
                (self.folder / RUN).unlink(missing_ok=True)
                self.folder.rmdir()


def known_limits(changes: Sequence[LimitChange]) -> tuple[LimitChange, ...]:
    """From the first limit on: that there was none before needs no word."""
    return tuple(dropwhile(lambda change: change.limit is None, changes))
