"""The client verdict: what the figures of a report make it, with their causes and what to do."""

from typing import Any

import numpy as np
import pytest
from support.records import answered

from locust_llm.lab.probe.episode_requests import ProbeResult
from locust_llm.lab.probe.probe_report_kind import ProbeExperiment
from locust_llm.records.outcomes import OK as RECORD_OK
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.report.load_records import collect_columns
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.summarise_metrics import collect_evidence
from locust_llm.slo.load_generator_health import (
    BURST_SENT,
    BUSY_ADVICE,
    CPU_WAIT_ADVICE,
    DEGRADED,
    HELD_UP_ADVICE,
    IDLE_ADVICE,
    INVALID,
    LATE_PERMIT,
    LATE_SEND,
    LOCAL_SERVER_ADVICE,
    MERGED,
    NO_CORE_ADVICE,
    OK,
    PERMIT_ADVICE,
    SENT_TOGETHER,
    SENTINELS,
    TOUCHES,
    ClientVerdict,
    FigureError,
    ProcessEvidence,
    can_touch,
    describe_other_programs,
    describe_saturation,
    judge_figures,
    list_fine_metrics,
)


def figure(
    off_ms: float, *, cause: str = MERGED, value: float = 200.0, word: str = "ttft",
    stat: str = "p95", unit: str = "ms",
) -> FigureError:  # fmt: skip
    return FigureError(
        word=word, stat=stat, label=f"{word} {stat}".strip(), unit=unit, value=value,
        lower=off_ms, causes={cause: off_ms},
    )  # fmt: skip


def process(**known: Any) -> ProcessEvidence:
    return ProcessEvidence(worker="local", requests=100, **{"cpu_share": 0.3} | known)


def judged(*figures: FigureError, **known: Any) -> ClientVerdict:
    verdict = judge_figures(figures, [process(**known)])
    assert verdict is not None
    return verdict


def test_a_wait_for_a_core_is_not_called_a_time_in_which_all_were_busy() -> None:
    """The kernel counts how long a thread was ready and had no core; all cores may be busy for
    longer."""
    waits = process(cpu_wait_share=0.31)
    assert describe_other_programs([waits]) == (
        "the load generator waited for a core for 31% of the time"
    )


def test_a_standstill_of_the_load_generator_is_its_first_reason() -> None:
    """The longest of a run whose health has two."""
    health = ProcessHealth(
        worker="local",
        cpu_share=0.3,
        loop_lag_p99_ms=1.0,
        standstills=((1000.0, 1.5), (2000.0, 5.04)),
    )
    part = collect_columns([answered(5)]).requests
    chosen = RequestSelection(part, np.ones(1, np.bool_))
    (evidence,) = collect_evidence(chosen, [health])
    assert evidence.standstill_s == 5.04
    verdict = judge_figures([figure(50.0)], [evidence])
    assert verdict is not None
    assert verdict.reasons[0] == "the load generator stood still for 5.0 s"
    assert len(judged(figure(50.0)).reasons) == 1


def test_a_standstill_is_named_where_no_request_succeeded() -> None:
    """There is no figure, or a rate of 0, that could show what it did."""
    nothing = figure(0.0, value=0.0, word="requests_per_s", stat="", unit="/s")
    for figures in ([], [nothing]):
        verdict = judge_figures(figures, [process(standstill_s=3.0)])
        assert verdict is not None
        assert (verdict.level, verdict.reasons) == (
            DEGRADED,
            ("the load generator stood still for 3.0 s",),
        )
    # answered requests show it themselves
    assert judge_figures([figure(0.0)], [process(standstill_s=3.0)]) == ClientVerdict(OK)


