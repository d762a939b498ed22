"""Where slow requests spend their time, as a reader sees it: sentences, groups and the server's own
means, by pencil."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support.html_tags import Tags
from support.records import UNIX, a_run, answered

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Stage
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.document_blocks import TableBlock, TextBlock
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.text_report import render_plain_block
from locust_llm.report.sections.latency_breakdown import (
    REQUESTS,
    LatencyAttribution,
    LatencyBreakdown,
    LatencyPart,
    ServerTime,
    SlowGroup,
    add_server_histograms,
    attribute_latencies,
)
from locust_llm.report.sections.latency_breakdown_display import (
    PREFILL_ALONE,
    _format_group_row,
    describe_server_time,
    draw_breakdown_bars,
    make_latency_parts_blocks,
    summarise_latency_parts,
)


def found(*parts: tuple[str, float, str], **other: object) -> LatencyAttribution:
    """A breakdown of 12 requests: (part, ms, source)."""
    made = tuple(
        LatencyPart(name=name, slow_ms=ms, typical_ms=ms / 10, all_ms=ms / 5, source=source)
        for name, ms, source in parts
    )
    one = LatencyBreakdown(metric="ttft_from_due", percentile=99.0, value_ms=3000, typical_ms=300,
        slow=12, typical=200, count=1000,
                    parts=made)  # fmt: skip
    fields = {
        "requests": 50, "reported": {"spans": 50}, "impossible": 0, "breakdowns": (one,),
        "slowest": (),
        "server": ServerTime(basis=REQUESTS, server_ms=600.0),
    }  # fmt: skip
    return LatencyAttribution(**{**fields, **other})  # type: ignore[arg-type]


SLOW = found(
    ("gate", 300, "measured"), ("network", 100, "measured less reported"),
    ("queue", 2100, "reported"),
    ("prefill", 900, "reported"),
)  # fmt: skip
UNKNOWN = found(
    ("gate", 300, "measured"),
    ("server", 3000, "measured"),
    reported={},
    server=ServerTime(server_ms=24.0),
)


def texts(found: LatencyAttribution) -> list[str]:
    return [
        block.text for block in make_latency_parts_blocks(found) if isinstance(block, TextBlock)
    ]


def test_a_reader_sees_at_once_where_the_time_went() -> None:
    text, table, *_ = (
        block
        for block in make_latency_parts_blocks(SLOW)
        if isinstance(block, TextBlock | TableBlock)
    )
    assert isinstance(text, TextBlock)
    assert text.text.startswith(
        "TTFT from Due p99 is 3 s. The 12 requests at or above it took 3.4 s on average (typical "
        "ones: 340 ms): 2.1 s the "
        "server's queue, 900 ms prefill, 300 ms waiting for a prefill slot. A lower prefill limit"
    )  # the network's 3 % are not named
    assert isinstance(table, TableBlock)
    assert table.rows[0] == ("waiting for a prefill slot", "300.0", "30.00", "60.00", "measured")
    assert (
        summarise_latency_parts(SLOW)
        == "TTFT from Due p99: 62% the server's queue, 26% prefill, 9% waiting for a prefill slot."
    )


def test_a_value_that_no_table_has_stands_with_its_parts() -> None:
    """A closed loop has TTFT alone in its tables, and TTFT from due is another figure."""
    late = found(("late", 280, "measured"), ("server", 720, "measured"))
    assert summarise_latency_parts(late, in_table=False).startswith(
        "TTFT from Due p99 is 3 s: 72% in the server, 28% late send (load generator)."
    )
    assert summarise_latency_parts(late).startswith("TTFT from Due p99: 72% in the server")


def test_what_nobody_reports_is_one_part_and_how_to_split_it_is_named() -> None:
    answer = (
        "From the send to the first token: 24 ms in the server, on average. A metrics page or "
        "tracing (--otlp-receiver) would split it."
    )
    assert (
        summarise_latency_parts(UNKNOWN)
        == f"TTFT from Due p99: 91% in the server, 9% waiting for a prefill slot. {answer}"
    )
    assert answer in texts(UNKNOWN)
    assert "3 s in the server, 300 ms waiting for a prefill slot." in texts(UNKNOWN)[0]
    assert "queue" not in str(texts(UNKNOWN))
    only_prefill = found(("prefill", 75, "reported"), ("server", 25, "measured less reported"))
    assert (
        summarise_latency_parts(only_prefill)
        == "TTFT from Due p99: 75% prefill, 25% the server's queue and front end."
    )
    only_queue = found(("queue", 75, "reported"), ("server", 25, "measured less reported"))
    assert (
        summarise_latency_parts(only_queue)
        == "TTFT from Due p99: 75% the server's queue, 25% prefill and the server's front end."
    )
    some = found(("queue", 40, "reported"), ("prefill", 35, "reported"), ("server", 25, "measured"))
    assert summarise_latency_parts(some).endswith("35% prefill, 25% in the server, not reported.")


def test_the_way_through_a_proxy_is_not_taken_for_the_servers() -> None:
    """Sentence, table, drawing and console have one name for the part, which has the proxy too.
    Where the server reports its own times, the proxy is in the rest."""
    through = replace(UNKNOWN, proxy="p:3128")
    assert summarise_latency_parts(through).startswith(
        "TTFT from Due p99: 91% in the server and the proxy, 9% waiting for a prefill slot. From "
        "the send to the first token: 24 ms in the server and the proxy, on average. "
    )
    assert "Requests pass through a proxy (p:3128). What it took is unknown" in texts(through)[-1]
    drawn = "".join(f"{drawing.label}{drawing.drawn}" for drawing in draw_breakdown_bars(through))
    for text in (drawn, *map(str, make_latency_parts_blocks(through))):
        assert text.count("in the server") == text.count("in the server and the proxy")
    told = replace(SLOW, proxy="p:3128")
    (table,) = (b for b in make_latency_parts_blocks(told) if isinstance(b, TableBlock))
    assert [row[0] for row in table.rows] == [
        "waiting for a prefill slot", "network, proxy and front end", "the server's queue", "prefill",
    ]  # fmt: skip


PROXIED = {
    (): "in the server and the proxy",
    ("prefill",): "the server's queue and front end, and the proxy",
    ("queue",): "prefill, the server's front end and the proxy",
    ("queue", "prefill"): "in the server and the proxy, not reported",
}


@pytest.mark.parametrize("reported", PROXIED)
def test_whatever_the_server_reports_its_rest_has_the_proxy(reported: tuple[str, ...]) -> None:
    parts = (("server", 300.0, "measured"), *((name, 100.0, "reported") for name in reported))
    sentence = summarise_latency_parts(found(*parts, proxy="nginx/1.24.0"))
    assert f" {PROXIED[reported]}" in sentence.partition(". ")[0]


def test_who_cannot_see_a_bar_is_told_it() -> None:
    (drawing,) = draw_breakdown_bars(SLOW)
    (image,) = (
        attrs for attrs in Tags(str(drawing.drawn)).named("div") if attrs.get("role") == "img"
    )
    assert image["aria-label"] == (
        "TTFT from Due p99: slow requests 3.4 s: waiting for a prefill slot 300 ms, network and front end 100 ms, "
        "the server's queue 2.1 s, "
        "prefill 900 ms; typical ones 340 ms: waiting for a prefill slot 30 ms, network and front end 10 ms, "
        "the server's queue 210 ms, prefill 90 ms"
    )


@pytest.mark.parametrize(
    "queue", [(), (("queue", 0.01, "reported"),)], ids=["no time", "too short to be drawn"]
)
def test_a_part_has_one_name_in_sentence_table_key_and_tooltip(
    queue: tuple[tuple[str, float, str], ...],
) -> None:
    """The server reports queue and prefill, so all else is network and front end, even if the queue
    took no time."""
    parts = ("network", 200.0, "measured less reported"), *queue, ("prefill", 100.0, "reported")
    group = SlowGroup(by="model", label="a", count=20, percentile=75, value_ms=300, parts=parts)
    plain = found(*parts)
    made = replace(plain, breakdowns=(replace(plain.breakdowns[0], groups=(group,)),))
    drawn = [f"{drawing.label}{drawing.drawn}" for drawing in draw_breakdown_bars(made)]
    assert len(drawn) == 2
    for text in (*map(str, make_latency_parts_blocks(made)), *drawn):
        assert "round trip" not in text
    assert all("network and front end: 200 ms, measured less reported" in text for text in drawn)
    assert all("</i>network and front end" in text for text in drawn)


PREFILL_RULE = (
    "Other requests awaited a first token too, and may have shared its steps. Shorter prompts"
)
FRONT_END_RULE = (
    "The network's round trip is 0.01 ms at most: check the tokenizer, the HTTP server or a proxy "
    "in front of the server."
)
ANY_RULE = "Check the network, a proxy, the tokenizer and the HTTP server."


def advice_of(
    *parts: tuple[str, float, float], round_trip_ms: float | None = 0.01, proxy: str = ""
) -> str:
    """What follows the list of parts, of (part, slow, typical), in ms."""
    made = tuple(
        LatencyPart(
            name=name,
            slow_ms=slow,
            typical_ms=typical,
            all_ms=typical,
            source="measured less reported",
        )
        for name, slow, typical in parts
    )
    (one,) = found().breakdowns
    one = replace(one, parts=made, round_trip_ms=round_trip_ms)
    return texts(found(breakdowns=(one,), proxy=proxy))[0].split(". ", 2)[2]


def test_the_network_is_no_cause_where_the_kernels_round_trip_is_a_small_share() -> None:
    """5 % of 200 ms are 10 ms."""
    assert advice_of(("network", 200, 20), ("prefill", 20, 20)) == FRONT_END_RULE
    assert advice_of(("network", 200, 20), ("prefill", 20, 20), round_trip_ms=10) == ANY_RULE
    assert advice_of(("network", 200, 20), ("prefill", 20, 20), round_trip_ms=None) == ANY_RULE
    assert advice_of(("network", 200, 20), ("prefill", 20, 20), proxy="p:3128") == ANY_RULE


def test_the_largest_part_of_a_group_may_be_a_standstill_of_the_server() -> None:
    """Slow requests of 10 s, 8 s of them prefill. Of these the server stood still for 5 s, or for
    3 s, which is less than half of them."""
    group = SlowGroup(
        by="time", label="60 to 80 s", count=12, percentile=75.0, value_ms=9000.0,
        parts=(("queue", 2000.0, "reported"), ("prefill", 8000.0, "reported")),
    )  # fmt: skip
    still = replace(group, stood_still_ms=5000.0)
    assert _format_group_row(still, ())[3:] == ("the server stood still, 5 s", "50%")
    for other in (group, replace(group, stood_still_ms=3000.0)):
        assert _format_group_row(other, ())[3:] == ("prefill, 8 s", "80%")


def test_slow_requests_of_a_standstill_have_no_advice_on_prompts() -> None:
    """57 requests a second apart with their first tokens after 100 to 156 ms, and three after
    5.1 s, for 5 s of which the server stood still: p95 and above is these three. In the mean over
    all 60 that is 250 ms."""
    records = [answered(100 + i, 200 + i, sent_at=10.0 + i, id=str(i)) for i in range(57)]
    records += [answered(5100, 5200, sent_at=80.0, id=f"slow {i}") for i in range(3)]
    columns = collect_columns(records)

    def explain(*standstills: tuple[float, float]) -> tuple[str, str]:
        made = attribute_latencies(
            columns, {}, a_run(), lambda at: iter(records), standstills=standstills
        )
        assert made is not None
        text = " ".join(map(render_plain_block, make_latency_parts_blocks(made)))
        return " ".join(text.split()), summarise_latency_parts(made)

    text, line = explain((UNIX + 80.05, UNIX + 85.05))
    assert "in the server. 5 s of it is a standstill, when no token came." in text
    assert "; the server stood still for 98% of this time." in line
    assert (
        "No token came for a while as 3 requests awaited the first token: 250 ms of the mean"
        in text
    )
    assert all("stood still" not in part for part in explain())


def test_a_standstill_that_few_of_the_slow_requests_met_has_their_number() -> None:
    """Of the three slow requests after 5.1 s two were slow for another reason: the server stood
    still for 5 s of the first one, a third of the time of all three."""
    records = [answered(100 + i, 200 + i, sent_at=10.0 + i, id=str(i)) for i in range(57)]
    for i in range(3):
        records.append(answered(5100, 5200, sent_at=80.0 + 10 * i, id=f"slow {i}"))
    made = attribute_latencies(
        collect_columns(records), {}, a_run(), lambda at: iter(records),
        standstills=[(UNIX + 80.05, UNIX + 85.05)],
    )  # fmt: skip
    assert made is not None
    line = summarise_latency_parts(made)
    assert (
        "; the server stood still for 33% of this time, which 1 of these 3 requests met. " in line
    )
    assert (
        "1.67 s of it is a standstill, when no token came, which 1 of these 3 requests met."
        in texts(made)[0]
    )


@pytest.mark.parametrize("meets", [False, True])
def test_a_prefill_that_met_no_other_is_not_explained_by_others(meets: bool) -> None:
    """60 requests a second apart; the slowest awaits its first token for 0.9 s, alone; or another
    one comes 0.5 s after it."""
    records = [answered(100 + i, 200 + i, sent_at=10.0 + i, id=str(i)) for i in range(59)]
    records.append(answered(900, 950, sent_at=80.0, id="slow"))
    if meets:
        records.append(answered(100, 200, sent_at=80.5, id="other"))
    made = attribute_latencies(collect_columns(records), {}, a_run(), lambda at: iter(records))
    assert made is not None
    (breakdown, *_) = made.breakdowns
    assert (breakdown.no_other_prefill is True) == (not meets)
    (one,) = found().breakdowns
    parts = (
        LatencyPart(
            name="prefill", slow_ms=200, typical_ms=20, all_ms=20, source="measured less reported"
        ),
    )
    one = replace(one, parts=parts, no_other_prefill=breakdown.no_other_prefill)
    text = texts(found(breakdowns=(one,)))[0]
    assert (PREFILL_ALONE in text, PREFILL_RULE in text) == (not meets, meets)


def test_all_that_grew_is_named_not_the_largest_part_alone() -> None:
    """The prefill grew from 26 to 176 ms, by 150; all else from 27 to 197, by 170."""
    both = advice_of(("network", 197, 27), ("prefill", 176, 26))
    assert both.startswith(
        f"170 ms more than in typical ones is network and front end. {FRONT_END_RULE} "
    )
    assert f"{FRONT_END_RULE} 150 ms more than in typical ones is prefill. {PREFILL_RULE}" in both
    assert advice_of(("network", 197, 190), ("prefill", 100, 26)).startswith(
        f"74 ms more than in typical ones is prefill. {PREFILL_RULE}"
    )
    assert advice_of(("network", 197, 197), ("prefill", 26, 26)) == FRONT_END_RULE


# -- the server's own histograms -------------------------------------------------------------------

MEANS = {"queue": 50.0, "prefill": 90.0, "decode": 1990.0, "delivery": 10.0, "ttft": 160.0}

FAR = (
    " The requests at or above TTFT from Due p99 were 3 s in the server on average, 125 times the "
    "mean, so means do not explain them."
)
"""Of UNKNOWN, of which the mean is 24 ms."""


def history_of(count: float = 50, engine: str = "vLLM", **means_s: float) -> EngineHistory:
    """So many requests, of these means, more than the 100 before the run, of 1 s each."""
    history = EngineHistory()
    for at, more in ((-1.0, 0.0), (50.0, 1.0)):
        sums = {f"{what}_s": 100 + count * mean_s * more for what, mean_s in means_s.items()}
        counts = {f"{what}_count": 100 + count * more for what in means_s}
        history.add(EngineSample(at=UNIX + at, engine=engine, **sums, **counts))
    return history


def with_(found: LatencyAttribution, history: EngineHistory) -> LatencyAttribution:
    made = add_server_histograms(found, history, a_run())
    assert made is not None
    return made


def tables_of(made: LatencyAttribution) -> list[TableBlock]:
    return [block for block in make_latency_parts_blocks(made) if isinstance(block, TableBlock)]


def test_the_servers_own_means_stand_beside_what_it_reports_of_single_requests() -> None:
    """The difference is in ms: of a queue of nothing no percentage means anything."""
    history = history_of(queue=0.04, prefill=0.1, decode=2.0, inference=2.1, ttft=0.15)
    made = with_(replace(SLOW, means_ms=MEANS), history)
    assert [(mean.name, mean.server_ms, mean.count,
        mean.here_ms) for mean in made.own_means[0].means] == [
        ("queue", pytest.approx(40), 50, 50), ("prefill", pytest.approx(100), 50, 90),
        ("decode", pytest.approx(2000), 50, 2000), ("ttft", pytest.approx(150), 50, 160),
    ]  # fmt: skip
    blocks = [*make_latency_parts_blocks(made)]
    (table,) = (
        block
        for block in blocks
        if isinstance(block, TableBlock) and block.head[0].startswith("Mean")
    )
    assert table.head[0] == "Mean of 50 requests by the server's histograms (vLLM)"
    assert table.rows == (
        ("queue", "40.00", "50.00", "+10.00", "reported"),
        ("prefill", "100.0", "90.00", "-10.00", "reported"),
        ("decode", "2000", "2000", "0.00", "measured"),
        ("TTFT", "150.0", "160.0", "+10.00", "measured"),
    )  # fmt: skip
    few = with_(replace(SLOW, means_ms=MEANS, requests=60), history)
    assert any("fewer requests than there are here" in text for text in texts(few))
    one_less = with_(replace(SLOW, means_ms=MEANS, requests=51), history)
    (table,) = (one for one in tables_of(one_less) if one.head[0].startswith("Mean"))
    # means of other requests have no difference
    assert table.head[:3] == ("Mean by the server's histograms (vLLM)", "server (ms)", "requests")
    assert table.rows[0] == ("queue", "40.00", "50", "50.00", "-", "reported")
    assert any(
        "they ended before the first reading, after the last" in text for text in texts(one_less)
    )
    assert not any("means here are of" in text for text in texts(made))
    # the parts have it
    assert "Queue or prefill?" not in str([texts(made), summarise_latency_parts(made)])
    assert add_server_histograms(SLOW, EngineHistory(), a_run()) == SLOW


def test_histograms_split_the_servers_time_where_single_requests_do_not() -> None:
    """As vLLM without tracing: 0.02 ms of queue in 24 ms. Nothing says that the slow ones
    queued."""
    here = replace(UNKNOWN, means_ms={**MEANS, "ttft": 24.0})
    made = with_(here, history_of(queue=0.00002, prefill=0.0216, ttft=0.024))
    answer = (
        "Queue or prefill? Prefill, 90% on average, by the server's own histograms (vLLM): of 24 ms to a "
        "first token 0.02 ms are "
        "queue, 21.6 ms prefill, 2.38 ms neither, means of 50 requests."
        f"{FAR}"
    )
    assert (
        summarise_latency_parts(made)
        == f"TTFT from Due p99: 91% in the server, 9% waiting for a prefill slot. {answer}"
    )
    assert answer in texts(made)
    assert "would split it" not in str(texts(made))
    (mean,) = (mean for mean in made.own_means[0].means if mean.name == "queue")
    assert mean.here_ms is None
    (table,) = (
        b
        for b in make_latency_parts_blocks(made)
        if isinstance(b, TableBlock) and b.head[0].startswith("Mean")
    )
    assert table.rows[0] == ("queue", "0.02", "-", "-", "-")
    assert table.rows[-1] == ("TTFT", "24.00", "24.00", "0.00", "measured")


def test_a_metrics_page_of_some_requests_splits_these() -> None:
    """As of one of two replicas: its table stands below the sentence."""
    made = with_(replace(UNKNOWN, means_ms=MEANS), history_of(32, queue=0.01, prefill=0.05))
    assert describe_server_time(made).endswith(
        "The metrics page splits it for 32 of 50 requests only: tracing (--otlp-receiver) would "
        "split it."
    )
    assert any("It counted fewer requests than there are here" in text for text in texts(made))


def test_each_mean_names_its_own_number_of_requests() -> None:
    """The server counted 50 first tokens and 48 queues, as its counters began anew between."""
    history = EngineHistory()
    for at, more in ((-1.0, 0), (50.0, 1)):
        history.add(
            EngineSample(
                at=UNIX + at, engine="vLLM", ttft_s=100 + 1.2 * more, ttft_count=100 + 50 * more,
                queue_s=100 + 0.48 * more, queue_count=100 + 48 * more,
                prefill_s=100 + 0.96 * more, prefill_count=100 + 48 * more,
            )
        )  # fmt: skip
    made = with_(replace(UNKNOWN, means_ms=MEANS), history)
    assert describe_server_time(made).endswith(f"means of 48 to 50 requests.{FAR}")
    (table,) = (one for one in tables_of(made) if one.head[0].startswith("Mean"))
    assert table.head[0] == "Mean by the server's histograms (vLLM)"
    assert [row[2] for row in table.rows] == ["48", "48", "50"]
    # 160 ms here and 1200 / 50 ms there, both of 50 requests
    assert table.rows[-1] == ("TTFT", "24.00", "50", "160.0", "+136.00", "measured")
    assert any("means here are of 50 requests" in text for text in texts(made))


@pytest.mark.parametrize(
    ("first", "after_s", "said"),
    [
        (
            100,
            0.05,
            "50 ms on average and 5 s in sum. Queue and prefill of the 90 counted requests are "
            "4.5 s of this sum, and 10% are other work, ",
        ),  # 90 x 50 ms of 100 x 50 ms
        (100, 0.045, ""),  # 90 x 50 ms: all of it
        (60, 0.05, ""),  # other clients' first tokens came before
    ],
)
def test_what_of_the_time_to_first_tokens_is_not_split(
    first: int, after_s: float, said: str
) -> None:
    history = EngineHistory()
    for at, more in ((-1.0, 0), (50.0, 1)):
        history.add(
            EngineSample(
                at=UNIX + at, engine="vLLM", ttft_s=9 + after_s * first * more,
                ttft_count=9 + first * more, queue_s=9 + 0.01 * 90 * more,
                queue_count=9 + 90 * more, prefill_s=9 + 0.04 * 90 * more,
                prefill_count=9 + 90 * more,
            )
        )  # fmt: skip
    text = describe_server_time(with_(replace(UNKNOWN, requests=90, means_ms=MEANS), history))
    assert "means of 90 requests" in text
    assert said in text
    assert ("of this sum" in text) == bool(said)


def test_first_tokens_of_requests_that_never_ended_are_no_part_of_the_division() -> None:
    """47 requests ended, of 875 ms queue and 292 ms prefill; 223 had a first token, after 6.04 s:
    nothing of that is "neither"."""
    history = EngineHistory()
    for at, more in ((-1.0, 0), (50.0, 1)):
        history.add(
            EngineSample(
                at=UNIX + at, engine="vLLM", ttft_s=9 + 6.04 * 223 * more,
                ttft_count=9 + 223 * more, queue_s=9 + 0.875 * 47 * more,
                queue_count=9 + 47 * more, prefill_s=9 + 0.292 * 47 * more,
                prefill_count=9 + 47 * more,
            )
        )  # fmt: skip
    made = with_(replace(UNKNOWN, requests=47, means_ms=MEANS), history)
    assert describe_server_time(made) == (
        "Queue or prefill? Queue, 75% of queue and prefill on average, by the server's own histograms (vLLM): of 1.17 s of queue "
        "and prefill 875 ms are queue, 292 ms prefill, means of 47 requests. 223 first tokens "
        "arrived within the time of these readings, after 6.04 s on average and 1,347 s in sum. "
        "Queue and prefill of the 47 counted requests are 54.8 s of this sum, and 96% are other "
        "work, or belong to requests that the server has not counted. A server counts queue and "
        "prefill only when a request ends, and many servers never count "
        f"cancelled requests.{FAR}"
    )
    (table,) = (one for one in tables_of(made) if one.head[0].startswith("Mean"))
    assert table.rows[-1] == ("TTFT", "6040", "223", "160.0", "-", "measured")


@pytest.mark.parametrize(
    ("history", "begin"),
    [
        (history_of(queue=0.6, prefill=0.2, ttft=0.8),
            "Queue or prefill? Queue, 75% on average, by the server's"),
        (history_of(queue=0.01, prefill=0.2, ttft=1.0),
            "Queue or prefill? Neither, 79% on average, by the server's"),
        # no TTFT of its own
        (history_of(queue=0.01, prefill=0.2), "Queue or prefill? Prefill, 95% on average, by the server's"),
        (history_of(queue=0.01), "From the send to the first token: 24 ms in the server, on "
            "average. The metrics page does"),
        (history_of(44, queue=0.6, prefill=0.2),
            "From the send to the first token: 24 ms in the server, on average. The"),
        # 90 % of the requests
        (history_of(45, queue=0.6, prefill=0.2), "Queue or prefill? Queue, 75%"),
    ],
)  # fmt: skip
def test_queue_or_prefill(history: EngineHistory, begin: str) -> None:
    answer = describe_server_time(with_(replace(UNKNOWN, means_ms=MEANS), history))
    assert answer.startswith(begin)


def test_what_no_clock_of_the_server_had_is_outside_its_measurement() -> None:
    """Stopped for seconds: 348 ms to a first token here, of which the server's clock has 66 ms. The
    mean is the table's, with sending and late reading: 10 ms more than the time in the server."""
    server = replace(UNKNOWN.server, server_ms=338.0)
    here = replace(UNKNOWN, means_ms={**MEANS, "ttft": 348.0}, server=server)
    frozen = history_of(queue=0.00393, prefill=0.0571, ttft=0.066)
    answer = describe_server_time(with_(here, frozen))
    assert answer.startswith(
        "Queue or prefill? Outside the server's measurement, 81% on average, by the server's own histograms (vLLM): of 348 ms to a "
        "first token here 3.93 ms are queue, 57.1 ms prefill, 4.97 ms neither, 282 ms outside the "
        "server's measurement (sending, its socket and front end, a proxy, the network or late reading), means of 50 requests."
    )
    (table,) = (one for one in tables_of(with_(here, frozen)) if one.head[0].startswith("Mean"))
    assert table.rows[-1] == ("TTFT", "66.00", "348.0", "+282.00", "measured")
    # of 55 requests, the warmup among them: 348 - 1.1 x 66 ms for certain
    more = describe_server_time(
        with_(here, history_of(55, queue=0.00393, prefill=0.0571, ttft=0.066))
    )
    assert "at least 275 ms outside the server's measurement" in more


