"""Fault trials: plants each fault in the upstream and sends it to a client, directly and through the
gateway."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, count, product
from typing import Final, NamedTuple

import gevent

from .gateway_client import GatewayAddress
from .hidden_failures import STREAMED, WHOLE, FaultVerdict, Sighting, judge_fault
from .trial_request import (
    Trial,
    TrialAnswer,
    add_requests,
    send_trial,
    send_trials,
)
from .upstream_log import ReadLog
from .upstream_script import FAULTS, UpstreamScript

OF_VECTORS: Final = ("fewer_vectors",)
"""These are of embeddings, and not of chat completions."""
TRIALS: Final = 3
TOKENS: Final = 8
AFTER: Final = 3
"""A failure in the middle comes after so many words."""
HEALING: Final = ("http_429", "http_500", "close_unanswered", "close_midstream")
"""These come once more, at the first arrival of a request only: a gateway that sends it again gets
a good answer."""


SILENCE_S: Final = 2.0
WARM_UP: Final = 5
PATIENCE: Final = 5.0
SLOWEST_S: Final = 20.0
"""The patience of a client: so many times the slowest of so many good answers, within these
bounds."""
BLOCKED_S: Final = 15.0
ASK_AGAIN_S: Final = 0.2


class PlannedFault(NamedTuple):
    """A fault in one of its forms."""

    fault: str
    mode: str
    heals: bool

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.mode}{'-once' if self.heals else ''}"

    def make_trial(self, place: str, number: int, run: str, silence_s: float = SILENCE_S) -> Trial:
        """``place`` and ``run`` make its id one of its own."""
        script = UpstreamScript(
            id=f"{run}-{self.name}-{place}-{number}",
            ttft_ms=5,
            gap_ms=5,
            tokens=TOKENS,
            fault=self.fault,
            after=AFTER,
            fault_arrivals=int(self.heals),
        )
        return Trial(script, streamed=self.mode == STREAMED, silence_s=silence_s)


def list_planned_faults() -> Iterator[PlannedFault]:
    """Every fault in each form that it has."""
    for name, fault in FAULTS.items():
        if name in OF_VECTORS:
            continue
        if fault.streamed:
            yield PlannedFault(name, STREAMED, heals=False)
        if fault.whole:
            yield PlannedFault(name, WHOLE, heals=False)
    for name in HEALING:
        yield PlannedFault(name, STREAMED, heals=True)


def run_fault_trials(
    direct: GatewayAddress,
    through: GatewayAddress,
    read_log: ReadLog,
    run: str,
    planned: Sequence[PlannedFault] | None = None,
    trials: int = TRIALS,
) -> tuple[FaultVerdict, ...]:
    """The verdict on each fault. ``run`` is a text that no other trials of this upstream have.

    Behind each fault, the gateway must answer a good request before the next fault comes: else one
    fault would be blamed for another. The faults behind one that it never recovers from are left
    out.
    """
    faults = list(list_planned_faults()) if planned is None else planned
    alone = _see_directly(direct, faults, read_log, run, trials)
    silence_s = find_patience_s(through, run)
    answers = list[list[TrialAnswer]]()
    blocked = list[float | None]()
    for fault in faults:
        sent = [fault.make_trial("through", number, run, silence_s) for number in range(trials)]
        answers.append(send_trials(through, sent))
        blocked.append(_wait_until_good(through, f"{run}-{fault.name}-good", silence_s))
        if blocked[-1] is None:
            break
    behind = _split(add_requests(list(chain.from_iterable(answers)), read_log), trials)
    return tuple(
        judge_fault(fault.fault, fault.mode, own, seen, heals=fault.heals, blocked_s=blocked_s)
        for fault, own, seen, blocked_s in zip(faults, alone, behind, blocked, strict=False)
    )


def _see_directly(
    address: GatewayAddress,
    faults: Sequence[PlannedFault],
    read_log: ReadLog,
    run: str,
    trials: int,
) -> list[list[Sighting]]:
    sent = [
        fault.make_trial("direct", number, run) for fault, number in product(faults, range(trials))
    ]
    return _split(add_requests(send_trials(address, sent), read_log), trials)


def _split(sightings: Sequence[Sighting], size: int) -> list[list[Sighting]]:
    return [list(sightings[at : at + size]) for at in range(0, len(sightings), size)]


def find_patience_s(address: GatewayAddress, run: str) -> float:
    """How long a client waits for a sign of life: several times what good answers take."""
    longest_s = 0.0
    for number in range(WARM_UP):
        began_at = time.monotonic()
        send_trial(address, _make_good_trial(f"{run}-patience-{number}", SLOWEST_S))
        longest_s = max(longest_s, time.monotonic() - began_at)
    return min(SLOWEST_S, max(SILENCE_S, PATIENCE * longest_s))


def _wait_until_good(address: GatewayAddress, run: str, silence_s: float) -> float | None:
    """The seconds until a good request is answered; 0: at once. None: it is not within
    BLOCKED_S."""
    began_at = time.monotonic()
    for number in count():
        answer = send_trial(address, _make_good_trial(f"{run}-{number}", silence_s))
        since_s = time.monotonic() - began_at
        if not answer.sighting.failed:
            return round(since_s, 3) if number else 0.0
        if since_s > BLOCKED_S:
            return None
        gevent.sleep(ASK_AGAIN_S)
    raise AssertionError


def _make_good_trial(identity: str, silence_s: float) -> Trial:
    script = UpstreamScript(id=identity, ttft_ms=1, gap_ms=1, tokens=2)
    return Trial(script, silence_s=silence_s)
