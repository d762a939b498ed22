"""Disruption effects: what became of requests, and when the server was back, by pencil."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Disruption, Run
from locust_llm.report.chart_data.charts_over_time import plot_latencies
from locust_llm.report.console_summary import format_ending
from locust_llm.report.disruption_effects import measure_disruptions
from locust_llm.report.disruption_results import DisruptionEffect, DisruptionEffects, RequestFates
from locust_llm.report.document_blocks import TableBlock
from locust_llm.report.load_records import collect_columns
from locust_llm.report.outages import find_run_outages
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.sections.disruptions import (
    describe_disruption,
    describe_fates,
    make_disruption_blocks,
)
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS


def steadily(begin_s: float, end_s: float, ttft_ms: float = 30, **other: Any) -> list[Record]:
    """Ten requests a second at .05, .15 and so on, each with two tokens, the second after 20 ms."""
    count = round((end_s - begin_s) * 10)
    return [complete(begin_s + 0.05 + i / 10, ttft_ms, **other) for i in range(count)]


def complete(sent_at: float, *chunk_ms: float, **other: Any) -> Record:
    chunks = chunk_ms if len(chunk_ms) > 1 else (chunk_ms[0], chunk_ms[0] + 20)
    known = {"finish_reason": "length", "asked_output_tokens": len(chunks), **other}
    return answered(*chunks, sent_at=sent_at, **known)


def refused(begin_s: float, end_s: float) -> list[Record]:
    """Ten requests a second, refused within 10 ms."""
    moments = [begin_s + 0.05 + i / 10 for i in range(round((end_s - begin_s) * 10))]
    return [
        failed("refused", sent_at=None, asked_at=at, due_at=at, closed_at=at + 0.01)
        for at in moments
    ]


def disrupted(*began_s: float, status: int | None = 0, stop_s: float = 60, **settings: Any) -> Run:
    """The commands took 100 ms each."""
    made = [
        Disruption(
            schedule="at 20s",
            command="kill -9 7",
            began_at=UNIX + at,
            ended_at=UNIX + at + 0.1,
            status=status,
        )
        for at in began_s
    ]
    run = a_run(**settings)
    return replace(run, disruptions=tuple(made), stopping_at=UNIX + stop_s, ended_at=UNIX + stop_s)


def measured(records: Sequence[Record], run: Run) -> DisruptionEffects:
    columns = collect_columns(records)
    everything = RequestSelection(columns.requests, np.ones(len(columns.requests), np.bool_))
    found = measure_disruptions(everything, run, find_run_outages(columns, run))
    assert found is not None
    return found


def only(records: Sequence[Record], run: Run) -> DisruptionEffect:
    (effect,) = measured(records, run).effects
    return effect


def of_total(total: int, **fates: int) -> RequestFates:
    names = ("finished", "failed", "truncated", "hung", "still_open", "cancelled")
    return RequestFates(total=total, **{**dict.fromkeys(names, 0), **fates})


# -- fates -----------------------------------------------------------------------------------------


def test_each_request_in_flight_has_one_fate() -> None:
    """Nine requests are in flight at 20 s; the command ends at 20.1 s. Of those cut at 60 s one had
    a token 3 s before, and one 40.1 s before."""
    long = {"sent_at": 19.0, "finish_reason": "length", "asked_output_tokens": 3}
    gone = {"sent_at": 19.0, "asked_output_tokens": 3}
    flying = [
        answered(50, 500, 2000, **long),
        failed("reset", closed_at=20.2, **gone),
        failed("truncated", closed_at=20.2, status=200, **gone),
        failed("empty", closed_at=20.2, status=200, **gone),
        answered(50, 1500, sent_at=19.0, finish_reason="length", asked_output_tokens=3),
        failed("gap_timeout", closed_at=50.0, **gone),
        answered(50, 900, **{**long, "outcome": "cut", "closed_at": 60.0}),
        answered(50, 38_000, **{**long, "outcome": "cut", "closed_at": 60.0}),
        failed("cancelled", closed_at=21.0, **gone),
    ]
    records = [*steadily(0, 19), *flying, *steadily(21, 60)]
    effect = only(records, disrupted(20.0))
    assert effect.in_flight == of_total(
        9, finished=1, failed=1, truncated=3, hung=2, still_open=1, cancelled=1
    )
    assert describe_fates(effect.in_flight) == (
        "of 9 requests in flight 1 finished, 1 failed, 3 ended early but looked complete, 2 hung, 1 "
        "was still open at the end and 1 was cancelled on purpose"
    )


@pytest.mark.parametrize(
    ("before", "reason", "tokens_from", "early"),
    [
        (None, "length", "usage", True),
        (None, "stop", "usage", True),
        (None, None, "usage", True),
        ("stop", "stop", "usage", False),  # the model itself ends answers early
        ("stop", "length", "usage", True),
        ("length", "length", "usage", False),  # its context is full
        (None, "tool_calls", "usage", False),
        (None, "length", "chunks", False),  # several tokens may be in a chunk
        (None, "stop", "chunks", True),
    ],
)
def test_an_early_end_counts_where_its_reason_does_not_explain_it(
    before: str | None, reason: str | None, tokens_from: str, early: bool
) -> None:
    asked = {"asked_output_tokens": 9}
    earlier = [] if before is None else [complete(5.0, 50, 70, finish_reason=before, **asked)]
    flying = complete(19.9, 50, 150, finish_reason=reason, tokens_from=tokens_from, **asked)
    records = [*steadily(0, 19.9), *earlier, flying, *steadily(20, 60)]
    found = measured(records, disrupted(20.0))
    assert found.effects[0].in_flight == of_total(1, **{"truncated" if early else "finished": 1})
    assert found.truncated_silently == early


def test_all_choices_of_an_answer_have_the_requested_length() -> None:
    flying = complete(19.9, 50, 150, asked_output_tokens=2, choices=2)
    records = [*steadily(0, 19.9), flying, *steadily(20, 60)]
    assert measured(records, disrupted(20.0)).truncated_silently == 1


def test_a_drain_loses_nothing() -> None:
    """Two requests end after the command, and new ones go on (to another replica)."""
    flying = [complete(19.9, 50, 1000), complete(19.95, 50, 3000)]
    effect = only([*steadily(0, 19.9), *flying, *steadily(20, 60)], disrupted(20.0))
    assert (effect.in_flight, effect.recovery_s) == (of_total(2, finished=2), 0.0)
    assert describe_disruption(effect) == (
        "Disruption 1 (at 20s), 20.0 s after the first request: 2 requests in flight finished; failures and TTFT p95 "
        "stayed in their former range. Nothing was lost."
    )


def test_no_drain_refuses_new_requests() -> None:
    """All in flight finish, but the next 0.3 s are refused."""
    flying = [complete(19.9, 50, 1000)]
    records = [*steadily(0, 19.9), *flying, *refused(20, 20.3), *steadily(20.3, 60)]
    effect = only(records, disrupted(20.0))
    assert effect.in_flight == of_total(1, finished=1)
    assert effect.sent == of_total(3, failed=3)
    assert effect.recovery_s == pytest.approx(0.35)


# -- recovery --------------------------------------------------------------------------------------


def test_the_server_is_back_behind_the_last_failure() -> None:
    """Killed at 20 s. Requests of 20.05 to 27.05 s were refused, and the window from 27.1 s on is the
    first without any. The first token afterwards came at 27.18 s, and to then nothing answered."""
    records = [*steadily(0, 20), *refused(20, 27.1), *steadily(27.1, 60)]
    effect = only(records, disrupted(20.0))
    assert effect.recovery_s == pytest.approx(7.25)
    assert effect.first_success_s == pytest.approx(7.18, abs=1e-6)
    assert effect.sent == of_total(72, finished=1, failed=71)
    assert (effect.failures_before, effect.failures_most) == (0.0, 1.0)
    assert effect.silent_s == pytest.approx(7.18, abs=1e-5)
    assert effect.watched_s == pytest.approx(40.0, abs=1e-6)
    # where another replica answers meanwhile, only failures count
    others = [complete(20.01 + i / 2, 30) for i in range(20)]
    assert only([*records, *others], disrupted(20.0)).recovery_s == pytest.approx(7.15)


def test_a_stopped_server_is_back_when_first_tokens_are_as_fast_as_before() -> None:
    """Stopped from 20 to 29.97 s: a request has its first token then, or 30 ms after the send. The
    highest p95 before is 30 ms, so up to 45 ms are in the range. Of the 50 requests of a window two
    may be slower (nearest rank): in that from 29.7 s on the ones of 29.75 and 29.85 s are."""
    moments = [20.05 + i / 10 for i in range(100)]
    stopped = [complete(at, max(30.0, (29.97 - at) * 1000)) for at in moments]
    records = [*steadily(0, 20), *stopped, *steadily(30, 60)]
    effect = only(records, disrupted(20.0))
    assert effect.recovery_s == pytest.approx(10.05)  # to 29.97 s nothing answered
    assert effect.ttft_p95_before_s == pytest.approx(0.03, abs=1e-6)
    assert effect.ttft_p95_most_s == pytest.approx(9.72, abs=1e-6)
    others = [complete(20.06 + i, 30) for i in range(10)]
    assert only([*records, *others], disrupted(20.0)).recovery_s == pytest.approx(
        9.75
    )  # another replica answers


def test_a_closed_loop_that_waits_for_a_stopped_server_sends_nothing_meanwhile() -> None:
    """All five users wait from 20 to 30 s, and their next requests are as before."""
    flying = [complete(19.9 + i / 100, 50, 10_150) for i in range(5)]
    records = [*steadily(0, 19.9), *flying, *steadily(30.2, 60)]
    effect = only(records, disrupted(20.0))
    assert effect.in_flight == of_total(5, finished=5)
    # the next token comes at 30.05 s
    assert effect.recovery_s == pytest.approx(10.25)
    assert effect.silent_s == pytest.approx(10.05, abs=1e-5)


def test_a_server_may_fail_at_the_end_of_its_grace_period() -> None:
    """The server goes on for 15 s, and is away then until 37.08 s."""
    records = [*steadily(0, 35), *refused(35, 37), *steadily(37, 60)]
    assert only(records, disrupted(20.0)).recovery_s == pytest.approx(17.15)


def test_what_begins_a_minute_later_has_another_reason() -> None:
    records = [*steadily(0, 90), *refused(90, 92), *steadily(92, 120)]
    assert only(records, disrupted(20.0, stop_s=120)).recovery_s == 0.0
    # the end of a longer command counts
    run = disrupted(20.0, stop_s=120)
    longer = replace(run.disruptions[0], ended_at=UNIX + 40.0)
    assert only(records, replace(run, disruptions=(longer,))).recovery_s == pytest.approx(72.15)


@pytest.mark.parametrize(
    ("again_s", "for_s", "recovery_s"),
    [
        (32, 1, 1.85),  # a second of slow requests 10 s later
        (32, 3, 14.85),  # three seconds
        (26, 1, 1.85),  # 4 s later, in windows with slow requests of the disruption
        (26, 2, 7.85),  # two seconds
        (90, 3, 1.85),  # more than a minute later
    ],
)
def test_a_later_moment_of_slow_first_tokens_is_no_disruption(
    again_s: int, for_s: int, recovery_s: float
) -> None:
    """Slow from 20 to 22 s. Of 50 requests two may be slow: the window from 21.8 s on has two."""
    later = again_s + for_s
    records = [
        *steadily(0, 20), *steadily(20, 22, 500), *steadily(22, again_s),
        *steadily(again_s, later, 500), *steadily(later, 120),
    ]  # fmt: skip
    assert only(records, disrupted(20.0, stop_s=120)).recovery_s == pytest.approx(recovery_s)


def test_moments_of_slow_first_tokens_that_come_again_belong_to_the_disruption() -> None:
    """Slow from 20 to 22 s, at 25 s and at 28 s, for 0.5 s each."""
    records = [
        *steadily(0, 20), *steadily(20, 22, 500), *steadily(22, 25), *steadily(25, 25.5, 500),
        *steadily(25.5, 28), *steadily(28, 28.5, 500), *steadily(28.5, 60),
    ]  # fmt: skip
    effect = only(records, disrupted(20.0))
    assert effect.recovery_s == pytest.approx(8.35)


def test_failures_at_the_former_rate_are_no_disruption() -> None:
    """Each tenth request failed before, and does so afterwards: 10 % in each window."""

    def tenth(begin: int, end: int) -> list[Record]:
        fine = [record for i, record in enumerate(steadily(begin, end)) if i % 10]
        return [*fine, *(refused(at, at + 0.1)[0] for at in range(begin, end))]

    assert only(tenth(0, 60), disrupted(20.0)).recovery_s == 0.0
    half = [*steadily(20, 24)[1::2], *refused(20, 24)[::2]]
    # up to 15 % are in the range, which is 7 of 50. The window from 23.4 s on has 3 of these 20
    # and 5 later ones, that from 23.5 s on has 2 of them
    worse = [*tenth(0, 20), *half, *tenth(24, 60)]
    assert only(worse, disrupted(20.0)).recovery_s == pytest.approx(3.55)


def test_a_recovery_that_nobody_saw_is_unknown() -> None:
    dead = only([*steadily(0, 20), *refused(20, 60)], disrupted(20.0))
    assert (dead.recovery_s, dead.first_success_s) == (None, None)
    assert dead.unknown == "not before the load ended, 40 s later"
    twice = [*steadily(0, 20), *refused(20, 26), *steadily(26, 60)]
    first, _ = measured(twice, disrupted(20.0, 26.0)).effects
    assert first.unknown == "not before disruption 2, 6 s later"
    assert "there is no recovery time: not before disruption 2, 6 s later." in describe_disruption(
        first
    )
    early = only([*steadily(0, 3), *refused(3, 4), *steadily(4, 60)], disrupted(3.0))
    assert early.unknown == "no 5 s of load were before it"
    late = only([*steadily(0, 20), *refused(20, 22)], disrupted(20.0, stop_s=22))
    assert late.unknown == "less than 5 s of load followed"


def test_each_disruption_is_watched_until_the_next_one() -> None:
    """The former range is of the time before the first one."""
    records = [
        *steadily(0, 20), *refused(20, 22), *steadily(22, 40), *refused(40, 43), *steadily(43, 60)
    ]  # fmt: skip
    first, second = measured(records, disrupted(20.0, 40.0)).effects
    assert (first.recovery_s, second.recovery_s) == pytest.approx((2.15, 3.15))
    assert (first.watched_s, first.sent.failed, second.sent.failed) == (20.0, 20, 30)
    assert (second.number, second.failures_before) == (2, 0.0)


def test_requests_that_were_sent_again_are_counted() -> None:
    """A refused attempt that another one follows, and a new connection for a closed one. One
    of before does not count."""
    again = [
        complete(20.5, 50, attempt=2, due_at=19.9),
        complete(20.6, 50, resent=1),
        complete(10.0, 50, attempt=2),
    ]
    records = [*steadily(0, 20), *refused(20, 21), *again, *steadily(21, 60)]
    assert only(records, disrupted(20.0)).sent_again == 2


# -- SLO budget ------------------------------------------------------------------------------------


def test_the_budget_is_what_rules_allow_over_the_whole_run() -> None:
    """600 requests. 1 % may fail: 6, and 20 do. 5 % may be slower than 1 s: 30, and 20 failed. A
    tenth need not meet the condition: 60. A rule that only warns has no budget."""
    rules = (
        "error_rate < 1%",
        "ttft p95 < 1s",
        "attainment >= 90% given ttft < 1s",
        "warn: ttft p99 < 1s",
        "ttft avg < 1s",
        "requests_per_s > 1",
    )
    records = [*steadily(0, 20), *refused(20, 22), *steadily(22, 60)]
    effect = only(records, disrupted(20.0, slo=rules))
    spent = [(budget.rule, budget.broken, round(budget.allowed, 6)) for budget in effect.budgets]
    assert spent == [(rules[0], 20, 6.0), (rules[1], 20, 30.0), (rules[2], 20, 60.0)]


def test_a_budget_counts_slow_requests_in_flight_and_of_its_selection_alone() -> None:
    flying = [complete(19.9, 2000, user_class="A"), complete(19.92, 2000, user_class="B")]
    records = [*steadily(0, 19.9, user_class="A"), *flying, *steadily(20, 60, user_class="A")]
    effect = only(records, disrupted(20.0, slo=("ttft{class=B} p95 < 1s", "ttft p95 < 1s")))
    assert [(budget.broken, round(budget.allowed, 2)) for budget in effect.budgets] == [
        (1, 0.05),
        (2, 30.05),
    ]


# -- rules and report ------------------------------------------------------------------------------


def judged(records: Sequence[Record], run: Run) -> list[tuple[str, float | None, str]]:
    slos = summarise_run(collect_columns(records), run).slos
    return [(slo.status, slo.observed, slo.reason) for slo in slos]


RULES = ("recovery_time < 30s", "recovery_time < 5s", "truncated_silently == 0")


def test_rules_decide_by_the_longest_recovery_and_by_the_truncated_answers() -> None:
    records = [*steadily(0, 20), *refused(20, 27.1), *steadily(27.1, 60)]
    assert judged(records, disrupted(20.0, slo=RULES)) == [
        (PASS, pytest.approx(7.25), ""),
        (FAIL, pytest.approx(7.25), ""),
        (PASS, 0.0, ""),
    ]
    early = complete(19.9, 50, 150, asked_output_tokens=9)
    assert judged([*records, early], disrupted(20.0, slo=RULES))[2] == (FAIL, 1.0, "")


def test_a_recovery_that_nobody_saw_breaks_a_limit_that_has_passed() -> None:
    """40 s were watched: longer than 30 s, and not longer than 50 s."""
    dead = [*steadily(0, 20), *refused(20, 60)]
    rules = ("recovery_time < 30s", "recovery_time < 50s")
    broken, open_ = judged(dead, disrupted(20.0, slo=rules))
    assert broken[:2] == (FAIL, pytest.approx(40.0))
    assert open_[0] == INCONCLUSIVE
    assert "disruption 1 was not over 40 s after its start" in broken[2]
    assert "disruption 1 was not over 40 s after its start" in open_[2]


def test_more_time_does_not_decide_what_the_next_disruption_ended() -> None:
    """The second command begins 4.9 s, or 7 s, after the first one."""
    for second_s, unknown in (
        (24.9, "less than 5 s were left before disruption 2"),
        (27.0, "not before disruption 2, 7 s later"),
    ):
        records = [*steadily(0, 20), *refused(20, second_s + 1), *steadily(second_s + 1.1, 60)]
        run = disrupted(20.0, second_s, slo=("recovery_time < 30s",))
        first, second = measured(records, run).effects
        assert (first.unknown, second.unknown) == (unknown, "")
        ((status, _, reason),) = judged(records, run)
        assert status == INCONCLUSIVE
        assert "disruptions further apart may decide it; disruption 1 was not over " in reason
        assert reason.endswith(" after its start, when disruption 2 began")


def test_a_server_that_answers_again_for_less_than_a_window_has_no_recovery_time_of_the_whole() -> (
    None
):
    """Refusals from 20 to 22 s; the next command at 26 s. It took two seconds at least, and nobody
    saw five without a silence."""
    records = [*steadily(0, 20), *refused(20, 22), *steadily(22, 26), *steadily(26.1, 60)]
    run = disrupted(20.0, 26.0, slo=("recovery_time < 5s", "recovery_time < 1s"))
    first, second = measured(records, run).effects
    assert (first.recovery_s, first.unknown) == (
        None,
        "less than 5 s were left before disruption 2",
    )
    assert (first.least_recovery_s, second.recovery_s) == (pytest.approx(2.08, abs=0.01), 0.0)
    open_, broken = judged(records, run)
    assert open_[:2] == (INCONCLUSIVE, pytest.approx(2.08, abs=0.01))
    assert (
        "disruptions further apart may decide it; disruption 1 has no recovery time: " in open_[2]
    )
    assert broken[0] == FAIL


def test_nothing_passes_by_a_command_that_failed_or_never_ran() -> None:
    records = steadily(0, 60)
    failed_one = judged(records, disrupted(20.0, status=1, slo=RULES))
    assert {(status, reason) for status, _, reason in failed_one} == {
        (INCONCLUSIVE, "the command of disruption 1 ended with status 1")
    }
    killed = judged(records, disrupted(20.0, status=None, slo=RULES))
    assert killed[0][2] == (
        "the command of disruption 1 still ran at the end of the run, which killed it"
    )
    none = judged(records, disrupted(slo=RULES))
    assert {(status, reason) for status, _, reason in none} == {
        (INCONCLUSIVE, "no command of --disrupt was run")
    }


@pytest.mark.parametrize(
    ("status", "why", "ended"),
    [
        (1, "No such process.", "ended with status 1: No such process."),
        (127, "", "ended with status 127."),
        (-9, "", "ended with status -9."),
        (
            None,
            "--disrupt cannot be started: No such file or directory",
            "failed: --disrupt cannot be started: No such file or directory.",
        ),
        (None, "it did not end within 600 s, or printed too much",
         "failed: it did not end within 600 s, or printed too much."),
    ],
)  # fmt: skip
def test_a_command_that_failed_has_no_recovery_time(
    status: int | None, why: str, ended: str
) -> None:
    """The server stood still from 22 s to 29 s by itself, and answered again later."""
    records = [*steadily(0, 22), *refused(22, 29), *steadily(29, 60)]
    run = disrupted(20.0, status=status)
    run = replace(run, disruptions=(replace(run.disruptions[0], why=why),))
    (effect,) = measured(records, run).effects
    assert effect.recovery_s is None
    text = describe_disruption(effect)
    assert text.endswith(
        f"; there is no recovery time: its command failed. The command of disruption 1 {ended}"
    )
    still_ran = disrupted(20.0, status=None)
    assert measured(records, still_ran).effects[0].recovery_s is not None


def test_the_report_has_the_disruption_and_the_charts_its_mark() -> None:
    records = [*steadily(0, 20), *refused(20, 27.1), *steadily(27.1, 60)]
    run = disrupted(20.0, slo=("error_rate < 1%",))
    columns = collect_columns(records)
    summary = summarise_run(columns, run)
    found = summary.disruptions
    assert found is not None
    blocks = list(make_disruption_blocks(found))
    tables = [block.rows for block in blocks if hasattr(block, "rows")]
    assert tables[0] == (("1: at 20s", "kill -9 7", "0", "100 ms"),)
    assert tables[1][1] == ("1, sent until recovery", "72", "1", "71", "0", "0", "0", "0")
    assert tables[2] == (
        ("1", "7.25 s", "7.18 s", "7.18 s", "0%", "100%", "30 ms", "30 ms", "0"),
    )  # fmt: skip
    (head,) = (
        block.head for block in blocks if isinstance(block, TableBlock) and block.rows == tables[2]
    )
    assert head[1:3] == ("Recovery, at a send", "First success, at its first token")
    assert head[4:8] == ("Failures before", "until recovery", "TTFT p95 before", "until recovery")
    assert tables[3] == (("error_rate < 1%", "1", "71", "6", "1,183%"),)
    line = (
        "Disruption 1 (at 20s), 20.0 s after the first request: no request was in flight; 71 of 72 requests sent until "
        "the recovery were lost; failures and TTFT p95 were back in their former range after 7.25 s."
    )
    assert describe_disruption(found.effects[0]) == line
    marks = [mark for plot in plot_latencies(columns.requests, run, {}) for mark in plot.marks]
    assert ("disruption 1", 20.0) in [(mark.text, mark.x) for mark in marks]
    ending = format_ending(replace(summary, sections={"disruptions": found}), run, "reports/x")
    assert (
        "Disruption 1 (at 20s), 20.0 s after the first request: no request was in flight"
        in " ".join(ending.split())
    )
    assert json.dumps([mark.x for mark in marks])
