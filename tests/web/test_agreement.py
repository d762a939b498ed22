"""One set of records in all that shows percentiles: they agree with the report to three digits."""

from random import Random

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.records import a_run, answered

from locust_llm.controller.run_progress import RunProgress
from locust_llm.locust_adapter.locust_tables import three_digits_in_locust
from locust_llm.records.record import Record
from locust_llm.report.load_records import collect_columns
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.web.live_page_tallies import (
    PERCENTILES,
    TABLE_ROWS,
    LivePageTallies,
    order_latency_rows,
)


def some_records(count: int = 400) -> list[Record]:
    """Log-normal times, from tenths of a millisecond to a minute."""
    random = Random(7)

    def one() -> Record:
        chunk_ms = [random.lognormvariate(5, 1.5)]
        for _ in range(8):
            chunk_ms.append(chunk_ms[-1] + random.lognormvariate(3, 1))
        due_at = 10.0 - random.lognormvariate(-2, 1)
        return answered(
            *chunk_ms,
            asked_at=10.0,
            due_at=due_at,
            admitted_at=10.0 + random.lognormvariate(-4, 2),
            limit=4,
        )

    return [one() for _ in range(count)]


def test_all_percentiles_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    import locust.stats  # after unpatched_locust

    monkeypatch.setattr(locust.stats, "bucket_response_time", None)  # given back at the end
    monkeypatch.setattr(locust.stats, "calculate_response_time_percentile", None)
    three_digits_in_locust()
    records, clock = some_records(), lambda: 100.0
    stats, table = RunProgress(clock), locust.stats.RequestStats()
    live = LivePageTallies(stats, 100.0, clock)
    live.has_waits = True
    stats.update(
        "a",
        used=0,
        waiting=0,
        decoding=0,
        ttfts_s=[record.ttft_s or 0 for record in records],
        ttfts_from_due_s=[record.ttft_from_due_s or 0 for record in records],
    )
    for record in records:
        stats.add(record)
        live.add(record)
        assert record.ttft_s is not None
        table.log_request("LLM", "TTFT", record.ttft_s * 1000, 0)  # type: ignore[arg-type]
    rows = {
        row.tag: row
        for row in summarise_run(collect_columns(records), a_run(percentiles=PERCENTILES)).rows
    }

    for shown, (tag, label) in zip(
        live.table(), order_latency_rows(TABLE_ROWS, waits=True, gated=True).items(), strict=True
    ):
        report = [rows[tag].percentiles[p] for p in PERCENTILES]
        assert (shown.label, shown.whole_count) == (label, rows[tag].count)
        for found_ms in (shown.whole_ms, shown.recent_ms):
            assert found_ms == pytest.approx(report, rel=5e-3), label
    ttft_ms = [rows["time_to_first_token"].percentiles[p] for p in PERCENTILES]
    entry = table.get("TTFT", "LLM")
    assert [entry.get_response_time_percentile(p / 100) for p in PERCENTILES] == pytest.approx(
        ttft_ms, rel=5e-3
    )
    assert stats.recent_ttft.percentiles_ms(*PERCENTILES) == pytest.approx(ttft_ms, rel=5e-3)
    (client,) = stats._clients.values()
    judged = {error.stat: error.value for error in client.figures()}
    report = rows["time_to_first_token"].percentiles
    assert judged["p50"] == pytest.approx(report[50.0], rel=5e-3)
