"""Data: what-ifs for machines."""

import math
from typing import Any, Final

from .choice import best_what_if, commands
from .evaluate_rules import figure_of, judge_answer
from .rows import WAIT, WhatIfRow, frontier
from .text import WhatIfReport

SCHEMA: Final = 1


def what_ifs_as_json(asked: WhatIfReport) -> dict[str, Any]:
    """Every what-if, in the order in which it was asked, with every answer as (low, about, high):
    seconds, or a second; of a twin good for shape only times as much as with the fitted
    settings."""
    on = set() if asked.shape else {row.case for row in frontier(asked.rows, axis(asked))}
    first = None if asked.shape else best_what_if(asked.rows)
    return {
        "schema": SCHEMA,
        "twin": {"file": asked.name, "verdict": asked.twin.trust.verdict,
            "error": asked.twin.trust.error},
        "relative_to_fitted": asked.shape,
        "rules": [str(rule) for rule in asked.rules],
        "what_ifs": [_row(asked, row, row.case in on) for row in asked.rows],
        "best": None if first is None else next(i for i,
            row in enumerate(asked.rows) if row.case == first.case),
        "left_out": [
            *(f"{name}: {why}" for why, names in asked.left_out.items() for name in names),
            *asked.too_far
        ],
        "next_runs": [
            {"server": server, "command": line}
            for server, line in (commands(asked.rival, asked.words) if asked.rival else ())
        ],
    }  # fmt: skip


def axis(asked: WhatIfReport) -> str:
    """What a frontier has beside the throughput: the figure of the first rule on a latency."""
    figures = (figure_of(rule) for rule in asked.rules if rule.less_is_better)
    return next(figures, WAIT)


def _row(asked: WhatIfReport, row: WhatIfRow, on_frontier: bool) -> dict[str, Any]:
    load = row.case.asked.load
    return {
        "load": {"concurrency": load.users} if load.users else {"request-rate": load.rate},
        "set": dict(row.case.chosen),
        "answers": {name: [_number(one) for one in answer] for name, answer in row.answers.items()},
        "rules": {}
        if asked.shape
        else {str(rule): judge_answer(rule, row.answers) for rule in asked.rules},
        "status": row.status or None,
        "falls_behind": row.falls_behind,
        "extrapolated": list(row.beyond),
        "unknown": list(row.unknown),
        "frontier": on_frontier,
        "models": row.models,
    }


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