GATHERED = found(
    ("network", 10, "measured"),
    ("with_decode", 990, "measured"),
    reported={},
    server=ServerTime(server_ms=465.0),
    means_ms={**MEANS, "decode": 0.5, "delivery": 0.0, "with_decode": 465.0, "ttft": 466.0},
)
"""Every response arrived whole, 465 ms after the send on average."""


def test_decode_before_the_first_chunk_is_no_time_outside_the_servers_measurement() -> None:
    """A proxy sends whole responses: of 466 ms the server has 17.5 ms to its first token, then 440
    ms decode, and 0.5 ms of that came after the first chunk. 9 ms are below a tenth."""
    history = history_of(queue=0.005, prefill=0.0125, ttft=0.0175, decode=0.44)
    console = summarise_latency_parts(with_(GATHERED, history))
    assert console.startswith(
        "TTFT from Due p99: 99% in the server (with decode). Queue or prefill? Decode before the first "
        "chunk, 94% on average, by the server's own histograms (vLLM): of 466 ms to a first token "
        "here 5 ms are queue, 12.5 ms prefill, 440 ms decode before the first chunk, means of 50 "
        "requests."
    )
    assert "outside" not in console
    # 100 ms more here than the server knows of are outside its measurement
    means_ms = {**GATHERED.means_ms, "with_decode": 565.0, "ttft": 566.0}
    slower = replace(GATHERED, server=ServerTime(server_ms=565.0), means_ms=means_ms)
    assert (
        "440 ms decode before the first chunk, 109 ms outside the server's measurement (sending, "
        "its socket and front end, a proxy, the network or late reading), means"
    ) in describe_server_time(with_(slower, history))
    # it counted decodes of fewer requests: nobody knows these
    few = history_of(queue=0.005, prefill=0.0125, ttft=0.0175)
    assert "Outside the server's measurement, 96%" in describe_server_time(with_(GATHERED, few))


