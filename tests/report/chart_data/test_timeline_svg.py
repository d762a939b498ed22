"""The timeline in a page: places as shares of the width, only what is there in the legend, and no
markup from outside."""

import re
from html.parser import HTMLParser

from support.records import UNIX, answered, failed

from locust_llm.records.record import Record
from locust_llm.report.chart_data.timeline_lines import TimelineRows, make_timeline_row
from locust_llm.report.chart_data.timeline_svg import (
    PAGE,
    PAGE_TOP,
    PlotFrame,
    TimelinePlot,
    make_timeline_fragment,
)

HOSTILE = "</title></svg><script>alert(1)</script>\"'&\u202e\x00"


def lines(
    *records: Record, length: float = 4000.0, slow: float = 1000.0, **more: object
) -> TimelineRows:
    rows = tuple(make_timeline_row(record, UNIX + 10, 1.0, slow) for record in records)
    return TimelineRows(rows=rows, start=10.0, length=length, slow=slow, **more)  # type: ignore[arg-type]


def test_each_moment_is_where_a_pencil_puts_it() -> None:
    """Four seconds are 1,000 units: prefill in the first one, chunks at 1 s, 1.5 s and 4 s, the
    last gap a stall."""
    text = make_timeline_fragment(lines(answered(1000, 1500, 4000, sent_at=10.0)), "label")
    assert '<rect x="0" ' in text
    assert 'width="250.0"' in text
    middle = PAGE_TOP + 8.5
    assert f'<path d="M250 {middle}h0m125 0h0m625 0h0"/>' in text
    assert f'<path d="M375 {middle}H1000"/>' in text
    assert f'<svg x="100%" y="{middle}"' in text  # its end, which is not stretched
    assert re.findall(r'<text(?: class=fine)? x="([\d.]+)%" y="[\d.]+">([\d.]+ s)', text) == [
        (f"{12.5 * i:g}", f"{10 + i / 2:.1f} s") for i in range(9)
    ]


def test_a_phone_has_fewer_ticks() -> None:
    text = make_timeline_fragment(lines(answered(1000, sent_at=10.0)), "label")
    assert re.findall(r'<text x="[\d.]+%" y="[\d.]+">([\d.]+) s', text) == [
        "10.0",
        "11.0",
        "12.0",
        "13.0",
        "14.0",
    ]


def test_the_legend_names_what_is_there() -> None:
    def meanings(*records: Record) -> list[str]:
        return re.findall(r"</svg>([^<]+)</span>", make_timeline_fragment(lines(*records), "label"))

    assert meanings(answered(1000, 1500, sent_at=10.0)) == [
        "awaiting first token",
        "decoding, each chunk a dot",
        "end",
    ]
    assert meanings(answered(sent_at=10.0, closed_at=11.0, streamed=False)) == ["in flight", "end"]
    assert meanings(
        answered(1000, 3500, sent_at=11.0, asked_at=10.0, admitted_at=11.0, limit=1),
        failed("reset", sent_at=10.0),
        answered(10, sent_at=10.0, outcome="cancelled"),
    ) == [
        "waiting for a prefill slot", "awaiting first token", "decoding, each chunk a dot",
        "no chunk for over 1 s", "failed",
        "cancelled",
    ]  # fmt: skip


def test_ticks_are_at_least_as_far_apart_as_asked_for() -> None:
    for length in (0.5, 7.0, 123.4, 4000.0, 8.64e7):
        plot = TimelinePlot(lines(length=length), PlotFrame(0, 0, 1000, 11, 12, (1, 4), PAGE))
        assert plot.ticks(90)[1] * 1000 / length >= 90


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}


def test_no_text_from_outside_becomes_markup() -> None:
    records = (
        answered(9, name=HOSTILE, outcome=HOSTILE, sent_at=10.0),
        answered(9, name=HOSTILE, sent_at=10.0),
    )
    text = make_timeline_fragment(lines(*records, stall=(5.0, 9.0), stall_text=HOSTILE), HOSTILE)
    assert not Tags(text).names & {"script", "onerror", "style", "href"}
    assert "&lt;script&gt;" in text
    assert not {"\u202e", "\x00"} & set(text)
