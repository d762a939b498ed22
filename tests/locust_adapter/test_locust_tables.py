"""Locust's table in our digits, and without the copies of rows that only a history of rows
needs."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from locust.env import Environment
from locust.stats import RequestStats, StatsError

import pytest
from support import unpatched_locust  # noqa: F401  before the rest

from locust_llm.locust_adapter.locust_tables import (
    align_errors_to_rows,
    describe_count_difference,
    describe_other_requests,
    keep_no_copies_of_rows,
    keep_rows_after_json,
    keep_writing_csv,
    three_digits_in_locust,
)


def test_rows_keep_no_copies_and_the_total_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import locust.stats

    # put back afterwards
    monkeypatch.setattr(locust.stats.StatsEntry, "__init__", locust.stats.StatsEntry.__init__)
    keep_no_copies_of_rows()
    keep_no_copies_of_rows()  # of another environment
    stats = RequestStats()
    for second in range(3):
        monkeypatch.setattr("time.time", lambda second=second: 1000.0 + 2 * second)
        stats.get("a row", "TTFT").log(12.0, 0)
        stats.log_request("POST", "/v1", 12.0, 0)
    assert stats.get("a row", "TTFT").response_times_cache is None
    assert stats.total.response_times_cache
    stats.clear_all()
    assert stats.total.use_response_times_cache


def test_three_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    import locust.stats

    for name in ("bucket_response_time", "calculate_response_time_percentile"):
        monkeypatch.setattr(locust.stats, name, getattr(locust.stats, name))
    three_digits_in_locust()
    assert [locust.stats.bucket_response_time(ms) for ms in (12.4, 1234.0)] == [12.4, 1230.0]
    row = RequestStats().get("a row", "TTFT")
    for ms in (100.0, 101.0, 0.0123, 3.3333):
        row.log(ms, 0)
    shown = [
        value
        for name, value in row.to_dict().items()
        if name.startswith("response_time_percentile")
    ]
    # between 100 and 101 lie 100.85 and 100.97, of which a row has three digits
    assert shown == [101.0, 101.0]
    assert row.get_response_time_percentile(0.5) == 51.7  # half of 3.33 and 100 is 51.665
    short = RequestStats().get("a row", "ITL")
    short.log(4.9, 0)
    # Locust's printed table cuts, as docs/reference/metrics.md has it
    assert short.percentile().split()[3:5] == ["4", "4"]
    assert short.median_response_time == 4.9


def test_the_csv_has_what_came_after_its_last_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import locust.stats

    writer_class = locust.stats.StatsCSVFileWriter
    # put back afterwards
    monkeypatch.setattr(writer_class, "close_files", writer_class.close_files)
    keep_writing_csv()
    keep_writing_csv()  # once is enough
    environment = Environment()
    writer = writer_class(environment, [0.5], str(tmp_path / "a"))
    writer.requests_csv(writer.requests_csv_writer)
    environment.stats.log_request("POST", "/v1", 12.0, 0)
    environment.stats.log_request("POST", "/v1", 12.0, 0)
    environment.stats.log_error("POST", "/v1", "refused")
    writer.close_files()
    with (tmp_path / "a_stats.csv").open() as file:
        counts = [
            (row["Name"], row["Request Count"], row["Failure Count"])
            for row in csv.DictReader(file)
        ]
    assert counts == [("/v1", "2", "1"), ("Aggregated", "2", "1")]
    assert "refused" in (tmp_path / "a_failures.csv").read_text()


def test_rows_are_kept_after_locust_printed_them_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import locust.stats

    for name in ("print_stats_json", "save_stats_json"):
        monkeypatch.setattr(locust.stats, name, getattr(locust.stats, name))  # put back afterwards
    keep_rows_after_json()
    keep_rows_after_json()  # once is enough
    stats = RequestStats()
    stats.log_request("POST", "/v1", 12.0, 0)
    stats.log_request("POST", "/v1", 12.0, 0)
    stats.get("/v1", "ITL")  # without a value it is in no JSON
    locust.stats.print_stats_json(stats)
    locust.stats.save_stats_json(stats, str(tmp_path / "a"))
    for written in (capsys.readouterr().out, (tmp_path / "a.json").read_text()):
        (row,) = json.loads(written)
        assert (row["method"], row["num_requests"]) == ("POST", 2)
    assert stats.get("/v1", "POST").num_requests == 2


@pytest.mark.parametrize(
    ("counts", "profiled", "text"),
    [
        ({"ok": 9, "refused": 1}, 10, ""),
        ({"ok": 13, "cut": 2, "cancelled": 7}, 18,
            "4 requests of the warmup or of other phases and 9 cut or cancelled "
         "requests, as failures"),
        ({"ok": 9, "cut": 1}, 10, "1 cut or cancelled request, as failures"),
        ({"ok": 9}, 8, "1 request of the warmup or of other phases"),
    ],
)  # fmt: skip
def test_what_locust_counts_otherwise(counts: dict[str, int], profiled: int, text: str) -> None:
    found = describe_count_difference(Counter(counts), profiled)
    assert found == (
        f"Locust's own files (--csv, --html) also include {text}. The report leaves them out."
        if text
        else ""
    )


def test_what_is_not_ours_is_one_line() -> None:
    """19 logins of 10 ms and one of a second, which fails: p95 is the nineteenth and a twentieth of
    the way on."""
    stats = RequestStats()
    for row in ("TTFT", "ITL", "gate wait", "retried"):
        stats.get("/v1/chat/completions", row).log(12.0, 0)
    stats.log_request("POST", "/v1/chat/completions", 5000.0, 0)
    ours = {"/v1/chat/completions"}
    assert describe_other_requests(stats, ours) == ""
    for _ in range(19):
        stats.log_request("POST", "/login", 10.0, 0)
    stats.log_request("POST", "/login", 1000.0, 0)
    stats.log_error("POST", "/login", "no\x1b[31m such user")
    assert describe_other_requests(stats, ours) == (
        "Other requests than LLM requests (self.client): 20 requests, p95 59.5 ms, 1 failed (most "
        "often POST /login: no\ufffd[31m such user); --verbose prints Locust's tables"
    )


def test_ours_are_ours_where_all_of_them_failed() -> None:
    """Then they have no row of a latency."""
    stats = RequestStats()
    stats.log_request("POST", "/v1/chat/completions", 1.0, 0)
    stats.log_error("POST", "/v1/chat/completions", "refused")
    assert describe_other_requests(stats, {"/v1/chat/completions"}) == ""


def reported(*errors: str) -> dict[str, Any]:
    """As a worker sends them."""
    worker = RequestStats()
    for error in errors:
        worker.log_error("POST", "/v1", error)
    return dict(worker.serialize_errors())


def test_a_kind_is_one_row_whichever_process_saw_it() -> None:
    """Each names it by the first message it has seen; other exceptions keep their numbers."""
    stats = RequestStats()
    for errors in (
        ("RequestFailed('http_status: no room for 17 tokens')", "ValueError('1')"),
        ("RequestFailed('http_status: no room for 18 tokens')", "ValueError('2')"),
    ):
        for key, row in align_errors_to_rows(stats, reported(*errors)).items():
            known = stats.errors.setdefault(key, StatsError.unserialize(row | {"occurrences": 0}))
            known.occurrences += row["occurrences"]
    assert {row.error: row.occurrences for row in stats.errors.values()} == {
        "RequestFailed('http_status: no room for 17 tokens')": 2, "ValueError('1')": 1,
        "ValueError('2')": 1,
    }  # fmt: skip