def test_short_answers_came_whole_where_long_ones_did() -> None:
    """A short answer does not show that it came whole: its 12 ms of decode are the decode's, by the
    histogram that has 112 ms, and not outside of the server's measurement."""
    means_ms = {**MEANS, "decode": 0.0, "delivery": 0.0, "server": 15.0, "with_decode": 100.0,
                "ttft": 115.0}  # fmt: skip
    mixed = replace(GATHERED, server=ServerTime(server_ms=115.0), means_ms=means_ms)
    history = history_of(queue=0.001, prefill=0.002, ttft=0.003, decode=0.112)
    answer = describe_server_time(with_(mixed, history))
    assert "of 115 ms to a first token here 1 ms are queue, 2 ms prefill, 112 ms decode" in answer
    assert "outside" not in answer
    # none came whole: the decode was after the first chunk
    streamed = replace(mixed, means_ms=means_ms | {"server": 115.0, "with_decode": 0.0})
    assert "decode before" not in describe_server_time(with_(streamed, history))


def test_a_time_with_decode_has_one_name() -> None:
    """Sentence, table, drawing and console. Where nobody divides it, the sentence has it as one."""
    answer = (
        "From the send to the first token: 465 ms in the server (with decode), on average. A "
        "metrics page or tracing (--otlp-receiver) would split it."
    )
    assert describe_server_time(GATHERED) == answer
    assert "These responses arrived whole, after their decode" in texts(GATHERED)[0]
    drawn = "".join(f"{drawing.label}{drawing.drawn}" for drawing in draw_breakdown_bars(GATHERED))
    for text in (drawn, *map(str, make_latency_parts_blocks(GATHERED))):
        assert text.count("in the server") == text.count("in the server (with decode)")
    through = summarise_latency_parts(replace(GATHERED, proxy="nginx/1.24.0"))
    assert through.count("in the server") == through.count(
        "in the server and the proxy (with decode)"
    )


