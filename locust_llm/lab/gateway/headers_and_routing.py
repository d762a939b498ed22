"""Headers and routing: which headers pass the gateway in both directions, how sessions spread over
replicas, and what the death of a replica does. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from typing import Final

import msgspec

from locust_llm.text.hide_secrets import is_secret

from .hidden_failures import Sighting, describe_sighting

PASSED: Final = "passed"
CHANGED: Final = "changed"
DROPPED: Final = "dropped"
ADDED: Final = "added"
TO_UPSTREAM: Final = "to the upstream"
TO_CLIENT: Final = "to the client"
OF_CONNECTION: Final = (
    "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade",
    "host", "date",
)  # fmt: skip
"""Each hop has its own."""
Headers = Sequence[tuple[str, str]]


class HeaderPassage(msgspec.Struct, frozen=True, kw_only=True):
    """One header on its way through the gateway."""

    direction: str
    """TO_UPSTREAM or TO_CLIENT."""
    name: str
    verdict: str
    value: str = ""
    """What arrived, of a header that was added or changed."""
    secret: bool = False
    """It carries the bench's own secret, which a user's key would be."""


def compare_headers(sent: Headers, came: Headers, direction: str) -> list[HeaderPassage]:
    """The passage of each header except those of a connection, in the order of their names."""
    before = _join(sent)
    after = _join(came)
    passages = list[HeaderPassage]()
    for name in sorted(before.keys() | after.keys()):
        passages.append(
            HeaderPassage(
                direction=direction,
                name=name,
                verdict=_judge(before.get(name), after.get(name)),
                value="" if before.get(name) == after.get(name) else after.get(name, ""),
                secret=is_secret(name) and name in before,
            )
        )
    return passages


def _join(headers: Headers) -> dict[str, str]:
    """By lower-case name; the values of a name that comes twice are joined, as HTTP allows."""
    joined = dict[str, str]()
    for name, value in headers:
        lower = name.lower()
        if lower not in OF_CONNECTION:
            joined[lower] = f"{joined[lower]}, {value}" if lower in joined else value
    return joined


def _judge(sent: str | None, came: str | None) -> str:
    if sent is None:
        return ADDED
    if came is None:
        return DROPPED
    return PASSED if sent == came else CHANGED


class SessionSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of sessions spread over the replicas."""

    by: str
    """The header or field that names the session; empty: connections of their own."""
    replicas: tuple[int, ...]
    """The number of requests of each replica."""
    sessions: int
    sticky: float
    """The share of the requests that went to the replica that had most of their session."""
    expected: float
    """The same share if each request went to a replica by chance."""


def measure_spread(
    by: str, replica_of: Mapping[str, Sequence[int]], count: int
) -> SessionSpread | None:
    """``replica_of``: the replicas of a session's requests in their order. ``count``: of replicas.
    None: no request of any session was answered."""
    answered = [replicas for replicas in replica_of.values() if replicas]
    if not answered:
        return None
    requests = Counter[int]()
    at_main = total = 0
    expected = 0.0
    for replicas in answered:
        counts = Counter(replicas)
        requests += counts
        at_main += max(counts.values())
        total += len(replicas)
        expected += expect_largest_count(len(replicas), count)
    return SessionSpread(
        by=by,
        replicas=tuple(requests[replica] for replica in range(count)),
        sessions=len(answered),
        sticky=round(at_main / total, 4),
        expected=round(expected / total, 4),
    )


def expect_largest_count(balls: int, bins: int) -> float:
    """The mean of the largest of ``bins`` counts when each of ``balls`` falls into one by chance."""
    below = 0.0
    mean = 0.0
    for most in range(1, balls + 1):
        within = _chance_all_at_most(most, balls, bins)
        mean += most * (within - below)
        below = within
    return mean


def _chance_all_at_most(most: int, balls: int, bins: int) -> float:
    # the chance that so many of the balls are in the bins so far, and none of these holds too many
    chances = [1.0] + [0.0] * balls
    left = bins
    while left:
        share = 1.0 / left
        following = [0.0] * (balls + 1)
        for placed, chance in enumerate(chances):
            rest = balls - placed
            for taken in range(min(most, rest) + 1):
                following[placed + taken] += chance * _binomial(rest, taken, share)
        chances = following
        left -= 1
    return chances[balls]


def _binomial(of: int, taken: int, share: float) -> float:
    return float(comb(of, taken) * share**taken * (1.0 - share) ** (of - taken))


class ReplicaDeath(msgspec.Struct, frozen=True, kw_only=True):
    """What clients saw when one replica was killed."""

    open_streams: int
    """So many streams were open at the replica that died."""
    seen: tuple[tuple[str, int], ...]
    """What the clients of these streams saw, and how many, the most frequent first."""
    sent_again: int
    """So many of these requests reached another replica."""
    after: int
    """So many requests were sent after the death."""
    after_failed: int
    recovered_s: float | None
    """From the death until the last failure after it. None: the requests still failed at the
    end."""


def summarise_death(
    streams: Sequence[Sighting], later: Sequence[tuple[float, Sighting]]
) -> ReplicaDeath:
    """``streams``: those open at the replica that died. ``later``: each request after the death, with
    the seconds since, in order."""
    seen = Counter(map(describe_sighting, streams))
    failed = [at for at, sighting in later if sighting.failed]
    still_fails = bool(later) and later[-1][1].failed
    last_failure_s = failed[-1] if failed else 0.0
    return ReplicaDeath(
        open_streams=len(streams),
        seen=tuple(seen.most_common()),
        sent_again=sum(sighting.requests > 1 for sighting in streams),
        after=len(later),
        after_failed=len(failed),
        recovered_s=None if still_fails else round(last_failure_s, 3),
    )
