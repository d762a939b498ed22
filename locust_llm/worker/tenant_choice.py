"""Tenant choice: the tenant of the next session, and what each tenant's requests carry in headers
and body."""

from collections.abc import Mapping
from random import Random

from gevent.event import Event

from locust_llm.settings.ab_arms import BASE, TrialBlock
from locust_llm.settings.run_options import Settings
from locust_llm.worker.ab_targets import VariantTarget
from locust_llm.workload.model_and_tenant_mix import (
    FAIRNESS,
    TenantDealer,
    explain_bad_tenant_name,
    parse_model_mix,
    parse_shares,
    parse_tenant_priorities,
)


class TenantAssigner:
    """The tenants of one process. Each scheduled arrival has its tenant drawn. In a closed loop
    each tenant gets its share of the users. Every request has the header with its tenant's name."""

    def __init__(
        self,
        settings: Settings | None = None,
        headers: Mapping[str, Mapping[str, str]] | None = None,
        worker: int = 0,
    ) -> None:
        """``headers`` has more headers by tenant. One may replace the usual header."""
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
        self._dealt: TenantDealer | None = None
        if s.tenant_mix and not s.open_loop:
            before = worker * (s.max_users_asked or 1) // max(1, s.processes)
            self._dealt = TenantDealer(parse_shares(s.tenant_mix, "tenant"), before)

    def begin_block(self, block: TrialBlock, seed: str) -> None:
        """Draw tenants from this seed from now on."""
        self._block = block
        self._random = Random(f"{seed}/tenants")
        self.close()
        self._over = Event()

    def of(self, user: int, session: str = "") -> str:
        """The tenant of this user's next session. The same ``session`` name always gives the same
        tenant. Empty: there is no mix."""
        if self._dealt is not None:
            return self._dealt.of(user)
        if self._draw is None:
            return ""
        return self._draw(Random(f"{self._seed}/tenants/{session}") if session else self._random)

    def alone(self, block: TrialBlock | None) -> str:
        """The only tenant whose requests are sent in this block. Empty: there is none."""
        return self._isolate if block is not None and block.arm == BASE else ""

    def wait(self, block: TrialBlock | None) -> None:
        """Wait until this block is over, as another tenant is alone in it."""
        if block == self._block:
            self._over.wait()

    def close(self) -> None:
        """Wake whoever waits."""
        self._over.set()

    def leave(self, user: int) -> None:
        """The user is gone: another one gets its tenant."""
        if self._dealt is not None:
            self._dealt.leave(user)

    def side(self, side: VariantTarget, name: str) -> VariantTarget:
        """``side`` with what this tenant's requests carry; unchanged without a name. Raises
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
        """The given header values, by tenant and header."""
        values: dict[str, str] = {}
        for tenant, headers in self._headers.items():
            values.update({f"{tenant} {name}": value for name, value in headers.items()})
        return values