def test_each_choice_is_a_request_of_the_server() -> None:
    here = replace(UNKNOWN, means_ms=MEANS, choices=100)
    answer = describe_server_time(with_(here, history_of(100, queue=0.6, prefill=0.2)))
    assert "means of 100 requests." in answer
    assert "other requests" not in answer


def test_a_mean_is_not_given_as_the_cause_of_what_is_far_slower() -> None:
    """The slow requests were 3 s in the server, the mean is 24 ms or 1.1 s."""
    history = history_of(queue=0.01, prefill=0.2)
    assert describe_server_time(with_(replace(UNKNOWN, means_ms=MEANS), history)).endswith(FAR)
    near = replace(UNKNOWN, means_ms=MEANS, server=replace(UNKNOWN.server, server_ms=1100.0))
    assert "do not explain" not in describe_server_time(with_(near, history))


def test_the_first_reading_after_the_run_has_its_last_requests() -> None:
    """50 of them were counted when the run ended, 10 more half a second later; what comes after
    that is of others."""
    history = history_of(50, queue=0.6, prefill=0.2)
    for at, count in ((100.5, 60), (101.5, 99)):
        history.add(EngineSample(at=UNIX + at, engine="vLLM", queue_s=100 + count * 0.6,
            queue_count=100 + count,
                                 prefill_s=100 + count * 0.2, prefill_count=100 + count))  # fmt: skip
    assert with_(replace(UNKNOWN, means_ms=MEANS), history).server.count == 60


