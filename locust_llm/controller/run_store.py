"""Run store: a run's records on the disk, the facts beside them, and what its result lacks."""

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from random import SystemRandom
from types import MappingProxyType
from typing import Final

import gevent

from locust_llm.answers.session_markers import SENTENCE_WORDS, make_marker_key
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.files.buffered_file import BufferedFile, explain_unwritten_lines
from locust_llm.records.answer_fault import ANSWER_FAULTS_FILE
from locust_llm.records.buffering import BufferingByArm, describe_cpu_shortage
from locust_llm.records.failure_kinds import (
    FIRST,
    FirstRequests,
    SilenceDetector,
    describe_retries,
)
from locust_llm.records.journal import lock_file
from locust_llm.records.outcomes import CANCELLED, OK, RETRIED
from locust_llm.records.profile_export_jsonl import EncodedRecord
from locust_llm.records.record import Record
from locust_llm.records.record_writer import RecordWriter, remove_records
from locust_llm.records.report_result import ReportResult
from locust_llm.records.run_facts import (
    RECORDS,
    RUN,
    BrokenRule,
    DecidedRule,
    Disruption,
    LimitChange,
    ProcessHealth,
    RateChange,
    Run,
    Stage,
    UserChange,
    UserStart,
    WorkerLossCount,
    find_loaded_times,
    make_run_folder,
    select_known_limits,
    write_run,
)
from locust_llm.records.server_metrics_history import BASE, SERVER, advise_on_memory
from locust_llm.records.spans.trace_ids import make_run_trace
from locust_llm.server.discovery import Discovery
from locust_llm.server.refusals import advise_on_error, has_key
from locust_llm.server.server_metrics_poller import MetricsPoller
from locust_llm.server.spans.span_receiver import SpanReceiver
from locust_llm.settings.run_options import Settings
from locust_llm.text.format import format_count
from locust_llm.worker.ab_targets import list_variants

from .answer_tally import AnswerTally
from .run_progress import LoadClock, RunProgress
from .run_totals import RunTotals

logger = logging.getLogger("locust_llm")


def log_note(note: str) -> None:
    """Log a note at the level that it begins with, else as information."""
    for level in ("ERROR", "WARNING"):
        if note.startswith(f"{level}: "):
            logger.log(logging.getLevelName(level), note.removeprefix(f"{level}: "))
            return
    logger.info(note)


GHOSTS_SETTLE_S: Final = 10.0
"""With --check-cancellations, the counters are read for so long while the server still works."""
PACKAGES: Final = (
    "locust-llm",
    "locust",
    "gevent",
    "geventhttpclient",
    "sseclient-py",
    "msgspec",
    "pandas",
)
"""The packages whose versions are in run.json."""


@cache
def _list_versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


