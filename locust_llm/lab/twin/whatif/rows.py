"""Rows: a grid of what-ifs with their answers: all of them roughly, then those that matter of every
model."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from locust_llm.lab.twin.model import SHAPE, ServerModel, Twin
from locust_llm.lab.twin.observations import IN_FLIGHT, REQUESTS_PER_S, SERVED
from locust_llm.lab.twin.predict import WIDTH, PredictedValue, answer, log_ratios, standard_error_of
from locust_llm.lab.twin.replay import Lengths
from locust_llm.slo.grammar import Rule

from .evaluate_rules import MET, NOT_MET, OPEN, falls_behind, figure_of, status
from .grid import Case, as_fitted
from .limits import beyond_lengths, beyond_load, beyond_settings, unknown
from .worker_processes import Logarithms, Progress, SharedWork, simulate_what_ifs

ROUGH: Final = 4
"""Models that a what-if is asked of at first,"""
ROUGH_WIDTH: Final = 3.18
"""and standard errors to each side then: 95% of Student's t with 3 degrees of freedom."""
ALONE: Final = 12
"""Times that the only model of a twin is asked."""
SMALL: Final = 40
"""What-ifs that are all asked of every model at once."""
SHOWN: Final = 20
"""Rows that are asked a second time, of every model, and printed."""
THROUGHPUT: Final = "throughput"
DEFAULT: Final = (
    "ttft p50", "ttft p95", "ttft_from_due p50", "ttft_from_due p95", "itl p50", "itl p99",
    "stall p95", THROUGHPUT,
)  # fmt: skip
"""Of every answer, beside those of the rules."""
WAIT: Final = "ttft_from_due p95"
"""What a frontier has beside the throughput, where no rule says what matters: with the wait at the
gate."""
OF_FLOW: Final = (REQUESTS_PER_S, IN_FLIGHT, SERVED)


class WhatIfRow(NamedTuple):
    """A what-if with what a twin says of it."""

    case: Case
    logs: Logarithms
    answers: Mapping[str, PredictedValue]
    """By figure: seconds, and a second. Of a twin that is good for shape only: times as much as
    with the fitted settings."""
    status: str
    """Of the rules; empty without any, and of a twin that is good for shape only."""
    beyond: tuple[str, ...]
    """In what it is an extrapolation, each with the range that was measured."""
    unknown: tuple[str, ...]
    models: int
    beyond_load: tuple[str, ...] = ()
    """Of ``beyond``, what its load is the reason of."""
    falls_behind: bool = False
    """More comes than is completed: its waits have no percentile."""

    @property
    def throughput(self) -> float:
        return self.answers[THROUGHPUT].about if THROUGHPUT in self.answers else 0.0


def figures_to_ask(rules: Sequence[Rule]) -> tuple[str, ...]:
    """The figures to ask for: those of the rules, and those of every answer."""
    return tuple(dict.fromkeys((*map(figure_of, rules), *DEFAULT, *OF_FLOW)))


