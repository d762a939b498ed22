"""One load under each policy, its gaps told apart by the prefills beside them: the arithmetic of
every report."""

from collections.abc import Sequence
from typing import NamedTuple

import experiments as e
from recorded import recorded

from locust_llm.report.gate_occupancy import compute_occupancy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.interference import DisturbedGaps, measure_interference
from locust_llm.simulator.scheduling.virtual_time import VirtualRequest

POLICIES = ("static", "prefill-first", "mixed", "chunked 2048", "chunked 512", "disaggregated")


class Disturbed(NamedTuple):
    rows: tuple[DisturbedGaps, ...]
    """By number of prefills beside them, and last all with one or more, "1+"."""
    decode_s: float
    lost_s: float

    def row(self, prefills: str) -> DisturbedGaps:
        (row,) = (row for row in self.rows if row.label == prefills)
        return row


def disturbed(
    policies: Sequence[str] = POLICIES, rate: float = 2.0, seconds: float = 120.0
) -> dict[str, Disturbed]:
    """Section 2's requests (1,000 to 5,000 in, 20 to 300 out) at two a second: at three there is
    hardly a moment under static batching at which nobody waits, so nothing to compare with."""
    found = {}
    for policy in policies:
        run = e.server(policy)
        run.keep_tokens = True
        run.open_loop(
            e.poisson(
                rate,
                seconds,
                lambda r: VirtualRequest(r.randrange(1000, 5000), r.randrange(20, 300)),
            )
        )
        records = recorded(run.run())
        columns = collect_columns(records)
        told = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
        assert told is not None
        assert told.disturbed is not None
        assert told.lost_s is not None
        found[policy] = Disturbed((*told.rows, told.disturbed), told.decode_s, told.lost_s)
    return found
