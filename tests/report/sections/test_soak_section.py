"""What grew during a run: its section, its line and the rule on it, from planted readings."""

from support.records import a_run, answered

from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.soak_section import SOAK_SECTION, format_soak_line
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS
from locust_llm.trends.soak_readings import SoakReading

SOAKED = a_run(soak=True, slo=("growing == 0",))


def read_memory(*memory: float) -> list[SoakReading]:
    """A reading each minute."""
    return [
        SoakReading(
            at=60.0 * number, hours=number / 60, requests=10 * number, tokens=50 * number,
            memory_bytes=value,
        )
        for number, value in enumerate(memory, 1)
    ]  # fmt: skip


def summarise(readings: list[SoakReading]) -> Summary:
    return summarise_run(collect_columns([answered(100, 200)]), SOAKED, soak_readings=readings)


def test_a_leak_fails_the_rule_and_has_its_section() -> None:
    readings = read_memory(*(1e9 + 1e6 * minute for minute in range(120)))
    summary = summarise(readings)
    (rule,) = summary.slos
    assert (rule.status, rule.observed) == (FAIL, 1.0)
    found = summary.soak
    assert found is not None
    assert format_soak_line(found) == "GROWS after 2 h and 1200 requests: memory."
    heading, _, table, *sentences = SOAK_SECTION.make_blocks(found)
    assert heading.text == "What grew"  # type: ignore[union-attr]
    assert table.rows[0][:2] == ("memory", "grows")  # type: ignore[union-attr]
    assert "100 kB per request and 20 kB per token" in sentences[0].text  # type: ignore[union-attr]


def test_flat_memory_passes_the_rule() -> None:
    summary = summarise(read_memory(*[1e9] * 120))
    (rule,) = summary.slos
    assert (rule.status, rule.observed) == (PASS, 0.0)


def test_too_few_readings_leave_the_rule_open() -> None:
    summary = summarise(read_memory(*[1e9] * 12))
    (rule,) = summary.slos
    assert rule.status == INCONCLUSIVE
    assert summary.soak is not None
    # 48 readings are needed: from minute 1 to 12, four times
    line = "CANNOT TELL YET after 12 min and 120 requests: memory. A soak of 44 min may decide it."
    assert format_soak_line(summary.soak) == line


def test_no_reading_leaves_the_rule_open() -> None:
    summary = summarise([])
    (rule,) = summary.slos
    assert rule.status == INCONCLUSIVE
    assert summary.soak is None