class RunStore:
    """It is made when the run begins, and has a folder of its own from then on. Raises OSError."""

    def __init__(
        self,
        settings: Settings,
        survey: Discovery,
        headers: Mapping[str, str] = MappingProxyType({}),
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        words_seed: str = "",
    ) -> None:
        """``headers`` are the requests' own, for the server's metrics. ``now`` gives Unix seconds.
        ``words_seed``: see Run."""
        self.settings, self.survey, self._now, self._words_seed = settings, survey, now, words_seed
        self.trace = make_run_trace(SystemRandom()) if settings.traceparent else ""
        self.marker_key = make_marker_key() if settings.check_answers else b""
        """The key of the run's session markers. No file holds it. Empty: answers are not
        checked."""
        self.spans = (
            SpanReceiver(settings.otlp_receiver, self.trace) if settings.otlp_receiver else None
        )
        self.folder = make_run_folder(settings, survey.model)
        self.stopping_at: float | None = None
        self.run_progress = RunProgress(
            LoadClock(monotonic, lambda: self.load_goes_on),
            longest_s=settings.longest_s,
            request_count=settings.request_count,
            streams=settings.streaming,
        )
        self.totals = RunTotals()
        self.answer_tally: AnswerTally | None = None
        """None: answers are not checked."""
        self.buffering = BufferingByArm(settings)
        self._made_at = now()
        if settings.check_answers:
            self.answer_tally = AnswerTally(lambda: self.started_at)
        self._first_sent_at: float | None = None
        self.began_profiling_at: float | None = None
        """When the profiling phase began. None: with the load."""
        self.limits: list[LimitChange] = []
        self.rates: list[RateChange] = []
        self.disruptions: list[Disruption] = []
        self.users: list[UserChange] = []
        self.starts: list[UserStart] = []
        self.health: list[ProcessHealth] = []
        self.stopped_early = ""
        self.broken_rules: list[BrokenRule] = []
        self.decided_rules: tuple[DecidedRule, ...] = ()
        self.cut_at: float | None = None
        """As in Run."""
        self.turned_away = self.lost = 0
        self.worker_losses: list[WorkerLossCount] = []
        """Requests at the gate at the end, which have no record."""
        self.unchecked_answers = 0
        """Answers that were not checked against their schemas, as that took too long."""
        self._notes = list(survey.notes)
        self.missing: list[str] = []
        """What the result lacks, one line each."""
        self._fruitless = False
        """No request succeeded. The headline then has the reason."""
        self._retried = self._resent = 0
        """Refused attempts that another one followed."""
        self._first = FirstRequests()
        self._key = has_key(headers)
        self._silence = dict[str, SilenceDetector]()
        """One for each arm of a comparison, else one."""
        self._out_of_memory = ""
        """The message of the first failure about memory."""
        self.poller: MetricsPoller | None = None
        """None: the server's metrics are not read."""
        if settings.server_metrics:
            self.poller = MetricsPoller(
                settings.host, headers, self.folder, settings.metrics_url, replicas=settings.hosts,
                verify=False if settings.insecure else find_trusted_certificates(), clock=now,
                add_note=self.add_note,
                simulated=survey.simulated, whose=BASE if settings.candidate not in ("",
                    settings.host) else SERVER,
            )  # fmt: skip
        self.result: ReportResult | None = None
        """The result of the report process. None: there are no reports yet, or they could not be
        made."""
        self._file = RecordWriter(self.folder, jsonl=settings.jsonl)
        self._answer_faults: BufferedFile | None = None
        """The evidence of wrong answers. None: there is none so far."""
        self._lock = lock_file(self.folder / RECORDS)

    @property
    def started_at(self) -> float:
        """The origin of all moments that the run names: the first send, as far as it is known."""
        return max(self._made_at, self._first_sent_at or 0.0)

    @property
    def profiling_at(self) -> float:
        """When the profiling phase began."""
        known = self.began_profiling_at
        return self.started_at if known is None else known

    @property
    def draining(self) -> bool:
        """The end of the run has begun."""
        return self.stopping_at is not None

    @property
    def load_goes_on(self) -> bool:
        """Requests are sent, or some are still running."""
        return not self.draining or self.run_progress.inside > 0

    def watch_server(self, spawn: Callable[..., gevent.Greenlet]) -> None:
        """Read the server's metrics and receive its spans from now on, in greenlets that ``spawn``
        makes. Raises OSError."""
        if self.spans is not None:
            self.spans.start(spawn, self.folder, BufferedFile)
        if self.poller is not None:
            self.poller.start(spawn)

    # -- records and notes -------------------------------------------------------------------------

    def write(self, encoded: EncodedRecord, *, gated: bool) -> bool:
        """Write a record to the disk before anything else. False: another attempt follows it."""
        self._file.write(encoded)
        record = encoded.record
        if record.sent_at is not None:
            sent_at = record.sent_unix_s
            self._first_sent_at = min(sent_at, self._first_sent_at or sent_at)
        self._resent += record.resent
        self.run_progress.note_end(record)
        silence = self._silence.get(record.arm)
        if silence is None:
            silence = self._silence[record.arm] = SilenceDetector(record.arm)
        if news := silence.add(record, self.started_at):
            log_note(news)
        if record.outcome == RETRIED:
            self._retried += 1
            return False
        self.run_progress.add(record)
        self.totals.add(record)
        if self.answer_tally is not None:
            self.answer_tally.add(record)
        self._first.add(record)
        if record.failed and not self._out_of_memory and advise_on_memory(record.error, None):
            self._out_of_memory = record.error
        if news := self.buffering.add(record):
            log_note(news)
        if self.settings.streaming and not record.streamed and record.outcome == OK:
            self.add_note(
                "WARNING: the server answered a streaming request with one JSON body: such "
                "responses have no time to first token"
                + (", and they occupy a prefill slot until their end" if gated else "")
            )
        return True

    def write_answer_fault(self, line: bytes) -> None:
        """Write the evidence of a wrong answer, as JSON. The first one makes the file."""
        try:
            if self._answer_faults is None:
                self._answer_faults = BufferedFile(self.folder / ANSWER_FAULTS_FILE)
        except OSError as error:
            self.add_note(
                f"WARNING: {ANSWER_FAULTS_FILE} could not be written: {error.strerror or error}"
            )
            return
        self._answer_faults.write(line)
        self._answer_faults.flush()

    def judge_first_requests(self, settled_unix_s: float) -> None:
        """Warn if all of the first requests have failed. What was sent before ``settled_unix_s``
        has ended."""
        if all_failed := self._first.judge(settled_unix_s):
            self.add_note(f"WARNING: {self._why(all_failed)}")

    def _why(self, failed: Sequence[tuple[Record, int]]) -> str:
        """The line on failed first requests: each kind with what to do about it."""
        kinds = []
        for first, count in failed:
            todo = advise_on_error(first.status, first.error, self.settings, key=self._key)
            kinds.append(f"{count} x {first.outcome}: {first.error}{f' ({todo})' if todo else ''}")
        return f"each of the first {FIRST} requests failed: {'; '.join(kinds)}"

    def add_note(self, note: str) -> None:
        """Add a note once a run, on the console and in the reports."""
        if note not in self._notes:
            self._notes.append(note)
            log_note(note)

    def add_gap(self, what: str) -> None:
        """Add a gap: the result is incomplete. It comes first on the console and in the reports,
        and the exit status is not 0."""
        if what not in self.missing:
            self.missing.append(what)
            logger.error(what)

    def since_start(self, ago_s: float = 0.0) -> str:
        """``9.7 s after the start``, which is the first send, as in the report. ``ago_s``: so long
        ago."""
        return f"{max(0.0, self._now() - ago_s - self.started_at):.1f} s after the start"

    def note_load_start(self) -> None:
        """The load begins now, after what the run did with the idle server."""
        self._made_at = self._now()

    def note_users(self, count: int, ago_s: float = 0.0) -> None:
        """Note the number of users over all processes: the present one, or that since so long
        ago."""
        if count != (self.users[-1].users if self.users else 0):
            at = self._now() - ago_s
            self.users.append(UserChange(max(at, self.users[-1].at) if self.users else at, count))

    def flush(self) -> None:
        """Flush each second, and at the end. What the disk does not take stays in memory."""
        if not self._file.flush():
            self.add_note(
                f"WARNING: records could not be written immediately: {self._file.lines.error}; they "
                "were kept in memory until then"
            )

    def pack_records(self, pause: Callable[[], object]) -> None:
        """Write the columns of the records that wait for it, if they are enough."""
        self._file.pack_rows(pause)

    # -- the end -----------------------------------------------------------------------------------

    def facts(self, *, stages: tuple[Stage, ...] = (), **more: object) -> Run:
        """The run as it is known now. ``more`` has further fields."""
        s = self.survey
        known: dict[str, object] = {
            "name": self.folder.name,
            "settings": self.settings,
            "started_at": self.started_at,
            "profiling_at": self.profiling_at,
            "stopping_at": self.stopping_at,
            "ended_at": None if self.stopping_at is None else self._now(),
            "simulated": s.simulated,
            "model": s.models,
            "server": s.server,
            "gateway": s.gateway or ("" if s.candidate is None else s.candidate.gateway),
            "server_flags": s.server_flags,
            "versions": _list_versions() | {"python": platform.python_version()},
            "commit": s.commit,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "probes": s.probes,
            "words_seed": self._words_seed,
            "head_tokens": s.lengths.head,
            "marker_tokens": s.lengths.endings.get(SENTENCE_WORDS),
            "trace": self.trace,
            "spans": None if self.spans is None else self.spans.counts,
            "dataset_sessions": s.dataset_sessions,
            "health": tuple(self.health),
            "limits": select_known_limits(self.limits),
            "rates": tuple(self.rates),
            "disruptions": tuple(self.disruptions),
            "users": tuple(self.users),
            "warmup_went_on": self.settings.warmup_goes_on,
            "starts": tuple(self.starts),
            "arms": list_variants(self.settings, s),
            "turned_away": self.turned_away,
            "records_lost": self.lost,
            "worker_losses": tuple(self.worker_losses),
            "client_live": self.run_progress.shown_client,
            "gaps": tuple(self.missing),
            "stages": stages,
            "stopped_early": self.stopped_early,
            "broken_rules": tuple(self.broken_rules),
            "decided_rules": self.decided_rules,
            "cut_at": self.cut_at,
            "notes": (
                *self._notes,
                *self.buffering.remarks(describe_cpu_shortage(self.health)),
                *describe_retries(self._retried, self._resent),
                *self._describe_unchecked(),
                *self._servers_own(stages),
            ),
        }
        return Run(**(known | more))  # type: ignore[arg-type]

    def _describe_unchecked(self) -> Iterator[str]:
        """The notes on answers that count neither as valid nor as invalid."""
        if self.unchecked_answers:
            count = format_count(self.unchecked_answers, "answer")
            yield (
                f"WARNING: {count} could not be checked against their schemas in time, so they "
                "count as neither valid nor invalid"
            )

    def _servers_own(self, stages: Sequence[Stage]) -> Iterator[str]:
        """What the server's metrics show of the time in which requests were sent to it, and its
        memory failures. Of two servers the base's metrics are read, so its blocks count."""
        limit = max(
            (change.limit for change in self.limits if change.limit is not None), default=None
        )
        if self.poller is not None:
            arm = BASE if self.poller.whose == BASE else ""
            whole = self.profiling_at, self.stopping_at or self._now()
            yield from self.poller.remarks(find_loaded_times(stages, whole, arm), limit)
        if self._out_of_memory:
            yield advise_on_memory(self._out_of_memory, limit)

    def check_complete(self) -> None:
        """Add what the result lacks, once the last record is here."""
        self.flush()
        self._file.pack_rows(last=True)
        if self.poller is not None:
            # ghosts of clients who left count too
            settle_s = GHOSTS_SETTLE_S if self.settings.check_cancellations else 0.0
            self.poller.read_last(settle_s)
        try:
            if self._file.restore():
                self.add_gap(
                    f"the report folder {self.folder} was deleted during the run: the records were "
                    "restored, but its other files are lost"
                )
        except OSError as error:
            self.add_gap(
                f"the records were deleted during the run and could not be restored: {error}"
            )
        counts = self.run_progress.counts
        if not counts.total() and self.lost:
            self._fruitless = True  # what was lost is reported as that
        elif not counts.total():
            self.add_gap("no request was sent: there is nothing to report")
        elif not (counts[OK] or counts[CANCELLED]):
            self._fruitless = True

    def write_facts(self, facts: Run) -> bool:
        """Write run.json. Returns whether the disk has all records, so that there can be reports."""
        try:
            write_run(self.folder, facts)
        except OSError as error:
            self.add_gap(f"{self.folder / RUN} cannot be written: {error.strerror}")
        unwritten = self._file.lines
        if unwritten.waiting:
            self.add_gap(explain_unwritten_lines(unwritten))
        return not unwritten.waiting

    @property
    def incomplete(self) -> bool:
        """A part of the result is missing, whatever the rules find in the rest."""
        return bool(self.missing) or self._fruitless or self.lost > 0

    def close(self) -> None:
        if self.poller is not None:
            self.poller.close()
        if self.spans is not None:
            self.spans.close()
        self._file.close()
        if self._answer_faults is not None:
            self._answer_faults.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove_if_empty(self) -> None:
        """Remove the folder of a run that did not begin."""
        with suppress(OSError):
            if self._file.empty:
                remove_records(self.folder)
                (self.folder / RUN).unlink(missing_ok=True)
                self.folder.rmdir()