class Asker(NamedTuple):
    """What all rows share."""

    twin: Twin
    lengths: Lengths
    rules: Sequence[Rule]

    @property
    def shape(self) -> bool:
        return self.twin.trust.verdict == SHAPE

    @property
    def models(self) -> Sequence[ServerModel]:
        """A twin that was written without draws has one: it is asked again and again, as requests
        come by chance."""
        found = self.twin.models()
        return found if len(found) > 1 else found * ALONE

    def rows(
        self, cases: Sequence[Case], on_progress: Progress, processes: int = 0
    ) -> list[WhatIfRow]:
        """Of all cases, in their order."""
        models = self.models
        figures = figures_to_ask(self.rules)
        few = len(cases) <= SMALL or len(models) <= ROUGH
        most = len(cases) + (0 if few else SHOWN)
        asked = list(dict.fromkeys([*cases, *(map(as_fitted, cases) if self.shape else ())]))
        first = SharedWork(models if few else models[:ROUGH], self.lengths, figures, rough=not few)
        found = simulate_what_ifs(
            first, [case.asked for case in asked], processes=processes, on_progress=lambda done,
            _: on_progress(done, most)
        )  # fmt: skip
        rows = self._judged(dict(zip(asked, found, strict=True)), cases, len(first.models))
        if few:
            return rows
        again = sorted(rows, key=_hope)[:SHOWN] if self.rules else top_rows(rows)[:SHOWN]
        second = list(dict.fromkeys(row.case for row in again))
        second = list(dict.fromkeys([*second, *(map(as_fitted, second) if self.shape else ())]))
        found = simulate_what_ifs(
            SharedWork(models, self.lengths, figures), [case.asked for case in second],
            processes=processes,
            on_progress=lambda done, _: on_progress(len(cases) + min(done, SHOWN), most),
        )  # fmt: skip
        better = self._judged(
            dict(zip(second, found, strict=True)), [row.case for row in again], len(models)
        )
        by_case = {row.case: row for row in better}
        return [by_case.get(row.case, row) for row in rows]

    def _judged(
        self, found: Mapping[Case, Logarithms], cases: Sequence[Case], models: int
    ) -> list[WhatIfRow]:
        lengths = tuple(beyond_lengths(self.twin.ranges, self.lengths))
        return [
            self._row(case, found[case], found.get(as_fitted(case)), models, lengths)
            for case in cases
        ]

    def _row(
        self,
        case: Case,
        logs: Logarithms,
        fitted: Logarithms | None,
        models: int,
        lengths: tuple[str, ...],
    ) -> WhatIfRow:
        twin, asked = self.twin, case.asked
        width = ROUGH_WIDTH if models == ROUGH else WIDTH
        other = asked.settings is not None
        errors = {
            name: standard_error_of(name, twin.trust.errors, other_settings=other) for name in logs
        }
        absolute = {name: answer(one, errors[name], width) for name, one in logs.items()}
        relative = absolute
        if self.shape and fitted is not None:
            relative = {
                name: answer(log_ratios(one, fitted[name]), errors[name], width)
                for name, one in logs.items()
                if name in fitted and name not in OF_FLOW
            }
        of_load = tuple(beyond_load(asked, absolute, twin.ranges))
        beyond = (
            *of_load, *beyond_settings(asked, twin.model.settings), *lengths,
        )  # fmt: skip
        chosen = [key.replace("-", "_") for key, _ in case.chosen]
        return WhatIfRow(
            case=case, logs=logs, answers=relative,
            status="" if self.shape else status(self.rules, absolute), beyond=beyond,
            unknown=tuple(unknown(twin, asked, chosen, beyond)), models=models, beyond_load=of_load,
            falls_behind=falls_behind(absolute),
        )  # fmt: skip


def _hope(row: WhatIfRow) -> tuple[bool, float]:
    """Those that may be within the rules first, and of these the ones with the most that their
    throughput may be."""
    return row.status == NOT_MET, -row.answers[
        THROUGHPUT
    ].high if THROUGHPUT in row.answers else 0.0


def top_rows(rows: Sequence[WhatIfRow]) -> list[WhatIfRow]:
    """Those that were asked of every model, if some were; within the rules before those that may
    be, before others; of these the ones with the most throughput. Without rules those of the
    frontier, then the rest."""
    if any(row.status for row in rows):
        order = {MET: 0, OPEN: 1, NOT_MET: 2}
        return sorted(rows, key=lambda row: (-row.models, order[row.status], -row.throughput))
    best = {row.case for row in frontier(rows, WAIT)}
    return sorted(rows, key=lambda row: (-row.models, row.case not in best, -row.throughput))


def frontier(rows: Sequence[WhatIfRow], figure: str) -> list[WhatIfRow]:
    """Those of which no other has more throughput and less of ``figure``, by rising throughput;
    rows that fall behind have none of it."""
    known = [
        row
        for row in rows
        if figure in row.answers and THROUGHPUT in row.answers and not row.falls_behind
    ]
    found = list[WhatIfRow]()
    least = float("inf")
    for row in sorted(known, key=lambda row: (-row.throughput, row.answers[figure].about)):
        if row.answers[figure].about < least:
            least = row.answers[figure].about
            found.append(row)
    return found[::-1]
