"""Best points: the loads of a sweep by what the server and one user get, and which of them no other
load beats."""

from collections.abc import Iterable, Sequence

import msgspec

from locust_llm.slo.rules import STAGES, Rule


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    value: float
    """The value that the sweep changes. For a single run it is its users, for an open loop its
    rate."""
    per_user: float
    """The tokens per second of one user: 1000 / a percentile of TPOT in ms."""
    per_gpu: float
    """The server's output tokens per second and GPU. If the number of GPUs is unknown, those of the
    whole server."""
    ttft_ms: float | None = None
    """The same percentile of TTFT, in ms."""
    requests: int = 0
    slo_status: str | None = None
    client: str | None = None
    silence: str = ""
    """A long time without tokens, such as ``no token came from 9.7 to 15.7 s``. Empty: there was
    none."""
    joules_per_output_token: float | None = None
    best: bool = False
    """No other point of the curve is as good in both values and better in one."""

    @property
    def sound(self) -> bool:
        """Conclusions may use it."""
        return self.client in (None, "OK") and not self.silence


class PaceLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens per second of one user that a rule on ITL requires."""

    rule: str
    per_user: float
    """The fewest tokens per second. The rule may use another percentile than the points."""


def mark_best_points(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The same points, with ``best`` set for each sound one that no other beats. A point beats
    another if it has as much of both and more of one."""

    sound = [point for point in points if point.sound]

    def is_beaten(point: CurvePoint) -> bool:
        return any(_beats(other, point) for other in sound)

    return tuple(
        msgspec.structs.replace(point, best=point.sound and not is_beaten(point))
        for point in points
    )


def _beats(point: CurvePoint, other: CurvePoint) -> bool:
    as_much = point.per_user >= other.per_user and point.per_gpu >= other.per_gpu
    return as_much and (point.per_user, point.per_gpu) != (other.per_user, other.per_gpu)


def find_pace_limits(rules: Iterable[Rule]) -> tuple[PaceLimit, ...]:
    """The paces of the rules on ITL for all requests: at most 50 ms a token are 20 tokens a second
    at least."""
    limits = list[PaceLimit]()
    for rule in rules:
        of_all_requests = not rule.base and all(key in STAGES for key, _ in rule.where)
        at_most = rule.metric == "itl" and rule.op.startswith("<") and rule.limit > 0
        if at_most and of_all_requests:
            limits.append(PaceLimit(rule=str(rule), per_user=1 / rule.limit))
    return tuple(limits)
