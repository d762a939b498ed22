"""Best points: the loads of a sweep by what the server and one user get, and which of them no other
load beats."""

from collections.abc import Iterable, Sequence

import msgspec

from locust_llm.slo.rules import STAGES, Rule


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A load level."""

    value: float
    """Of what the sweep changes; of a run by itself its users, of an open loop its rate."""
    per_user: float
    """1000 / a percentile of TPOT in ms: tokens a second of one user. Of the median it is the
    median per user."""
    per_gpu: float
    """Output tokens a second of the server, over its GPUs; of the whole server where nobody said
    how many it has."""
    ttft_ms: float | None = None
    """The same percentile."""
    requests: int = 0
    slo_status: str | None = None
    client: str | None = None
    joules_per_output_token: float | None = None
    best: bool = False
    """No other of its curve has as much of both and more of one."""

    @property
    def sound(self) -> bool:
        """Conclusions may use it."""
        return self.client in (None, "OK")


class PaceLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule on ITL asks of a user's pace."""

    rule: str
    per_user: float
    """Tokens a second at least; of another percentile than that of the points it is a line beside
    them."""


def mark_best_points(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The same points; ``best`` is set of each sound one that no other beats: none has as much of
    both and more of one."""

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
    """Of the rules on ITL that hold for all requests: at most 50 ms a token are 20 tokens a second
    at least."""
    limits = list[PaceLimit]()
    for rule in rules:
        of_all_requests = not rule.base and all(key in STAGES for key, _ in rule.where)
        at_most = rule.metric == "itl" and rule.op.startswith("<") and rule.limit > 0
        if at_most and of_all_requests:
            limits.append(PaceLimit(rule=str(rule), per_user=1 / rule.limit))
    return tuple(limits)