@pytest.mark.parametrize(
    ("one", "level"),
    [
        (figure(0.0), OK),
        (figure(4.0), OK),  # 2 % of 200 ms
        (figure(4.1), DEGRADED),
        (figure(1.0, value=10.0), OK),  # 10 %, and 1 ms
        (figure(1.1, value=10.0), DEGRADED),
        (figure(150.0), DEGRADED),  # a tail says nothing of what is usual
        (figure(39.0, stat="p50"), DEGRADED),
        (figure(41.0, stat="p50"), INVALID),  # more than a fifth of a median
        (figure(41.0, stat="avg"), INVALID),
        (figure(41.0, stat="p50", word="longest_stall"), OK),  # no main figure
        (figure(0.2, value=10.0, stat="", word="requests_per_s", unit="/s"), OK),
        (figure(0.3, value=10.0, stat="", word="requests_per_s", unit="/s"), DEGRADED),
        (figure(2.1, value=10.0, stat="", word="requests_per_s", unit="/s"), INVALID),
        (figure(150.0, stat="p50", cause=SENT_TOGETHER), OK),  # by the server
    ],
)
def test_a_figure_is_fine_within_two_per_cent_of_itself_or_a_millisecond(
    one: FigureError, level: str
) -> None:
    assert judged(one).level == level


def test_the_worst_figure_decides_and_each_cause_has_a_sentence() -> None:
    verdict = judged(
        figure(8.0),
        figure(60.0, stat="p99"),
        figure(50.0, stat="p50", word="ttft_from_due", cause=LATE_PERMIT),
        figure(0.5, word="itl"),
    )
    assert verdict.level == INVALID
    assert verdict.reasons == (
        "late permits: ttft_from_due p50 200 ms may be off by up to 50.0 ms",
        "merged chunks: ttft p99 200 ms may be off by up to 60.0 ms, and 1 more value",
    )
    assert verdict.signals == {LATE_PERMIT: INVALID, MERGED: DEGRADED}


def test_what_is_fine_is_named() -> None:
    figures = [
        figure(8.0), figure(0.1, word="itl"), figure(0.1, word="request_latency"),
        figure(9.0, word="request_latency", stat="p99"),
        figure(0.0, word="requests_per_s", stat="", unit="/s"),
    ]  # fmt: skip
    assert list_fine_metrics(figures) == ["ITL", "throughput"]


def test_other_programs_are_named_first_where_they_use_the_cores() -> None:
    verdict = judged(
        figure(8.0), cores=2, cpu_wait_share=0.4, other_programs={"python3": 1.5, "cc1": 0.31}
    )
    assert verdict.reasons[0] == "other programs used 1.8 of 2 cores: python3 1.5, cc1 0.3"
    assert verdict.reasons[1].startswith("merged chunks: ")
    assert verdict.advice == CPU_WAIT_ADVICE
    assert judged(figure(1.0), cores=2, other_programs={"python3": 2.0}) == ClientVerdict(OK)
    few = judged(figure(8.0), cores=2, other_programs={"python3": 0.4})
    assert len(few.reasons) == 1


def test_the_server_under_test_on_the_same_machine_is_no_other_program() -> None:
    alone = judged(figure(8.0), cores=2, server_cores=0.9)
    assert alone.reasons[0] == "the server under test used 0.9 of 2 cores of this machine"
    assert alone.advice == LOCAL_SERVER_ADVICE
    waits = judged(figure(8.0), cores=2, server_cores=0.9, cpu_wait_share=0.4)
    assert waits.advice == LOCAL_SERVER_ADVICE
    starved = judged(figure(8.0), cores=2, server_cores=0.04, other_programs={"cc1": 1.5})
    assert starved.reasons[0] == "other programs used 1.5 of 2 cores: cc1 1.5"
    pinned = judged(figure(8.0), cores=1, machine_cores=2, other_programs={"cc1": 1.5})
    used = "other programs used 1.5 of 2 cores (1 for the load generator): cc1 1.5"
    assert pinned.reasons[0] == used
    single = judged(figure(8.0), cores=1, server_cores=0.9)
    assert single.reasons[0] == "the server under test used 0.9 of 1 core of this machine"
    both = judged(figure(8.0), cores=2, server_cores=0.4, other_programs={"cc1": 1.5})
    assert both.reasons[0] == (
        "the server under test used 0.4 of 2 cores of this machine, other programs 1.5: cc1 1.5"
    )
    assert both.advice != LOCAL_SERVER_ADVICE


