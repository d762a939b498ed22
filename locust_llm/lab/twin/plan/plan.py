"""Plan: a plan from a twin: what one replica holds, how many there are to be, what they cost, when
to change them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from locust_llm.lab.twin.fit import MAX_ERROR
from locust_llm.lab.twin.model import FIGURES, Twin
from locust_llm.lab.twin.observations import IN_FLIGHT
from locust_llm.lab.twin.predict import PredictedValue, WhatIf
from locust_llm.lab.twin.replay import Lengths, OfferedLoad
from locust_llm.lab.twin.whatif.evaluate_rules import MET, status
from locust_llm.lab.twin.whatif.grid import Case
from locust_llm.lab.twin.whatif.rows import Asker, WhatIfRow
from locust_llm.slo.grammar import Rule

from .arrivals import PlannedArrivals
from .cost import PlanCost, cost
from .replicas import ROUNDS, Fleet, fleet, most

SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the rate at which a server falls behind, for the shape of a load."""
ASKED: Final = 2 * sum(ROUNDS)
"""Rates, about."""
Progress = Callable[[int], None]


class CapacityPlan(NamedTuple):
    twin: Twin
    name: str
    workload: str
    lengths: Lengths
    rules: tuple[Rule, ...]
    arrivals: PlannedArrivals
    only_shape: str
    """Why there is no number of replicas; empty: there is."""
    fleet: Fleet | None = None
    """None: only a shape, or no number of replicas holds the rules."""
    by_middle: Fleet | None = None
    """By the middle of the answers instead of their intervals."""
    rows: tuple[WhatIfRow, ...] = ()
    """Of one replica: with one fewer that works, with those that work, with all; or of a shape."""
    limited: str = ""
    """Why a replica is not given more: it would be an extrapolation. Empty: the rules are why."""
    add_in_flight: float = 0.0
    remove_in_flight: float = 0.0
    """Requests open at once in each replica, at the rates at which one is added and removed."""
    cost: PlanCost | None = None


def only_shape(twin: Twin) -> str:
    """Why a twin is not good enough for a number of replicas, one sentence; empty: it is."""
    trust = twin.trust
    if trust.verdict != FIGURES:
        why = "; ".join(trust.reasons) or "its file gives no reason"
        return (
            f"This twin is good for shape, not for figures ({why}), so no number of replicas is "
            f"given."
        )
    if trust.error is None or trust.error > MAX_ERROR:
        said = "was not measured" if trust.error is None else f"is {trust.error:.0%}"
        return (
            f"The error of this twin on loads kept out of its fit {said}, and a number of replicas "
            f"needs {MAX_ERROR:.0%} or "
            "less, so none is given."
        )
    return ""


def plan_capacity(
    asker: Asker, name: str, workload: str, arrivals: PlannedArrivals, gpus_per_replica: int = 1,
    gpu_hour: float | None = None,
    on_progress: Progress = lambda asked: None, processes: int = 0,
) -> CapacityPlan:  # fmt: skip
    """Requests are spread evenly over the replicas, each of which then has arrivals by chance
    (Poisson)."""
    asked = _Rates(asker, on_progress, processes)
    begun = CapacityPlan(
        asker.twin,
        name,
        workload,
        asker.lengths,
        tuple(asker.rules),
        arrivals,
        only_shape(asker.twin),
    )
    if begun.only_shape:
        falls = most(lambda rates: [not row.falls_behind for row in asked(rates)], arrivals.peak)
        return begun._replace(
            rows=tuple(asked([share * falls for share in SHARES])) if falls else ()
        )
    per_replica = most(lambda rates: [_holds(row) for row in asked(rates)], arrivals.peak)
    if not per_replica:
        return begun._replace(rows=tuple(asked([1e-3 * arrivals.peak])))
    found = fleet(per_replica, arrivals.peak)
    middle = most(
        lambda rates: [_holds_by_middle(row, asker.rules) for row in asked(rates)], arrivals.peak
    )
    working = sorted({max(1, found.working - 1), found.working, found.replicas})
    rows = asked([arrivals.peak / count for count in working])
    add, remove = asked([found.add_above, found.remove_below or found.add_above])
    return begun._replace(
        fleet=found, by_middle=fleet(middle, arrivals.peak) if middle else None, rows=tuple(rows),
        limited=next(_limited(asked, per_replica), ""), add_in_flight=add.answers[IN_FLIGHT].about,
        remove_in_flight=remove.answers[IN_FLIGHT].about if found.remove_below else 0.0,
        cost=None if gpu_hour is None else cost(found, arrivals, asker.lengths, gpus_per_replica,
            gpu_hour),
    )  # fmt: skip


class _Rates:
    """Rows of one replica at rates, each asked once."""

    def __init__(self, asker: Asker, on_progress: Progress, processes: int) -> None:
        self.asker, self.on_progress, self.processes = asker, on_progress, processes
        self.known: dict[float, WhatIfRow] = {}

    def __call__(self, rates: Sequence[float]) -> list[WhatIfRow]:
        new = [rate for rate in dict.fromkeys(rates) if rate not in self.known]
        begun = len(self.known)
        cases = [Case(WhatIf(OfferedLoad(rate=rate)), ()) for rate in new]
        rows = self.asker.rows(
            cases, lambda done, _: self.on_progress(begun + done), self.processes
        )
        self.known |= zip(new, rows, strict=True)
        return [self.known[rate] for rate in rates]


def _holds(row: WhatIfRow) -> bool:
    return row.status == MET and not row.falls_behind and not row.beyond_load


def _holds_by_middle(row: WhatIfRow, rules: Sequence[Rule]) -> bool:
    middle = {
        name: PredictedValue(one.about, one.about, one.about) for name, one in row.answers.items()
    }
    return status(rules, middle) == MET and not row.falls_behind and not row.beyond_load


def _limited(asked: _Rates, per_replica: float) -> Iterator[str]:
    """Of the next rate above, where the rules were met, but nothing like it was measured."""
    above = min((rate for rate in asked.known if rate > per_replica), default=None)
    if above is not None and asked.known[above].status == MET:
        yield from asked.known[above].beyond_load
