"""Tiles of the page: the percentile that the rule uses is the big figure, its result the colour; a
figure that the load generator spoiled is struck; percentiles of too few requests have the star of
the tables."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import a_run, answered, failed, mixed

from locust_llm.records.record import Record
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.tiles import (
    SPARK_BINS,
    Tile,
    list_tile_figures,
    make_spark_points,
    make_tiles,
)
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.load_generator_health import FigureError


def tiles_of(records: list[Record], **settings: Any) -> dict[str, Tile]:
    run, columns = a_run(**settings), collect_columns(records)
    summary = summarise_run(columns, run, 0, records)
    return {tile.name: tile for tile in make_tiles(summary, run, columns.requests)}


def some(count: int) -> list[Record]:
    """TTFT of 1 to ``count`` ms."""
    return [answered(ms, ms + 10, ms + 30, sent_at=10.0 + i) for i, ms in enumerate(mixed(count))]


@pytest.mark.parametrize(
    ("count", "value", "more"),
    [
        (8, "7.65 ms*", "p50 4.5 ms, p99 7.93 ms*"),
        (38, "36.1 ms", "p50 19.5 ms, p99 37.6 ms*"),
        (100, "95 ms", "p50 50.5 ms, p99 99 ms"),
    ],
)
def test_a_percentile_of_few_requests_has_a_star(count: int, value: str, more: str) -> None:
    tile = tiles_of(some(count))["TTFT, p95"]
    assert (tile.value, tile.more, tile.kind) == (value, more, "")


def test_the_big_figure_is_the_percentile_of_the_rule_in_the_colour_of_its_result() -> None:
    tiles = tiles_of(some(300), slo=("ttft p50 < 100ms", "itl p99 < 1s", "error_rate < 5%"))
    assert (tiles["TTFT, p50"].value, tiles["TTFT, p50"].kind) == ("150 ms", "loud")
    assert tiles["TTFT, p50"].more == "p95 285 ms, p99 297 ms"
    assert tiles["ITL, p99"].kind == "pass"
    assert tiles["Failed"].kind == "pass"
    assert tiles["Longest stall, p90"].kind == ""


def test_a_rule_about_some_requests_is_not_that_of_the_tile() -> None:
    assert tiles_of(some(300), slo=("ttft{name=chat} p50 < 100ms",))["TTFT, p95"].kind == ""


def test_ttft_has_a_tile_where_nobody_knows_when_requests_were_due() -> None:
    """As of the imported result of another load generator."""
    run = a_run(request_rate=2.0)
    summary = summarise_run(collect_columns(some(30)), run)
    assert next(iter(make_tiles(summary, run))).name == "TTFT from due, p95"
    known = tuple(row for row in summary.rows if row.tag != "time_to_first_token_from_due")
    assert next(iter(make_tiles(replace(summary, rows=known), run))).name == "TTFT, p95"


def test_six_tiles() -> None:
    assert list(tiles_of(some(30))) == [
        "TTFT, p95", "ITL, p95", "Longest stall, p90", "Output tokens", "Requests", "Failed",
    ]  # fmt: skip
    summary = summarise_run(collect_columns(some(30)), a_run())
    assert [figure.name for figure in list_tile_figures(summary, a_run())] == [
        "TTFT p95", "ITL p95", "Longest stall p90", "Output tokens", "Requests", "Failed",
    ]  # fmt: skip


def test_requests_that_an_overload_cut_have_no_answer() -> None:
    """3 answered, 6 cut and 1 failed: 70 % without an answer, although only a quarter failed."""
    cut = [answered(10, sent_at=20.0 + i, outcome="cut", closed_at=40.0) for i in range(6)]
    tile = tiles_of([*some(3), *cut, failed()])["Unanswered"]
    assert (tile.value, tile.kind) == ("70%", "loud")
    assert tile.more == "7 of 10: 1 failed, 6 cut"


def test_all_failed_is_red() -> None:
    tile = tiles_of([failed(sent_at=10.0 + i) for i in range(5)])["Failed"]
    assert (tile.value, tile.kind) == ("100%", "loud")


def test_a_spoiled_figure_says_how_far_it_may_be_off() -> None:
    run = a_run()
    summary = summarise_run(collect_columns(some(300)), run)
    rows = tuple(
        replace(row, inexact=("p95",)) if row.tag == "time_to_first_token" else row
        for row in summary.rows
    )
    error = FigureError(
        word="ttft", stat="p95", label="TTFT p95", unit="ms", value=285.0, lower=130.0, higher=2.0
    )
    spoiled_summary = replace(summary, rows=rows, figure_errors=(error,))
    spoiled = {tile.name: tile.spoiled for tile in make_tiles(spoiled_summary, run)}
    assert spoiled["TTFT, p95"] == "may be off by 130 ms"
    assert spoiled["ITL, p95"] == ""
    struck = {tile.name: tile.unusable for tile in make_tiles(spoiled_summary, run)}
    assert not any(struck.values())  # p95 may not be off so far that nothing is left
    rows = tuple(replace(row, inexact=("p50",)) for row in rows)
    half = replace(error, stat="p50", value=150.0)
    run = a_run(slo=("ttft p50 < 1s",))
    records = some(300)
    judged = replace(
        summarise_run(collect_columns(records), run, 0, records), rows=rows, figure_errors=(half,)
    )
    tile = next(iter(make_tiles(judged, run)))
    assert (tile.name, tile.value, tile.unusable) == ("TTFT, p50", "150 ms", True)


def test_the_figure_of_a_rule_counts_requests_without_an_answer() -> None:
    """A tenth failed, so p95 of the rule falls on one of them; of the answered ones it is 285 ms."""
    lost = [failed(sent_at=10.0 + 8 * i) for i in range(40)]
    tile = tiles_of([*some(300), *lost], slo=("ttft p95 < 1s",))["TTFT, p95"]
    assert (tile.value, tile.kind) == ("a failure", "loud")
    assert tile.more.startswith("of the answered 285 ms; p50 ")


def test_a_line_begins_at_zero_and_leaves_out_what_is_unknown() -> None:
    assert make_spark_points(np.array([0.0, 10.0, np.nan, 5.0])) == "0.0,23.0 28.0,1.0 84.0,12.0"
    assert make_spark_points(np.array([1.0, 2.0])) == ""


def test_lines_are_of_equal_stretches_of_time() -> None:
    """One request a second over 24 s, TTFT 1 to 24 ms: a point each."""
    records = [answered(i + 1, i + 2, sent_at=10.0 + i) for i in range(SPARK_BINS)]
    line = tiles_of(records)["TTFT, p95"].spark.split()
    assert len(line) == SPARK_BINS
    assert line[-1].endswith(",1.0")