@pytest.mark.parametrize(
    ("known", "text"),
    [
        # 2 - 0.3 - 0.1 - 0.5 = 1.1 cores are of programs that nobody counted
        ({"server_cores": 0.1, "other_programs": {"python": 0.4, "mypy": 0.1}},
            ": of 2 cores the server under test used 0.1, other programs at least 0.5 "
            "(python 0.4, mypy 0.1); programs that ended before the run did are not counted"),
        ({"server_cores": 1.6}, ": of 2 cores the server under test used 1.6"),
        ({"other_programs": {"cc1": 1.5}}, ": of 2 cores other programs at least 1.5 (cc1 1.5)"),
        ({"cpu_share": 1.0, "beside": 2}, ""),
        # the others' cores are of the whole machine
        ({"cores": 1, "machine_cores": 2, "cpu_share": 0.5, "other_programs": {"cc1": 1.5}},
            ": of 2 cores (1 for the load generator) other programs at least 1.5 (cc1 1.5)"),
        ({"cores": 1, "machine_cores": 1, "other_programs": {"cc1": 0.9}},
            ": of 1 core other programs at least 0.9 (cc1 0.9)"),
    ],
)  # fmt: skip
def test_a_machine_without_a_free_core_is_named_with_its_total(
    known: dict[str, Any], text: str
) -> None:
    begin = "the cores of the load generator's machine were busy for 100% of the time"
    known = {"cores": 2, **known}
    assert describe_other_programs([process(machine_busy=1.0, **known)]) == f"{begin}{text}"
    assert describe_saturation([process(machine_busy=0.89, **known)]) == ""
    assert judged(figure(1.0), machine_busy=1.0, **known) == ClientVerdict(OK)


@pytest.mark.parametrize(
    ("cause", "touched", "not_touched"),
    [
        (MERGED, ("ttft", "icl", "longest_stall"), ("gate_wait", "requests_per_s", "error_rate")),
        (SENT_TOGETHER, ("ttft", "icl"), ("requests_per_s",)),
        (SENTINELS, ("ttft", "icl", "request_latency"), ("gate_wait", "requests_per_s")),
        (LATE_PERMIT, ("gate_wait", "ttft_from_due", "requests_per_s"),
         ("ttft", "icl", "itl", "longest_stall", "request_latency")),
        (LATE_SEND, ("ttft", "request_latency", "ttft_from_due"), ("icl", "itl", "gate_wait")),
        (BURST_SENT, ("ttft", "itl", "longest_stall"), ("requests_per_s", "output_tokens_per_s")),
    ],
)  # fmt: skip
def test_a_cause_touches_what_it_can_be_in(
    cause: str, touched: tuple[str, ...], not_touched: tuple[str, ...]
) -> None:
    assert all(can_touch(cause, word) for word in touched)
    assert not any(can_touch(cause, word) for word in not_touched)
    assert all("error_rate" not in words for words in TOUCHES.values())


@pytest.mark.parametrize(
    ("known", "level"),
    [
        ({"uncertified": "no process"}, OK),
        ({"uncertified": "no process", "required": True}, INVALID),
        ({"required": True}, OK),
    ],
)
def test_a_certificate_that_is_asked_for(known: dict[str, Any], level: str) -> None:
    assert judged(figure(1.0), **known).level == level
    off = judged(figure(5.0, cause=SENTINELS), required=True)
    assert (off.level, judged(figure(5.0, cause=SENTINELS)).level) == (INVALID, DEGRADED)


