"""The tables of several runs over several gateways, from results that a pencil can follow."""

import pytest
from gateways import (
    BEGIN,
    END,
    PAGE,
    TICK_MS,
    format_runs,
    list_added_rows,
    list_change_rows,
    list_cost_rows,
    put_into_page,
    write_tables,
)
from msgspec.structs import replace

from locust_llm.lab.gateway.cancel_delay import BEFORE_FIRST, CancelDelay
from locust_llm.lab.gateway.gateway_result import (
    AddedLevel,
    AddedTime,
    GatewayResult,
    StreamChange,
)
from locust_llm.lab.gateway.headers_and_routing import HeaderPassage
from locust_llm.lab.gateway.hidden_failures import FaultVerdict


def test_a_cell_has_the_median_of_the_runs_and_their_range() -> None:
    assert format_runs([0.3, 0.2, 0.4]) == "0.3 (0.2 to 0.4)"
    assert format_runs([0.25]) == "0.25"
    assert format_runs([None, 786.0, None]) == "786, in 1 of 3 runs"
    assert format_runs([None, 2.0, 4.0]) == "3 (2 to 4), in 2 of 3 runs"
    assert format_runs([None]) == "not measured"


def added_row(percentile: str, *runs: list[AddedTime]) -> list[str]:
    """The cells of the first token's row, one for each gateway of these runs."""
    empty = result("nginx", 1.0, hidden=False, never=0)
    results = {
        str(number): [replace(empty, levels=(AddedLevel(streams=1, added=(one,)),)) for one in own]
        for number, own in enumerate(runs)
    }
    rows = dict(list_added_rows(results))
    return rows.get(f"first token, 1 stream, {percentile}", [])


def test_a_value_that_chance_alone_could_make_is_told_so() -> None:
    def run(ms: float, samples: int = 50) -> AddedTime:
        return AddedTime(quantity="ttft", samples=samples, p50_ms=ms, p99_ms=ms, error_ms=0.1)

    # 0.09 is always above 0, and one of the next three is not
    cells = added_row("p50", [run(0.09)] * 3, [run(0.09), run(-0.01), run(0.05)])
    assert cells == ["0.09 (0.09 to 0.09)", "below the error"]
    # one of these is beyond the error
    assert added_row("p50", [run(0.2), run(-0.01)]) == ["0.095 (-0.01 to 0.2)"]
    # three runs of 33 answers are 99: too few for p99
    assert added_row("p99", [run(0.2, 33)] * 3, [run(0.2)] * 3) == [
        "too few values",
        "0.2 (0.2 to 0.2)",
    ]
    assert added_row("p99", [run(0.2, 33)] * 3) == []


def test_cpu_of_few_ticks_is_no_figure() -> None:
    """One run of 50 answers has 9 ticks of 10 ms, the other one 10."""
    answers = AddedTime(quantity="latency", samples=50, p50_ms=1.0, p99_ms=1.0)
    few, enough = (
        AddedLevel(streams=1, added=(answers,), cpu_ms_per_request=ticks * TICK_MS / 50)
        for ticks in (9, 10)
    )
    empty = result("nginx", 1.0, hidden=False, never=0)
    runs = {"a": [replace(empty, levels=(few,))], "b": [replace(empty, levels=(enough,))]}
    assert list(list_cost_rows(runs)) == [
        ("CPU per request, ms, 1 stream", ["fewer than 10 ticks", "2"])
    ]


def test_a_change_that_was_not_in_each_run_is_told_so() -> None:
    changed, not_changed = (result("a", 1.0, hidden=hidden, never=0) for hidden in (True, False))
    runs = {"a": [changed, not_changed, not_changed], "b": [not_changed], "c": [changed] * 2}
    assert list(list_change_rows(runs)) == [
        ("id changed", ["3 of 9, in 1 of 3 runs", "none", "3 of 9"])
    ]


def result(name: str, ms: float, hidden: bool, never: int) -> GatewayResult:
    added = AddedTime(quantity="ttft", samples=50, p50_ms=ms, p99_ms=10 * ms, error_ms=0.5)
    fault = FaultVerdict(
        fault="bad_json", mode="streamed", verdict="hidden" if hidden else "kept", direct="",
        through="", trials=3, agreed=3, requests=2,
    )  # fmt: skip
    return GatewayResult(
        name=name, url="", started="", version="",
        levels=(AddedLevel(
            streams=1, added=(added, replace(added, quantity="latency")), cpu_ms_per_request=10.0,
        ),),
        without_load=(replace(added, quantity="setup"),),
        faults=(fault,),
        changes=(StreamChange(kind="id", what="id changed", seen=3, of=9),) * hidden,
        cancels=(CancelDelay(
            moment=BEFORE_FIRST, sent=5, delays_ms=(ms,) * (5 - never), never=never, unknown=0,
            waited_s=3.0,
        ),),
        headers=(HeaderPassage(
            direction="to the upstream", name="authorization", secret=True,
            verdict="dropped" if hidden else "passed",
        ),),
    )  # fmt: skip


def test_tables_of_three_runs() -> None:
    runs = {
        "nginx": [result("nginx", ms, hidden=False, never=0) for ms in (0.1, 0.2, 0.4)],
        "litellm": [result("litellm", ms, hidden=True, never=5) for ms in (14, 15, 19)],
    }
    assert (
        write_tables(runs)
        == """\
## Added time

| ms | nginx | LiteLLM |
|---|---|---|
| first token, 1 stream, p50 | 0.2 (0.1 to 0.4) | 15 (14 to 19) |
| first token, 1 stream, p99 | 2 (1 to 4) | 150 (140 to 190) |
| whole answer, 1 stream, p50 | 0.2 (0.1 to 0.4) | 15 (14 to 19) |
| whole answer, 1 stream, p99 | 2 (1 to 4) | 150 (140 to 190) |
| error of one value, 1 stream | 0.5 (0.5 to 0.5) | 0.5 (0.5 to 0.5) |
| connection set-up, one after the other, p50 | 0.2 (0.1 to 0.4) | 15 (14 to 19) |
| connection set-up, one after the other, p99 | 2 (1 to 4) | 150 (140 to 190) |
| error of one value, one after the other | 0.5 (0.5 to 0.5) | 0.5 (0.5 to 0.5) |

## CPU and memory

|  | nginx | LiteLLM |
|---|---|---|
| CPU per request, ms, 1 stream | 10 (10 to 10) | 10 (10 to 10) |

## Failures

| faults | nginx | LiteLLM |
|---|---|---|
| kept | 1 | 0 |
| retried | 0 | 0 |
| changed | 0 | 0 |
| hidden | 0 | 1 |
| sent to the upstream more than once | 1 | 1 |
| the hidden ones | none | bad json (streamed) |

## Changed answers

| answers with it, of all that could have it | nginx | LiteLLM |
|---|---|---|
| id changed | none | 3 of 9 |

## Clients who left

| seen after, ms | nginx | LiteLLM |
|---|---|---|
| before the first token | 0.2 (0.1 to 0.4) | never in 15 of 15 |
| in mid-stream | not measured | not measured |
| not streamed | not measured | not measured |

## Secrets and replicas

|  | nginx | LiteLLM |
|---|---|---|
| secrets of the client that reach the upstream | authorization | none |
| headers of the client that do not | none | authorization |
| requests that failed after a replica died | no stream was at it | no stream was at it |
"""
    )


def test_the_page_keeps_what_is_around_the_series() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    assert put_into_page(page, "new") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"
    with pytest.raises(ValueError, match="no place"):
        put_into_page("above", "new")
    assert put_into_page(PAGE.read_text("utf-8"), "new") != ""