def test_after_a_stage_the_counters_have_the_next_one() -> None:
    history = history_of(50, queue=0.6, prefill=0.2)
    history.add(
        EngineSample(
            at=UNIX + 100.5,
            engine="vLLM",
            queue_s=999,
            queue_count=999,
            prefill_s=999,
            prefill_count=999,
        )
    )
    stage = Stage(number=1, value=1.0, began_at=UNIX, ended_at=UNIX + 100)
    made = add_server_histograms(
        replace(UNKNOWN, means_ms=MEANS), history, replace(a_run(), stage=stage)
    )
    assert made is not None
    assert made.server.count == 50


def test_a_server_that_served_others_too_is_named_one() -> None:
    made = with_(replace(UNKNOWN, means_ms=MEANS), history_of(56, queue=0.6, prefill=0.2))
    assert describe_server_time(made).endswith(
        f"means of 56 requests. It served other requests too.{FAR}"
    )
    own = with_(replace(UNKNOWN, means_ms=MEANS, sent=52), history_of(56, queue=0.6, prefill=0.2))
    assert "served other" not in describe_server_time(own)  # cancelled ones, or a warmup's


def test_of_a_server_that_parts_no_prefill_from_decode_the_sum_is_shown() -> None:
    """As Text Generation Inference."""
    made = with_(replace(SLOW, means_ms=MEANS), history_of(20, "TGI", inference=2.0))
    (mean,) = made.own_means[0].means
    assert (mean.name, mean.server_ms, mean.count, mean.here_ms) == (
        "inference",
        pytest.approx(2000),
        20,
        None,
    )


