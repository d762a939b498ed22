"""Notes: what warns of a run that says less than it seems to, from records made by hand."""

import random

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed
from support.stages import a_level

from locust_llm.records.record import Record
from locust_llm.records.run_facts import DecidedRule, Run, UserStart
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.notes import make_remarks, select_top_remarks
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SweepSummary
from locust_llm.server.prepare_run import SAME_WORDS
from locust_llm.slo.rules import INCONCLUSIVE, PASS


def said(records: list[Record], run: Run | None = None, **settings: object) -> str:
    run = run or a_run(**settings)
    return "\n".join(make_remarks(summarise_run(collect_columns(records), run, 0, records), run))


def mixed(
    base_ms: float, ms_per_token: float, noise: float = 0.0, count: int = 200
) -> list[Record]:
    """Prompts of 500 to 8,000 tokens."""
    draw = random.Random(1)
    found = []
    for _ in range(count):
        tokens = draw.randrange(500, 8000)
        first = (base_ms + ms_per_token * tokens) * draw.uniform(1, 1 + noise)
        found.append(answered(first, first + 10, input_tokens=tokens))
    return found


# -- what a look decided ---------------------------------------------------------------------------


def test_a_rule_that_was_decided_at_a_look_and_is_open_at_the_end_is_named() -> None:
    """Half of the values are 100 ms and half 300 ms: their mean is 200 ms, which a run cannot tell
    from a limit of 201 ms, and can from one of 1 s."""
    look = "Every SLO was decided after 22 s, at interim analysis 2 of at most 5."
    records = [answered(100 + 200 * (i % 2), 400, sent_at=10.0 + i) for i in range(200)]
    open_ = (
        "With the requests that ended after the decision, ttft avg < 201ms is INCONCLUSIVE again."
    )
    for rules, more in (
        (("ttft avg < 201ms", "ttft avg < 1s"), f" {open_}"),
        (("ttft avg < 1s",), ""),
    ):
        run = replace(a_run(slo=rules), notes=(look,))
        summary = summarise_run(collect_columns(records), run, 0, records)
        assert f"{look}{more}" in make_remarks(summary, run)
        assert f"{look}{more}" in select_top_remarks(summary, run)


def test_what_a_look_decided_stays_where_the_figure_at_the_end_agrees() -> None:
    """The mean is 200 ms: within 201 ms as at the look, and beyond 199 ms, against it."""
    look = "Every SLO was decided after 22 s, at interim analysis 2 of at most 5."
    records = [answered(100 + 200 * (i % 2), 400, sent_at=10.0 + i) for i in range(200)]
    rules = ("ttft avg < 201ms", "ttft avg < 199ms")
    decided = tuple(
        DecidedRule(rule=rule, status=PASS, interval="190ms to 198ms", after_s=22.4)
        for rule in rules
    )
    run = replace(a_run(slo=rules), notes=(look,), decided_rules=decided)
    summary = summarise_run(collect_columns(records), run, 0, records)
    kept, again = summary.slos
    assert (kept.status, kept.low, kept.high) == (PASS, None, None)
    assert kept.reason == (
        "decided at the interim analysis after 22 s, with a 95% interval of 190ms to 198ms"
    )
    assert again.status == INCONCLUSIVE
    again_open = "the decision, ttft avg < 199ms is INCONCLUSIVE again."
    assert any(remark.endswith(again_open) for remark in make_remarks(summary, run))


# -- how the load began ----------------------------------------------------------------------------


def test_a_load_that_went_on_from_the_warmup_is_named_with_what_is_left_out() -> None:
    """Of two requests of the warmup one ends at 11, when profiling has begun at 10.5."""
    records = [
        answered(100, 400, phase="warmup"), answered(100, 1000, phase="warmup"),
        *(answered(100, 400, sent_at=11.0 + i) for i in range(9)),
    ]  # fmt: skip
    run = replace(a_run(warmup_duration=2.0), warmup_went_on=True, profiling_at=UNIX + 10.5)
    told = "The load of the warmup continued. 1 request in flight when profiling began is left out."
    assert told in said(records, run)
    late = "WARNING: the warmup ended before all users had started."
    for took_s, warned in ((1.9, False), (2.1, True), (None, True)):
        start = UserStart(phase="warmup", users=2, over_s=1.0, took_s=took_s, by="rate")
        assert (late in said(records, replace(run, starts=(start,)))) == warned
    assert "went on" not in said(records, replace(run, warmup_went_on=False))


