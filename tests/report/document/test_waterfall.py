"""Whose millisecond, as a reader sees it: sentences, groups and the server's own means, by pencil."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support.html_tags import Tags
from support.records import UNIX, a_run, answered

from locust_llm.core.engine_metrics import EngineSample, History
from locust_llm.core.record import Record
from locust_llm.report.analysis.columns import collect
from locust_llm.report.analysis.occupancy import occupancy
from locust_llm.report.document.blocks import Table, Text
from locust_llm.report.document.waterfall import shares, whose
from locust_llm.report.plots.owners import owners
from locust_llm.report.results.waterfall import Blame, Part, Waterfall
from locust_llm.report.waterfall.histograms import with_histograms
from locust_llm.report.waterfall.waterfall import waterfall


def found(*parts: tuple[str, float, str], **other: object) -> Waterfall:
    """A blame of 12 requests: (part, ms, source)."""
    made = tuple(
        Part(name=name, slow_ms=ms, typical_ms=ms / 10, low_ms=ms, high_ms=ms, source=source)
        for name, ms, source in parts
    )
    blame = Blame(metric="ttft_from_due", percentile=99.0, value_ms=3000, typical_ms=300, slow=12, typical=200, count=1000,
                  parts=made)  # fmt: skip
    fields = {"requests": 50, "reported": {}, "impossible": 0, "unattributed_share": 0.0, "price": "", "in_order": True,
              "decoded": 50, "blames": (blame,), "slowest": ()}  # fmt: skip
    return Waterfall(**{**fields, **other})  # type: ignore[arg-type]


SLOW = found(
    ("gate", 300, "measured"), ("network", 100, "measured"), ("queue", 2100, "estimated"), ("prefill", 900, "estimated")
)


def test_a_reader_sees_at_once_whose_time_it_is() -> None:
    text, table, *_ = (block for block in whose(SLOW) if isinstance(block, Text | Table))
    assert isinstance(text, Text)
    assert text.text.startswith(
        "TTFT from Due p99 is 3 s. The 12 requests at or above it took 3.4 s on average (typical ones: 340 ms): 2.1 s the "
        "server's queue (estimated), 900 ms its own prefill (estimated), 300 ms the gate. A lower prefill limit"
    )  # the network's 3 % are not said
    assert isinstance(table, Table)
    assert table.rows[0] == ("the gate", "300.0", "-", "30.00", "measured")
    assert list(shares(SLOW)) == [
        "TTFT from Due p99: 62% the server's queue (estimated), 26% its own prefill (estimated), 9% the gate"
    ]
    both = found(("queue", 75, "estimated"), ("prefill", 25, "estimated"))
    assert list(shares(both)) == ["TTFT from Due p99: 75% the server's queue, 25% its own prefill (all estimated)"]


def test_the_way_through_a_proxy_is_not_taken_for_the_servers() -> None:
    """Where the server reports its own times, it is of the network."""
    parts = ("queue", 75, "estimated"), ("prefill", 25, "estimated")
    through = found(*parts, proxy="p:3128")
    (line,) = shares(through)
    assert line.endswith("(all estimated); the way through the proxy is in them")
    assert "The way through the proxy (p:3128) is not known" in str(list(whose(through))[-1])
    told = found(*parts, proxy="p:3128", reported={"spans": 50})
    assert "proxy" not in f"{list(shares(told))} {list(whose(told))}"


def test_who_cannot_see_a_bar_is_told_it() -> None:
    (drawing,) = owners(SLOW)
    (image,) = (attrs for attrs in Tags(str(drawing.drawn)).named("div") if attrs.get("role") == "img")
    assert image["aria-label"] == (
        "TTFT from Due p99: slow requests 3.4 s: the gate 300 ms, network and front end 100 ms, the server's queue 2.1 s, "
        "its own prefill 900 ms; typical ones 340 ms: the gate 30 ms, network and front end 10 ms, "
        "the server's queue 210 ms, its own prefill 90 ms"
    )


# -- the server's own histograms ---------------------------------------------------------------------------------------


def test_the_servers_own_means_stand_beside_ours() -> None:
    """50 requests: 2 s of queue, 5 s of prefill, 100 s of decode more than before."""
    history = History()
    for at, more in ((-1.0, 0.0), (50.0, 1.0)):
        counts = dict.fromkeys(("queue_count", "prefill_count", "decode_count", "inference_count"), 100 + 50 * more)
        history.add(EngineSample(at=UNIX + at, engine="vLLM", queue_s=10 + 2 * more, prefill_s=20 + 5 * more,
                                 decode_s=50 + 100 * more, inference_s=70 + 105 * more, **counts))  # fmt: skip
    ours = {"queue": 50.0, "prefill": 60.0, "others": 30.0, "decode": 2000.0}
    made = with_histograms(replace(SLOW, means_ms=ours), history, a_run())
    assert made is not None
    assert [(mean.name, mean.server_ms, mean.count, mean.here_ms) for mean in made.own_means[0].means] == [
        ("queue", pytest.approx(40), 50, 50), ("prefill", pytest.approx(100), 50, 90),
        ("decode", pytest.approx(2000), 50, 2000),
    ]  # fmt: skip
    blocks = [*whose(made)]
    (table,) = (block for block in blocks if isinstance(block, Table) and block.head[0].startswith("Mean"))
    assert [row[:4] for row in table.rows] == [
        ("queue", "40.00", "50.00", "+25.0%"), ("prefill", "100.0", "90.00", "-10.0%"), ("decode", "2000", "2000", "+0.0%")
    ]  # fmt: skip
    (text,) = (block.text for block in blocks if isinstance(block, Text) and "own histograms" in block.text)
    assert text == (
        "By its own histograms, over all requests of the server (vLLM) that ended in this time: mean queue 40 ms, prefill "
        "100 ms, decode 2 s of 50 requests. Its prefill is the own one with others' work in between."
    )
    few = with_histograms(replace(SLOW, means_ms=ours, requests=60), history, a_run())
    assert few is not None
    assert any("first ones of many" in block.text for block in whose(few) if isinstance(block, Text))
    assert with_histograms(SLOW, History(), a_run()) == SLOW


def test_of_a_server_that_parts_no_prefill_from_decode_both_are_compared() -> None:
    """As Text Generation Inference."""
    history = History()
    for at, more in ((-1.0, 0.0), (50.0, 1.0)):
        history.add(EngineSample(at=UNIX + at, engine="TGI", inference_s=40 * more, inference_count=20 * more))
    made = with_histograms(
        replace(SLOW, means_ms={"prefill": 60.0, "others": 30.0, "decode": 2000.0}), history, a_run()
    )
    assert made is not None
    (mean,) = made.own_means[0].means
    assert (mean.name, mean.server_ms, mean.count, mean.here_ms) == ("inference", pytest.approx(2000), 20, 2090)


# -- groups ------------------------------------------------------------------------------------------------------------


def split(records: list[Record]) -> Waterfall:
    columns, run = collect(records), a_run()

    def since(at: float) -> Iterator[Record]:
        return (record for record in records if record.closed_at + record.clock_offset_s >= at)

    made = waterfall(columns, occupancy(columns.requests, ()), records, {}, run, since)
    assert made is not None
    return made


def test_every_group_of_the_slow_has_its_owner() -> None:
    """Requests of b wait 1 s at the gate, those of a not at all."""
    records = [
        answered(
            100 + i, 120 + i, sent_at=10.0 + 2 * i, due_at=10.0 + 2 * i - (i % 2), asked_at=10.0 + 2 * i - (i % 2),
            admitted_at=10.0 + 2 * i, id=str(i), model="ab"[i % 2], tenant="xy"[i // 60], input_tokens=[50, 1500][i % 2],
        )
        for i in range(120)
    ]  # fmt: skip
    made = split(records)
    by = {(owner.by, owner.label): owner for owner in made.blames[0].owners}
    assert [name for name, _ in by] == ["input tokens"] * 2 + ["model"] * 2 + ["tenant"] * 2 + ["time"] * 4
    b = by["model", "b"]
    assert (b.count, b.percentile) == (60, 90.0)  # above p95 there may be 2
    assert b.longest == ("gate", pytest.approx(1000, abs=0.01))
    assert by["model", "a"].longest[0] != "gate"
    assert {owner.percentile for (name, _), owner in by.items() if name == "time"} == {75.0}
    assert by["tenant", "x"].longest[0] == "gate"
    assert sum(ms for _, ms, _ in b.parts) == pytest.approx(b.value_ms, rel=0.02)
    drawn = [one for one in owners(made) if one.title.endswith("by group")]
    assert "By model, p90 and above" in str(drawn[0].drawn)
