"""Confusion matrix: each run tests a part of it, the mark ``full`` tests the whole. The probe must
agree with itself."""

from collections import Counter
from itertools import islice

import pytest
from confusion import (
    GPUS,
    NOISES,
    RIGHT,
    SEED,
    WRONG,
    Cell,
    Kind,
    Said,
    again,
    apart,
    busy,
    cells,
    matrix,
    probe,
    programs,
    report,
    schedulers,
    several,
    untellable,
    unusual,
)
from support.probing import Server

from locust_llm.lab.probe.scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    PARTIAL,
    PREFILL_FIRST,
    Diagnosis,
)

GOAL = 0.95
EVERY_THIRD = islice(schedulers(GPUS[0]), 0, None, 3)
REDUCED = [cell for cell in cells(EVERY_THIRD) if cell.noise in ("0", "2")]
"""The part has every third server on one GPU, without noise and with much."""


def test_how_a_cell_is_judged() -> None:
    def verdict(kind: Kind, said: Diagnosis, burst: int = 8) -> str:
        return Said(Cell(kind, "0", SEED), said, 32_000, burst).verdict

    chunked = Kind(CHUNKED, Server(budget=512), 512, 1)
    partial = Kind(
        PARTIAL, Server(policy="partial-prefills", budget=512, partial=6, long_partial=6), 512, 6
    )
    assert verdict(chunked, Diagnosis(CHUNKED, (500, 510, 520), 1)) == RIGHT
    assert verdict(chunked, Diagnosis(PREFILL_FIRST)) == WRONG
    assert verdict(chunked._replace(budget=32_001), Diagnosis(PREFILL_FIRST)) == RIGHT
    assert verdict(chunked, Diagnosis(CANNOT_TELL, missing=("x",))) == CANNOT_TELL
    assert (
        verdict(chunked._replace(truth=CANNOT_TELL), Diagnosis(CANNOT_TELL, missing=("x",)))
        == RIGHT
    )
    assert verdict(chunked._replace(truth=CANNOT_TELL), Diagnosis(CHUNKED, slots=1)) == WRONG
    assert verdict(partial, Diagnosis(PARTIAL, slots=6)) == RIGHT
    assert verdict(partial, Diagnosis(PARTIAL, slots=4)) == WRONG
    assert verdict(partial, Diagnosis(PARTIAL, slots=4), burst=4) == RIGHT  # at least 4
    assert verdict(partial._replace(slots=3), Diagnosis(PARTIAL, slots=4), burst=4) == WRONG
    held = [
        Said(Cell(chunked, "0", 1), Diagnosis(CHUNKED, b, 1), 1, 8).budget_held
        for b in ((1, 2, 512), (1, 2, 3), None)
    ]
    assert held == [True, False, None]


def test_the_matrix_is_whole_and_no_two_cells_have_the_same_seed() -> None:
    every = matrix()
    assert len(every) >= 240
    assert len({cell.seed for cell in every}) == len(every)
    assert min(cell.seed for cell in every) == SEED
    assert {cell.kind.server.gpu for cell in every} == set(GPUS)
    assert set(Counter(cell.noise for cell in every)) == set(NOISES)


def judged(some: list[Cell], goal: float) -> None:
    said = [probe(cell) for cell in some]
    told = report("cells", said)
    count = Counter(one.verdict for one in said)
    assert not count[WRONG], told
    assert count[RIGHT] >= goal * len(said), told
    held = [one.budget_held for one in said if one.budget_held is not None]
    assert held.count(False) <= max(1, 0.02 * len(held)), told  # of 224 one


@pytest.mark.slow
def test_a_part_of_the_matrix() -> None:
    assert len(REDUCED) >= 14
    judged(REDUCED, GOAL)


@pytest.mark.full
def test_the_whole_matrix() -> None:
    judged(matrix(), GOAL)


@pytest.mark.full
def test_with_other_traffic_nothing_wrong_is_said() -> None:
    said = [probe(cell) for cell in cells(busy())]
    assert not [one.cell.label for one in said if one.verdict == WRONG], report("cells", said)


def told_beside_programs(some: list[Cell]) -> None:
    said = [probe(cell) for cell in some]
    assert not [
        one.cell.label for one in said if one.verdict == WRONG or one.budget_held is False
    ], report("cells", said)


@pytest.mark.slow
def test_beside_other_programs_nothing_wrong_is_said() -> None:
    told_beside_programs(
        [cell for cell in cells(programs()) if cell.noise == "1" and (cell.kind.budget or 0) > 4096]
    )


@pytest.mark.full
def test_beside_other_programs_nothing_wrong_is_said_with_any_noise() -> None:
    told_beside_programs(cells(programs()))


@pytest.mark.slow
def test_where_nothing_can_be_told_that_is_said() -> None:
    judged([cell for cell in cells(untellable()) if cell.noise == "2"], 1.0)


@pytest.mark.full
def test_where_nothing_can_be_told_that_is_said_with_any_noise() -> None:
    judged(cells(untellable()), 1.0)


@pytest.mark.full
def test_several_servers_behind_one_address_are_not_named_as_one() -> None:
    judged(cells(several()), 1.0)


@pytest.mark.full
def test_unusual_settings_are_named_rightly_or_not_at_all() -> None:
    judged(cells(unusual()), 0.7)


# -- twice -----------------------------------------------------------------------------------------

# By so much the larger of two runs is at most above the smaller one: TTFT of 8,000 tokens alone,
# the longest gap beside them, time a prefilled token (a difference of two), the budget (a count).
# What ten runs showed, rounded up. A prompt that is computed in one step is one draw of the noise,
# the longest of several steps their largest one; a chunk that comes with the next makes a gap of
# two.
AGREE = {
    "0": {"alone": 0.001, "stall": 0.001, "token": 0.001, "budget": 0.001},
    "1": {"alone": 0.2, "stall": 0.2, "token": 0.3, "budget": 0.1},
    "2": {"alone": 0.3, "stall": 1.2, "token": 0.5, "budget": 0.15},
    "3": {"alone": 0.7, "stall": 1.5, "token": 5.0, "budget": 0.2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "runs"),
    [("1", 2), *(pytest.param(noise, 10, marks=pytest.mark.full) for noise in NOISES)],
)
def test_another_run_agrees(noise: str, runs: int) -> None:
    for kind, some in again(noise, runs):
        off = {name: apart(values)[-1] for name, values in some.items()}
        assert all(off[name] <= AGREE[noise][name] for name in off), (kind.label, off)
