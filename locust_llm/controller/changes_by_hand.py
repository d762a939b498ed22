"""Changes by hand: the prefill limit, the request rate and the users, changed on the live page
while requests are sent."""

import msgspec

from locust_llm.records.phase_plan import BETWEEN, OVER, PROFILING
from locust_llm.records.run_facts import RateChange
from locust_llm.settings.settings_validation import validate_settings

from .phases import PhaseRunner
from .run_context import RunContext
from .shutdown import Shutdown
from .user_count import UserPool


class ChangesByHand:
    def __init__(
        self, context: RunContext, phases: PhaseRunner, users: UserPool, shutdown: Shutdown
    ) -> None:
        self._context, self._phases, self._users = context, phases, users
        self._shutdown = shutdown
        self._settings, self._store = context.settings, context.store

    def change_limit(self, limit: int | None, ramp_s: float | None = None) -> str:
        """Change the limit by hand while requests are sent, at once or over ``ramp_s``. Returns
        what was done. Raises ValueError of one sentence."""
        if (
            self._shutdown.begun
            or self._store.draining
            or self._phases.allocator.paused
            or self._phases.plan.phase in (BETWEEN, OVER)
        ):
            raise ValueError("no requests are being sent now: the prefill limit cannot be changed")
        if self.sets_limits:
            raise ValueError("this run sets the prefill limit itself, block by block")
        runner = self._context.runner
        assert runner is not None
        users = (
            None
            if self._users.grows
            else max(runner.target_user_count, self._phases.asked.users or 0)
        )
        processes = max(1, len(self._context.workers.active()))
        return self._phases.limit.change_limit(
            limit,
            ramp_s,
            msgspec.structs.replace(self._phases.asked, users=users, processes=processes),
        )

    @property
    def rate(self) -> float | None:
        """The requests per second of a steady schedule, as it is now. None: there is none."""
        s = self._settings
        varies = (
            s.request_rate_series or s.request_rate_ramp_duration or self._phases.stages is not None
        )
        other = s.fixed_schedule or s.user_centric_rate or self.sets_limits
        if s.request_rate is None or varies or other:
            return None
        return s.request_rate * self._phases.allocator.rate_factor.value

    def change_rate(self, per_s: float) -> str:
        """Change the request rate by hand while requests are sent. Arrivals of the next second, and
        the first one after it, keep their times. Returns what was done. Raises ValueError of one
        sentence."""
        before, asked = self.rate, self._settings.request_rate
        if before is None or asked is None:
            raise ValueError("this run has no constant request rate to change")
        if self._shutdown.begun or self._store.draining or self._phases.plan.phase != PROFILING:
            raise ValueError("the request rate can be changed in the profiling phase only")
        for mistake in validate_settings(
            msgspec.structs.replace(self._settings, request_rate=per_s)
        ):
            raise ValueError(mistake)
        self._phases.allocator.rate_factor.value = per_s / asked
        self._store.rates.append(RateChange(self._context.time.now(), per_s))
        done = f"request rate changed by hand from {before:g}/s to {per_s:g}/s"
        self._store.add_note(f"{done}, {self._store.since_start()}")
        return done

    @property
    def users_follow_load(self) -> bool:
        """Nobody can change the number of users by hand."""
        return self._users.grows or self._phases.stages is not None

    @property
    def sets_limits(self) -> bool:
        """The run sets the prefill limit itself, and nobody can change it by hand."""
        return bool(self._settings.swept_limits or self._settings.compares)

    def change_users(self, users: int) -> bool:
        """Change the users by hand while requests are sent. False: their number follows from the
        load. Raises ValueError."""
        if self.users_follow_load or self._phases.allocator.paused:
            return False
        limit = self._phases.limit.now
        for mistake in validate_settings(
            msgspec.structs.replace(self._phases.asked, users=users, prefill_concurrency=limit)
        ):
            raise ValueError(mistake)
        self._store.add_note(
            f"users changed by hand from {self._users.count} to {users}, {self._store.since_start()}"
        )
        self._users.count = users
        return True
