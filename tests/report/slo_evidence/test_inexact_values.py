"""The mark ``~`` of a value is the same in every table, and each value has it by the requests
behind it."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.limit_blocks import LimitBlock
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.report.console_summary import format_ending
from locust_llm.report.document_blocks import INEXACT, INEXACT_NOTE, Block, TableBlock, TextBlock
from locust_llm.report.load_records import collect_columns
from locust_llm.report.metrics_by_group import WHOLE
from locust_llm.report.sections.metric_tables import make_detail_tables, make_main_tables
from locust_llm.report.sections.prefill_limit_comparison import BEST_LIMIT, make_limit_blocks
from locust_llm.report.sections.section import ReportMaterial
from locust_llm.report.sections.session_tables import SESSIONS
from locust_llm.report.sections.tenant_fairness import TENANTS
from locust_llm.report.slo_evidence.inexact_values import find_inexact_values
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.best_prefill_limit import SHORT_TTFT, format_limit

MERGED = {"merged": ((0, 60_000), (1, 60_000))}
"""Two chunks were read together at 140 ms: the first may have come at 80."""


def two_kinds(**of_late: object) -> list[Record]:
    """200 requests: TTFT of two in five is known, that of the others may be 60 ms less."""
    records = list[Record]()
    for i in range(200):
        late = i % 5 > 1
        more: dict[str, object] = {**MERGED, **of_late} if late else {}
        records.append(answered(140, 140 if late else 150, 160, sent_at=10.0 + 0.4 * i, **more))
    return records


def material_of(records: Sequence[Record], run: Run) -> ReportMaterial:
    columns = collect_columns(records)
    judged = summarise_run(columns, run, records=records).figure_errors
    inexact = find_inexact_values(columns.requests, run, judged)
    return ReportMaterial(run, columns, records, EngineHistory(), inexact=inexact)


def texts(blocks: Iterable[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def test_a_group_is_marked_by_its_own_requests_and_all_together_as_the_main_table() -> None:
    records = two_kinds(input_tokens=900, limit=2)
    records = [r if r.limit == 2 else replace(r, limit=1) for r in records]
    run = a_run(limits=((0, 1), (50, 2)))
    summary = summarise_run(collect_columns(records), run)
    ttft = next(row for row in summary.rows if row.tag == "time_to_first_token")
    assert "p50" in ttft.inexact
    lengths, ramp = summary.breakdowns
    marks = {
        group.label: row.inexact
        for group in (*lengths.groups, *ramp.groups)
        for row in group.rows
        if row.tag == "time_to_first_token"
    }
    assert marks.pop("100") == marks.pop("1") == ()
    assert set(marks.pop("900")) >= {"p50", "p95"}
    of_groups = {"avg", "min", "max", "p50", "p95", "p99"}
    assert set(marks.pop(WHOLE)) == of_groups.intersection(ttft.inexact)
    tables = [*make_detail_tables(summary, run)]
    assert INEXACT_NOTE in texts(tables)


def test_every_value_of_one_request_has_its_mark() -> None:
    """Its first chunk may have come at 80 ms instead of 140: no percentile of one request counts for
    the client verdict, and each is as inexact as the mean."""
    run = a_run()
    summary = summarise_run(collect_columns([answered(140, 140, 160, sent_at=10.0, **MERGED)]), run)
    rows = {row.tag: row for row in summary.rows}
    ttft = rows["time_to_first_token"]
    stats = {f"p{percentile:g}" for percentile in ttft.percentiles}
    assert set(ttft.inexact) == {*stats, "avg", "min", "max"}
    (cells,) = (
        row
        for block in make_main_tables(summary, run)
        for row in (block.rows if isinstance(block, TableBlock) else ())
        if row[0].startswith("Time to First Token")
    )
    *values, std, count = cells[1:]
    assert [value.strip("*") for value in values] == [f"{INEXACT}140.00"] * len(values)
    assert (std, count) == ("-", "1")
    (line,) = (
        line
        for line in format_ending(summary, run, "reports/x").splitlines()
        if line.startswith("TTFT (ms) ")
    )
    assert line.count(INEXACT) == len(line.split()) - 2, line


def test_the_fastest_users_are_as_inexact_as_the_shortest_itl() -> None:
    """The answers of one in five end merged: their ITL of 100 ms may be 40 ms."""
    records = [
        answered(
            50, 60, 250, sent_at=10.0 + i, **({"merged": ((2, 120_000),)} if i % 5 == 0 else {})
        )
        for i in range(200)
    ]
    summary = summarise_run(collect_columns(records), a_run())
    rows = {row.tag: row.inexact for row in summary.rows}
    itl, users = rows["inter_token_latency"], rows["output_token_throughput_per_user"]
    mirrored = {"min": "max", "max": "min", "avg": "avg"}
    assert itl
    assert set(users) == {
        mirrored.get(stat) or f"p{100 - float(stat.removeprefix('p')):g}" for stat in itl
    }


def test_the_table_with_failures_has_the_marks_and_no_failure_has_one() -> None:
    """A tenth of the requests failed, so p95 falls on one."""
    records = two_kinds()
    records += [failed(sent_at=10.2 + 3.6 * i) for i in range(22)]
    run = a_run()
    summary = summarise_run(collect_columns(records), run)
    row = next(row for row in summary.adjusted if row.tag == "adj_time_to_first_token")
    assert "p50" in row.inexact
    assert "p95" not in row.inexact
    tables = [block for block in make_main_tables(summary, run) if isinstance(block, TableBlock)]
    (cells,) = (row for row in tables[1].rows if row[0].startswith("Time to First Token"))
    assert cells[1] == f"{INEXACT}140.0"
    assert not cells[2].startswith(INEXACT)


def test_tenants_and_turns_have_marks() -> None:
    records = two_kinds(tenant="late")
    records = [r if r.tenant else replace(r, tenant="known") for r in records]
    found = TENANTS.find(material_of(records, a_run()))
    rows = {row.name: row.inexact for row in found.rows}
    assert rows["known"] == ()
    assert {"ttft p50", "ttft p95"} <= set(rows["late"])
    shown = [*TENANTS.make_blocks(found)]
    assert f"{INEXACT}140" in str(shown)
    assert INEXACT_NOTE in texts(shown)

    turns = two_kinds(turn=1)
    turns = [replace(r, session=f"s{i // 5}", turns=2) for i, r in enumerate(turns)]
    sessions = SESSIONS.find(material_of(turns, a_run()))
    first, second = sessions.by_depth
    assert first.inexact == ()
    assert {"p50", "p95"} <= set(second.inexact)


def test_both_tables_of_prefill_limits_mark_the_same_value() -> None:
    """Of limit 1 all first chunks came merged, without a limit none."""
    limits = (None, 1)
    blocks = list[LimitBlock]()
    records = list[Record]()
    for number in range(1, 7):
        for limit in limits:
            at = 10.0 * len(blocks)
            begun = UNIX + at
            blocks.append(
                LimitBlock(
                    round=number, limit=limit, began_at=begun, settled_at=begun + 2,
                    counted_until=begun + 8, ended_at=begun + 10,
                )
            )  # fmt: skip
            for place in range(20):
                more: dict[str, object] = dict(MERGED) if limit else {}
                records.append(
                    answered(
                        140, 140 if more else 150, 160, sent_at=at + 2.1 + place / 4,
                        arm=format_limit(limit), **more,  # type: ignore[arg-type]
                    )
                )  # fmt: skip
    run = replace(
        a_run(sweep="prefill-concurrency=1", request_rate=4.0), limit_blocks=tuple(blocks)
    )
    found = BEST_LIMIT.find(material_of(records, run))
    assert found.objective == SHORT_TTFT
    assert {row.limit: row.inexact for row in found.rows} == {None: False, 1: True}
    lengths = {row.limit: row.inexact for row in found.lengths}
    assert lengths[None] == ()
    assert "ttft_from_due p95" in lengths[1]
    first, second = (block for block in make_limit_blocks(found) if isinstance(block, TableBlock))
    (of_figure,) = (row[2] for row in first.rows if row[0] == "1")
    (of_length,) = (row[4] for row in second.rows if row[0].startswith("1, "))
    assert of_figure == of_length == f"{INEXACT}140.0"


def test_exact_runs_have_no_marks() -> None:
    records = [answered(140, 150, 160, sent_at=10.0 + i, tenant="a") for i in range(200)]
    material = material_of(records, a_run())
    assert material.inexact.sources is None
    assert all(not row.inexact for row in TENANTS.find(material).rows)
