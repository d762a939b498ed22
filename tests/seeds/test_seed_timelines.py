"""What the seeds' timelines show, in numbers; and gaps told apart under each policy."""

import re
from array import array
from collections.abc import Callable
from xml.etree import ElementTree

import pages
import pictures
import pytest
import timelines as t
from disturbed import disturbed
from pictures import Picture
from recorded import recorded

from locust_llm.simulator.scheduling.virtual_time import VirtualRequest, VirtualResult

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = (
    pictures.static, pictures.prefill_first, pictures.chunked, pictures.disaggregated,
    pictures.one_at_a_time,
    pictures.partial_prefills,
)  # fmt: skip


def group(svg: str, name: str) -> list[str]:
    """The paths of a kind, one a line that has some."""
    found = (g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("id") == name)
    return [path.get("d", "") for g in found for path in g]


def test_a_row_becomes_the_record_that_a_client_would_have_made() -> None:
    later = VirtualResult(VirtualRequest(50, 1), 0.0, 0.0, 3.0, 3.0, token_at=array("d", [3.0]))
    row = VirtualResult(
        VirtualRequest(100, 3, kind="chat"),
        1.0,
        2.0,
        2.5,
        2.75,
        0.125,
        token_at=array("d", [2.5, 2.625, 2.75]),
    )
    record, last = recorded([later, row])
    assert record.chunk_us == (500_000, 625_000, 750_000)
    assert (record.gate_wait_s, record.ttft_s, record.itl_s, record.longest_stall_s) == (
        1.0,
        0.5,
        0.125,
        0.125,
    )
    assert (record.name, record.input_tokens, record.output_tokens, record.failed) == (
        "chat",
        100,
        3,
        False,
    )
    assert (last.closed_at, last.ttft_s, last.longest_stall_s) == (3.0, 3.0, None)
    assert record.simulated


def test_static_batching_begins_nothing_before_the_longest_answer_is_done() -> None:
    records = t.interrupted("static")
    upper, lower = ([r for r in records if (r.name == "decoder") is so] for so in (True, False))
    begin = {round((r.sent_at or 0.0) + r.chunk_us[0] / 1e6, 5) for r in lower}
    assert len(begin) == 1  # all at the same moment
    assert begin.pop() > max(r.closed_at for r in upper)
    assert t.meanwhile(records).longest_gap < 0.01
    assert not group(pictures.static().svg, "stalls")


def test_prefill_first_stops_every_stream() -> None:
    found = t.meanwhile(t.interrupted("prefill-first"))
    assert found.tokens == (1, 1)  # of the step that had begun
    assert found.longest_gap > 0.3  # two prompts in a row: longer than the long one's
    assert len(group(pictures.prefill_first().svg, "stalls")) == 7  # all but the last to come


def test_chunked_prefill_gives_a_token_a_step_and_stops_nobody() -> None:
    whole, found = (t.meanwhile(t.interrupted(name)) for name in ("prefill-first", "chunked 512"))
    # of 512 tokens a step 4 decode
    assert found.tokens == pytest.approx((8000 / 508, 8000 / 508), abs=1)
    assert found.longest_gap < 0.03
    assert 1 < found.long_ttft / whole.long_ttft < 1.3
    assert not group(pictures.chunked().svg, "stalls")


def test_disaggregated_streams_do_not_notice() -> None:
    found = t.meanwhile(t.interrupted("disaggregated"))
    assert found.longest_gap < 0.0085
    # a token in each undisturbed gap
    assert found.tokens[0] == pytest.approx(found.long_ttft / 0.0077, abs=2)
    assert found.long_ttft < 1.15 * t.meanwhile(t.interrupted("prefill-first")).long_ttft


@pytest.mark.parametrize(
    "picture", [pictures.static, pictures.prefill_first, pictures.chunked, pictures.disaggregated]
)
def test_each_token_has_its_dot(picture: Callable[[], Picture]) -> None:
    lines = group(picture().svg, "chunks")
    assert [path.count("h") for path in lines] == [70, 90, 110, 130, 40, 40, 30, 20]
    assert not re.findall(r"h[^0]", "".join(lines))  # none touch


def test_short_prompts_pass_long_ones_with_slots_and_not_with_a_threshold_alone() -> None:
    ttft = {
        name: [t.ttft_s(t.of_kind(t.queued(name), kind)) for kind in ("short",
            "long")] for name in t.SLOTS
    }  # fmt: skip
    (short, long), (short_threshold, long_threshold), (short_slots, long_slots) = ttft.values()
    # each waits for the last long one, the last to come for another step; a threshold changes
    # nothing
    sent = [0.3 + 0.5 * i for i in range(6)]
    assert [a + b for a, b in zip(sorted(short, reverse=True), sent, strict=True)] == pytest.approx(
        [max(long)] * 6, abs=0.05
    )
    assert short_threshold == pytest.approx(short, rel=0.01)
    assert min(long_threshold) == pytest.approx(max(long_threshold))  # none before the other
    assert max(short_slots) < min(short) / 4
    assert long_slots[0] > long[0]  # who shares waits,
    assert max(long_slots) == pytest.approx(max(long), rel=0.01)  # and the work is the same


def test_what_disturbed_gaps_lost_is_what_sets_the_policies_apart() -> None:
    found = disturbed()
    for one in found.values():
        assert one.row("0").icl_ms[50] == pytest.approx(8.0, rel=0.02)
        assert one.decode_s - one.lost_s == pytest.approx(found["disaggregated"].decode_s, rel=0.02)
    slowdown = {policy: one.row("1+").slowdown for policy, one in found.items()}
    assert slowdown["static"] == pytest.approx(1.0, abs=0.01)
    assert slowdown["disaggregated"] == pytest.approx(1.0, abs=0.01)
    slower = [slowdown[p] or 0 for p in ("chunked 512", "chunked 2048", "mixed", "prefill-first")]
    assert 2 < slower[0] < slower[1] < slower[2] < slower[3]
    lost = [found[p].lost_s for p in ("chunked 512", "chunked 2048", "mixed", "prefill-first")]
    assert 40 < lost[0] < lost[1] < lost[2] < lost[3]


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_says_that_it_is_simulated_and_is_the_same_each_time(
    picture: Callable[[], Picture],
) -> None:
    once, again = picture(), picture()
    assert once == again
    texts = [text.text for text in ElementTree.fromstring(once.svg).iter(f"{SVG}text")]
    assert "SIMULATED" in texts
    assert once.title in texts  # not cut


def test_a_page_has_the_words_above_a_picture_and_where_to_look_below() -> None:
    section = pages.order_of_policies()
    (picture,) = section.pictures
    assert f"{picture.words}\n\n![{picture.title}]({picture.name})\n\n{picture.look}" in pages.page(
        [section]
    )
    assert section.files() == {picture.name: picture.svg}