# -- what was cut ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut_at", "grace_s", "why"),
    [
        (None, 12.5, "when the grace period of 12.5 s ended, at an age of 5.0 s"),
        (
            UNIX + 102,
            30.0,
            "when a second signal (Ctrl-C) came, 2 s after the stop, at an age of 5.0 s",
        ),
        (None, 0.0, "when the run ended, without a grace period, at an age of 5.0 s"),
    ],
)
def test_what_ended_the_wait_for_open_requests_is_named(
    cut_at: float | None, grace_s: float, why: str
) -> None:
    """The run was stopped at second 100."""
    run = replace(a_run(stop_timeout_s=grace_s), cut_at=cut_at)
    records = [answered(5, 10), failed("cut", sent_at=97.0, closed_at=102.0)]
    assert f"1 request was unfinished {why}, 1 of them before the first token" in said(records, run)


# -- a stub, or a cache ----------------------------------------------------------------------------


def test_a_ttft_that_does_not_depend_on_the_prompt_is_warned_of() -> None:
    told = said(mixed(300, 0))
    assert "WARNING: TTFT does not grow with the prompt: 300 ms" in told
    assert "0.00 ms for each 1,000 tokens (95% interval 0.00 to 0.00). A stub or a cache" in told
    # it parses what it does not read
    assert "does not grow" in said(mixed(300, 0.0003, noise=0.001))


@pytest.mark.parametrize(
    "records",
    [
        mixed(20, 0.03),  # an H100 with a model of 8 billion parameters
        mixed(300, 0.002, noise=0.01),  # one of half a billion, far away
        mixed(300, 0, noise=3),  # a queue that hides the prompt
        mixed(300, 0, count=49),
        [answered(300, 310)] * 200,  # prompts of one length
    ],
    ids=["model", "far away", "queue", "few", "one length"],
)
def test_where_it_does_or_nobody_can_tell_nothing_is_said(records: list[Record]) -> None:
    assert "does not grow" not in said(records)


def test_a_cache_nobody_asked_for_is_warned_of() -> None:
    warm = [answered(5, 10, cached_tokens=60)] * 3
    assert (
        "WARNING: 60% of the input tokens came from the server's prefix cache, although no shared "
        "prefix was requested" in said(warm)
    )
    assert "prefix cache" not in said([answered(5, 10, cached_tokens=50)] * 3)
    assert "prefix cache" not in said([answered(5, 10)] * 3)


def test_a_cache_that_was_asked_for_is_told() -> None:
    warm = [answered(5, 10, cached_tokens=60)] * 3
    told = said(warm, num_prefix_prompts=2, prefix_prompt_length=50)
    assert (
        "\n60% of the input tokens came from the server's prefix cache, because of shared prefixes"
        in told
    )
    told = said(warm, input_file="trace.jsonl", fixed_schedule=True)
    assert "\n60% of the input tokens came from the server's prefix cache: rows of the" in told
    turns = [answered(5, 10, session="s", turn=turn, cached_tokens=60) for turn in range(3)]
    assert "because of growing conversations" in said(turns)


