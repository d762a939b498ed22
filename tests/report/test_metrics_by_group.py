"""Breakdowns: who is in which group, and what a group says, from records small enough for a
pencil."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.controller.early_stop import RuleMonitor
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.load_records import collect_columns
from locust_llm.report.metrics_by_group import (
    MAX_RAMP_RANGES,
    count_sessions,
    divide_requests,
    estimate_input_lengths,
    measure_model_mix,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.slo_evidence.observed_rule_values import select_requests
from locust_llm.report.summary_rows import RequestBreakdown, RequestGroup
from locust_llm.slo.rules import parse_rule


def part(*records: Record) -> RequestSelection:
    requests = collect_columns(records).requests
    return RequestSelection(requests, requests.has("phase", "profiling"))


def broken_down(*records: Record, run: Run | None = None) -> dict[str, RequestBreakdown]:
    return {found.by: found for found in divide_requests(part(*records), run or a_run())}


def sizes(breakdown: RequestBreakdown) -> list[tuple[str, int, int]]:
    return [(group.label, group.succeeded, group.failed) for group in breakdown.groups]


def p50s(group: RequestGroup) -> list[float | None]:
    return [row.percentiles.get(50.0) for row in group.rows]


RAMP = ((0.0, 1), (10.0, 2), (20.0, 3))
TO_3 = {"prefill_concurrency": 3, "prefill_concurrency_ramp_duration": 20.0}
"""Limit 1 from second 0 on, 2 from second 10, 3 from second 20."""


def gated(at: float, limit: int | None, ttft_ms: float = 100.0, **other: object) -> Record:
    """Asked half a second before it was admitted."""
    return answered(
        ttft_ms, sent_at=at, admitted_at=at, asked_at=at - 0.5, due_at=at - 1, limit=limit, **other
    )


def test_by_input_length() -> None:
    short, long = {"input_tokens": 64}, {"input_tokens": 4096}
    found = broken_down(
        answered(100, 110, **short), answered(300, 330, **short), answered(900, 950, **long),
        failed(**long),
        answered(7, 8, phase="warmup", input_tokens=9),
    )  # fmt: skip
    assert list(found) == ["input length"]
    assert sizes(found["input length"]) == [("64", 2, 0), ("4096", 1, 1)]
    one, other = found["input length"].groups
    assert p50s(one) == pytest.approx([200, 20])
    assert [row.count for row in one.rows] == [2, 2]
    assert one.rows[0].percentiles == pytest.approx({50: 200, 90: 280, 95: 290, 99: 298})
    assert (one.failure_rate, other.failure_rate) == (0, 0.5)
    assert p50s(other) == pytest.approx([900, 50])
    assert one.input_tokens is None


def test_one_length_is_no_breakdown() -> None:
    assert broken_down(answered(100), answered(200), failed()) == {}
    assert broken_down() == {}
    assert broken_down(failed(), answered(1, input_tokens=None)) == {}


def test_a_failure_lies_where_requests_of_its_length_lie() -> None:
    """100 asked for are 130 as served (a template), 1000 are 1040; of what was never answered the
    same is taken, and between them what lies between: 550 are 550 + 35."""
    unknown = {"input_tokens": None}
    found = estimate_input_lengths(part(
        answered(1, asked_input_tokens=100, input_tokens=130),
        answered(1, asked_input_tokens=1000, input_tokens=1030),
        answered(1, asked_input_tokens=1000, input_tokens=1050),
        *(failed(asked_input_tokens=asked, **unknown) for asked in (100, 1000, 550, 9000, None)),
        answered(1, asked_input_tokens=None, input_tokens=77),
    ))  # fmt: skip
    assert found.tolist()[:7] == [130, 1030, 1050, 130, 1040, 585, 9040]
    assert math.isnan(found[7])
    assert found[8] == 77


def test_by_limit_of_the_ramp() -> None:
    run = a_run(RAMP, **TO_3)
    records = [
        gated(1, 1, 100), gated(3, 1, 300), gated(11, 2, 500), gated(12, 2, outcome="reset"),
        gated(21, 3, 700), gated(25, 3, 800), gated(30, 3, 900),
    ]  # fmt: skip
    found = broken_down(*records, run=run)["limit of the ramp"]
    assert sizes(found) == [("1", 2, 0), ("2", 1, 1), ("3 (plateau)", 3, 0), ("whole phase", 6, 1)]
    assert [row.tag for row in found.groups[0].rows] == [
        "time_to_first_token_from_due", "time_to_first_token", "longest_stall", "inter_token_latency",
    ]  # fmt: skip
    assert [p50s(group)[0] for group in found.groups] == pytest.approx([1200, 1500, 1800, 1600])
    assert [p50s(group)[1] for group in found.groups] == pytest.approx([200, 500, 800, 600])


def test_itl_by_limit_is_of_what_decoded_under_it_alone_while_the_load_was_on() -> None:
    """Of those that were admitted at limit 1 one decodes on under limit 2, of those at limit 3 one
    while the run ends."""
    run = replace(a_run(RAMP, **TO_3), stopping_at=UNIX + 40)
    records = [
        gated(1, 1, 100, chunk_us=(100_000, 120_000), output_tokens=2),
        gated(9, 1, 100, chunk_us=(100_000, 5_100_000), output_tokens=2),
        gated(12, 2, 100, chunk_us=(100_000, 130_000), output_tokens=2),
        gated(30, 3, 100, chunk_us=(100_000, 140_000), output_tokens=2),
        gated(39, 3, 100, chunk_us=(100_000, 2_101_000), output_tokens=2),
    ]
    found = broken_down(*records, run=run)["limit of the ramp"]
    assert [(group.succeeded, group.rows[3].count) for group in found.groups] == [
        (2, 1),
        (1, 1),
        (2, 1),
        (5, 5),
    ]
    assert [p50s(group)[3] for group in found.groups[:3]] == pytest.approx([20, 30, 40])
    assert [p50s(group)[2] for group in found.groups[:3]] == pytest.approx([20, 30, 40])  # stalls


def test_of_several_processes_the_clock_tells_the_limit() -> None:
    """Each of two knows of its half only. Who was let in by the change itself may be stamped a
    little before it."""
    run = replace(a_run(RAMP, **TO_3), workers=("a", "b"))
    records = [gated(5, 1), gated(9.9995, 1), gated(15, 1), gated(21, 2), gated(22, 1)]
    found = broken_down(*records, run=run)["limit of the ramp"]
    assert sizes(found) == [("1", 1, 0), ("2", 2, 0), ("3 (plateau)", 2, 0), ("whole phase", 5, 0)]


def test_of_several_processes_who_was_sent_without_a_gate_belongs_to_no_limit() -> None:
    run = replace(
        a_run(((0.0, 1), (10.0, None), (20.0, 3)), prefill_concurrency=1), workers=("a", "b")
    )
    found = broken_down(gated(5, 1), gated(15, None), gated(16, None), gated(21, 2), run=run)[
        "prefill limit"
    ]
    assert sizes(found) == [("1", 1, 0), ("3 (last)", 1, 0), ("whole phase", 4, 0)]


def test_a_limit_that_somebody_changed_is_no_ramp() -> None:
    """From 2 to 4, and back to 2; and from 1 to 3 at once, though a ramp was asked for."""
    up_and_down = a_run(((0.0, 2), (10.0, 4), (20.0, 2)), prefill_concurrency=2)
    records = [gated(5, 2), gated(11, 4), gated(12, 4), gated(25, 2)]
    found = broken_down(*records, run=up_and_down)["prefill limit"]
    assert sizes(found) == [("2", 1, 0), ("4", 2, 0), ("2 (last)", 1, 0), ("whole phase", 4, 0)]
    at_once = a_run(((0.0, 1), (10.0, 3)), **TO_3)
    assert "prefill limit" in broken_down(gated(1, 1), gated(11, 3), run=at_once)


@pytest.mark.parametrize(
    "limits",
    [((0.0, 3),), ((0.0, 3), (10.0, 3)), ((0.0, None), (10.0, 3))],
    ids=["one", "the same again", "a gate from then on"],
)
def test_a_limit_that_never_changed_is_no_breakdown(
    limits: tuple[tuple[float, int | None], ...],
) -> None:
    assert "limit of the ramp" not in broken_down(gated(1, 3), gated(11, 3), run=a_run(limits))


def test_a_ramp_that_nobody_sent_in_is_none() -> None:
    assert "limit of the ramp" not in broken_down(
        gated(21, 3), gated(22, 3), run=a_run(RAMP, **TO_3)
    )


def test_a_limit_of_the_warmup_is_another_matter() -> None:
    run = a_run(((0.0, 1), (10.0, 3)))
    warm, main = run.limits
    assert "limit of the ramp" not in broken_down(
        gated(11, 3), run=replace(run, limits=(replace(warm, phase="warmup"), main))
    )


def replaced(limit: int) -> tuple[tuple[float, int], ...]:
    return tuple((float(i), i) for i in range(1, limit + 1))


def test_a_long_ramp_is_told_in_ranges() -> None:
    """Limits 1 to 40, each for a second; 39 of them before the plateau, in 8 ranges."""
    records = [gated(at + 0.5, at) for at in range(1, 41)]
    found = broken_down(
        *records,
        run=a_run(replaced(40), prefill_concurrency=40, prefill_concurrency_ramp_duration=40.0),
    )["limit of the ramp"]
    assert len(found.groups) == MAX_RAMP_RANGES + 2
    assert [group.label for group in found.groups[:2]] == ["1-5", "6-10"]
    assert [group.label for group in found.groups[-3:]] == ["36-39", "40 (plateau)", "whole phase"]
    assert sum(group.succeeded for group in found.groups[:-1]) == found.groups[-1].succeeded == 40


def test_by_rate_of_the_ramp() -> None:
    """0 to 20 a second in 40 s: quarters of 10 s, by when a request was due, not when it was
    sent."""
    run = a_run(request_rate=20.0, request_rate_ramp_duration=40.0)
    records = [
        answered(100, due_at=due, sent_at=50.0) for due in (0.0, 9.9, 10.0, 25.0, 39.9, 40.0, 90.0)
    ]
    found = broken_down(*records, run=run)["rate of the ramp"]
    assert sizes(found) == [
        ("0-5/s", 2, 0), ("5-10/s", 1, 0), ("10-15/s", 1, 0), ("15-20/s", 1, 0),
        ("20/s (plateau)", 2, 0),
        ("whole phase", 7, 0),
    ]  # fmt: skip
    assert found.groups[0].rows[0].tag == "time_to_first_token_from_due"
    assert found.groups[4].rows[0].percentiles[50] == pytest.approx(-15_000 + 100)


def test_by_turn() -> None:
    found = broken_down(
        answered(900, 910, turn=0, input_tokens=100, cached_tokens=0),
        answered(300, 310, turn=1, input_tokens=200, cached_tokens=100),
        answered(500, 510, turn=2, input_tokens=600, cached_tokens=500),
        failed(turn=1),
    )["turn"]
    assert sizes(found) == [("first", 1, 0), ("later", 2, 1)]
    first, later = found.groups
    assert (first.input_tokens, first.cached_share) == (100, 0)
    assert (later.input_tokens, later.cached_share) == (400, 0.75)
    assert [p50s(first)[0], p50s(later)[0]] == pytest.approx([900, 400])


def test_sessions_and_their_turns() -> None:
    turns = [answered(1, turn=0), answered(1, turn=0), answered(1, turn=1), failed(turn=2)]
    assert count_sessions(part(*turns)) == (2, 1.5)
    assert count_sessions(part(*turns[:2])) == (None, None)
    assert count_sessions(part()) == (None, None)


def test_by_what_there_is_more_than_one_of() -> None:
    chat = {"user_class": "Chat", "name": "chat"}
    found = broken_down(
        answered(100, **chat), answered(200, **chat), answered(900, user_class="Rag", name="answer")
    )
    assert sizes(found["user class / name"]) == [("Chat / chat", 2, 0), ("Rag / answer", 1, 0)]
    assert list(broken_down(answered(1, model="a"), answered(1, model="b"))) == ["model"]


def test_a_mix_as_asked_and_as_sent() -> None:
    records = [
        answered(1, model="a"),
        answered(1, model="a"),
        failed(model="b"),
        answered(1, model="other"),
    ]
    found = measure_model_mix(part(*records), "a=3,b=1")
    assert [(one.model, one.asked, one.sent) for one in found] == [
        ("a", 0.75, 0.5),
        ("b", 0.25, 0.25),
    ]
    assert [one.sent for one in measure_model_mix(part(), "a=3,b=1")] == [None, None]
    assert (
        measure_model_mix(part(*records), None) == measure_model_mix(part(*records), "none") == ()
    )


def test_by_backend() -> None:
    found = broken_down(
        answered(100, backend="b", input_tokens=100, cached_tokens=80),
        answered(300, backend="b", input_tokens=300),
        answered(200, backend="a", input_tokens=50, cached_tokens=50), failed(),
    )["backend"]  # fmt: skip
    assert sizes(found) == [("b", 2, 0), ("a", 1, 0), ("-", 0, 1)]
    assert [p50s(group)[0] for group in found.groups[:2]] == [200, 200]
    assert [(group.input_tokens, group.cached_share) for group in found.groups[:2]] == [
        (200, 0.8),
        (50, 1.0),
    ]
    assert "backend" not in broken_down(answered(100, backend="b"), answered(100, backend="b"))


def test_many_names_end_in_others() -> None:
    records = [
        answered(1, name="often"),
        *(answered(1, name=f"name {i}") for i in range(20)),
        answered(1, name="often"),
    ]
    found = broken_down(*records)["name"]
    assert sizes(found)[0] == ("often", 2, 0)
    assert sizes(found)[-1] == ("9 others", 9, 0)
    assert sum(group.succeeded for group in found.groups) == 22


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(1, 100_000)),
            st.one_of(st.none(), st.integers(1, 100_000)),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_every_request_of_known_length_is_in_one_bucket(
    rows: list[tuple[int | None, int | None, bool]],
) -> None:
    records = [
        answered(
            1, asked_input_tokens=asked, input_tokens=delivered, outcome="ok" if ok else "reset"
        )
        for asked, delivered, ok in rows
    ]
    whole = part(*records)
    found = broken_down(*records).get("input length")
    if found:
        counted = sum(group.succeeded + group.failed for group in found.groups)
        assert counted == (estimate_input_lengths(whole) >= 1).sum()


def test_the_phase_of_a_run_starts_where_its_clock_says() -> None:
    run = replace(a_run(request_rate=4.0, request_rate_ramp_duration=4.0), profiling_at=UNIX + 100)
    found = broken_down(answered(1, due_at=100.5), answered(1, due_at=103.5), run=run)[
        "rate of the ramp"
    ]
    assert sizes(found) == [("0-1/s", 1, 0), ("3-4/s", 1, 0), ("whole phase", 2, 0)]


def test_by_pictures_and_their_size() -> None:
    """Only where there are pictures; a request without one is in no bucket of sizes, nor one whose
    pictures are URLs."""
    found = broken_down(
        answered(100, 110), answered(300, 330, images=1, image_pixels=99_500),
        answered(500, 510, images=1),
        answered(900, 950, images=2, image_pixels=2_000_000),
        failed(images=2, image_pixels=2_000_000),
    )  # fmt: skip
    assert sizes(found["images"]) == [("0", 1, 0), ("1", 2, 0), ("2", 1, 1)]
    assert p50s(found["images"].groups[2])[0] == 900
    by_size = next(breakdown for by, breakdown in found.items() if by.startswith("image size"))
    assert sizes(by_size) == [("100", 1, 0), ("2k", 1, 1)]
    assert "images" not in broken_down(answered(100, 110), answered(300, 330))


def test_a_rule_by_pictures() -> None:
    some = part(answered(100, 110), answered(300, 330, images=1), answered(900, 950, images=2))
    for text, count in (
        ("images=2", 1),
        ("images=1..3", 2),
        ("images=0", 1),
        ("images=0..2", 2),
        ("images=3..", 0),
    ):
        rule = parse_rule(f"ttft{{{text}}} p95 < 1s")
        assert select_requests(rule, some).size == count, text
        record = answered(300, 330, images=2)
        assert RuleMonitor(rule)._selects(record) == (text in ("images=2", "images=1..3"))