def test_nothing_to_judge_by() -> None:
    assert judge_figures([], []) is None
    assert judge_figures([], [ProcessEvidence(worker="local", requests=0)]) is None
    assert judge_figures([], [process()]) == ClientVerdict(OK)


def test_a_probe_is_held_against_the_least_ttft_that_it_compares() -> None:
    """Prompts of a quarter of the longest: 0.9, 1.0 and 1.2 s, beside others that are shorter or
    longer."""
    took = [("alone", 1, 4000, 0.9), ("stall", 1, 4000, 1.2), ("alone", 2, 4000, 1.0),
        ("stall", 2, 8000, 2.2),
            ("alone", 0, 250, 0.1), ("again", 1, 250, 0.2)]  # fmt: skip
    results = [
        ProbeResult(
            number, kind, turn, "long", RECORD_OK, tokens, tokens, 4, 4, 5.0, (5.0 + ttft_s,)
        )
        for number, (kind, turn, tokens, ttft_s) in enumerate(took)
    ]
    assert ProbeExperiment(results).compared_ttft_s == pytest.approx(1.0)
    assert ProbeExperiment(results[4:]).compared_ttft_s is None


def test_the_evidence_of_a_stage_is_that_of_its_requests_and_its_healths() -> None:
    """Two stages of two processes; in the second the chunks of one process came two to a read."""
    merged = ((1, 110_000), (2, 110_000))
    requests = collect_columns([
        answered(100, 120, 140, worker="a", stage=0),
        answered(200, 220, 240, worker="b", stage=0),
        answered(100, 140, 140, worker="a", stage=1, merged=merged),
        answered(300, 320, 340, worker="a", stage=1),
    ]).requests  # fmt: skip
    first, second = np.array([True, True, False, False]), np.array([False, False, True, True])
    calm = [
        ProcessHealth(worker=name, cpu_share=0.1, loop_lag_p99_ms=1.0, cpu_wait_share=0.01)
        for name in "ab"
    ]
    a, b = collect_evidence(RequestSelection(requests, first), calm)
    assert (a.worker, a.requests, a.merged_share) == ("a", 1, 0)
    assert (b.worker, b.cpu_share, b.cpu_wait_share) == ("b", 0.1, 0.01)
    # b sent nothing there, and nobody watched a
    (only,) = collect_evidence(RequestSelection(requests, second), [])
    assert (only.worker, only.requests, only.merged_share, only.cpu_wait_share) == (
        "a",
        2,
        2 / 6,
        None,
    )


def test_fewer_processes_are_for_permits_that_are_late() -> None:
    late = figure(150.0, word="ttft_from_due", cause=LATE_PERMIT)
    assert judged(late).advice == PERMIT_ADVICE
    assert judged(late, cpu_wait_share=0.1).advice == CPU_WAIT_ADVICE


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        ({"cpu_share": 0.95, "cores": 8}, BUSY_ADVICE),
        ({"cpu_share": 0.95, "cores": 2, "beside": 2}, NO_CORE_ADVICE),
        ({"cpu_share": 0.95, "cores": 1}, NO_CORE_ADVICE),
        ({"cpu_share": 0.3, "cores": 2, "cpu_wait_share": 0.15}, CPU_WAIT_ADVICE),
        ({"cpu_share": 0.95, "cores": 2, "cpu_wait_share": 0.15}, CPU_WAIT_ADVICE),
        ({"cpu_share": 0.3, "cores": 8, "cpu_wait_share": 0.01}, HELD_UP_ADVICE),
        ({"cpu_share": 0.3, "cores": 8, "other_programs": {"python": 2.1}}, IDLE_ADVICE),
        ({"cpu_share": None}, BUSY_ADVICE),
    ],
)
def test_more_processes_are_for_a_process_short_of_its_core_where_one_is_free(
    known: Any, advice: str
) -> None:
    assert judged(figure(8.0), **known).advice == advice