@pytest.mark.parametrize(
    ("cached", "by_metrics", "expected"),
    [
        (None, None, "so an earlier run may have filled the server's prefix cache"),
        (0, None, None),
        (0, 0.1, None),  # usage is of these requests alone
        (None, 0.0, None),
        (
            40,
            None,
            "40% of the input tokens came from the server's prefix cache. --random-seed 7 sends "
            "the same words",
        ),
        (
            None,
            0.87,
            "87% of the input tokens came from the server's prefix cache, by its metrics. --r",
        ),
    ],
)
def test_after_the_load_the_measured_share_stands_in_place_of_a_guess(
    cached: int | None, by_metrics: float | None, expected: str | None
) -> None:
    note = SAME_WORDS.format(7)
    run = replace(a_run(), notes=(note,))
    summary = summarise_run(collect_columns([answered(5, 10, cached_tokens=cached)] * 3), run)
    summary = replace(
        summary, conditions=replace(summary.conditions, cached_share_by_metrics=by_metrics)
    )
    found = [one for one in make_remarks(summary, run) if "--random-seed 7" in one]
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]
    assert len(found) == 0 or by_metrics is None or "may have filled" not in found[0]


def test_a_dataset_that_began_again_is_warned_of() -> None:
    run = replace(a_run(), dataset_sessions=20)
    told = said([answered(5, 10)] * 50, run)
    assert "WARNING: 50 sessions came from a dataset of 20: each prompt was sent 2.5 times" in told
    assert "dataset" not in said([answered(5, 10)] * 20, run)
    assert "dataset" not in said([answered(5, 10)] * 50)


# -- a closed loop read as open --------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        "ttft_from_due p50 < 1s",
        "requests_per_s > 1",
        "goodput > 1 given ttft < 1s",
        "late p50 < 1s",
    ],
)
def test_a_rule_about_what_arrives_needs_an_open_loop(rule: str) -> None:
    closed = f"In a closed loop, an SLO on {rule.split()[0]} applies to 2 users"
    assert closed in said([answered(5, 10)] * 20, slo=(rule,))
    assert closed not in said([answered(5, 10)] * 20, slo=(rule,), request_rate=2.0)


def test_other_rules_and_texts_that_are_none_say_nothing_of_the_loop() -> None:
    assert "an SLO on" not in said(
        [answered(5, 10)] * 20, slo=("ttft p50 < 1s", "of another version")
    )


def test_chunks_that_nobody_counted_are_held_against_the_length_asked_for() -> None:
    """Two chunks an answer, of 40 tokens: 95 % fewer; of 2 nothing is missing."""
    few = [answered(10, 20, asked_output_tokens=40, tokens_from="chunks")] * 4
    text = said(few)
    assert (
        "WARNING: responses had 2 chunks on average, 95.0% fewer than the 40 requested tokens."
        in text
    )
    assert "WARNING: the server counted no tokens (usage); of 4 each chunk counts as one." in text
    as_many = [answered(10, 20, asked_output_tokens=2, tokens_from="chunks")] * 4
    assert "requested tokens" not in said(as_many)


# -- gaps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (1, "1 gap is not in Inter Chunk Latency: a chunk at one end was read together with other"),
        (2, "2 gaps are not in Inter Chunk Latency: a chunk at one end was read together with"),
    ],
)
def test_gaps_that_are_left_out_are_counted_in_words(late: int, words: str) -> None:
    """The last chunk of some of 100 responses of 11 chunks was read together with the end: below
    1% of the 1,100 chunks."""
    chunks = [10.0 * number for number in range(1, 12)]
    last = ((10, 105_000),)
    records = [
        answered(*chunks, sent_at=10.0 + i, **({"merged": last} if i < late else {}))
        for i in range(100)
    ]
    assert words in said(records)


# -- percentiles of too few ------------------------------------------------------------------------


def test_a_percentile_of_too_few_is_warned_of_once() -> None:
    assert (
        "WARNING: p99 of 99 requests rests on the slowest one or two requests: p99 needs 100 "
        "requests. Run longer (-t), or send more (--request-count)."
    ) in said([answered(5, 10)] * 99)
    assert "p90 and above of 9 requests rest on the slowest" in said([answered(5, 10)] * 9)
    assert "p50 and above of 1 request rest on the slowest one request:" in said([answered(5, 10)])
    assert "on the slowest" not in said([answered(5, 10)] * 100)
    # rules that ask for p95 do not depend on p99
    asked = said([answered(5, 10)] * 99, slo=("ttft p95 < 1s",))
    assert "The p99 of 99 requests rests on the slowest one or two requests" in asked
    assert "WARNING: p99" not in asked
    for rule in ("ttft p99 < 1s", "error_rate < 1%"):
        assert "WARNING: p99 of 99 requests" in said([answered(5, 10)] * 99, slo=(rule,))
    rare = said([answered(5, 10)] * 100, percentiles=(50.0, 99.9))
    assert "p99.9 of 100 requests" in rare
    assert "p99.9 needs 1000 requests" in rare  # 100 / 0.1
    assert "on the slowest" not in said([])


