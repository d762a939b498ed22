"""Outages: when no request was answered, by pencil."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.controller.run_progress import RunProgress
from locust_llm.records.failure_kinds import SilenceDetector
from locust_llm.records.outcomes import (
    CANCELLED,
    CUT,
    FAILURES,
    OK,
    RETRIED,
    is_answer,
    is_unanswered,
)
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Disruption, ProcessHealth, Run
from locust_llm.report.console_summary import format_ending
from locust_llm.report.load_records import collect_columns
from locust_llm.report.open_loop_delivery import format_outage_line
from locust_llm.report.outages import (
    Outage,
    are_answered,
    are_unanswered,
    describe_outages,
    find_run_outages,
)
from locust_llm.report.render.verdict_text import make_verdict
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.notes import make_remarks
from locust_llm.report.sections.sweep.sweep_findings import summarise_sweep
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, SloResult


def each_second(begin: int, end: int) -> list[Record]:
    """Answers of 100 ms, one a second."""
    return [answered(50, 100, sent_at=float(at)) for at in range(begin, end)]


def refused(begin: int, end: int, outcome: str = "refused") -> list[Record]:
    """One a second, refused at once."""
    return [
        failed(outcome, sent_at=None, asked_at=float(at), due_at=float(at), closed_at=at + 0.01)
        for at in range(begin, end)
    ]


def found(records: list[Record], run: Run | None = None) -> tuple[Outage, ...]:
    return summarise_run(collect_columns(records), run or a_run()).outages


def test_a_server_that_dies_answers_nothing_from_then_on() -> None:
    """The last chunk came at 19.1 s; the last refusal was at 29.01 s. Of 19.01 s 9.91 s were
    silent."""
    records = [*each_second(10, 20), *refused(20, 30)]
    (one,) = found(records)
    assert (round(one.began_s, 3), one.ended_s, round(one.seconds, 3), one.unanswered) == (
        19.1,
        None,
        9.91,
        10,
    )
    summary = summarise_run(collect_columns(records), a_run())
    assert format_outage_line(summary) == (
        "NO ANSWER: no request was answered from 19.1 s on: 10 requests failed. Rates are over 19 s; without these 9.91 s they are 2.2 output tokens/s and 1.1 requests/s."
    )
    assert make_headline(summary, a_run()).endswith(
        "; no request was answered from 19.1 s on, and rates include that time; 10 of 20 requests failed"
    )


def test_no_longer_run_is_advised_where_nothing_answers_at_its_end() -> None:
    """Ten of 20 failed, limit 30%: a rule that a look at a run leaves open. Nor does time decide it
    after one burst at the begin; the same failures in two bursts let a longer run tell."""
    run = a_run(slo=("error_rate < 30%",), until_decided_s=600.0)
    dead = summarise_run(collect_columns([*each_second(10, 20), *refused(20, 30)]), run)
    assert (dead.slos[0].status, dead.slos[0].longer_s) == (INCONCLUSIVE, None)
    assert dead.slos[0].reason.endswith(", no request was answered at the end of the run")
    assert "longer" not in make_headline(dead, run)
    once = summarise_run(collect_columns([*refused(10, 20), *each_second(20, 30)]), run)
    assert (once.slos[0].status, once.slos[0].longer_s) == (INCONCLUSIVE, None)
    assert "all 10 failures are one burst" in once.slos[0].reason
    assert "longer" not in make_headline(once, run)
    twice = [*refused(10, 15), *each_second(15, 20), *refused(20, 25), *each_second(25, 30)]
    late = summarise_run(collect_columns(twice), run)
    assert late.slos[0].status == INCONCLUSIVE
    assert late.slos[0].reason.endswith(" more may decide it")
    assert "longer" in make_headline(late, run)


def test_a_server_that_stays_dead_breaks_what_its_failures_break() -> None:
    """Nine of 39 have no answer at the end: 23.1 %, and the last chunk came at 39.1 s. The 30
    before were all answered, so each rule held by then, goodput at 1.03/s. A limit
    of 25 % they do not break."""
    rules = (
        "error_rate < 5%",
        "attainment >= 95% given ttft < 1s",
        "ttft p95 < 1s",
        "goodput >= 0.9/s given ttft < 1s",
    )
    run = a_run(slo=(*rules, "error_rate < 25%"))
    dead = [*each_second(10, 40), *refused(40, 49)]
    *broken, kept = summarise_run(collect_columns(dead), run).slos
    assert [(slo.rule, slo.status, slo.longer_s) for slo in broken] == [
        (rule, FAIL, None) for rule in rules
    ]
    silence = "no request was answered from 39.1 s on: 9 requests failed"
    assert broken[0].reason == silence
    assert broken[2].reason == f"p95 lands on one of 9 failed requests; {silence}"
    assert (kept.status, kept.low is not None) == (INCONCLUSIVE, True)  # 23 % are within 25 %


def test_a_server_that_comes_back_or_a_look_at_a_run_that_goes_on_breaks_nothing_by_silence() -> (
    None
):
    """The same nine failures, with answers after them, or before a later look."""
    back = [*each_second(10, 40), *refused(40, 49), *each_second(49, 52)]
    run = a_run(slo=("error_rate < 5%",))
    assert summarise_run(collect_columns(back), run).slos[0].status == INCONCLUSIVE
    dead = [*each_second(10, 40), *refused(40, 49)]
    looked = a_run(slo=("error_rate < 5%",), until_decided_s=600.0)
    assert summarise_run(collect_columns(dead), looked).slos[0].status == INCONCLUSIVE


def test_the_last_refusal_of_an_outage_is_counted_though_it_takes_no_time() -> None:
    """A refused connection may begin and end within one tick of the clock, at the end of the run."""
    last = failed("refused", sent_at=None, asked_at=29.0, due_at=29.0, closed_at=29.0)
    records = [*each_second(10, 20), *refused(20, 29), last]
    (one,) = found(records)
    assert one.unanswered == 10
    summary = summarise_run(collect_columns(records), a_run())
    assert (format_outage_line(summary) or "").startswith(
        "NO ANSWER: no request was answered from 19.1 s on: 10 requests failed."
    )
    assert make_headline(summary, a_run()).endswith("; 10 of 20 requests failed")


def test_failures_before_the_silence_do_not_save_a_server_that_stays_dead() -> None:
    """Three of 30 failed by then, 10 %, and nine of 39 at the end alone are 23 %: beyond 5 %."""
    some = [*refused(10, 13), *each_second(13, 40), *refused(40, 49)]
    run = a_run(slo=("error_rate < 5%", "ttft p95 < 1s"))
    assert [slo.status for slo in summarise_run(collect_columns(some), run).slos] == [FAIL, FAIL]


def test_a_dead_server_does_not_settle() -> None:
    """Latencies that rise to the last answer: a server that answers goes on, one that is dead does
    not."""
    rising = [answered(ms, ms + 10, sent_at=10.0 + ms / 10) for ms in range(500)]
    run = a_run(slo=("ttft p50 < 1s",))
    alive = summarise_run(collect_columns(rising), run).slos[0]
    assert alive.reason == "it rises over the run, and could reach the limit in as much time again"
    dead = summarise_run(collect_columns([*rising, *refused(61, 90)]), run).slos[0]
    assert (dead.status, dead.reason.split("; ")[0]) == (
        INCONCLUSIVE,
        "it rises over the run, and no request was answered at the end of it",
    )


def test_no_pass_is_foretold_of_a_dead_server() -> None:
    """Of 400 answers in 49 s and 10 refusals the rate is 8.16/s, and 2/s is near the low end of its
    interval, 1.73/s."""
    records = [answered(50, 100, sent_at=10 + i / 10) for i in range(400)]
    run = a_run(slo=("requests_per_s >= 2/s",))
    dead = summarise_run(collect_columns([*records, *refused(50, 60)]), run)
    assert dead.slos[0].status == INCONCLUSIVE
    assert dead.slos[0].likely == ""
    assert "likely" not in dead.slos[0].reason + make_headline(dead, run)


def test_a_dead_server_is_asked_for_no_more_requests() -> None:
    def few(records: list[Record]) -> str:
        summary = summarise_run(collect_columns(records), a_run())
        return next(
            note
            for note in make_remarks(summary, a_run())
            if "rests on the slowest" in note or "rest on the slowest" in note
        )

    assert few(each_second(10, 30)).endswith("send more (--request-count).")
    assert few([*each_second(10, 20), *refused(20, 30)]).endswith("p95 needs 20 requests.")


def test_a_restart_and_a_late_start() -> None:
    (one,) = found([*each_second(10, 15), *refused(15, 20), *each_second(20, 30)])
    assert (round(one.began_s, 3), round(one.ended_s or 0, 3), one.unanswered) == (14.1, 20.05, 5)
    assert str(one) == "from 14.1 to 20.0 s"  # of 20.05
    (first,) = found(
        [*refused(10, 15), *each_second(15, 20)],
        replace(a_run(), started_at=UNIX + 10, profiling_at=UNIX + 10),
    )
    assert str(first) == "until 5.0 s"  # of 5.05


def test_all_texts_have_one_count_of_the_failures_of_an_outage() -> None:
    """A stream breaks as the server dies, five requests are refused, and one is still open when the
    run ends. A failure before it is not its own."""
    broken = failed("truncated", sent_at=19.0, closed_at=19.2, asked_at=19.0, due_at=19.0,
        chunk_us=(50_000,), first_output=0, status=200)  # fmt: skip
    early = failed("http_status", sent_at=12.0, closed_at=12.1, status=500)
    records = [*each_second(10, 20), broken, *refused(20, 25), early]
    still = failed("cut", sent_at=24.0, closed_at=25.5, asked_at=24.0, due_at=24.0)
    run = a_run(slo=("error_rate < 5%",))
    summary = summarise_run(collect_columns([*records, still]), run)
    (one,) = summary.outages
    assert (one.unanswered, one.cut) == (7, 1)
    line = format_outage_line(summary)
    assert line is not None
    lost = "6 requests failed, and 1 request was cut without a response"
    assert line.startswith(f"NO ANSWER: no request was answered from 19.1 s on: {lost}. ")
    assert "7 of 17 requests failed" in make_headline(summary, a_run())
    plain = summarise_run(collect_columns(records[:-1]), a_run())
    assert format_outage_line(plain).startswith(  # type: ignore[union-attr]
        "NO ANSWER: no request was answered from 19.1 s on: 6 requests failed. "
    )
    headline = make_headline(plain, a_run())
    assert headline.endswith("and rates include that time; 6 of 16 requests failed")
    verdict = make_verdict(plain, a_run())
    assert f"{verdict.word} {verdict.text}" == (
        "No request was answered: from 19.1 s on; 6 of 16 requests failed."
    )


def test_the_verdict_of_a_rule_names_an_outage_where_there_is_room() -> None:
    records = [*each_second(10, 15), *refused(15, 20), *each_second(20, 90)]
    run = a_run(slo=("ttft p50 < 10s",))
    verdict = make_verdict(summarise_run(collect_columns(records), run), run)
    assert f"{verdict.word} {verdict.text}" == (
        "Passed: the rule holds; no answer from 14.1 to 20.0 s."
    )


def test_a_server_that_hangs() -> None:
    """Ten requests are open when it stops; they are cut at the end of the run, a minute later."""
    hung = [
        failed("cut", sent_at=20.0, closed_at=105.0, due_at=20.0, asked_at=20.0) for _ in range(10)
    ]
    (one,) = found([*each_second(10, 20), *hung])
    assert (round(one.began_s, 3), one.ended_s, one.unanswered) == (19.1, None, 10)


def test_what_is_no_outage() -> None:
    status = [
        failed("http_status", status=500, sent_at=float(at), closed_at=at + 0.01)
        for at in range(20, 30)
    ]
    assert found([*each_second(10, 20), *status]) == ()  # it answers, with errors
    # some connections were refused beside answers
    assert found([*each_second(10, 40), *refused(20, 30)]) == ()
    assert found([*each_second(10, 20), *refused(20, 22)]) == ()  # two
    assert found(refused(10, 30)) == ()  # nothing was ever answered, which the headline has
    ours = refused(20, 30, "no_socket")
    assert found([*each_second(10, 20), *ours]) == ()
    slow = [
        answered(40_000, 41_000, sent_at=10.0),
        *(failed("cut", sent_at=52.0, closed_at=105.0) for _ in range(5)),
    ]
    assert found(slow) == ()  # an answer takes 40 s: 53 s of silence tell nothing
    long = answered(*range(50, 30_000, 500), sent_at=10.0)
    assert found([long, *refused(11, 30)]) == ()  # it was decoding all the time


def decoding(sent_at: float, frozen: tuple[float, float] = (0.0, 0.0), **other: object) -> Record:
    """An answer with a token each 100 ms for 3 s. The tokens that were due in ``frozen`` come at
    its end."""
    due = [sent_at + 0.1 * number for number in range(1, 31)]
    at = [frozen[1] if frozen[0] < second < frozen[1] else second for second in due]
    return answered(*((second - sent_at) * 1e3 for second in at), sent_at=sent_at, **other)


def four_users(frozen: tuple[float, float], **other: object) -> list[Record]:
    """Four users with answers of 3 s, one after the other, from 10 to 40 s. Nobody sends while his
    answer is frozen."""
    sent = [10.05 + 0.7 * user + 3 * number for user in range(4) for number in range(9)]
    return [decoding(at, frozen, **other) for at in sent if not frozen[0] < at < frozen[1]]


def test_a_server_that_stands_still_for_a_while_is_named() -> None:
    """The last token before 20 s came at 19.95 s, the first one after it at 26 s."""
    records = four_users((20.0, 26.0))
    (one,) = found(records)
    assert (round(one.began_s, 3), round(one.ended_s or 0, 3), one.in_flight) == (19.95, 26.0, 4)
    summary = summarise_run(collect_columns(records), a_run())
    # 7 answers of 30 tokens for each of four users, from 10.05 s to 39.15 s
    assert format_outage_line(summary) == (
        "NO ANSWER: no token came from 20.0 to 26.0 s: 4 requests were in flight all the while. "
        "Rates are over 29.1 s; without these 6.05 s they are 36.4 output tokens/s and 1.21 "
        "requests/s."
    )
    headline = make_headline(summary, a_run())
    assert "; no token came from 20.0 to 26.0 s, and rates include that time" in headline
    assert (format_outage_line(summary, headline) or "").startswith(
        "NO ANSWER: 4 requests were in flight all the while. Rates are over 29.1 s; "
    )
    console = " ".join(format_ending(summary, a_run(), "reports/x").split())
    assert console.count("no token came from") == 1
    assert "NO ANSWER: 4 requests were in flight all the while. " in console


@pytest.mark.parametrize(("outcome", "status"), [("closed", 200), ("http_status", 504)])
def test_connections_that_a_proxy_closes_do_not_shorten_a_standstill(
    outcome: str, status: int
) -> None:
    """The four answers in flight at 20 s break off at 23 s, and the users send again at 23.01 s. A
    fifth request has no token, and ends at 22.5 s. No token came from 19.95 to 26 s."""
    frozen = (20.0, 26.0)
    kept = [one for one in four_users(frozen) if not 17.0 < (one.sent_at or 0) < 20.0]
    broken = [
        answered(
            *np.arange(100, (20.0 - sent_at) * 1e3, 100),
            sent_at=sent_at,
            outcome="closed",
            closed_at=23.0,
        )
        for sent_at in (17.45, 18.15, 19.05, 19.75)
    ]
    fifth = failed(outcome, sent_at=19.9, status=status, closed_at=22.5)
    again = [decoding(23.01, frozen) for _ in range(4)]
    (one,) = found([*kept, *broken, fifth, *again])
    assert (round(one.began_s, 3), round(one.ended_s or 0, 3)) == (19.95, 26.0)
    assert (one.in_flight, one.in_flight_most) == (5, 5)


def test_a_server_that_stands_still_to_the_end_is_named_too() -> None:
    """Nobody waits for a first token: all four have some, and are cut at the end."""
    at_stop = [
        decoding(sent_at, outcome="cut", closed_at=105.0) for sent_at in (37.0, 37.1, 37.2, 37.3)
    ]
    (one,) = found([*four_users((0.0, 0.0)), *at_stop])
    assert (round(one.began_s, 1), one.ended_s, one.in_flight) == (40.3, None, 4)


def test_an_open_loop_makes_a_standstill_plain_as_it_goes_on_to_send() -> None:
    """A request each half second with tokens after 0.1, 0.2 and 0.3 s, and a freeze from 20 to
    26 s: the one of 19.95 s is in flight, and twelve more come while it lasts."""
    records = []
    for number in range(50):
        sent_at = 9.95 + 0.5 * number
        due = [sent_at + 0.1 * token for token in (1, 2, 3)]
        at = [26.0 + second / 1e4 if 20.0 < second < 26.0 else second for second in due]
        records.append(answered(*((second - sent_at) * 1e3 for second in at), sent_at=sent_at))
    (one,) = found(records)
    began_s, ended_s = round(one.began_s, 2), round(one.ended_s or 0, 2)
    assert (began_s, ended_s, one.in_flight, one.in_flight_most) == (19.95, 26.0, 1, 13)
    line = format_outage_line(summarise_run(collect_columns(records), a_run())) or ""
    assert "from 20.0 to 26.0 s: 1 to 13 requests were in flight all the while" in line
    # a pause of the arrivals is none
    pause = [record for record in records if not 19.9 < (record.sent_at or 0) < 26.0]
    assert found(pause) == ()


def test_requests_that_the_end_cuts_one_after_the_other_show_a_standstill_too() -> None:
    """The second of two: one of three requests had a token, at 41 s; the others have a status and
    no token. A cut is no answer."""
    cut = [
        answered(100, sent_at=40.9, outcome="cut", closed_at=46.0),
        answered(sent_at=40.92, outcome="cut", closed_at=46.001),
        answered(sent_at=40.92, outcome="cut", closed_at=46.0),
    ]
    first, second = found(
        [*four_users((20.0, 26.0)), *cut], replace(a_run(), stopping_at=UNIX + 43)
    )
    assert (round(first.began_s, 2), round(first.ended_s or 0, 2)) == (19.95, 26.0)
    assert (round(second.began_s, 2), second.ended_s, second.in_flight) == (41.0, None, 3)


def test_a_load_generator_that_stood_still_itself_is_no_server_that_did() -> None:
    stood = ProcessHealth(
        worker="local",
        cpu_share=0.1,
        loop_lag_p99_ms=1.0,
        standstills=((UNIX + 20.1, 5.8),),
    )
    records = four_users((20.0, 26.0))
    assert found(records, replace(a_run(), health=(stood,))) == ()
    elsewhere = replace(stood, standstills=((UNIX + 30.0, 5.8),))
    assert len(found(records, replace(a_run(), health=(elsewhere,)))) == 1
    # what was read late may have come at any time since the read before
    read_at_once = [
        msgspec.structs.replace(
            record,
            merged=tuple(
                (place, chunk)
                for place, chunk in enumerate(record.chunk_us)
                if 20.0 < 10 + chunk / 1e6 < 26.0
            ),
        )
        for record in four_users((0.0, 0.0))
    ]
    assert found(read_at_once) == ()
    # but it never stood still, so what was read late had just come
    burst = [
        msgspec.structs.replace(
            record, merged=tuple((place, 0) for place in range(len(record.chunk_us)))
        )
        for record in records
    ]
    assert found(burst) == ()
    awake = replace(stood, standstills=())
    assert len(found(burst, replace(a_run(), health=(awake,)))) == 1


def test_a_sweep_names_the_time_without_an_answer_and_no_rates() -> None:
    """Of all its stages together, by the clock of the run. Its warmup waves have answers too."""
    run = a_run(sweep="concurrency=2,4", users=None)
    records = [*each_second(10, 20), *refused(20, 30)]
    sweep = summarise_sweep(run, [])
    summary = summarise_run(collect_columns(records), run, sweep=sweep)
    assert format_outage_line(summary) == (
        "NO ANSWER: no request was answered from 19.1 s on: 10 requests failed."
    )
    assert make_headline(summary, run).endswith("; no request was answered from 19.1 s on")
    waves = [msgspec.structs.replace(record, phase="warmup") for record in each_second(20, 30)]
    assert summarise_run(collect_columns([*records, *waves]), run, sweep=sweep).outages == ()


def test_what_is_no_server_that_stands_still() -> None:
    assert found(four_users((20.0, 20.9))) == ()
    busy = [decoding(10.0 + 3.1 * number) for number in range(10)]
    assert found([*four_users((20.0, 26.0)), *busy]) == ()  # another one had its tokens
    # a prompt of 60 times the others' length, whose prefill of 6 s holds the others up
    long = answered(6000, 6100, sent_at=19.97, input_tokens=6000)
    assert found([*four_users((20.0, 25.97)), long]) == ()
    short = replace(long, input_tokens=100)
    assert len(found([*four_users((20.0, 25.97)), short])) == 1
    # four long prompts at the begin, as all others
    slow = [answered(6000, 6010, sent_at=10.0 + 6.01 * number) for number in range(5)]
    assert found(slow * 4) == ()


# -- one request in flight -------------------------------------------------------------------------


def one_user(frozen: tuple[float, float] = (0.0, 0.0), count: int = 10) -> list[Record]:
    """A user with answers of 3 s, one after the other, who sends nothing while frozen."""
    sent = [10.06 + 3.1 * number for number in range(count)]
    return [decoding(at, frozen) for at in sent if not frozen[0] < at < frozen[1]]


def waits(sent_at: float, ttft_s: float, **other: object) -> Record:
    """Two tokens after this wait for the first one."""
    return answered(ttft_s * 1e3, ttft_s * 1e3 + 100, sent_at=sent_at, **other)


def each_five_s(**other: object) -> list[Record]:
    """The first token of each comes after 100 ms."""
    return [waits(10.0 + 5 * number, 0.1, **other) for number in range(10)]


def test_the_pause_of_the_only_answer_in_flight_is_named() -> None:
    """The fourth answer has tokens up to 19.96 s, and the next one at 26 s. The eight answers of
    30 tokens last from 10.06 to 40.96 s: 240 tokens in 30.9 s, of which 6.04 s are the pause."""
    records = one_user((20.0, 26.0))
    (one,) = found(records)
    assert (round(one.began_s, 2), round(one.ended_s or 0, 2)) == (19.96, 26.0)
    assert (one.in_flight, one.in_flight_most) == (1, 1)
    assert format_outage_line(summarise_run(collect_columns(records), a_run())) == (
        "NO ANSWER: no token came from 20.0 to 26.0 s: the server, or the only request in flight, "
        "stood still. Rates are over 30.9 s; without these 6.04 s they are 9.65 output tokens/s "
        "and 0.322 requests/s."
    )


def frozen_twice(sent_at: float, **other: object) -> Record:
    """A token each 100 ms; after the 10th token none for 6 s, after the 20th none for 4 s."""
    at_ms = [100.0 * number for number in range(1, 31)]
    late_ms = [ms + 5_900 * (ms > 1_000) + 3_900 * (ms > 2_000) for ms in at_ms]
    return answered(*late_ms, sent_at=sent_at, **other)


def test_two_standstills_within_one_answer_are_two() -> None:
    """Tokens at 41.0 s, at 47.0 to 47.9 s, then from 51.9 s on."""
    two = found([*one_user(), frozen_twice(40.0 + 10)])
    spans = [(round(one.began_s, 1), round(one.ended_s or 0, 1)) for one in two]
    assert spans == [(51.0, 57.0), (57.9, 61.9)]
    assert describe_outages(two) == "no token came from 51.0 to 57.0 s and from 57.9 to 61.9 s"
    summary = summarise_run(collect_columns([*one_user(), frozen_twice(40.0 + 10)]), a_run())
    assert make_headline(summary, a_run()).endswith(
        " and from 57.9 to 61.9 s, and rates include these times"
    )


def test_two_standstills_within_the_answers_of_several_users_are_two() -> None:
    together = [frozen_twice(50.0 + 0.01 * user) for user in range(3)]
    two = found([*one_user(), *together])
    assert [(round(one.seconds), one.in_flight) for one in two] == [(6, 3), (4, 3)]


def test_so_is_one_that_the_end_cuts() -> None:
    """The answer of 41.05 s has tokens to 42 s, and is cut at 50 s."""
    last = answered(
        *range(100, 1000, 100), sent_at=41.05, outcome="cut", closed_at=50.0, output_tokens=None
    )
    (one,) = found([*one_user(), last], replace(a_run(), stopping_at=UNIX + 50))
    assert (round(one.began_s, 2), one.ended_s) == (41.95, None)


def test_two_pauses_in_a_long_run_do_not_hide_each_other() -> None:
    """Two of 60 requests wait, one for 6 s in its answer and one, sent at 99.96 s, to 103 s for its
    first token: fewer than one of 20."""
    records = one_user((20.0, 26.0), count=60)
    later = [decoding((record.sent_at or 0.0), (100.0, 103.0)) for record in records[20:]]
    first, second = found([*records[:20], *later], replace(a_run(), stopping_at=UNIX + 200))
    assert (round(first.seconds, 2), round(second.seconds, 2)) == (6.04, 3.04)


def test_the_wait_of_the_only_request_for_its_first_token_is_named() -> None:
    """6 s where all others waited 100 ms, with prompts as long. Where the server reported its
    metrics meanwhile, a queue or a prefill may be why."""
    records = [*each_five_s(), waits(61.0, 6.0)]
    (one,) = found(records)
    assert (round(one.began_s, 2), round(one.ended_s or 0, 2), one.in_flight) == (61.0, 67.0, 1)
    columns = collect_columns(records)
    for second, expected in ((60.5, 1), (63.0, 0), (66.0, 1)):  # a reading takes up to 2 s
        readings = np.array([UNIX + second])
        assert len(find_run_outages(columns, a_run(), readings)) == expected


def test_a_slow_prompt_or_a_slow_begin_is_no_standstill() -> None:
    shorts = each_five_s(input_tokens=100)
    assert found([*shorts, waits(61.0, 6.0, input_tokens=30_000)]) == ()
    assert len(found([*shorts, waits(61.0, 6.0, input_tokens=100)])) == 1
    unknown = waits(61.0, 6.0, input_tokens=None, tokens_from="")
    assert found([*shorts, unknown]) == ()
    # of the others all but 20 tokens are cached
    cached = each_five_s(input_tokens=100, cached_tokens=80)
    assert found([*cached, waits(61.0, 6.0, input_tokens=100, cached_tokens=0)]) == ()
    # a picture takes its own time
    assert found([*shorts, waits(61.0, 6.0, images=1)]) == ()
    # the server loads its model
    assert found([waits(3.0, 6.0), *each_five_s()]) == ()
    of_model = each_five_s(model="a")
    assert found([*of_model, waits(61.0, 6.0, model="b")]) == ()
    assert len(found([*of_model, waits(61.0, 6.0, model="a")])) == 1
    # 20 times the longest wait so far is 2 s
    assert found([*each_five_s(), waits(61.0, 1.9)]) == ()
    assert len(found([*each_five_s(), waits(61.0, 2.0)])) == 1


def test_what_an_answer_or_a_server_often_does_is_no_standstill() -> None:
    """One of ten answers pauses, as for the arguments of a call of a tool."""
    pausing = [answered(100, 200, 5200, 5300, sent_at=10.0 + 60 * number) for number in range(4)]
    usual = [decoding(20.0 + 5 * number) for number in range(36) if number % 12 < 9]
    assert found([*pausing, *usual]) == ()
    # all of one answer is slow
    slow = answered(*range(1100, 30_000, 1100), sent_at=60.0)
    assert found([*one_user(), slow]) == ()
    # nobody asks while a tool runs
    thinking = [decoding(10.0 + 20 * number) for number in range(5)]
    assert found(thinking) == ()


def test_an_open_loop_of_few_requests_shows_a_standstill_too() -> None:
    """A request each 5 s, and a freeze from 29.9 to 36.9 s: the ones of 30 and 35 s wait."""
    sent = [10.0 + 5 * number for number in range(10)]
    records = [waits(at, 36.9 - at if 29.9 < at < 36.9 else 0.1) for at in sent]
    (one,) = found(records)
    assert (round(one.began_s, 2), round(one.ended_s or 0, 2)) == (30.0, 36.9)
    assert (one.in_flight, one.in_flight_most) == (1, 2)
    line = format_outage_line(summarise_run(collect_columns(records), a_run())) or ""
    assert "from 30.0 to 36.9 s: 1 to 2 requests were in flight all the while" in line


# -- rules -----------------------------------------------------------------------------------------


def test_a_rule_that_only_a_standstill_breaks_keeps_its_result_and_names_it() -> None:
    """The four answers that were open took up to 9.05 s, all others 3 s."""
    run = a_run(slo=("request_latency max < 4s", "request_latency max < 2s", "ttft max < 1s"))
    broken, anyway, held = summarise_run(collect_columns(four_users((20.0, 26.0))), run).slos
    assert (broken.status, broken.status_without_silence) == (FAIL, PASS)
    assert broken.reason == "PASS without the 4 requests in flight while no token came"
    assert (anyway.status, anyway.status_without_silence, anyway.reason) == (FAIL, "", "")
    assert (held.status, held.status_without_silence) == (PASS, "")


def test_a_rule_on_a_rate_leaves_the_time_of_the_standstill_out() -> None:
    """28 answers of 30 tokens in 29.1 s are 28.9 tokens/s; without four of them and 6.05 s 31.2."""
    run = a_run(slo=("output_tokens_per_s > 30/s",), slo_mode="point")
    (rate,) = summarise_run(collect_columns(four_users((20.0, 26.0))), run).slos
    assert (rate.status, rate.status_without_silence) == (FAIL, PASS)


def test_several_are_named_by_their_length() -> None:
    some = [
        Outage(began_s=float(at), ended_s=at + 2.0 + at / 10, seconds=2.0 + at / 10, unanswered=3)
        for at in (10, 20, 30, 40)
    ]
    assert describe_outages(some) == (
        "no request was answered from 20.0 to 24.0 s, from 30.0 to 35.0 s, from 40.0 to 46.0 s and 1 more "
        "time"
    )


def half_seconds(*frozen: tuple[float, float], step_ms: int = 1) -> list[Record]:
    """A request each half second from 10 to 69.5 s, with a TTFT of 100 ms and ``step_ms`` more from
    one to the next, and one more token 100 ms later. What was due in a freeze comes at its end."""
    records = []
    for number in range(120):
        sent_at = 10 + 0.5 * number
        first = sent_at + (100 + step_ms * number) / 1e3
        at = [first, first + 0.1]
        for begin, end in frozen:
            at = [end if begin < second < end else second for second in at]
        records.append(answered(*((second - sent_at) * 1e3 for second in at), sent_at=sent_at))
    return records


def judged(rule: str, records: list[Record], **facts: object) -> SloResult:
    run = replace(a_run(slo=(rule,)), **facts)
    return summarise_run(collect_columns(records), run).slos[0]


@pytest.mark.parametrize(
    ("rule", "status"), [("ttft max < 5.8s", INCONCLUSIVE), ("ttft max < 5.9s", PASS)]
)
def test_a_standstill_that_came_once_is_no_trend(rule: str, status: str) -> None:
    """The request of 50.5 s waited 5.7 s. The largest of the other 107 are 135 ms in the first
    third, 171 ms in the second, 219 ms in the last: 3 times 48 ms more in as much time again, so
    5.844 s."""
    records = half_seconds((50.2, 56.2))
    assert [str(one) for one in found(records)] == ["from 50.2 to 56.2 s"]
    one = judged(rule, records)
    assert (one.status, one.observed) == (status, 5.7)


@pytest.mark.parametrize(
    "records",
    [
        half_seconds((20.2, 24.2), (50.2, 56.2)),
        half_seconds((62.2, 68.2)),
        half_seconds((50.2, 56.2), step_ms=30),
    ],
    ids=["twice", "at the end", "a server that grows old"],
)
def test_what_may_come_again_or_goes_on_to_rise_does_not_pass(records: list[Record]) -> None:
    """The standstills of 4 and of 6 s; one before three requests, and 13 were held up; an answer
    that takes 30 ms more than the one before: 4.32 s in as much time again, and 8.2 s are reached
    now."""
    one = judged("ttft max < 10s", records)
    assert (one.status, one.status_without_silence) == (INCONCLUSIVE, PASS)
    assert one.reason.startswith("it rises over the run, and could reach the limit in as much time")


def test_a_rule_that_a_standstill_leaves_open_names_no_time() -> None:
    """The standstill holds up 13 of 120 requests, and the largest of the others is 219 ms. Another
    lasts from 40.3 s to the end of the run."""
    records = half_seconds((50.2, 56.2))
    one = judged("ttft p95 < 1s", records)
    assert (one.status, one.longer_s) == (INCONCLUSIVE, None)
    assert one.reason.startswith(
        "its 95% interval crosses the limit (likely FAIL), only a longer run shows how often the "
        "server is silent; "
    )
    assert one.reason.endswith("PASS without the 13 requests in flight while no token came")
    frozen = Disruption(
        schedule="at 40s",
        command="kill -STOP 7",
        began_at=UNIX + 50.2,
        ended_at=UNIX + 56.2,
        status=0,
    )
    assert "how often" not in judged("ttft p95 < 1s", records, disruptions=(frozen,)).reason
    last = judged("longest_stall p90 < 1s", [*four_users((0.0, 0.0)), *hung_until(49.0)])
    assert (last.status, last.longer_s) == (INCONCLUSIVE, None)
    assert ", no token came at the end of the run; " in last.reason


def hung_until(stop: float) -> list[Record]:
    """Four requests whose last token came at 40.3 s at the latest."""
    return [
        decoding(sent_at, outcome="cut", closed_at=stop) for sent_at in (37.0, 37.1, 37.2, 37.3)
    ]


def test_a_server_that_hangs_to_the_end_breaks_what_the_open_requests_break() -> None:
    """From 40.3 s on no token comes. Ten seconds are a dead server; nine may be a pause. The open
    ones are four of 40, so the median holds, and no run is long enough to show p50."""
    records = [*four_users((0.0, 0.0)), *hung_until(51.0)]
    dead = judged("longest_stall p95 < 1s", records)
    assert dead.status == FAIL
    assert dead.reason.startswith(
        "no token came from 40.3 s on: 4 requests were in flight all the while"
    )
    assert judged("longest_stall p50 < 1s", records).status != FAIL
    pause = [*four_users((0.0, 0.0)), *hung_until(49.0)]
    assert judged("longest_stall p95 < 1s", pause).status == INCONCLUSIVE


# -- what is an answer -----------------------------------------------------------------------------


def refused_by_a_proxy(begin: int, end: int, status: int) -> list[Record]:
    """One a second, refused at once with a status."""
    outcome = "unavailable" if status == 503 else "http_status"
    return [
        failed(outcome, status=status, sent_at=float(at), closed_at=at + 0.01, reads=2, error="no")
        for at in range(begin, end)
    ]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_refusal_by_a_proxy_is_no_answer_wherever_a_silence_is_named(status: int) -> None:
    """The last token comes at 19.1 s, and the next one 10.95 s later, at 30.05 s. Ten refusals lie
    between. The 20 answers of two tokens are over 29.1 s, 18.15 s without this time."""
    refusals = refused_by_a_proxy(20, 30, status)
    records = [*each_second(10, 20), *refusals, *each_second(30, 40)]
    made = Disruption(
        schedule="at 18s", command="kill 7", began_at=UNIX + 18, ended_at=UNIX + 18.1, status=0
    )
    run = replace(a_run(), disruptions=(made,))
    summary = summarise_run(collect_columns(records), run)
    (one,) = summary.outages
    assert (round(one.began_s, 3), round(one.ended_s or 0, 3)) == (19.1, 30.05)
    assert one.statuses == {str(status): 10}
    assert format_outage_line(summary) == (
        f"NO ANSWER: no request was answered from 19.1 to 30.0 s (10 got HTTP {status}): 10 requests "
        "failed. Rates are over 29.1 s; without these 11 s they are 2.2 output tokens/s and 1.1 "
        "requests/s."
    )
    assert summary.disruptions is not None
    assert summary.disruptions.effects[0].silent_s == pytest.approx(10.95)
    # the log
    silence = SilenceDetector()
    lines = [silence.add(record, UNIX) for record in records]
    assert [line.split(":")[-3 if "since" in line else 0] for line in lines if line] == [
        " no answer since 19.1 s after the start",
        "The server answers again, after 11.0 s.",
    ]
    # the live page, the line of progress and the rules that abort
    now = [19.1]
    progress = RunProgress(lambda: now[0])
    progress.update("", used=0, waiting=0, decoding=0, ttfts_s=[0.05], reads=20)
    for place, refusal in enumerate(refusals, 1):
        now[0] = refusal.closed_at
        progress.note_end(refusal)
        progress.update("", used=0, waiting=0, decoding=0, reads=20 + 2 * place)
    assert progress.silent_s() == pytest.approx(29.01 - 19.1)


def test_a_dead_server_behind_a_proxy_breaks_a_rule_as_one_that_refuses_connections() -> None:
    """Nine of 39 got HTTP 503 at the end: 23 %, and the 30 before were all answered."""
    run = a_run(slo=("error_rate < 5%",))
    records = [*each_second(10, 40), *refused_by_a_proxy(40, 49, 503)]
    (broken,) = summarise_run(collect_columns(records), run).slos
    assert (broken.status, broken.reason) == (
        FAIL,
        "no request was answered from 39.1 s on (9 got HTTP 503): 9 requests failed",
    )


def test_the_most_frequent_status_comes_first() -> None:
    some = [*refused_by_a_proxy(20, 24, 503), *refused_by_a_proxy(24, 30, 502), *refused(30, 31)]
    assert describe_outages(found([*each_second(10, 20), *some])) == (
        "no request was answered from 19.1 s on (6 got HTTP 502, 4 HTTP 503)"
    )


def test_the_records_and_their_columns_have_the_same_answers() -> None:
    """Each outcome with each status, with a chunk and without one; columns have no retried attempts."""
    cases = [
        answered(*chunks, outcome=outcome, status=status, closed_at=11.0)
        for outcome in (OK, CUT, CANCELLED, *FAILURES)
        for status in (None, 200, 404, 429, 500, 502, 503, 504)
        for chunks in ((), (50.0,))
    ]
    columns = collect_columns(cases)
    part = RequestSelection(columns.requests, np.ones(len(cases), np.bool_))
    for judge, judge_all in ((is_answer, are_answered), (is_unanswered, are_unanswered)):
        expected = [judge(one.outcome, one.status, has_chunk=bool(one.chunk_us)) for one in cases]
        assert judge_all(part).tolist() == expected


def test_an_answer_is_the_models_or_the_servers_own() -> None:
    assert is_answer("http_status", 500, has_chunk=False)
    assert is_answer(RETRIED, 429, has_chunk=False)
    assert is_answer("reset", 200, has_chunk=True)
    assert not is_answer("reset", 200, has_chunk=False)
    assert not is_answer("unavailable", 503, has_chunk=False)
    assert is_unanswered("unavailable", 503, has_chunk=False)
    assert not is_unanswered(RETRIED, 503, has_chunk=False)  # its last attempt counts
    assert not is_unanswered("no_socket", None, has_chunk=False)
