"""Examination: what a probe amounts to, as frozen data: its symptoms, the scheduler that they name, and advice."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from .advice import Advice, advice
from .diagnosis import CANNOT_TELL, FAILED, Diagnosis, diagnose
from .shots import Seen
from .slo import goodput, parse
from .symptoms import Symptoms, symptoms
from .verdict import OK

NAMED: Final = "named"
UNTOLD: Final = "untold"
BROKEN: Final = "broken"
"""What a probe came to: nothing can be told as the server failed."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    symptoms: Symptoms
    diagnosis: Diagnosis
    advice: tuple[Advice, ...] = ()
    outcome: str = UNTOLD
    """``named``, ``untold`` or ``broken``."""


def examine(shots: Sequence[Seen], client: str | None = None, itl_target_s: float | None = None) -> Examination:
    """``client``: the client verdict; below OK nothing is advised, as every figure may be the client's doing."""
    found = symptoms(shots)
    named = diagnose(found, client)
    said = advice(found, named, itl_target_s) if client in (None, OK) else ()
    broken = found.failed > FAILED * found.shots
    outcome = NAMED if named.name != CANNOT_TELL else BROKEN if broken else UNTOLD
    return Examination(symptoms=found, diagnosis=named, advice=said, outcome=outcome)


def wanted_itl_s(slo: Iterable[str], good: str | None) -> float | None:
    """The gap between tokens that somebody wants: the least limit that rules or ``--goodput`` give to ITL."""
    limits = []
    for text in slo:
        with suppress(ValueError):  # the report says what is wrong with it
            rule = parse(text)
            limits += [one.limit for one in rule.given if one.metric == "itl"]
            if rule.metric == "itl" and rule.op[0] == "<":
                limits.append(rule.limit)
    with suppress(ValueError):
        limits += [one.limit for one in (goodput(good) if good else ()) if one.metric == "itl"]
    return min(limits, default=None)