# -- counts and latencies that cannot be -----------------------------------------------------------


def test_counts_that_were_not_taken_are_named_with_their_number() -> None:
    zero = answered(200, 250, tokens_from="chunks", rejected_counts=(("output_tokens", "0"),))
    left_out = answered(200, 250, rejected_counts=(("input_tokens", "0"), ("output_tokens", "3")))
    told = said([zero, zero, left_out, answered(200, 250)])
    assert (
        "input_tokens of 1 request (0), output_tokens of 3 requests (0, for one). Output tokens "
        "were computed" in told
    )
    assert "contradicts" not in said([answered(200, 250)])


def test_requests_without_an_itl_are_counted_with_the_reason() -> None:
    one_read = answered(200, 200, 200, merged=((0, 1), (1, 1), (2, 1)))
    told = said([answered(200, output_tokens=50)] * 2 + [one_read] + [answered(200, 250)] * 2)
    why = "2 came in one chunk, 1 was read at once."
    assert f"3 of 5 requests have no Inter Token Latency, and no token rate per user: {why}" in told
    assert "no Inter Token Latency" not in said([answered(200, 250)])
    empty = answered(output_tokens=1)  # the end of a sentence, without a chunk
    assert "2 of 3 requests have no Inter Token Latency" in said(
        [answered(200), empty, answered(200, 250)]
    )
    assert (
        "1 of 2 requests has no Inter Token Latency, and no token rate per user: 1 had no chunk"
        in (said([empty, answered(200, 250)]))
    )
    whole = answered(streamed=False)
    assert "no Inter Token Latency" not in said([whole, whole])


# -- the load generator ----------------------------------------------------------------------------


def test_one_late_request_of_few_is_named_with_its_size_and_what_it_took() -> None:
    """Of 38 requests of a second, one sent 195 ms late: 0.5 % of the time, and two: 1 %. Of 100 and
    more p99 decides, of 20 in 38 the median."""
    late = answered(805, sent_at=10.195, asked_at=10.0, admitted_at=10.0, worker="local")
    others = [answered(1000, admitted_at=10.0, worker="local")] * 99
    text = (
        "the load generator (local) sent the latest of 38 requests 195 ms after its admission. That is 0.5% of the "
        "requests' time, "
    )
    assert f"WARNING: {text}so it does not lower the client verdict." in said([late, *others[:37]])
    assert "after its admission" not in said([late, *others])
    little = replace(late, sent_at=10.03)
    assert (
        "\nThe load generator (local) sent the latest of 38 requests 30 ms after its admission."
        in said([little, *others[:37]])
    )
    assert "195 ms after its admission. That is 1.0%" in said([late, late, *others[:36]])
    assert "after its admission" not in said([*[late] * 20, *others[:18]])  # they do lower it
    assert "after its admission" not in said(others[:38])


def test_a_sweep_has_no_note_on_late_sends_beside_the_verdicts_of_its_stages() -> None:
    """They differ: one stage may be INVALID by late sends that are little in all stages."""
    late = answered(805, sent_at=10.195, asked_at=10.0, admitted_at=10.0, worker="local")
    others = [answered(1000, admitted_at=10.0, worker="local")] * 37
    run = a_run()
    summary = summarise_run(collect_columns([late, *others]), run)
    assert any("after its admission" in text for text in make_remarks(summary, run))
    sweep = SweepSummary(
        axis="concurrency", unit="users", levels=(a_level(1),), ended="all stages ran"
    )
    of_sweep = make_remarks(replace(summary, sweep=sweep), run)
    assert not any("after its admission" in text for text in of_sweep)
