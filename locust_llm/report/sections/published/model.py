"""Validity: whether a run counts by the published rules of its scenario. It changes no verdict of the SLO."""

import msgspec


class PublishedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One of the rules, over all points."""

    rule: str
    """loop, streaming, duration, requests, warmup, dataset, samples, client, options, points, levels, regions or plateau."""
    met: bool
    text: str
    """What was found; of one that is not met what the rules ask beside it: ``300 s, the rules ask 1,200 at 64 users``."""
    others: int = 0
    """Further points that do not meet it."""


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """Of a curve, or of one point."""

    rules: str
    """Name and version."""
    curve: bool
    """False: one point, of which rules about a curve say nothing."""
    checks: tuple[PublishedCheck, ...]
    note: str = ""
    """What a run that keeps them is not."""
    unchecked: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[PublishedCheck, ...]:
        return tuple(check for check in self.checks if not check.met)

    @property
    def valid(self) -> bool:
        """By the rules that are checked."""
        return not self.broken
