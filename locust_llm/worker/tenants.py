"""Tenants: whose the next session is, and what the requests of each tenant carry, in headers and in
the body."""

from collections.abc import Mapping
from random import Random

from gevent.event import Event

from locust_llm.settings.ab import BASE, TrialBlock
from locust_llm.settings.settings import Settings
from locust_llm.worker.targets import VariantTarget
from locust_llm.workload.mix import (
    FAIRNESS,
    TenantDealer,
    explain_bad_tenant_name,
    parse_model_mix,
    parse_shares,
    parse_tenant_priorities,
)


class TenantAssigner:
    """Of one process. Of arrivals by a schedule each has its tenant drawn; in a closed loop the
    users are dealt out, so that each tenant has as many as its share. Every request has the header
    of its tenant's name."""

    def __init__(
        self,
        settings: Settings | None = None,
        headers: Mapping[str, Mapping[str, str]] | None = None,
        worker: int = 0,
    ) -> None:
        """``headers``: more of them, by tenant; one may take the place of the usual one."""
        s = settings or Settings()
        self._headers = headers or {}
        self._isolate = s.isolate or ""
        self._priorities: Mapping[str, int] = (
            parse_tenant_priorities(s.tenant_priority) if s.tenant_priority else {}
        )
        self._draw = (
            parse_model_mix(s.tenant_mix, "tenant") if s.tenant_mix and s.open_loop else None
        )
        self._seed = Random().getrandbits(64) if s.random_seed is None else s.random_seed
        self._random = Random(f"{self._seed}/{worker}/tenants")
        self._block: TrialBlock | None = None
        self._over = Event()
        """The block is over, or the run."""
        self._dealt: TenantDealer | None = None
        if s.tenant_mix and not s.open_loop:
            before = worker * (s.max_users_asked or 1) // max(1, s.processes)
            self._dealt = TenantDealer(parse_shares(s.tenant_mix, "tenant"), before)

    def begin_block(self, block: TrialBlock, seed: str) -> None:
        """Draws tenants from this seed from now on."""
        self._block = block
        self._random = Random(f"{seed}/tenants")
        self.close()
        self._over = Event()

    def of(self, user: int, session: str = "") -> str:
        """That of the next session of this user. ``session``: by its name each time the same.
        Empty: there is no mix."""
        if self._dealt is not None:
            return self._dealt.of(user)
        if self._draw is None:
            return ""
        return self._draw(Random(f"{self._seed}/tenants/{session}") if session else self._random)

    def alone(self, block: TrialBlock | None) -> str:
        """The only tenant whose requests are sent in this block; empty: there is no such."""
        return self._isolate if block is not None and block.arm == BASE else ""

    def wait(self, block: TrialBlock | None) -> None:
        """Until this block is over: another tenant is alone in it."""
        if block == self._block:
            self._over.wait()

    def close(self) -> None:
        """Whoever waits goes on."""
        self._over.set()

    def leave(self, user: int) -> None:
        """This user is gone: another gets its tenant."""
        if self._dealt is not None:
            self._dealt.leave(user)

    def side(self, side: VariantTarget, name: str) -> VariantTarget:
        """The same, with what the requests of this tenant carry; without a name as it is. Raises
        ValueError for a name that no header can carry."""
        if not name:
            return side
        if why := explain_bad_tenant_name(name):
            raise ValueError(why)
        own = self._headers.get(name, {})
        named = {} if FAIRNESS in map(str.lower, own) else {FAIRNESS: name}
        body = (
            {**side.body, "priority": self._priorities[name]}
            if name in self._priorities
            else side.body
        )
        return side._replace(headers={**side.headers, **named, **own}, body=body)

    @property
    def secrets(self) -> dict[str, str]:
        """The values that were given, by tenant and header."""
        values: dict[str, str] = {}
        for tenant, headers in self._headers.items():
            values.update({f"{tenant} {name}": value for name, value in headers.items()})
        return values
