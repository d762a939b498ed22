"""Load start: requests that break a rule while users start, from records small enough for a
pencil."""

from typing import Any

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import UserStart
from locust_llm.report.load_records import collect_columns
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.slo_evidence.load_start_burst import find_started
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SloResult

STARTED = UserStart(users=10, over_s=0.0, took_s=0.0, by="response_time")


def first_wave(ttft_ms: float = 2660, **other: Any) -> list[Record]:
    """Ten users ask at second 10 and are let through one after the other, 1.3 s apart: at 10,
    11.3, ... 21.7. The last one's answer is over at 25.7."""
    return [
        answered(ttft_ms, 4000, user=user, asked_at=10.0, due_at=10.0,
            admitted_at=10 + 1.3 * user, sent_at=10 + 1.3 * user, **other)
        for user in range(10)
    ]  # fmt: skip


def later(count: int = 50, ttft_ms: float = 1500) -> list[Record]:
    """From second 24 on, 1.4 s apart, none of which waits."""
    return [
        answered(ttft_ms, 4000, user=i % 10, sent_at=24 + 1.4 * i, admitted_at=24 + 1.4 * i)
        for i in range(count)
    ]


def judged(rule: str, records: list[Record], **settings: Any) -> SloResult:
    run = replace(a_run(slo=(rule,), **{"users": 10, **settings}), starts=(STARTED,))
    return summarise_run(collect_columns(records), run, 0, records).slos[0]


def started_s(records: list[Record], **start: Any) -> float:
    """Seconds after second 10."""
    requests = collect_columns(records).requests
    main = RequestSelection(requests, requests.has("phase", "profiling"))
    at = find_started(main, replace(a_run(), starts=(replace(STARTED, **start),)))
    assert at is not None
    return at - UNIX - 10


def test_the_load_has_started_when_the_gate_has_let_its_first_queue_through() -> None:
    """The last of the ten is let through at 21.7. Without a gate one response time of 4 s after the
    last user has sent its first request."""
    assert started_s([*first_wave(), *later()]) == pytest.approx(11.7)
    free = [answered(500, 4000, user=user, sent_at=10.0 + user) for user in range(10)]
    assert started_s([*free, *later()], took_s=9.0) == pytest.approx(13.0)
    assert started_s([*free, *later()], took_s=None, over_s=8.0) == pytest.approx(12.0)
    # a queue that lasts longer than half of the run is no matter of the start
    queue = [
        answered(
            500, 4000, sent_at=10.0 + 2 * i, asked_at=10.0, due_at=10.0, admitted_at=10.0 + 2 * i
        )
        for i in range(20)
    ]
    assert started_s(queue) == pytest.approx(19 + 4)  # the median wait, and an answer


@pytest.mark.parametrize("rule", ["ttft p95 < 2s", "ttft_from_due p90 < 2s", "ttft max < 2s"])
def test_the_first_requests_are_named_where_they_alone_are_beyond_the_limit(rule: str) -> None:
    """The last one of them is sent 11.7 s after the first was asked for."""
    found = judged(rule, [*first_wave(), *later()])
    assert found.status in ("FAIL", "INCONCLUSIVE")
    assert found.reason.endswith(
        "all 10 requests beyond 2s were sent in the first 12 s, while the load started: "
        "--warmup-duration 15 leaves them out"
    )
    assert found.longer_s is None


def test_attainment_and_failures_of_the_start() -> None:
    good = judged("attainment >= 90% given ttft < 2s", [*first_wave(), *later()])
    assert "all 10 requests beyond a limit were sent in the first 12 s" in good.reason
    refused = [failed(user=user, asked_at=10.0, sent_at=10 + 1.3 * user) for user in range(10)]
    errors = judged("error_rate < 5%", [*refused, *first_wave(1500), *later()])
    assert "all 10 failed requests were sent in the first 12 s" in errors.reason


def test_nearly_all_are_counted_and_others_are_not_named() -> None:
    slow = answered(2500, 4000, user=3, sent_at=60.0, admitted_at=60.0)
    nearly = judged("ttft p95 < 2s", [*first_wave(), *later(), slow])
    assert "10 of 11 requests beyond 2s were sent in the first 12 s" in nearly.reason
    spread = [*first_wave(), *later(25, 2100), *later(25)]
    assert "while the load started" not in judged("ttft p95 < 2s", spread).reason
    one = [*first_wave(1500)[:9], first_wave()[9], *later()]  # which may be chance
    assert "while the load started" not in judged("ttft max < 2s", one).reason


def test_where_the_start_alone_leaves_a_rule_open_what_came_after_it_is_named() -> None:
    """No request is beyond 3 s, but the ten of 2.66 s are too near to it to be known to be rare.
    The load has started when the last of them is sent, 11.7 s after the first was asked for."""
    found = judged("ttft p95 < 3s", [*first_wave(), *later()])
    assert (found.status, found.longer_s) == ("INCONCLUSIVE", None)
    assert found.reason == (
        "its 95% interval crosses the limit; the requests sent after the first 12 s, after the "
        "load had started, meet the limit: --warmup-duration 15 leaves the start out"
    )


def test_a_warmup_is_advised_only_where_it_would_go_on_into_profiling() -> None:
    found = judged("ttft p95 < 2s", [*first_wave(), *later()], num_sessions=60)
    assert found.reason.endswith("were sent in the first 12 s, while the load started")
