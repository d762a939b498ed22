"""What the reader sees: the console, the Markdown, and that nobody's error message can spoil either."""

import re

import pytest
from handmade import a_run, answered, failed

from locust_llm.columns import collect
from locust_llm.metrics import summarise
from locust_llm.record import Record
from locust_llm.run import Run
from locust_llm.tables import clean, console, markdown, number

HOSTILE = "<script>alert(1)</script> | [link](javascript:x) `a` \x1b[31mred\u202e\nsecond line"


def shown(*records: Record, run: Run | None = None, **settings: object) -> str:
    run = run or a_run(**settings)
    return console(summarise(collect(records), run), run, "reports/by-hand")


def cells(text: str, label: str) -> list[str]:
    """The cells of the first line that begins with this label."""
    line = next(line for line in text.splitlines() if line.startswith(f"{label} "))
    return re.split(r"\s{2,}", line.strip())


def test_one_request() -> None:
    text = shown(answered(200, 220, 260))
    assert cells(text, "Metric") == ["Metric", "avg", "min", "p50", "p90", "p95", "p99", "max", "std", "count"]
    assert cells(text, "Time to First Token (ms)") == [
        "Time to First Token (ms)", "200.00", "200.00", "200.00*", "200.00*", "200.00*", "200.00*", "200.00", "-", "1",
    ]  # fmt: skip
    assert cells(text, "Inter Token Latency (ms)")[1] == "30.00"
    assert cells(text, "Request Throughput")[1:] == ["3.85", *["-"] * 8]
    assert cells(text, "Input Tokens per Request")[1] == "100.00"
    assert "* too few values" in text
    assert text.rstrip().endswith("Reports: reports/by-hand")


def test_conditions_come_first() -> None:
    text = shown(
        answered(200, 300, asked_input_tokens=80, asked_output_tokens=2),
        failed(),
        prefill_concurrency=2,
        prefill_concurrency_ramp_duration=30.0,
        users=30,
    )
    assert text.index("Conditions") < text.index("Metrics")
    assert cells(text, "server") == ["server", "http://server:8000"]
    assert cells(text, "load") == ["load", "closed loop, 30 users, 1 process"]
    assert cells(text, "prefill limit") == ["prefill limit", "2, ramp from 1 over 30 s"]
    assert cells(text, "input length") == ["input length", "100.0 tokens on average, asked for 80.0 (+25.0%)"]
    assert cells(text, "requests") == ["requests", "2: 1 succeeded, 1 failed (50.0%), 0 cut, 0 cancelled"]
    assert cells(text, "duration")[1].startswith("1.00 s")


def test_failures_have_a_table_and_fail_in_another() -> None:
    text = shown(*[answered(100)] * 9, failed("http_status", status=500, message="boom 1"), percentiles=(50.0, 99.0))
    adjusted = text[text.index("every failure as +infinity") :]
    assert cells(adjusted, "Request Latency (ms)") == ["Request Latency (ms)", "100.00", "fail*", "10"]
    assert cells(text, "http_status") == ["http_status", "chat", "500", "1", "boom 1"]
    assert "infinity" not in shown(answered(100))


def test_many_kinds_of_failures_are_cut_short() -> None:
    text = shown(*[failed("reset", name=f"name{'x' * i}") for i in range(25)])
    assert "and 5 failures of 5 more kinds" in text


def test_simulated_is_loud() -> None:
    lines = shown(answered(100, simulated=True)).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("SIMULATED"))
    assert lines[place - 1] == lines[place + 1] == "!" * 120
    assert place < 6
    assert "SIMULATED" not in shown(answered(100))


def test_warmup_has_its_own_small_table() -> None:
    text = shown(answered(900, phase="warmup"), answered(200))
    warmup = text[text.index("Warmup (1 requests") :]
    assert cells(warmup, "Request Latency (ms)")[1] == "900.00"


def test_fits_120_columns() -> None:
    records = [answered(9000 + i, 9020 + i, 12345.678 + i, input_tokens=16_000, cached_tokens=0) for i in range(200)]
    assert max(map(len, shown(*records).splitlines())) <= 120


def test_percentiles_up_to_99_9() -> None:
    text = shown(*[answered(100)] * 1000, percentiles=(50.0, 99.9))
    assert cells(text, "Metric") == ["Metric", "avg", "min", "p50", "p99.9", "max", "std", "count"]
    assert "*" not in cells(text, "Request Latency (ms)")[4]


@pytest.mark.parametrize("render", [console, markdown])
def test_nothing_from_outside_gets_through(render: object) -> None:
    run = a_run(model=HOSTILE, host=HOSTILE)
    summary = summarise(collect([failed("stream_error", message=HOSTILE, name=HOSTILE)]), run)
    text = render(summary, run)  # type: ignore[operator]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\nsecond line" not in text
    if render is markdown:
        assert "<script" not in text
        assert not re.search(r"(?<!\\)\]\(", text)
        rows = [line for line in text.splitlines() if "stream\\_error" in line and line.startswith("|")]
        assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6]


def test_markdown_says_the_same() -> None:
    run = a_run()
    summary = summarise(collect([answered(200, 220), failed()]), run)
    text = markdown(summary, run)
    assert text.startswith("# Load test by-hand\n")
    assert re.search(r"\| Time to First Token \(ms\) +\| +200.00 \|", text)
    plain = console(summary, run)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        assert heading.replace("\\", "") in plain


def test_nothing_recorded_is_a_report_too() -> None:
    text = shown()
    assert "nothing to report" in text
    assert cells(text, "Request Latency (ms)")[1:] == [*["-"] * 8, "0"]


def test_numbers() -> None:
    assert [number(value) for value in (None, 0.0, 1234567.891, float("inf"))] == ["-", "0.00", "1234567.89", "fail"]


def test_clean() -> None:
    assert clean("a\tb\nc\x00µ…") == "a b c\N{REPLACEMENT CHARACTER}µ…"
