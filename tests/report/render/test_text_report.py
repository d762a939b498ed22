"""What the reader sees: the console, the Markdown, and that nobody's error message can spoil
either."""

import re

import pytest
from msgspec.structs import replace
from support.records import a_run, answered, failed, twenty

from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, Run
from locust_llm.report.document_blocks import TextBlock
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.text_report import (
    render_console,
    render_markdown,
    render_markdown_block,
)
from locust_llm.report.summarise_metrics import summarise_run

HOSTILE = "<script>alert(1)</script> | [link](javascript:x) `a` \x1b[31mred\u202e\nsecond line"


def shown(*records: Record, run: Run | None = None, **settings: object) -> str:
    run = run or a_run(**settings)
    return render_console(summarise_run(collect_columns(records), run), run, "reports/by-hand")


def cells(text: str, label: str) -> list[str]:
    """The cells of the first line that begins with this label."""
    line = next(line for line in text.splitlines() if line.startswith(f"{label} "))
    return re.split(r"\s{2,}", line.strip())


def test_one_request() -> None:
    text = shown(answered(200, 220, 260))
    assert cells(text, "Metric") == [
        "Metric",
        "p50",
        "p95",
        "p99",
        "p90",
        "avg",
        "min",
        "max",
        "std",
        "count",
    ]
    assert cells(text, "Time to First Token (ms)") == [
        "Time to First Token (ms)", *["200.00*"] * 4, "200.00", "200.00", "200.00", "-", "1",
    ]  # fmt: skip
    assert cells(text, "Inter Token Latency (ms)")[5] == "30.00"
    assert cells(text, "Request Throughput")[1:] == [*["-"] * 4, "3.85", *["-"] * 4]
    assert cells(text, "Input Tokens per Request")[5] == "100.00"
    assert "* too few values" in text
    assert text.rstrip().endswith("Reports: reports/by-hand")


def test_conditions_are_what_the_figures_rest_on() -> None:
    text = shown(
        answered(200, 300, asked_input_tokens=80, asked_output_tokens=2),
        failed(),
        prefill_concurrency=2,
        prefill_concurrency_ramp_duration=30.0,
        users=30,
    )
    assert text.index("Metrics") < text.index("Notes") < text.index("Conditions")
    assert cells(text, "server") == ["server", "http://server:8000"]
    assert cells(text, "load") == ["load", "closed loop, 30 users, 1 process"]
    assert cells(text, "prefill limit") == ["prefill limit", "2, ramp from 1 over 30 s"]
    assert cells(text, "input length") == [
        "input length",
        "100.0 tokens on average, asked for 80.0 (+25.0%)",
    ]
    mixed = shown(answered(200, 300, asked_input_tokens=80), answered(200, 300, input_tokens=20))
    assert cells(mixed, "input length")[1] == (
        "60.0 tokens on average; 100.0 of the requests that asked for a length, 80.0 (+25.0%)"
    )
    assert cells(text, "requests") == [
        "requests",
        "2: 1 succeeded, 1 failed (50.0%), 0 cut, 0 cancelled",
    ]
    assert cells(text, "duration")[1].startswith("1.00 s")


def test_waits_that_count_failed_requests_are_named() -> None:
    waited = {"asked_at": 9.0, "admitted_at": 10.0}
    note = "Failed, cut and cancelled ones with a value also count in: Gate Wait, Schedule Delay."
    assert note in " ".join(shown(answered(100, 120, **waited), failed(**waited)).split())
    assert "also count in" not in shown(answered(100, 120, **waited), answered(100, 120, **waited))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"users": 100}, "open loop, 10/s poisson, up to 100 users, 1 process"),
        (
            {"users": None},
            "open loop, 10/s poisson, as many users as needed (7, limit 1000), 1 process",
        ),
        (
            {"users": 20, "user_centric_rate": 5.0},
            "open loop, user-centric 5/s over 20 users, 1 process",
        ),
    ],
)
def test_an_open_loop_says_what_it_offered_and_sent(settings: dict[str, object], said: str) -> None:
    offer = OpenLoopSchedule(due=1000, never_started=2, duration_s=100.0, most_users=7)
    run = replace(a_run(**({"request_rate": 10.0} | settings)), offer=offer)
    text = shown(*[answered(100)] * 998, run=run)
    assert cells(text, "load")[1] == said
    assert cells(text, "delivered")[1] == (
        "99.8%: due 10.00/s, sent 9.98/s, in the 100.0 s to the stop"
    )
    assert (
        cells(text, "completed")[1]
        == "99.8%: 9.98/s in the 100 s to the stop, 998 of 1,000 that were due"
    )
    assert "NOT DELIVERED" not in text


