"""The auditor: each rule by pencil; nothing that runs come to is impossible; hostile files are read
or refused."""

import json
import math
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import a_run, answered

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.interop import audit_command as command
from locust_llm.lab.interop import read_foreign_results
from locust_llm.lab.interop.audit import (
    AuditOutcome,
    Finding,
    audit_figures,
    check_token_throughput,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.read_printed_tables import read_tables
from locust_llm.report.console_summary import format_ending
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.text_report import render_console
from locust_llm.report.summarise_metrics import summarise_run

TTFT = Distribution(avg=0.5, min=0.2, max=1.0, std=0.2, percentiles={50.0: 0.45, 99.0: 0.95})
LATENCY = Distribution(avg=2.5, min=1.2, max=4.0, std=0.5, percentiles={50.0: 2.4, 99.0: 3.9})
HONEST = Figures(
    tool="pencil", requests=1000, asked_requests=1000, duration_s=250.0, concurrency=10,
    requests_per_s=4.0,
    output_tokens_per_s=404.0, total_tokens_per_s=804.0, goodput_per_s=3.0, most_in_flight=10,
    client="OK",
    ttft=TTFT, latency=LATENCY, tpot=Distribution(avg=0.02, min=0.01, max=0.04),
    output_tokens=Distribution(avg=101.0),
    input_tokens=Distribution(avg=100.0), itl=Distribution(avg=0.02, percentiles={50.0: 0.019}),
)  # fmt: skip
"""4 requests/s x 2.5 s = 10 in flight; 2.5 - 0.5 s = 2 s = 0.02 s x 100."""


def wrong(**changes: object) -> list[Finding]:
    return [
        one
        for one in audit_figures(replace(HONEST, **changes))
        if one.verdict is not AuditOutcome.HOLDS
    ]


def test_an_honest_result_holds() -> None:
    assert not wrong()
    assert {one.rule for one in audit_figures(HONEST)} >= {
        "numbers", "requests/s", "Little's law", "latency", "tokens/s", "all tokens/s",
        "tokens/s of the streams", "samples",
        "within the run", "TTFT within latency", "order", "mean", "spread", "goodput", "answered",
        "client", "chunks apart",
    }  # fmt: skip


IMPOSSIBLE, DOUBTFUL = AuditOutcome.IMPOSSIBLE, AuditOutcome.DOUBTFUL


@pytest.mark.parametrize(
    ("changes", "rule", "verdict", "arithmetic"),
    [
        ({"duration_s": 525.0}, "requests/s", IMPOSSIBLE,
            "1,000 requests in 525 s are 1.905/s; reported: 4/s"),
        ({"concurrency": 8, "most_in_flight": None}, "Little's law", IMPOSSIBLE,
         "4/s x 2.5 s = 10 requests in flight on average; 8 allowed"),
        ({"most_in_flight": 11}, "in flight", IMPOSSIBLE, "11 in flight at most, of 10 allowed"),
        ({"concurrency": 20}, "Little's law", DOUBTFUL,
            "= 10 requests in flight on average; 20 allowed. A closed loop"),
        ({"prefill_concurrency": 1}, "Little's law of prefills", IMPOSSIBLE,
         "4/s x 500 ms TTFT = 2 requests awaiting their first token on average; 1 allowed"),
        ({"tpot": Distribution(avg=0.05, min=0.04, max=0.06)}, "latency", IMPOSSIBLE,
         "2.5 s latency - 500 ms TTFT = 2 s of decode; 50 ms a token x (101 - 1) tokens output = 5 s"),
        ({"tpot": Distribution(avg=0.03, min=0.01, max=0.04)}, "latency", DOUBTFUL,
            "x (101 - 1) tokens output = 3 s"),
        ({"output_tokens": Distribution(), "asked_output_tokens": 301.0}, "latency", DOUBTFUL,
         "tokens asked for = 6 s: the responses had 101 tokens"),
        ({"output_tokens_per_s": 500.0}, "tokens/s", IMPOSSIBLE,
            "4 requests/s x 101 output tokens = 404/s; reported: 500/s"),
        ({"total_tokens_per_s": 404.0}, "all tokens/s", IMPOSSIBLE,
            "x (100 + 101) tokens = 804/s; reported: 404/s"),
        ({"server_output_tokens": 64.0}, "token counts", DOUBTFUL,
            "101 tokens per response by the tool's tokenizer, 64 by"),
        ({"goodput_per_s": 5.0}, "goodput", IMPOSSIBLE, "goodput 5/s <= 4 requests/s"),
        ({"latency": replace(LATENCY, max=300.0)}, "within the run", IMPOSSIBLE,
            "longest request 300 s, run 250 s"),
        ({"ttft": replace(TTFT, percentiles={50.0: 2.5}, max=3.0, avg=2.0)}, "TTFT within latency",
            IMPOSSIBLE,
         "p50: TTFT 2.5 s <= latency 2.4 s"),
        ({"ttft": replace(TTFT, percentiles={50.0: 0.9, 99.0: 0.8})}, "order", IMPOSSIBLE,
            "TTFT p50 900 ms > p99 800 ms"),
        # .5 x 2.4 + ...
        ({"latency": replace(LATENCY, avg=3.9)}, "mean", IMPOSSIBLE,
            "<= mean <= 3.151 s; it is 3.9 s"),
        ({"ttft": replace(TTFT, std=0.6)}, "spread", IMPOSSIBLE,
            "std 600 ms <= sqrt((max - mean)(mean - min)) = 387.5 ms"),
        ({"rate_per_s": 8.0}, "schedule", DOUBTFUL,
         "1,000 requests at 8/s take 125 s, the last 4 s more; took 250 s: the limit of 10 in "
             "flight decided"),
        ({"failed": 100, "asked_requests": 1100}, "answered", DOUBTFUL,
            "100 of 1,100 requests failed"),
        ({"failed": 1}, "answered", IMPOSSIBLE, "1,001 requests ended, of 1,000 that were sent"),
        ({"client": "INVALID"}, "client", DOUBTFUL, "called itself INVALID"),
        ({"itl": Distribution(avg=0.02, percentiles={50.0: 0.0001})}, "chunks apart", DOUBTFUL,
            "came together"),
        ({"requests": 300, "asked_requests": 300, "duration_s": 75.0}, "samples", DOUBTFUL,
            "p99 of 300 requests: 3 lie"),
        ({"requests_per_s": math.nan}, "numbers", IMPOSSIBLE, "requests/s = nan"),
        ({"ttft": replace(TTFT, min=-1.0)}, "numbers", IMPOSSIBLE, "TTFT min = -1"),
    ],
)  # fmt: skip
def test_one_figure_changed(
    changes: dict[str, object], rule: str, verdict: AuditOutcome, arithmetic: str
) -> None:
    found = wrong(**changes)
    assert any(
        one.rule == rule and one.verdict is verdict and arithmetic in one.arithmetic
        for one in found
    ), found


def test_of_a_result_that_says_nothing_nothing_is_wrong() -> None:
    assert audit_figures(Figures(tool="x")) == []


def measured(values: list[float], ps: tuple[float, ...]) -> Distribution:
    of = np.array(values)
    return Distribution(
        avg=float(of.mean()), min=float(of.min()), max=float(of.max()),
        std=float(of.std(ddof=1)) if len(of) > 1 else 0.0,
        count=len(of), percentiles={p: float(np.percentile(of, p)) for p in ps},
    )  # fmt: skip


@given(
    seed=st.integers(0, 2**32), n=st.integers(2, 200), places=st.integers(1, 20),
    tail=st.floats(0.1, 2.0),
    ps=st.sets(st.sampled_from([50.0, 75.0, 90.0, 95.0, 99.0, 99.9]), max_size=4),
    digits=st.integers(3, 6),
)  # fmt: skip
def test_nothing_that_a_run_can_come_to_is_impossible(
    seed: int, n: int, places: int, tail: float, ps: set[float], digits: int
) -> None:
    """A closed loop of so many places: each takes the next request when its last one has ended.
    Tokens, and times a token, are drawn by themselves, from narrow to heavy tails."""
    draw = Random(seed)
    free = [0.0] * places
    rows = []
    for _ in range(n):
        start = min(free)
        ttft, tokens, tpot = (
            draw.lognormvariate(-1, tail),
            draw.randint(1, 60),
            draw.lognormvariate(-4, tail / 2),
        )
        rows.append((ttft, tokens, tpot, ttft + (tokens - 1) * tpot))
        free[free.index(start)] = start + rows[-1][3]
    duration, percentiles = max(free), tuple(ps)
    rounded = [tuple(map(float, row)) for row in rows]

    def figure(value: float) -> float:
        return float(f"{value:.{digits}g}")

    tokens_each = [row[1] for row in rounded]
    figures = Figures(
        tool="loop", requests=n, duration_s=duration, concurrency=places,
        requests_per_s=figure(n / duration),
        output_tokens_per_s=figure(sum(tokens_each) / duration), most_in_flight=places,
        ttft=measured([row[0] for row in rounded], percentiles),
        latency=measured([row[3] for row in rounded], percentiles),
        tpot=measured([row[2] for row in rounded], percentiles),
        output_tokens=measured(tokens_each, percentiles),
    )  # fmt: skip
    assert not [one for one in audit_figures(figures) if one.verdict is IMPOSSIBLE]


PAGE = """
$aiperf profile --concurrency 30 --prefill-concurrency 3 --output-tokens-mean 500 --request-count 100
Profiling: 100/100 |####| 100% [08:45<00:00]
┃ Metric                     ┃     avg ┃     min ┃     max ┃     p99 ┃     p50 ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━┩
│ Request Latency (ms)       │ 4567.89 │ 3890.12 │ 5678.34 │ 5523.45 │ 4498.23 │
│ Time to First Token (ms)   │ 2345.67 │ 1987.34 │ 2890.45 │ 2798.67 │ 2312.89 │
│ Inter Token Latency (ms)   │ 18.45   │ 14.23   │ 26.78   │ 25.34   │ 18.01   │
│ Request Throughput (req/s) │ 3.89    │ -       │ -       │ -       │ -       │
└────────────────────────────┴─────────┴─────────┴─────────┴─────────┴─────────┘
aiperf profile --concurrency 50 --prefill-concurrency 5 --benchmark-duration 120
| Metric | avg | min | max | p99 | p50 |
|---|---|---|---|---|---|
| Request Latency (ms) | 5678.34 | 4567.89 | 6789.12 | 6598.45 | 5612.67 |
| Time to First Token (ms) | 3456.78 | 2890.45 | 4123.67 | 3998.23 | 3423.12 |
| Request Throughput (req/s) | 2.34 | - | - | - | - |

aiperf profile --request-rate 10 --concurrency 100 --prefill-concurrency 10 --benchmark-duration 60
| Metric | avg | min | max | p99 | p50 |
|---|---|---|---|---|---|
| Request Latency (ms) | 2890.45 | 2345.67 | 3567.89 | 3456.12 | 2867.34 |
| Time to First Token (ms) | 1234.56 | 987.34 | 1567.89 | 1498.23 | 1223.45 |
| Request Throughput (req/s) | 9.87 | - | - | - | - |
"""
"""Sample output in AIPerf's tutorial on prefill concurrency (read 2026-11), in two of the forms
that a table can have."""


def test_the_sample_tables_of_a_tutorial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.txt").write_text(PAGE)
    first, second, third = read_foreign_results.read_figures(tmp_path / "page.txt")
    assert (first.concurrency, first.prefill_concurrency, first.requests, first.duration_s) == (
        30,
        3,
        100,
        525.0,
    )
    assert first.ttft.percentiles == {99.0: pytest.approx(2.79867), 50.0: pytest.approx(2.31289)}
    assert (second.duration_s, third.rate_per_s, third.requests) == (120, 10, None)
    assert command.run_audit([str(tmp_path / "page.txt")]) == ExitStatus.RULE_FAILED
    said = capsys.readouterr().out
    assert "100 requests in 525 s are 0.1905/s; reported: 3.89/s" in said
    for product in ("9.125", "8.089", "12.19"):  # requests/s x TTFT, of 3, 5 and 10 allowed
        assert f"TTFT = {product} requests awaiting their first token on average" in said
    assert said.count("cannot be true") == 3


@pytest.mark.parametrize("verbose", [False, True])
def test_the_tables_of_this_tool_are_read(tmp_path: Path, verbose: bool) -> None:
    """A request a second: first tokens after 100 ms, three tokens in 200 ms. 120 tokens in 39.2 s."""
    run = a_run()
    records = [answered(100, 150, 200, sent_at=10.0 + second) for second in range(40)]
    summary = summarise_run(collect_columns(records), run)
    shown = render_console(summary, run, "r", 120) if verbose else format_ending(summary, run, "r")
    (tmp_path / "out.txt").write_text(shown)
    load = read_foreign_results.read_figures(tmp_path / "out.txt")[0]
    assert load.ttft.percentiles[50.0] == pytest.approx(0.1)
    assert load.latency.avg == pytest.approx(0.2)
    assert load.tpot.max == pytest.approx(0.05)
    assert load.output_tokens_per_s == pytest.approx(3.06, abs=0.01)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = {
        "model_id": "m", "num_prompts": 300, "completed": 300, "duration": 75.0,
        "request_rate": math.inf,
        "max_concurrency": 10,
        "total_input_tokens": 300, "total_output_tokens": 30300, "request_throughput": 4.0,
        "output_throughput": 404.0,
        "mean_ttft_ms": 500.0, "median_ttft_ms": 450.0, "p99_ttft_ms": 950.0,
    }  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(bench))
    path = str(tmp_path / "bench.json")
    assert command.run_audit([path]) == ExitStatus.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{path}, vllm bench: can be true, with doubts (6 of 7 checks hold)",
        "  doubtful    samples: p99 of 300 requests: 3 lie beyond it, but a repeatable p99 needs 5",
    ]
    assert command.run_audit(["--strict", "--verbose", path]) == ExitStatus.INCONCLUSIVE
    assert (
        "holds       requests/s: 300 requests in 75 s are 4/s; reported: 4/s"
        in capsys.readouterr().out
    )
    (tmp_path / "cut.json").write_text(json.dumps(bench)[:100])
    assert (
        command.run_audit(["--json", path, str(tmp_path / "cut.json"), str(tmp_path / "none")])
        == ExitStatus.INCOMPLETE
    )
    out, err = capsys.readouterr()
    (one,) = msgspec.json.decode(out)
    assert (one["tool"], one["verdict"]) == ("vllm bench", "doubtful")
    assert "cut.json: it is not JSON" in err
    assert "none: No such file" in err
    assert command.run_audit([str(tmp_path)]) == ExitStatus.REFUSED


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("ms")
)
KEYS = st.sampled_from([
    "request_latency", "unit", "avg", "p50", "input_config", "locust_llm", "mean_ttft_ms",
    "request_throughput", "completed",
    "duration", "std_ttft_ms", "p99_e2el_ms", "request_count", "benchmark_duration", "loadgen",
    "phases", "client",
])  # fmt: skip


DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=8),
    max_leaves=30,
)


@given(DOCUMENTS)
def test_whatever_a_file_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(document))
    with suppress(read_foreign_results.UnknownFormat):
        for figures in read_foreign_results.read_figures(path):
            audit_figures(figures)


def test_what_the_run_cut_was_sent_and_is_in_no_percentile() -> None:
    """Of 929 at 60 a second, 47 were answered and 882 cut: the schedule takes 15.5 s, and figures
    of 5 % of the requests are in doubt."""
    figures = Figures(
        tool="x", requests=47, unfinished=882, asked_requests=929, rate_per_s=60.0,
        duration_s=19.3, latency=Distribution(avg=3.0, max=18.3),
    )  # fmt: skip
    by_rule = {finding.rule: finding for finding in audit_figures(figures)}
    assert by_rule["schedule"].arithmetic.startswith("929 requests at 60/s take 15.48 s")
    assert by_rule["answered"].verdict is AuditOutcome.DOUBTFUL
    assert by_rule["answered"].arithmetic == (
        "0 of 929 requests failed and 882 were cut, and are in no percentile"
    )


def test_blocks_of_two_variants_keep_no_schedule_of_the_whole_time() -> None:
    """185 requests at 8 a second take 23 s, and the run 61 s; 8 users with 4.8 requests in flight:
    half of the blocks send less, and what settles is not counted."""
    open_loop = Figures(tool="x", requests=185, rate_per_s=8.0, duration_s=61.4)
    closed = Figures(
        tool="x", requests=320, concurrency=8, requests_per_s=5.029, duration_s=63.6,
        latency=Distribution(avg=0.9495),
    )  # fmt: skip
    for figures in (open_loop, closed):
        doubtful = [one.verdict is AuditOutcome.DOUBTFUL for one in audit_figures(figures)]
        assert any(doubtful)
        blocks = audit_figures(replace(figures, in_blocks=True))
        assert all(one.verdict is AuditOutcome.HOLDS for one in blocks)


