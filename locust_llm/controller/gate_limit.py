"""The limit on concurrent prefills over all processes: of each phase, with its ramp, or set by
hand; divided into shares."""

import logging
from collections.abc import Iterator
from functools import partial

import gevent
import msgspec

from locust_llm.gate.ramp import follow_limit_steps, make_limit_ramp
from locust_llm.gate.shares import GateShares, GateStatus
from locust_llm.records.phase_plan import PhasePlan, label_phase
from locust_llm.records.run_facts import LimitChange
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.wire.clock_sync import measure_clock_offset_s
from locust_llm.wire.worker_messages import Renewal

from .run_context import RunContext

logger = logging.getLogger("locust_llm")


class GateLimit:
    """Each change goes into the store."""

    def __init__(self, context: RunContext, plan: PhasePlan) -> None:
        settings = context.settings
        limits = (
            settings.prefill_concurrency,
            settings.warmup_limit,
            settings.changes.prefill_concurrency,
        )
        gated = any(limits) or bool(settings.swept_limits)
        self.shares = GateShares(lambda worker, share: context.send(share, worker), gated=gated)
        self._context, self._plan = context, plan
        self._store, self._time = context.store, context.time
        self._ramp: gevent.Greenlet | None = None

    @property
    def now(self) -> int | None:
        """None: no gate."""
        return self.shares.limit

    def set_limit(self, limit: int | None) -> None:
        """From now on."""
        self._store.limits.append(
            LimitChange(self._time.now(), limit, label_phase(self._plan.phase))
        )
        self.shares.set_limit(limit)

    def begin(self, s: Settings, *, warm: bool, users: str) -> None:
        """What a phase asks for, at once or as its ramp has it. ``users``: how many there are, in
        words."""
        limit = s.warmup_limit if warm else s.prefill_concurrency
        ramp_s = s.warmup_ramp_s if warm else s.prefill_concurrency_ramp_duration
        name = "Warmup prefill" if warm else "Prefill"
        if limit is None:
            self.set_limit(None)
        elif ramp_s is None or limit == 1:
            logger.info(f"{name} concurrency limited to {limit} (session concurrency: {users})")
            self.set_limit(limit)
        else:
            logger.info(f"{name} concurrency ramping from 1 to {limit} over {ramp_s:g} seconds")
            self._follow(make_limit_ramp(limit, ramp_s))

    def go_on(self, phase: str) -> None:
        """The limit of the phase before, with its ramp, holds in this one too."""
        self._store.limits.append(LimitChange(self._time.now(), self.now, label_phase(phase)))

    def change_limit(self, limit: int | None, ramp_s: float | None, asked: Settings) -> str:
        """By hand: the limit, at once or from where it is in so many seconds. ``asked``: the
        settings of the phase, with the users and processes that there are. What was done; raises
        ValueError of one sentence."""
        before = self.now
        changed = {"prefill_concurrency": limit, "prefill_concurrency_ramp_duration": ramp_s}
        for mistake in validate_settings(msgspec.structs.replace(asked, **changed)):
            raise ValueError(mistake)
        self.stop()
        from_, to = ("no limit" if value is None else str(value) for value in (before, limit))
        over = "" if ramp_s is None else f" over {ramp_s:g} s"
        done = f"prefill limit changed by hand from {from_} to {to}{over}"
        self._store.add_note(
            f"{done}, {self._store.since_start()}, in {label_phase(self._plan.phase)}"
        )
        if limit is None or ramp_s is None:
            self.set_limit(limit)
        else:
            start = max(limit, self._store.run_progress.used) if before is None else before
            self._follow(make_limit_ramp(limit, ramp_s, start))
        return done

    def stop(self) -> None:
        """The ramp goes no further; the limit stays where it is."""
        if self._ramp is not None:
            self._ramp.kill()

    def _follow(self, steps: Iterator[tuple[float, int]]) -> None:
        clock, sleep = self._time.monotonic, self._time.sleep
        self._ramp = self._context.spawn(
            partial(follow_limit_steps, self.set_limit, steps, clock=clock, sleep=sleep)
        )

    # -- the processes -----------------------------------------------------------------------------

    def update(self, worker: str, status: GateStatus) -> None:
        """A process reports on its gate."""
        self.shares.update(worker, status, self._time.monotonic())

    def renew(self, worker: str, at: float, recorded: int = 0) -> None:
        """The answer to its status of that moment of its own clock: for so long it may use its
        share. ``recorded``: see Renewal."""
        context = self._context
        now = self._time.monotonic() + measure_clock_offset_s()
        heard = context.heard_of(worker)
        share = self.shares.share(worker)
        next_s = context.workers.status_s
        context.send(Renewal(share, at, now, heard, recorded, next_s), worker)
