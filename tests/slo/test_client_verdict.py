"""The client verdict: which figure makes it what, and that the worst of all processes counts."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import answered

from locust_llm.controller.live_stats import ClientLateness
from locust_llm.lab.probe.report_kind import ProbeExperiment
from locust_llm.lab.probe.requests import ProbeResult
from locust_llm.records.record import OK as RECORD_OK
from locust_llm.records.record import Record
from locust_llm.records.run import ProcessHealth
from locust_llm.report.columns import collect_columns
from locust_llm.report.selection import RequestSelection
from locust_llm.report.summarise import collect_evidence
from locust_llm.slo.client_verdict import (
    BUSY_ADVICE,
    CPU_WAIT,
    CPU_WAIT_ADVICE,
    DEGRADED,
    IDLE_ADVICE,
    INVALID,
    NO_CORE_ADVICE,
    OK,
    PERMIT_ADVICE,
    PERMIT_LAG,
    ClientVerdict,
    ProcessEvidence,
    judge_client,
)

FINE = {
    "ttft_p99_ms": 200.0, "ttft_p99_least_ms": 200.0, "merged_share": 0.0, "read_lag_p99_ms": 3.0,
    "send_lag_p99_ms": 0.05, "loop_lag_p99_ms": 2.0, "cpu_share": 0.3,
    "cpu_wait_share": 0.03,
}  # fmt: skip


def told(worker: str = "local", **figures: float | None) -> ProcessEvidence:
    return ProcessEvidence(worker=worker, requests=100, **(FINE | figures))


@pytest.mark.parametrize(
    ("figures", "level"),
    [
        ({}, OK),
        ({"ttft_p99_least_ms": 199.7}, OK),  # within half of the goal of 0.5 ms at 200 ms
        ({"ttft_p99_least_ms": 199.5}, DEGRADED),
        ({"ttft_p99_least_ms": 181.0}, DEGRADED),
        ({"ttft_p99_least_ms": 179.0}, INVALID),  # a tenth of it may be the client's
        ({"ttft_p99_ms": 5000.0, "ttft_p99_least_ms": 4991.0}, OK),  # 0.2 % of 5 s are 10 ms
        ({"merged_share": 0.049}, OK),
        ({"merged_share": 0.06}, DEGRADED),
        ({"merged_share": 0.26}, INVALID),
        ({"read_lag_p99_ms": 260.0}, DEGRADED),
        ({"read_lag_p99_ms": 6000.0}, DEGRADED),  # the stamps are the kernel's all the same
        ({"send_lag_p99_ms": 6.0}, DEGRADED),
        ({"send_lag_p99_ms": 101.0}, INVALID),
        ({"loop_lag_p99_ms": 251.0}, DEGRADED),
        ({"cpu_share": 0.99}, OK),  # by itself: see the remarks
        ({"cpu_wait_share": 0.24}, OK),
        ({"cpu_wait_share": 0.26}, DEGRADED),
        ({"cpu_wait_share": 0.99}, DEGRADED),  # by itself: the stamps are the kernel's
        ({"cpu_share": None, "loop_lag_p99_ms": None, "cpu_wait_share": None}, OK),
    ],
)
def test_each_figure_against_its_limits(figures: dict[str, float | None], level: str) -> None:
    verdict = judge_client([told(**figures)])
    assert verdict is not None
    assert verdict.level == level
    assert len(verdict.reasons) == (level != OK)


def test_the_worst_of_all_processes_counts_and_is_named() -> None:
    verdict = judge_client(
        [
            told("a"),
            told("b", merged_share=0.06),
            told("c", merged_share=0.3, loop_lag_p99_ms=260.0),
        ]
    )
    assert verdict is not None
    assert verdict.level == INVALID
    assert verdict.reasons == ("process c: merged chunks 30.0% (limit 25.0%)",)


def test_what_explains_it_is_named_beside_what_is_worse() -> None:
    verdict = judge_client([told(merged_share=0.3, cpu_share=0.93, loop_lag_p99_ms=260.0)])
    assert verdict is not None
    assert verdict.level == INVALID
    assert [reason.split(" (limit")[0] for reason in verdict.reasons] == [
        "merged chunks 30.0%", "CPU (of a core) 93.0%",
    ]  # fmt: skip
    assert verdict.advice == BUSY_ADVICE


def test_other_programs_are_named_as_such_and_more_processes_are_not_advised() -> None:
    verdict = judge_client([told(merged_share=0.3, cpu_wait_share=0.4)])
    assert verdict is not None
    assert (verdict.level, len(verdict.reasons), verdict.advice) == (INVALID, 2, CPU_WAIT_ADVICE)
    assert verdict.reasons[1] == f"{CPU_WAIT} 40.0% (limit 25.0%)"


def test_a_slow_server_is_not_the_clients_doing() -> None:
    """As recorded on 2 cores with nothing else on: 100 users, a server with 5 s to the first token
    and one each 200 ms."""
    recorded = ProcessEvidence(
        worker="local", requests=150, ttft_p99_ms=5005.44, ttft_p99_least_ms=5005.44,
        merged_share=0.0,
        read_lag_p99_ms=7.03, send_lag_p99_ms=0.137, loop_lag_p99_ms=2.41, cpu_share=0.0232,
        cpu_wait_share=0.0032,
    )  # fmt: skip
    assert judge_client([recorded]) == ClientVerdict(OK)


def test_a_burning_machine_is_told_apart() -> None:
    """As recorded beside 16 programs that compute without end: 100 users, 200 ms to the first token
    and one each 20."""
    recorded = ProcessEvidence(
        worker="local", requests=300, ttft_p99_ms=220.26, ttft_p99_least_ms=205.06,
        merged_share=0.0609,
        read_lag_p99_ms=55.28, send_lag_p99_ms=0.405, loop_lag_p99_ms=122.3, cpu_share=0.1128,
        cpu_wait_share=0.5729,
    )  # fmt: skip
    verdict = judge_client([recorded])
    assert verdict is not None
    assert (verdict.level, verdict.advice) == (DEGRADED, CPU_WAIT_ADVICE)
    assert verdict.reasons[-1].startswith(f"{CPU_WAIT} 57.3%")


@pytest.mark.parametrize(
    ("off", "level"),
    [
        ({"ttft_off_ms": 2.0}, OK),  # 2 % of 100 ms
        ({"ttft_off_ms": 2.1}, DEGRADED),
        ({"ttft_off_ms": 20.1}, INVALID),
        ({"ttft_off_ms": 2.1, "required": True}, INVALID),
        # of a probe, whose shortest prompts take a second
        ({"ttft_off_ms": 20.0, "ttft_compared_ms": 1000.0}, OK),
        ({"ttft_off_ms": 20.1, "ttft_compared_ms": 1000.0}, DEGRADED),
        ({"ttft_off_ms": 100.1, "ttft_compared_ms": 1000.0}, INVALID),
        ({"gap_off_ms": 2.0}, OK),  # 10 % of 20 ms
        ({"gap_off_ms": 2.1}, DEGRADED),
        ({"gap_off_ms": 20.1}, INVALID),
        ({"uncertified": "no process"}, OK),
        ({"uncertified": "no process", "required": True}, INVALID),
    ],
)
def test_how_far_sentinel_streams_may_be_off(off: dict[str, Any], level: str) -> None:
    verdict = judge_client(
        [
            ProcessEvidence(
                worker="local",
                requests=9,
                ttft_p99_ms=100.0,
                gap_p99_ms=20.0,
                merged_share=0.0,
                **off,
            )
        ]
    )
    assert verdict is not None
    assert verdict.level == level


def sent_late(count: int, *late_ms: float, each_ms: float) -> tuple[Record, ...]:
    """So many requests that took ``each_ms`` each from their admission on; the first of them were
    sent this much later."""
    delays_s = [ms / 1e3 for ms in (*late_ms, *[0.0] * (count - len(late_ms)))]
    return tuple(
        answered(
            each_ms - 1e3 * late_s,
            sent_at=10.0 + late_s,
            asked_at=10.0,
            admitted_at=10.0,
            worker="local",
        )
        for late_s in delays_s
    )


FEW_LATE = "send after admission p99 195 ms (limit 100 ms; of 38 requests the second largest)"
ALONE_LATE = (
    "send after admission p99 195 ms (limit 100 ms; the latest of 38, and late sends took "
    "2.6% of the requests' time)"
)


@pytest.mark.parametrize(
    ("count", "late_ms", "each_ms", "reason"),
    [
        (38, (195,), 1000, ""),  # 0.5 % of 38 s
        (38, (195,), 200, ALONE_LATE),  # of 7.6 s
        (38, (195, 195), 1000, FEW_LATE),
        (38, (195, 4), 1000, ""),
        (1, (195,), 1000, "send after admission p99 195 ms (limit 100 ms; of one request)"),
        # p99 of 100 lies a hundredth of the way from the second largest to the largest
        (100, (195,), 1000, ""),
        (100, (195, 195), 1000, "send after admission p99 195 ms (limit 100 ms)"),
    ],
)  # fmt: skip
def test_one_late_send_of_few_decides_only_where_it_took_a_share_of_the_time(
    count: int, late_ms: tuple[float, ...], each_ms: float, reason: str
) -> None:
    """At the end of the run, and while it is on."""
    records = sent_late(count, *late_ms, each_ms=each_ms)
    requests = collect_columns(records).requests
    live = ClientLateness()
    for record in records:
        live.add(record)
    for found in (
        collect_evidence(RequestSelection(requests, np.ones(count, np.bool_)), []),
        [live.evidence("local")],
    ):
        verdict = judge_client(found)
        assert verdict is not None
        assert verdict.reasons == ((reason,) if reason else ())
        assert verdict.level == (INVALID if reason else OK)


def test_a_request_that_was_sent_again_was_not_late_by_the_load_generators_doing() -> None:
    records = [replace(one, resent=1) for one in sent_late(200, *[195.0] * 50, each_ms=1000)]
    live = ClientLateness()
    for record in records:
        live.add(record)
    of_run = collect_evidence(
        RequestSelection(collect_columns(records).requests, np.ones(200, np.bool_)), []
    )
    assert [judge_client(of_run), judge_client([live.evidence("local")])] == [
        ClientVerdict(OK),
        ClientVerdict(OK),
    ]


@pytest.mark.parametrize(("reconnect_s", "level"), [(0.194, OK), (0.01, INVALID)])
def test_a_new_connection_after_the_admission_is_no_delay_of_the_load_generator(
    reconnect_s: float, level: str
) -> None:
    """Sends 195 ms after the admission: 194 ms of these the server's, as it had closed the idle
    connection, leave 1 ms; 10 ms leave 185."""
    late = sent_late(200, *[195.0] * 50, each_ms=1000)
    records = [replace(one, reconnect_s=reconnect_s) for one in late]
    assert records[0].send_delay_s == pytest.approx(0.195 - reconnect_s)
    live = ClientLateness()
    for record in records:
        live.add(record)
    of_run = collect_evidence(
        RequestSelection(collect_columns(records).requests, np.ones(200, np.bool_)), []
    )
    for evidence in (of_run, [live.evidence("local")]):
        verdict = judge_client(evidence)
        assert verdict is not None
        assert verdict.level == level


@pytest.mark.parametrize("ttft_ms", [200.0, 2130.0])
def test_one_first_chunk_of_few_that_came_merged_lowers_nothing(ttft_ms: float) -> None:
    """The others may be 0.1 ms too high: of 38 the second largest TTFT is that."""
    times = [(ttft_ms, ttft_ms - 0.1)] * 37 + [(ttft_ms + 300, ttft_ms)]
    records = [
        answered(
            reported, 5000, sent_at=10.0 + i, worker="local", merged=((0, round(soonest * 1e3)),)
        )
        for i, (reported, soonest) in enumerate(times)
    ]
    (found,) = collect_evidence(
        RequestSelection(collect_columns(records).requests, np.ones(38, np.bool_)), []
    )
    assert found.ttft_p99_ms == pytest.approx(ttft_ms)
    verdict = judge_client([replace(found, merged_share=None)])
    assert verdict == ClientVerdict(OK)


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"ttft_p99_least_ms": 190.0},
         "TTFT p99 may be too high by 10.0 ms (merged first chunks; limit 0.4 ms, as 0.2% of TTFT "
             "p99 is less)"),
        ({"ttft_p99_ms": 350.0, "ttft_p99_least_ms": 349.0},
         "TTFT p99 may be too high by 1.0 ms (merged first chunks; limit 0.2% of TTFT p99 = 0.7 ms)"),
        ({"ttft_p99_ms": 2130.0, "ttft_p99_least_ms": 1900.0},
         "TTFT p99 may be too high by 230 ms (merged first chunks; limit 10% of TTFT p99 = 213 ms)"),
        ({"ttft_p99_least_ms": 100.0, "ttft_p99_ms": 150.0},
         "TTFT p99 may be too high by 50.0 ms (merged first chunks; limit 20.0 ms, as 10% of TTFT "
             "p99 is less)"),
        ({"permit_lag_p99_ms": 150.0, "due_p99_ms": 1000.0},
         "wait for a free permit p99 150 ms (limit 10% of TTFT from due p99 = 100 ms)"),
        ({"permit_lag_p99_ms": 30.0, "due_p99_ms": 100.0},
         "wait for a free permit p99 30.0 ms (limit 20.0 ms, as 10% of TTFT from due p99 is less)"),
        ({"permit_lag_p99_ms": 501.0, "due_p99_ms": 1000.0},
         "wait for a free permit p99 501 ms (limit 50% of TTFT from due p99 = 500 ms)"),
        ({"ttft_off_ms": 5.0}, "TTFT error of sentinel streams, p99 5.0 ms (limit 2% of TTFT p99 = "
            "4.0 ms)"),
        ({"ttft_off_ms": 5.0, "ttft_compared_ms": 100.0},
         "TTFT error of sentinel streams, p99 5.0 ms (limit 2% of the least TTFT compared = 2.0 ms)"),
        ({"ttft_off_ms": 5.0, "ttft_p99_ms": None},
            "TTFT error of sentinel streams, p99 5.0 ms (limit 1.0 ms)"),
        ({"ttft_off_ms": 5.0, "ttft_p99_ms": None, "ttft_off_count": 12},
         "TTFT error of sentinel streams, p99 5.0 ms (limit 1.0 ms; of 12 sentinel streams the "
             "second largest)"),
        ({"ttft_off_ms": 5.0, "ttft_p99_ms": None, "ttft_off_count": 100},
         "TTFT error of sentinel streams, p99 5.0 ms (limit 1.0 ms)"),
        ({"gap_off_ms": 5.0, "gap_p99_ms": 5.0},
         "gap error of sentinel streams, p99 5.0 ms (limit 1.0 ms, as 10% of Inter Chunk Latency "
             "p99 is less)"),
        ({"loop_lag_p99_ms": 251.0}, "event loop lag p99 251 ms (limit 250 ms)"),
    ],
)  # fmt: skip
def test_a_reason_names_where_its_limit_comes_from(
    figures: dict[str, float | None], reason: str
) -> None:
    verdict = judge_client([told(**figures)])
    assert verdict is not None
    assert verdict.reasons == (reason,)


def test_nothing_to_judge_by() -> None:
    assert judge_client([]) is None
    assert judge_client([ProcessEvidence(worker="local", requests=0)]) is None


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
    requests = collect_columns([answered(1000, 1020, 1040)]).requests
    (of_probe,) = collect_evidence(
        RequestSelection(requests, np.array([True])), [], experiment=ProbeExperiment(results)
    )
    assert (of_probe.ttft_p99_ms, of_probe.ttft_compared_ms) == (None, pytest.approx(1000.0))
    (cut_short,) = collect_evidence(
        RequestSelection(requests, np.array([True])), [], experiment=ProbeExperiment(results[4:])
    )
    assert cut_short.ttft_compared_ms is None


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
    assert (a.worker, a.requests, a.merged_share, a.ttft_p99_ms) == ("a", 1, 0, pytest.approx(100))
    assert (b.worker, b.ttft_p99_ms, b.cpu_share, b.cpu_wait_share) == (
        "b",
        pytest.approx(200),
        0.1,
        0.01,
    )
    # b sent nothing there, and nobody watched a
    (only,) = collect_evidence(RequestSelection(requests, second), [])
    assert (only.worker, only.requests, only.merged_share, only.cpu_wait_share) == (
        "a",
        2,
        2 / 6,
        None,
    )
    assert only.ttft_p99_ms == pytest.approx(100)  # of 100 and 300 the second largest
    levels = [
        verdict.level for verdict in map(judge_client, ([a, b], [only])) if verdict is not None
    ]
    assert levels == [OK, INVALID]


def test_fewer_processes_are_for_permits_that_are_late() -> None:
    late = {"permit_lag_p99_ms": 150.0, "due_p99_ms": 1000.0}
    verdict = judge_client([told(**late), told("b")])
    assert verdict is not None
    assert (verdict.level, verdict.advice, verdict.signals) == (
        DEGRADED,
        PERMIT_ADVICE,
        {PERMIT_LAG: DEGRADED},
    )
    waits = judge_client([told(**late, cpu_wait_share=0.1)])
    assert waits is not None
    assert waits.advice == CPU_WAIT_ADVICE


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        ({"cpu_share": 0.95, "cores": 8}, BUSY_ADVICE),
        ({"cpu_share": 0.95, "cores": 2, "beside": 2}, NO_CORE_ADVICE),
        ({"cpu_share": 0.95, "cores": 1}, NO_CORE_ADVICE),
        ({"cpu_share": 0.3, "cores": 2, "cpu_wait_share": 0.15}, CPU_WAIT_ADVICE),
        ({"cpu_share": 0.95, "cores": 2, "cpu_wait_share": 0.15}, CPU_WAIT_ADVICE),
        ({"cpu_share": 0.3, "cores": 8, "cpu_wait_share": 0.01}, IDLE_ADVICE),
        ({"cpu_share": None}, BUSY_ADVICE),
    ],
)
def test_more_processes_are_for_a_process_short_of_its_core_where_one_is_free(
    known: Any, advice: str
) -> None:
    verdict = judge_client([told(merged_share=0.3, **known)])
    assert verdict is not None
    assert verdict.advice == advice


@pytest.mark.parametrize(
    ("merged_share", "text"),
    [(0.3, "merged chunks 30.0% (limit 25.0%)"), (0.2501, "merged chunks 25.01% (limit 25.00%)")],
)
def test_a_value_above_its_limit_looks_so(merged_share: float, text: str) -> None:
    verdict = judge_client([told(merged_share=merged_share)])
    assert verdict is not None
    assert verdict.reasons == (text,)
