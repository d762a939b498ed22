"""Goals: tests the goals and the rule for verdicts of make bench."""

from goals import goals_met, offs, rule_kept

TRUE = (200.0, 210.0, 20.0)


def test_a_goal_in_ms() -> None:
    found = offs(50, (200.04, 210.75, 20.0), TRUE)
    assert [round(off.by_ms, 9) for off in found] == [0.04, 0.75, 0.0]
    assert [off.missed for off in found] == [False, True, False]
    assert [off.well_met for off in found] == [True, False, True]
    assert goals_met(50, found, "INVALID") == "missed"
    assert goals_met(50, found[:1], "OK") == "met"
    assert [str(off) for off in found] == ["+0.04 of 0.1", "+0.75 of 0.5", "+0.00 of 0.3"]


def test_a_goal_in_per_cent_of_the_truth() -> None:
    found = offs(1500, (203.0, 235.0, 40.0), TRUE)
    assert [off.goal_ms for off in found] == [4.0, 21.0, None]
    assert [off.missed for off in found] == [False, True, False]
    assert str(found[2]) == "+20.00"
    assert [goals_met(1500, found, verdict) for verdict in ("INVALID", "DEGRADED")] == [
        "INVALID said",
        "missed",
    ]


def test_too_little_misses_a_goal_too() -> None:
    assert offs(200, (199.8, 210.0, 20.0), TRUE)[0].missed


def test_other_numbers_of_streams_have_the_goals_of_the_next_larger_one() -> None:
    assert [offs(streams, TRUE, TRUE)[1].goal_ms for streams in (1, 200, 201, 800, 801, 9000)] == [
        0.5,
        0.5,
        2,
        2,
        21,
        21,
    ]


def test_the_rule_for_verdicts() -> None:
    near = offs(50, TRUE, TRUE)
    off = offs(50, (201.0, 210.0, 20.0), TRUE)
    between = offs(50, (200.08, 210.0, 20.0), TRUE)
    assert rule_kept(near, "OK") == "kept"
    assert rule_kept(near, "DEGRADED") == "BROKEN: true, and DEGRADED"
    assert rule_kept(off, "OK") == "BROKEN: off, and OK"
    assert rule_kept(off, "INVALID") == "kept"
    assert rule_kept(between, "OK") == rule_kept(between, "DEGRADED") == "kept"
    assert rule_kept(near, None) == "no verdict"
