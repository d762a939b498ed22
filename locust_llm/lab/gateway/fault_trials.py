"""Fault trials: plants each fault in the upstream and sends it to a client, directly and through the
gateway."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from .hidden_failures import STREAMED, WHOLE, FaultVerdict, Sighting, judge_fault
from .trial_request import Trial, TrialAddress, add_requests, send_trials
from .upstream_log import UpstreamRequest
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


class PlannedFault(NamedTuple):
    """A fault in one of its forms."""

    fault: str
    mode: str
    heals: bool

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.mode}{'-once' if self.heals else ''}"

    def make_trial(self, place: str, number: int, run: str) -> Trial:
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
        return Trial(script, streamed=self.mode == STREAMED)


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
    direct: TrialAddress,
    through: TrialAddress,
    read_log: Callable[[], Sequence[UpstreamRequest]],
    run: str,
    planned: Sequence[PlannedFault] | None = None,
    trials: int = TRIALS,
) -> tuple[FaultVerdict, ...]:
    """The verdict on each fault. ``run`` is a text that no other trials of this upstream have."""
    faults = list(list_planned_faults()) if planned is None else planned
    seen = [
        _see_faults(address, place, faults, read_log, run, trials)
        for place, address in (("direct", direct), ("through", through))
    ]
    return tuple(
        judge_fault(fault.fault, fault.mode, alone, behind, heals=fault.heals)
        for fault, alone, behind in zip(faults, *seen, strict=True)
    )


def _see_faults(
    address: TrialAddress,
    place: str,
    faults: Sequence[PlannedFault],
    read_log: Callable[[], Sequence[UpstreamRequest]],
    run: str,
    trials: int,
) -> list[list[Sighting]]:
    """What the clients saw of each fault."""
    sent = chain.from_iterable(
        (fault.make_trial(place, number, run) for number in range(trials)) for fault in faults
    )
    sightings = add_requests(send_trials(address, list(sent)), read_log)
    return [sightings[at : at + trials] for at in range(0, len(sightings), trials)]