def test_rates_and_means_of_other_requests_are_not_compared() -> None:
    """27 requests ended in 30 s, of which the warmup had sent 4; the 27 that were sent in it had
    other lengths: 0.9/s x (457.7 + 37.78) are 445.9/s, and 418.5/s came."""
    figures = Figures(
        tool="x", requests=27, requests_per_s=0.9, duration_s=30.0, concurrency=4,
        output_tokens=Distribution(avg=37.78), input_tokens=Distribution(avg=457.7),
        output_tokens_per_s=32.67, total_tokens_per_s=418.5, latency=Distribution(avg=4.9),
    )  # fmt: skip
    impossible = {
        one.rule for one in audit_figures(figures) if one.verdict is AuditOutcome.IMPOSSIBLE
    }
    assert impossible == {"all tokens/s", "Little's law"}
    continued = audit_figures(replace(figures, goes_on_from_warmup=True))
    assert all(one.verdict is AuditOutcome.HOLDS for one in continued)


def test_large_numbers_have_no_power_of_ten() -> None:
    figures = Figures(
        tool="one",
        requests_per_s=100.0,
        output_tokens=Distribution(avg=250.0),
        output_tokens_per_s=25_000.0,
    )
    (found,) = check_token_throughput(figures)
    assert found.arithmetic == ("100 requests/s x 250 output tokens = 25,000/s; reported: 25,000/s")