# -- groups ----------------------------------------------------------------------------------------


def split(records: list[Record]) -> LatencyAttribution:
    columns, run = collect_columns(records), a_run(limits=((0.0, 1),))

    def since(at: float) -> Iterator[Record]:
        return (record for record in records if record.closed_at + record.clock_offset_s >= at)

    made = attribute_latencies(columns, {}, run, since)
    assert made is not None
    return made


def test_every_group_of_the_slow_has_its_largest_part() -> None:
    """Requests of b wait 1 s at the gate, those of a not at all."""
    records = [
        answered(
            100 + i, 120 + i, sent_at=10.0 + 2 * i, due_at=10.0 + 2 * i - (i % 2),
            asked_at=10.0 + 2 * i - (i % 2),
            admitted_at=10.0 + 2 * i, limit=0, id=str(i), model="ab"[i % 2], tenant="xy"[i // 60],
            input_tokens=[50, 1500][i % 2],
        )
        for i in range(120)
    ]  # fmt: skip
    made = split(records)
    by = {(group.by, group.label): group for group in made.breakdowns[0].groups}
    assert [name for name, _ in by] == ["input tokens"] * 2 + ["model"] * 2 + ["tenant"] * 2 + [
        "time"
    ] * 4
    b = by["model", "b"]
    assert (b.count, b.percentile) == (60, 90.0)  # above p95 there may be 2
    assert b.longest == ("gate", pytest.approx(1000, abs=0.01))
    assert by["model", "a"].longest[0] != "gate"
    assert {group.percentile for (name, _), group in by.items() if name == "time"} == {75.0}
    assert by["tenant", "x"].longest[0] == "gate"
    assert sum(ms for _, ms, _ in b.parts) == pytest.approx(b.value_ms, rel=0.02)
    drawn = [one for one in draw_breakdown_bars(made) if one.title.endswith("by group")]
    assert "By model, p90 and above" in str(drawn[0].drawn)
