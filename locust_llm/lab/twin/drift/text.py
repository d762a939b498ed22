"""Drift report: what a check came to, for the console."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from tabulate import tabulate

from locust_llm.lab.twin.folders import Folder
from locust_llm.lab.twin.model import Origin
from locust_llm.lab.twin.observations import ObservedStage
from locust_llm.text.format import format_count

from .changes import FRONT_S, MORE
from .check import FALSE_ALARM, Drift, Null, Shift
from .load_features import TRAITS, traits_of

MOST_ROWS: Final = 8
"""Of the table: the traits that are furthest off."""


def others(origin: Origin, folder: Folder) -> list[str]:
    """In what the server that answered differs by name from the one that was fitted, a sentence
    each."""
    run = folder.run
    return [
        f"another {what}: {there or 'none'}, and the twin is of {here or 'none'}"
        for what, here, there in (
            ("model", origin.model, run.model),
            ("server", origin.server, run.server),
        )
        if here != there
    ]


def lines(
    found: Drift, known: Null, stages: Sequence[ObservedStage], names: Sequence[str]
) -> Iterator[str]:
    """``names``: of ``others``."""
    yield from (f"{name[0].upper()}{name[1:]}." for name in names)
    sure = f"false alarms: {FALSE_ALARM:.0%} of all checks"
    if not found.drifted:
        yield (
            f"The same server, as far as a minute tells: off by {max(0.0, found.largest):.1f} "
            f"standard errors at most, "
            f"and above {found.bound:.1f} it would have drifted ({sure})."
        )
        return
    yield (
        f"DRIFTED: off by {found.largest:.1f} standard errors, and {found.bound:.1f} is the "
        f"bound ({sure})."
    )
    if found.named:
        yield f"What moved: {format_shift(found.named[0])}."
        yield from (f"It may as well be: {format_shift(one)}." for one in found.named[1:])
    else:
        yield "What moved is none of the twin's parameters."
    yield ""
    yield format_trait_table(known, stages)


def format_shift(shift: Shift) -> str:
    """With its size where it has one: ``every step, +9.8% (+7.1% to +12.6%)``."""
    change = shift.change
    ends = [shift.times + wide * shift.error for wide in (0.0, -1.96, 1.96)]
    if change.size:
        about, low, high = (f"{math.expm1(end * math.log(MORE)):+.1%}" for end in ends)
        return f"{change.words}, {about} ({low} to {high})"
    if change.name == "front":
        about, low, high = (f"{end * FRONT_S * 1e3:+.1f}" for end in ends)
        return f"{change.words}, {about} ms ({low} to {high})"
    return change.words


def format_trait_table(known: Null, stages: Sequence[ObservedStage]) -> str:
    """The traits that are furthest off, in standard errors."""
    off = traits_of(stages) - known.mean
    errors = np.sqrt(np.diag(known.covariance))
    labels = [(format_count(stage.users, "user"), name) for stage in stages for name in TRAITS]
    worst = sorted(range(len(off)), key=lambda i: -abs(off[i] / errors[i]))[:MOST_ROWS]
    rows = [
        [*labels[i], f"{math.expm1(off[i]):+.1%}", f"{off[i] / errors[i]:+.1f}"]
        for i in sorted(worst)
    ]
    return tabulate(
        rows, headers=["load", "figure", "off", "standard errors"], disable_numparse=True,
        colalign=("left", "left", "right", "right"),
    )  # fmt: skip