def test_what_was_not_delivered_stands_above_everything() -> None:
    run = replace(
        a_run(request_rate=10.0),
        offer=OpenLoopSchedule(due=1000, never_started=5, duration_s=100.0, most_users=7),
    )
    text = shown(*[answered(100)] * 900, run=run)
    assert text.index("NOT DELIVERED: 90.0%") < text.index("Metrics")


def test_breakdowns_stand_below_the_metrics() -> None:
    short, long = {"input_tokens": 64}, {"input_tokens": 2048}
    many = [answered(100, 120, admitted_at=10.0, asked_at=9.75, due_at=9.75, **short)] * 100
    text = shown(*many, answered(1500, 1520, **long), failed(**long), run=a_run(((0.0, 2),)))
    below = text[text.index("By input length (ms)") :]
    assert text.index("Metrics") < text.index("By input length")
    assert cells(below, "input length") == [
        "input length", "ok", "failed", "from due p50", "p95", "p99", "TTFT p50", "p95", "p99",
        "ITL p50", "p95", "p99",
    ]  # fmt: skip
    assert cells(below, "64") == [
        "64",
        "100",
        "0.0%",
        *["350.0"] * 3,
        *["100.0"] * 3,
        *["20.00"] * 3,
    ]
    assert cells(below, "2048")[:5] == ["2048", "1", "50.0%", "1500*", "1500*"]
    assert "from due: TTFT from Due" in below
    assert "By " not in shown(*many)  # one length only: nothing to break down


def test_turns_have_their_input_and_what_was_cached() -> None:
    text = shown(
        answered(200, turn=0, cached_tokens=0),
        answered(100, turn=1, input_tokens=1234, cached_tokens=617),
    )
    assert cells(text, "sessions") == ["sessions", "1, with 2.00 answered turns on average"]
    assert cells(text, "later")[-2:] == ["1234", "50.0%"]


def test_cancelled_requests_have_what_they_had() -> None:
    given_up = {"outcome": "cancelled", "closed_at": 12.0}
    text = shown(
        answered(5), answered(100, 200, **given_up), answered(300, **given_up), failed(**given_up)
    )
    below = text[text.index("Cancelled on purpose (3 requests") :]
    assert cells(below, "Time to First Token (ms)")[5] == "200"
    assert cells(below, "Time to First Token (ms)")[-1] == "2"
    assert cells(below, "Time until the Cancel (ms)")[5] == "2000.00"
    assert cells(below, "Output Tokens until then")[5] == "1.5"
    assert cells(text, "Time to First Token (ms)")[5] == "5.00"  # that of the only success
    assert "not in the latencies above" not in below
    assert "Cancelled on purpose" not in shown(answered(5))


def test_failures_have_a_table_and_fail_in_another() -> None:
    text = shown(
        *[answered(100)] * 9,
        failed("http_status", status=500, error="boom 1"),
        percentiles=(50.0, 99.0),
    )
    adjusted = text[text.index("every failure as +infinity") :]
    assert cells(adjusted, "Request Latency (ms)") == [
        "Request Latency (ms)",
        "100.0",
        "fail*",
        "10",
    ]
    assert cells(text, "http_status") == ["http_status", "chat", "500", "1", "boom 1"]
    assert "infinity" not in shown(answered(100))


def test_many_kinds_of_failures_are_cut_short() -> None:
    text = shown(*[failed("reset", name=f"name{'x' * i}") for i in range(25)])
    assert "and 5 failures of 5 more kinds" in text


def test_simulated_is_loud() -> None:
    lines = shown(answered(100, simulated=True)).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("SIMULATED"))
    assert lines[place - 1] == lines[place + 1] == "!" * 120
    assert place < 8
    assert "SIMULATED" not in shown(answered(100))


def test_warmup_has_its_own_small_table() -> None:
    text = shown(answered(900, phase="warmup"), answered(200))
    warmup = text[text.index("Warmup (1 request") :]
    assert cells(warmup, "Request Latency (ms)")[5] == "900.00"


def test_fits_120_columns() -> None:
    records = [
        answered(9000 + i, 9020 + i, 12345.678 + i, input_tokens=16_000, cached_tokens=0)
        for i in range(200)
    ]
    assert max(map(len, shown(*records).splitlines())) <= 120


def test_breakdowns_fit_120_columns() -> None:
    records = [
        answered(
            12_345.6, 13_000, user_class="AUserClassOfSomeLength" * 2,
            name=f"/v1/chat/completions/{i}", turn=i % 2,
            input_tokens=(10_000, 100_000)[i % 2], cached_tokens=0, asked_at=-89.0,
            admitted_at=10.0,
        )
        for i in range(5)
    ]  # fmt: skip
    run = replace(
        a_run(((0.0, 9999), (5.0, 10_000)), request_rate=10.0, prefill_concurrency=10_000),
        offer=OpenLoopSchedule(
            due=123_456, never_started=12_345, duration_s=12_345.6, most_users=1000
        ),
    )
    text = shown(*records, run=run)
    assert all(f"By {by}" in text for by in ("input length", "turn", "name"))
    assert max(map(len, text.splitlines())) <= 120