def named_metrics(figures: Figures) -> set[str]:
    """The metrics that the findings name."""
    words = " ".join(finding.arithmetic for finding in audit_figures(figures))
    return {name for name in ("TPOT", "ITL", "ICL") if f"{name} " in words or f"{name}:" in words}


def test_metrics_have_the_names_of_their_tool(tmp_path: Path) -> None:
    """Time per token of a request, and the gaps between chunks: AIPerf and this tool call them ITL
    and ICL, vllm bench TPOT and ITL."""
    times = {"unit": "ms", "avg": 20.0, "p50": 20.0, "p99": 30.0}
    aiperf = {
        "request_latency": {**times, "avg": 900.0, "p50": 900.0, "p99": 999.0},
        "inter_token_latency": times,
        "inter_chunk_latency": {**times, "p50": 21.0},
    }
    (tmp_path / "a.json").write_text(json.dumps(aiperf))
    (of_aiperf,) = read_foreign_results.read_figures(tmp_path / "a.json")
    assert (of_aiperf.tpot.percentiles[50.0], of_aiperf.itl.percentiles[50.0]) == (0.02, 0.021)
    assert named_metrics(of_aiperf) == {"ITL", "ICL"}
    vllm = {
        "request_throughput": 1.0, "completed": 100, "mean_ttft_ms": 50.0,
        "mean_tpot_ms": 20.0, "p50_tpot_ms": 20.0, "p99_tpot_ms": 30.0,
        "mean_itl_ms": 20.0, "p50_itl_ms": 21.0, "p99_itl_ms": 30.0,
    }  # fmt: skip
    (tmp_path / "v.json").write_text(json.dumps(vllm))
    (of_vllm,) = read_foreign_results.read_figures(tmp_path / "v.json")
    assert named_metrics(of_vllm) == {"TPOT", "ITL"}


@pytest.mark.parametrize(
    ("rows", "tpot_s", "itl_s", "names"),
    [
        ({"ITL (ms)": 20, "ICL (ms)": 21}, 0.02, 0.021, ("ITL", "ICL")),
        ({"Inter Token Latency (ms)": 20, "Inter Chunk Latency (ms)": 21}, 0.02, 0.021,
         ("ITL", "ICL")),
        ({"ITL (ms)": 21, "TPOT (ms)": 20}, 0.02, 0.021, ("TPOT", "ITL")),
        ({"TPOT (ms)": 20}, 0.02, None, ("TPOT", "ITL")),
    ],
)  # fmt: skip
def test_rows_of_a_printed_table_keep_their_names(
    rows: dict[str, int], tpot_s: float, itl_s: float | None, names: tuple[str, str]
) -> None:
    lines = [f"| {name} | {value} | {value} |" for name, value in {"TTFT (ms)": 50, **rows}.items()]
    (load,) = read_tables("\n".join(["| Metric | avg | p99 |", *lines]))
    assert (load.tpot.avg, load.itl.avg) == (
        pytest.approx(tpot_s), None if itl_s is None else pytest.approx(itl_s)
    )  # fmt: skip
    assert (load.tpot_name, load.itl_name) == names
