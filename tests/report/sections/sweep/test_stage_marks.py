"""What the rows of stages and their limits say of the measured time."""

from msgspec.structs import replace
from support.records import UNIX, a_run
from support.stages import a_level

from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.sections.prefill_limit_comparison import (
    LimitComparison,
    LimitLengthRow,
    LimitRow,
    make_limit_cells,
)
from locust_llm.report.sections.sweep.knee import find_saturation_knee
from locust_llm.report.sections.sweep.sweep_findings import (
    describe_sweep_findings,
    describe_unreached_stages,
)
from locust_llm.report.sections.sweep.sweep_text import (
    format_request_rate,
    format_token_rate,
    make_sweep_warnings,
)
from locust_llm.report.summary_rows import Knee, SweepSummary
from locust_llm.settings.sweep_option import CONCURRENCY, RATE, RUN_STOPPED
from locust_llm.slo.best_prefill_limit import SHORT_TTFT


def test_limits_for_a_gateway_are_not_above_the_rate_of_the_stage() -> None:
    """At 10/s, 12 came by chance: 10 x 60 requests, and 1,200 x 10 / 12 x 60 tokens."""
    level = a_level(10.0, 12.0, slo="PASS", output_tokens_per_s=1200.0)
    knee = Knee(rule="SLO", value=10.0, text="")
    (limits,) = describe_sweep_findings(RATE, [level], [knee], a_run().settings)
    assert "600 requests, 60,000 output tokens per minute" in limits
    (closed,) = describe_sweep_findings(CONCURRENCY, [level], [knee], a_run().settings)
    assert "720 requests, 72,000 output tokens per minute" in closed


def test_a_measured_time_shorter_than_a_request_shows_no_throughput() -> None:
    """30 requests were due in 3.5 s and took 11.7 s each: none of them ended in that time."""
    levels = (
        a_level(1.0, 0.9, answered_share=0.9, kept_up=True),
        a_level(
            8.0, 0.0, latency_ms=11_700.0, succeeded=30, duration_s=3.5, arrivals_per_s=8.0,
            answered_share=0.0, kept_up=None,
        ),
    )  # fmt: skip
    sweep = SweepSummary(axis=RATE, unit="requests/s", levels=levels, ended="")
    *_, line = make_sweep_warnings(sweep, None)
    assert line.text == (  # type: ignore[union-attr]
        "WARNING: at request-rate 8 a request took 11.7 s (p50), and the measured time was 3.5 s: "
        "nothing shows whether the server keeps up. Use fewer stages or a longer -t."
    )
    assert [format_request_rate(level) for level in levels] == ["0.90", "-"]
    knee = find_saturation_knee(RATE, levels[1:])
    assert (knee.value, knee.text) == (
        None,
        "At request-rate 8 the measured time was too short to show whether the server keeps up: "
        "too few requests were due or answered in it.",
    )
    unused = replace(levels[1], client="INVALID")
    assert find_saturation_knee(RATE, [unused]).text == "No stage can be used."
    closed = a_level(8.0)
    assert find_saturation_knee(RATE, [closed]).text == "The number of due requests is unknown."
    refused = a_level(8.0, 0.0, succeeded=0, answered_share=0.0, kept_up=False)
    assert format_request_rate(refused) == "0.00"


def test_other_arrivals_than_the_rate_and_a_short_measured_time_are_named() -> None:
    """4% off in 10 s are usual; 12.9/s are 29% more than 10/s, and 3 s are short."""
    levels = (
        a_level(5.0, 5.0, duration_s=10.0, arrivals_per_s=5.2),
        a_level(10.0, 12.0, duration_s=7.3, arrivals_per_s=12.9),
        a_level(30.0, 7.5, duration_s=3.0, arrivals_per_s=30.0),
    )
    sweep = SweepSummary(axis=RATE, unit="requests/s", levels=levels, ended="")
    (line,) = make_sweep_warnings(sweep, None)
    assert line.text == (  # type: ignore[union-attr]
        "Arrivals in the measured time, by rate: at 10 12.9/s in 7.30 s, at 30 30.0/s in 3.00 s."
    )


def test_a_rate_that_may_be_off_has_its_mark() -> None:
    level = a_level(1.0, 8.8, output_tokens_per_s=176.0, inexact_rates=("output_token_throughput",))
    assert format_token_rate(level) == "~176.0"
    assert format_request_rate(level) == "8.80"


def test_rates_off_littles_law_have_their_mark() -> None:
    """One user with answers of 1.35 s has 0.74 a second: 0.53 are 28 % off."""
    level = a_level(1.0, 0.53, output_tokens_per_s=71.56, residual=0.28)
    assert format_token_rate(level) == "~71.56"
    assert format_request_rate(level) == "~0.53"


def test_a_percentile_of_a_limit_has_the_mark_of_too_few_requests() -> None:
    """A p95 needs 20 requests: the 19 short ones are too few, the 99 long ones are others."""
    row = LimitRow(
        limit=2, rounds=3, figure=0.1514, regret=None, regret_low=0.0, regret_high=None,
        verdict="best", left_open=0,
    )  # fmt: skip

    def figure(short: int) -> str:
        lengths = [make_length_row("short", short), make_length_row("long", 99)]
        found = LimitComparison(
            objective=SHORT_TTFT, answer="", rows=(row,), lengths=tuple(lengths)
        )
        return make_limit_cells(row, found)[2]

    assert figure(19) == "151.4*"
    assert figure(20) == "151.4"


def make_length_row(prompts: str, requests: int) -> LimitLengthRow:
    return LimitLengthRow(
        limit=2, prompts=prompts, requests=requests, failed=0, ttft_from_due_p50_s=0.1,
        ttft_from_due_p95_s=0.1514, gate_wait_p50_s=0.0, gate_wait_p95_s=0.0,
        longest_stall_p95_s=0.1, output_tokens_per_s=1.0, goodput_per_s=None,
    )  # fmt: skip


def swept(end: str) -> Run:
    stages = tuple(
        Stage(
            number=number,
            value=value,
            began_at=UNIX + begin,
            measured_at=UNIX + begin + 1,
            ended_at=UNIX + end_s,
            residual=None,
            why="time",
        )
        for number, value, begin, end_s in ((1, 1.0, 0, 11), (2, 2.0, 11, 14))
    )
    run = a_run(sweep="concurrency=1,2,4", users=None, run_time_s=40.0)
    return replace(run, stages=stages, sweep_end=end, stopping_at=UNIX + 14)


def test_a_stopped_sweep_blames_no_stage_for_what_was_not_reached() -> None:
    assert describe_unreached_stages(swept(RUN_STOPPED)) == (
        "concurrency 4 was not reached, as the run was stopped"
    )
    assert describe_unreached_stages(swept("its time was up after 40 s")) == (
        "concurrency 4 was not reached: the stage at 1 took 11 of 40 s"
    )


def test_time_after_the_load_of_a_stage_is_not_blamed_on_its_load() -> None:
    """The load of stage 1 ended after 6 s, and stage 2 began after 11 s."""
    run = swept("its time was up after 40 s")
    first = replace(run.stages[0], ended_at=UNIX + 6)
    assert describe_unreached_stages(replace(run, stages=(first, *run.stages[1:]))) == (
        "concurrency 4 was not reached: the stage at 1 took 11 of 40 s, 5 s of it after its load, "
        "for open requests and its report"
    )
