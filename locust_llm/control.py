"""Control of a run, in the master or the only process: phases, the global limit, the records, the end, the report.

Between it and the senders go Locust's messages, in one process too (there they are plain calls). Quotas are absolute and
carry the number of the run; a quota grows only when those that shrank are known to have done so, so that the limit holds
over all processes at every moment.
"""

import logging
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from locust.env import Environment
from locust.runners import LocalRunner

import gevent
import msgspec
from gevent.event import Event

from .budget import PROFILING, WARMUP, Plan
from .folder import RECORDS, write_run
from .gate import follow
from .jsonl import line
from .outbox import Inbox
from .ramp import ramp
from .record import OK, Record
from .run import Health, LimitChange, Run
from .sender import Order
from .settings import Settings
from .survey import Survey

logger = logging.getLogger("locust_llm")

DRAIN_MARGIN_S: Final = 15.0
PACKAGES: Final = ("locust-llm", "locust", "gevent", "geventhttpclient", "sseclient-py", "msgspec", "pandas")


def divide(limit: int, processes: int) -> list[int]:
    """Quotas that sum to ``limit``, as even as can be; the first ones get what is left over."""
    share, rest = divmod(limit, processes)
    return [share + (place < rest) for place in range(processes)]


class Control:
    """One run. Its public fields are what the progress line reads."""

    def __init__(self, environment: Environment, settings: Settings, survey: Survey, epoch: int) -> None:
        self.environment = environment
        self.settings = settings
        self.survey = survey
        self.epoch = epoch
        self.plan = Plan(settings.warmup_request_count, settings.request_count)
        self.limit: int | None = None
        self.counts: Counter[str] = Counter()
        self.output_tokens = 0
        """Of all finished requests."""
        self.ttfts_s: list[float] = []
        """Of first chunks since the progress line last looked."""
        self.stand: dict[str, tuple[int, int, int]] = {}
        """By process, as last told: requests in prefill, waiting at the gate, decoding."""
        self.folder = self._make_folder()
        self._file = (self.folder / RECORDS).open("ab")
        self._inbox = Inbox()
        self._quotas: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """By process: as many slots as it may still be using."""
        self._limit_numbers: Counter[str] = Counter()
        self._ended: dict[str, Event] = {}
        self._workers: list[str] = []
        self._limits: list[LimitChange] = []
        self._notes = list(survey.notes)
        self._turned_away = 0
        self._health: list[Health] = []
        self._lost = 0
        self._started_at = time.time()
        self._profiling_at = self._started_at
        self._stopping_at: float | None = None
        self._ramp: gevent.Greenlet | None = None
        self._finishing = False

    # -- start and phases ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Give the order to every process, and start the first phase."""
        write_run(self.folder, self.facts())  # in case nothing comes after it
        for worker in self._clients():
            self.welcome(worker)
        self._begin_phase()

    def welcome(self, worker: str) -> None:
        """The order, to one process; it asks for its share by itself."""
        if worker not in self._workers:
            self._workers.append(worker)
        order = Order(epoch=self.epoch, settings=self.settings, survey=self.survey, worker=self._workers.index(worker))
        self._tell("llm_begin", worker, order=msgspec.msgpack.encode(order))
        self._tell_limit(worker)

    def _begin_phase(self) -> None:
        s = self.settings
        warm = self.plan.phase == WARMUP
        limit = s.warmup_limit if warm else s.prefill_concurrency
        ramp_s = s.warmup_ramp_s if warm else s.prefill_concurrency_ramp_duration
        name = "Warmup prefill" if warm else "Prefill"
        if limit is None:
            self.set_limit(None)
        elif ramp_s is None or limit == 1:
            logger.info(f"{name} concurrency limited to {limit} (session concurrency: {s.users or 'from the form'})")
            self.set_limit(limit)
        else:
            logger.info(f"{name} concurrency ramping from 1 to {limit} over {ramp_s:g} seconds")
            self._ramp = gevent.spawn(follow, self, ramp(limit, ramp_s))

    def _next_phase(self) -> None:
        if self.plan.phase != PROFILING:
            self.finish()
            return
        logger.info("Warmup is over, profiling begins")
        if self._ramp is not None:
            self._ramp.kill(block=False)
        self._profiling_at = time.time()
        self._begin_phase()
        self._tell("llm_again")

    def want(self, worker: str) -> None:
        """A process asks for a share of the requests that are still to be sent."""
        self._tell("llm_grant", worker, phase=self.plan.phase, count=self.plan.grant(max(1, len(self._workers))))

    def put_back(self, data: dict[str, Any]) -> None:
        """A process without users gives back a share: to those that wait."""
        self.plan.put_back(data["phase"], data["count"])
        self._tell("llm_again")

    # -- the global limit ----------------------------------------------------------------------------------------------

    @property
    def _gated(self) -> bool:
        return self.settings.prefill_concurrency is not None or self.settings.warmup_limit is not None

    def set_limit(self, limit: int | None) -> None:
        """The limit over all processes from now on; None: no gate."""
        self.limit = limit
        self._limits.append(LimitChange(time.time(), limit, self.plan.phase))
        self.share_out()

    def share_out(self) -> None:
        """Divide the limit anew. A quota falls at once; it rises only into what the others have given up for certain."""
        if self.limit is None:
            self._tell("llm_limit", limit=None, number=0)
            return
        there = set(self._clients())
        workers = [worker for worker in self._workers if worker in there]
        for worker, target in zip(workers, divide(self.limit, max(1, len(workers))), strict=False):
            free = self.limit - sum(self._held[other] for other in workers)
            quota = min(target, self._held[worker] + max(0, free))
            if quota != self._quotas[worker]:
                self._quotas[worker] = quota
                self._held[worker] = max(self._held[worker], quota)
                self._limit_numbers[worker] += 1
                self._tell_limit(worker)

    def hears(
        self, worker: str, used: int, number: int, waiting: int = 0, decoding: int = 0, ttfts_s: Sequence[float] = ()
    ) -> None:
        """A process tells how it stands, and the number of the last limit that reached it."""
        self.stand[worker] = used, waiting, decoding
        self.ttfts_s += ttfts_s
        if self.limit is None:
            return
        if number != self._limit_numbers[worker]:
            self._tell_limit(worker)  # on its way, or lost
        elif (held := max(self._quotas[worker], used)) < self._held[worker]:
            self._held[worker] = held
            self.share_out()

    def _tell_limit(self, worker: str) -> None:
        limit = self._quotas[worker] if self._gated else None
        self._tell("llm_limit", worker, limit=limit, number=self._limit_numbers[worker])

    # -- records -------------------------------------------------------------------------------------------------------

    def keep(self, record: Record) -> None:
        """Onto the disk, before anything else is made of it."""
        self._file.write(line(record) + b"\n")
        self.counts[record.outcome] += 1
        self.output_tokens += record.output_tokens or 0
        if self.settings.streaming and not record.streamed and record.outcome == OK:
            self._say(
                "the server answered a streaming request with one JSON body: such answers have no time to first token"
                + (", and their slots of the prefill gate are free only at their end" if self.limit is not None else "")
            )
        if self.plan.returned(record.phase, 1):
            self._next_phase()

    def batch(self, worker: str, batch: dict[str, Any]) -> None:
        """Records of a worker."""
        for record in self._inbox.take(worker, batch):
            self.keep(record)
        self._tell("llm_ack", worker, number=batch["number"])

    def _say(self, note: str) -> None:
        """Once a run, on the console and in the reports."""
        if note not in self._notes:
            self._notes.append(note)
            logger.warning(note)

    def flush(self) -> None:
        self._file.flush()

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All that was to be sent was: end the run as Locust ends it, from a greenlet that the end does not kill."""
        if self._finishing:
            return
        self._finishing = True
        runner, options = self.environment.runner, self.environment.parsed_options
        assert runner is not None
        gevent.spawn(runner.quit if options is None or options.headless else runner.stop)

    def drain(self) -> None:
        """Nothing new starts; wait until every process has ended what it had and handed over its records."""
        if self._stopping_at is not None:
            return
        self._stopping_at = time.time()
        if self._ramp is not None:
            self._ramp.kill(block=False)
        self._finishing = True
        workers = self._clients()
        self._ended = {worker: Event() for worker in workers}
        self._tell("llm_end")
        if isinstance(self.environment.runner, LocalRunner):
            return  # its users are stopped next, by Locust
        until = time.monotonic() + self.settings.stop_timeout_s + DRAIN_MARGIN_S
        for worker in workers:
            while not self._ended[worker].wait(0.2) and worker in self._clients() and time.monotonic() < until:
                continue
            if not self._ended[worker].is_set():
                logger.warning(f"{worker} did not hand over its last records: what it had is missing here")

    def ended(self, worker: str, data: dict[str, Any]) -> None:
        """A process is through: what it turned away, and what it could not deliver."""
        self._turned_away += data["turned_away"]
        self._lost += data["undelivered"]
        if data.get("health") is not None:
            self._health.append(msgspec.convert(data["health"], Health))
        if worker in self._ended:
            self._ended[worker].set()

    def facts(self) -> Run:
        """The run as it is known now."""
        sent = [limit for limit in self._limits if limit.limit is not None]
        return Run(
            name=self.folder.name,
            settings=self.settings,
            started_at=self._started_at,
            profiling_at=self._profiling_at,
            stopping_at=self._stopping_at,
            ended_at=None if self._stopping_at is None else time.time(),
            simulated=self.survey.simulated,
            model=self.survey.model or "",
            server=self.survey.server,
            workers=tuple(self._workers),
            versions={name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            probes=self.survey.probes,
            health=tuple(self._health),
            limits=tuple(sent),
            turned_away=self._turned_away,
            records_lost=self._lost,
            notes=tuple(self._notes),
        )

    def report(self) -> str:
        """Make the reports; what the console shall show. In a process of its own: pandas and all the records would
        weigh on the load generator, and a reporter that dies must not take a run with it."""
        self._file.flush()
        write_run(self.folder, self.facts())
        again = f"locust-llm report {self.folder}"
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", "report", str(self.folder)],
            capture_output=True, text=True, encoding="utf-8", check=False,
        )  # fmt: skip
        if done.returncode:
            logger.error(f"The report failed; the records are safe: {again}\n{done.stderr}")
        return done.stdout

    def close(self) -> None:
        self._file.close()

    # -- to the senders ------------------------------------------------------------------------------------------------

    def _clients(self) -> list[str]:
        """The processes that send: ``local``, or the workers that Locust counts as there."""
        runner = self.environment.runner
        if runner is None or isinstance(runner, LocalRunner):
            return ["local"]
        clients = runner.clients  # type: ignore[attr-defined]
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def _tell(self, kind: str, worker: str | None = None, **data: Any) -> None:
        assert self.environment.runner is not None
        self.environment.runner.send_message(kind, {"epoch": self.epoch, **data}, worker)

    def _make_folder(self) -> Path:
        return make_folder(self.settings, self.survey.model)


def make_folder(settings: Settings, model: str | None) -> Path:
    """A folder for one run, empty of records. Raises OSError."""
    if settings.report_dir:
        base = Path(settings.report_dir)
    else:
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in (model or "model").rpartition("/")[2])
        base = Path("reports") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = base, 1
    while (folder / RECORDS).exists():
        number += 1
        folder = Path(f"{base if base.name.strip('.') else base.resolve()}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
