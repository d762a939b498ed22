"""The offset of the server's clock by pencil, and the sentence about it."""

from dataclasses import fields

import numpy as np
import pytest

from locust_llm.report.request_table import RequestTable
from locust_llm.report.sections.latency_breakdown import (
    REQUESTS,
    LatencyAttribution,
    ServerClock,
    ServerTime,
    measure_server_clock,
    parse_explained_metric,
)
from locust_llm.report.sections.latency_breakdown_display import make_latency_parts_blocks
from locust_llm.report.server_time_columns import ReportedColumns


def clock_of(
    arrived_at: tuple[float, ...],
    ttft_us: float = np.nan,
    possible: tuple[bool, ...] = (True, True),
) -> ServerClock | None:
    """Two requests, sent at 100 and 200 s, answered after 0.5 s each; queue 0.1 s and prefill 0.3
    s."""
    known = {"queue_us": 1e5, "prefill_us": 3e5, "ttft_us": ttft_us}
    columns = {
        name.name: np.full(2, known.get(name.name, np.nan)) for name in fields(ReportedColumns)
    }
    reported = ReportedColumns(
        **columns | {"source": np.ones(2, np.int8), "arrived_at": np.array(arrived_at)}
    )  # type: ignore[arg-type]
    requests = RequestTable({"sent_at": np.array([100.0, 200.0]), "ttft_s": np.array([0.5, 0.5])})
    return measure_server_clock(requests, reported, np.array(possible))


def test_the_clock_lies_between_what_each_request_allows() -> None:
    """They arrived 0 to 0.1 s after their send: by their clocks at 60.08 and 60.03 s after it. So
    59.98 and 59.93 at least,
    60.08 and 60.03 at most."""
    found = clock_of((160.08, 260.03))
    assert found is not None
    assert (found.ahead_s, found.within_s) == (
        pytest.approx((59.98 + 60.03) / 2),
        pytest.approx(0.025),
    )
    ttft = clock_of(
        (160.08, 260.03), ttft_us=4.6e5
    )  # the front end had it for longer: 60.04 at least, which is too much
    assert ttft is not None
    assert (ttft.ahead_s, ttft.within_s) == (
        pytest.approx((60.04 + 60.03) / 2),
        pytest.approx(0.005),
    )
    drifted = clock_of((160.0, 261.0))  # 59.9 to 60, and 60.9 to 61: between these
    assert drifted is not None
    assert (drifted.ahead_s, drifted.within_s) == (pytest.approx(60.45), pytest.approx(0.45))
    one = clock_of((160.0, 1e9), possible=(True, False))
    assert one is not None
    assert one.ahead_s == pytest.approx(59.95)
    assert clock_of((np.nan, np.nan)) is None


@pytest.mark.parametrize(
    ("ahead_s", "within_s", "said"),
    [
        (
            3600.00006,
            0.000133,
            "The server's clock is 3,600.00006 s ahead of this machine's (± 0.133 ms);",
        ),
        (-0.25, 0.02, "The server's clock is 0.25 s behind this machine's (± 20 ms);"),
        (0.001, 0.002, "The server's clock agrees with this machine's within 2 ms."),
    ],
)
def test_it_is_said(ahead_s: float, within_s: float, said: str) -> None:
    found = LatencyAttribution(
        requests=9, reported={"spans": 8}, impossible=1,
        server=ServerTime(basis=REQUESTS, server_ms=1.0),
        breakdowns=(), slowest=(), server_clock=ServerClock(ahead_s=ahead_s, within_s=within_s),
    )  # fmt: skip
    *_, last = make_latency_parts_blocks(found)
    assert said in str(last)
    assert "The server reported its own times for 8 requests (spans) of 9." in str(last)


def test_what_can_be_explained() -> None:
    assert parse_explained_metric("ttft{model=a} p95").percentile == 95
    for wrong, why in (
        ("ttft", "ttft: ttft needs a statistic"),
        ("foo p95", "foo p95: unknown metric foo"),
        ("fluidity p95", "fluidity p95: only percentiles of"),
        ("itl p95", "itl p95: only percentiles of"),
        (
            "ttft avg",
            "ttft avg: only percentiles of ttft_from_due, ttft, request_latency have a breakdown",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            parse_explained_metric(wrong)