def test_percentiles_up_to_99_9() -> None:
    text = shown(*[answered(100)] * 1000, percentiles=(50.0, 99.9))
    assert cells(text, "Metric") == ["Metric", "p50", "p99.9", "avg", "min", "max", "std", "count"]
    assert "*" not in cells(text, "Request Latency (ms)")[2]


@pytest.mark.parametrize("render", [render_console, render_markdown])
def test_nothing_from_outside_gets_through(render: object) -> None:
    run = a_run(model=HOSTILE, host=HOSTILE)
    summary = summarise_run(
        collect_columns([failed("stream_error", error=HOSTILE, name=HOSTILE)]), run
    )
    text = render(summary, run)  # type: ignore[operator]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\nsecond line" not in text
    if render is render_markdown:
        assert "<script" not in text
        assert not re.search(r"(?<!\\)\]\(", text)
        rows = [
            line for line in text.splitlines() if "stream\\_error" in line and line.startswith("|")
        ]
        assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6]


def test_markdown_says_the_same() -> None:
    run = a_run()
    summary = summarise_run(collect_columns([answered(200, 220), failed()]), run)
    text = render_markdown(summary, run)
    assert text.startswith("# Load test by-hand\n")
    assert re.search(r"\| Time to First Token \(ms\) +\| +200.0 \|", text)
    plain = render_console(summary, run)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        assert heading.replace("\\", "") in plain


def test_nothing_recorded_is_a_report_too() -> None:
    text = shown()
    assert "nothing to report" in text
    assert "No request succeeded, so there are no latencies" in text
    assert "Request Latency (ms)" not in text


def test_rules_come_first() -> None:
    """TTFTs of 1 to 20 ms: the median is 10.5, its interval 9 to 12."""
    records = [answered(ms, ms + 10, sent_at=10.0 + i / 10) for i, ms in enumerate(twenty())]
    text = shown(
        *records,
        slo=("ttft p50 < 16ms", "warn: ttft p50 < 6ms", "ttft p99 < 20.1ms"),
        goodput="ttft:5",
    )
    assert "SLO INCONCLUSIVE: 1 failed, 1 inconclusive, 1 passed (1 of them a warn: rule)." in text
    assert text.index("Rules") < text.index("Metrics") < text.index("Conditions")
    assert cells(text, "ttft p50 < 16ms") == [
        "ttft p50 < 16ms",
        "PASS",
        "10.5ms",
        "9ms to 12ms",
        "200",
    ]
    assert cells(text, "warn: ttft p50 < 6ms")[1] == "FAIL"
    assert cells(text, "ttft p99 < 20.1ms")[1:] == [
        "INCONCLUSIVE",
        "20ms",
        "20ms to 21.36ms",
        "200",
    ]
    assert "ttft p99 < 20.1ms: INCONCLUSIVE, its 95% interval crosses the limit" in text
    assert cells(text, "good requests") == ["good requests", "those with ttft <= 5ms"]
    assert cells(text, "Good Requests")[5] == "50.00"
    assert cells(text, "Good Request Fraction (ratio)")[5] == "0.2500"
    assert "SLO" not in shown(*records)


def test_a_rule_with_a_hostile_name_stays_in_its_cell() -> None:
    run = a_run(slo=(f'ttft{{name="{HOSTILE}"}} p50 < 1s',))
    text = render_markdown(summarise_run(collect_columns([answered(1)]), run), run)
    line = next(line for line in text.splitlines() if line.startswith("| ttft"))
    assert "<script" not in line
    assert line.replace(r"\|", "").count("|") == 6


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "see https://evil.example/x_y_z, or @octocat: #1",
            "see `https://evil.example/x_y_z`, or `@octocat`: `#1`",
        ),
        ("of octo/repo#12 and a/b!3", "of `octo/repo#12` and `a/b!3`"),
        ("![a](https://evil.example/a.png)", r"`![a](https://evil.example/a.png`)"),
        ("<img src=http://x>", "&lt;img `src=http://x`\\>"),
        ("`@a`", r"\``@a`\`"),
        ("/close", r"\/close"),
        ("5 # of C# and a_b@ 1!", r"5 \# of C\# and a\_b@ 1\!"),
    ],
)
def test_nothing_in_markdown_is_a_link_or_a_mention(text: str, shown: str) -> None:
    assert render_markdown_block(TextBlock(text), first=False) == shown
