"""The plan of a run, by pencil."""

from locust_llm.records.phase_plan import (
    BETWEEN,
    OVER,
    PROFILING,
    UNCOUNTED_SHARE,
    WARMUP,
    PhasePlan,
    label_phase,
    profiling_phase,
    stage_of_phase,
)


def test_the_only_process_gets_everything_at_once() -> None:
    plan = PhasePlan(None, 100)
    assert (plan.phase, plan.grant(1), plan.grant(1)) == (PROFILING, 100, 0)


def test_shares_get_smaller_towards_the_end() -> None:
    plan = PhasePlan(None, 100)
    shares = [plan.grant(2) for _ in range(40)]
    # an eighth of what is left, at least one: 100/8, 88/8, 77/8, 68/8, 60/8, ...
    assert shares[:8] == [12, 11, 9, 8, 7, 6, 5, 5]
    assert shares[-2:] == [0, 0]
    assert sum(shares) == 100


def test_profiling_begins_when_the_whole_warmup_is_back() -> None:
    plan = PhasePlan(2, 3)
    assert (plan.phase, plan.grant(1), plan.grant(1)) == (WARMUP, 2, 0)
    assert plan.returned(WARMUP, 1) is False
    assert (plan.phase, plan.grant(1)) == (WARMUP, 0)
    assert plan.returned(WARMUP, 1) is True
    assert (plan.phase, plan.grant(1)) == (PROFILING, 3)
    assert [plan.returned(PROFILING, 1) for _ in range(3)] == [False, False, True]
    assert (plan.phase, plan.grant(1)) == (OVER, 0)


def test_what_is_put_back_is_granted_again_and_holds_the_phase() -> None:
    plan = PhasePlan(None, 5)
    assert plan.grant(1) == 5
    plan.put_back(PROFILING, 2)
    assert plan.returned(PROFILING, 3) is False
    assert (plan.grant(1), plan.grant(1)) == (2, 0)
    assert plan.returned(PROFILING, 2) is True


def test_a_plan_without_end_has_none() -> None:
    plan = PhasePlan(3, None)
    assert plan.grant(1) == 3
    assert plan.returned(WARMUP, 3) is True
    assert [plan.grant(4), plan.grant(4)] == [UNCOUNTED_SHARE, UNCOUNTED_SHARE]
    assert plan.returned(PROFILING, 1000) is False
    plan.put_back(PROFILING, 5)
    assert (plan.phase, plan.grant(4)) == (PROFILING, UNCOUNTED_SHARE)


def test_a_phase_that_is_closed_is_over_when_all_is_back() -> None:
    plan = PhasePlan(None, None, warms_up=True)
    assert (plan.phase, plan.grant(1)) == (WARMUP, UNCOUNTED_SHARE)
    assert plan.returned(WARMUP, 3) is False
    assert plan.close() is False  # two run, say; the rest is in the hands of the sender
    assert plan.grant(1) == 0
    assert plan.put_back(WARMUP, UNCOUNTED_SHARE - 5) is False
    assert plan.returned(WARMUP, 1) is False
    assert plan.returned(WARMUP, 1) is True
    assert (plan.phase, plan.put_back(WARMUP, 1)) == (PROFILING, False)
    idle = PhasePlan(None, None, warms_up=True)
    assert (idle.close(), idle.phase, idle.close(), idle.phase, idle.close()) == (
        True,
        PROFILING,
        True,
        OVER,
        False,
    )


def test_arrivals_that_are_dealt_out_are_of_the_count() -> None:
    plan = PhasePlan(None, 5)
    plan.deal(3)
    assert (plan.left, plan.returned(PROFILING, 3)) == (2, False)
    plan.deal(2)
    assert [plan.returned(PROFILING, 1), plan.returned(PROFILING, 1)] == [False, True]


def test_each_stage_is_a_phase_and_between_two_nothing_is_given_away() -> None:
    plan = PhasePlan(1, None, staged=True)
    assert (plan.phase, plan.grant(1), plan.returned(WARMUP, 1)) == (WARMUP, 1, True)
    assert (plan.phase, plan.grant(1), plan.close()) == (BETWEEN, 0, False)
    plan.begin(1, None)
    assert (plan.phase, plan.grant(1)) == ("profiling 1", UNCOUNTED_SHARE)
    assert plan.close() is False
    assert plan.put_back("profiling 1", UNCOUNTED_SHARE - 2) is False
    assert plan.returned("profiling 1", 2) is True
    plan.begin(2, 3)
    assert (plan.phase, plan.grant(1), plan.returned("profiling 1", 1)) == ("profiling 2", 3, False)
    assert plan.returned("profiling 2", 3) is True
    plan.end()
    assert (plan.phase, plan.grant(1)) == (OVER, 0)


def test_the_names_of_phases() -> None:
    assert [profiling_phase(), profiling_phase(12)] == [PROFILING, "profiling 12"]
    assert [stage_of_phase(phase) for phase in (WARMUP, PROFILING, "profiling 12", BETWEEN)] == [
        0,
        0,
        12,
        0,
    ]
    assert [label_phase(phase) for phase in (WARMUP, PROFILING, "profiling 12")] == [
        WARMUP,
        PROFILING,
        PROFILING,
    ]
