"""Model and tenant mix: the models or the tenants of a run with their weights, and what a tenant's
requests carry."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final

from locust_llm.text.numbers import read_number, truncate_quoted_text

FORMS: Final = {
    "model": "NAME=WEIGHT pairs separated by commas, as in base=60,adapter-a=30,adapter-b=10",
    "tenant": "NAME=WEIGHT pairs separated by commas, as in gold=20,free=80",
}
"""The form of each mix."""
MOST: Final = 100

Model = Callable[[Random], str]
"""Draws one model, or one tenant, by name."""


def parse_weights(text: str, of: str = "model", flag: str = "") -> dict[str, float]:
    """Weights by name, in the order of the text. They are any positive numbers.

    A name ends at the last ``=`` before its comma, so it may hold colons, slashes and equals signs.
    ``of`` is model or tenant, for ``--model-mix`` or ``--tenant-mix``, if no other ``flag`` is
    given. Raises ValueError of one sentence.
    """
    flag = flag or f"--{of}-mix"
    form = FORMS[of]
    weights: dict[str, float] = {}
    for pair in filter(str.strip, text.split(",")):
        name, _, number = (part.strip() for part in pair.rpartition("="))
        if not name:
            raise ValueError(f"{flag} takes {form}, got {truncate_quoted_text(pair.strip())!r}")
        try:
            weight = float(read_number(float, number))
        except ValueError:
            weight = math.nan
        if not 0 < weight <= 1e9:
            raise ValueError(
                f"{flag}: the weight of {truncate_quoted_text(name)!r} must be above 0 and at most "
                f"1e9, got {truncate_quoted_text(number)!r}"
            )
        if name in weights:
            raise ValueError(f"{flag} has the {of} {truncate_quoted_text(name)!r} twice")
        weights[name] = weight
    if not weights:
        raise ValueError(f"{flag} takes {form}, got {text!r}")
    if len(weights) > MOST:
        raise ValueError(f"{flag} takes at most {MOST} {of}s, got {len(weights)}")
    return weights


def parse_shares(text: str, of: str = "model") -> dict[str, float]:
    """Shares of 1 by name. Raises ValueError."""
    weights = parse_weights(text, of)
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()}


def parse_model_mix(text: str, of: str = "model") -> Model:
    """Draws models independently of each other. Raises ValueError."""
    weights = parse_weights(text, of)
    names = list(weights)
    numbers = list(weights.values())
    return lambda random: random.choices(names, numbers)[0]


def format_canonical_mix(text: str) -> str:
    """The same mix of models, always written in the same way. Raises ValueError."""
    return ",".join(f"{name}={weight:.12g}" for name, weight in parse_weights(text).items())


# -- tenants ---------------------------------------------------------------------------------------

FAIRNESS: Final = "x-gateway-inference-fairness-id"
"""The header by which the Gateway API Inference Extension recognises tenants."""
TENANT: Final = re.compile(r"[!-9;-~]{1,128}")
"""A name goes into a header as it is: printable ASCII without blanks and colons."""
_HEADER: Final = re.compile(r"([^:\s]+):([!#$%&'*+.^_`|~0-9A-Za-z-]+)=([\t -~\x80-\xff]*)")
_FRAMING: Final = (
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "x-request-id",
    "upgrade",
)
REDACTED: Final = "***"


def parse_tenant_weights(text: str, flag: str = "") -> dict[str, float]:
    """Weights by name. A header can carry each name. Raises ValueError of one sentence."""
    weights = parse_weights(text, "tenant", flag)
    for name in weights:
        if why := explain_bad_tenant_name(name):
            raise ValueError(f"{flag or '--tenant-mix'}: {why}")
    return weights


def explain_bad_tenant_name(name: str) -> str:
    """Why this cannot be a tenant's name, in words. Empty: it can."""
    if TENANT.fullmatch(name):
        return ""
    return (
        f"the name {truncate_quoted_text(name)!r} goes into a header, so it must have at most "
        f"128 ASCII characters without spaces and colons"
    )


def parse_tenant_headers(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Headers by tenant and name, from ``gold:NAME=VALUE``. Raises ValueError of one sentence,
    which quotes no value."""
    headers: dict[str, dict[str, str]] = {}
    for text in texts:
        if not (match := _HEADER.fullmatch(text)):
            before = text.partition("=")[0]
            raise ValueError(
                f"--tenant-header takes TENANT:NAME=VALUE on one line, got "
                f"{truncate_quoted_text(before)!r} before its ="
            )
        tenant = match[1]
        name = match[2]
        value = match[3].strip()
        if name.lower() in _FRAMING:
            raise ValueError(
                f"--tenant-header {tenant}:{name}: the load generator sets this header itself"
            )
        own = headers.setdefault(tenant, {})
        if name.lower() in map(str.lower, own):
            raise ValueError(f"--tenant-header has {name} of the tenant {tenant!r} twice")
        own[name] = value
    return headers


def hide_header_value(text: str) -> str:
    """A ``--tenant-header`` without its value."""
    name, equals, value = text.partition("=")
    return f"{name}={REDACTED}" if equals and value else text


def parse_tenant_priorities(text: str) -> dict[str, int]:
    """Priorities by tenant: whole numbers, in vLLM the lower the sooner. Raises ValueError of one
    sentence."""
    priorities: dict[str, int] = {}
    for pair in filter(str.strip, text.split(",")):
        name, _, number = (part.strip() for part in pair.rpartition("="))
        if not name or not re.fullmatch(r"-?[0-9]{1,9}", number):
            got = truncate_quoted_text(pair.strip())
            raise ValueError(
                f"--tenant-priority takes NAME=WHOLE NUMBER pairs, as in gold=0,free=10, got "
                f"{got!r}"
            )
        if name in priorities:
            raise ValueError(
                f"--tenant-priority has the tenant {truncate_quoted_text(name)!r} twice"
            )
        priorities[name] = int(number)
    if not priorities:
        raise ValueError(
            f"--tenant-priority takes NAME=WHOLE NUMBER pairs, as in gold=0,free=10, got {text!r}"
        )
    return priorities


class TenantDealer:
    """Deals tenants to the users of a closed loop, always the one furthest below its share. The
    counts are within one of their shares at any number of users."""

    def __init__(self, shares: Mapping[str, float], before: int = 0) -> None:
        """``before``: so many users of other processes have tenants, dealt in the same way."""
        self._shares = shares
        self._counts = Counter[str]()
        self._of: dict[int, str] = {}
        for _ in range(before):
            self._counts[self._next()] += 1

    def of(self, user: int) -> str:
        """The tenant of this user, which keeps it."""
        if user not in self._of:
            self._of[user] = self._next()
            self._counts[self._of[user]] += 1
        return self._of[user]

    def leave(self, user: int) -> None:
        """The user is gone: another one gets its tenant."""
        if (name := self._of.pop(user, None)) is not None:
            self._counts[name] -= 1

    def _next(self) -> str:
        whole = self._counts.total() + 1
        return max(self._shares, key=lambda name: self._shares[name] * whole - self._counts[name])
