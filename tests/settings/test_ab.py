"""Arms: the order of the blocks, and what the candidate may differ in."""

import pytest

from locust_llm.settings.ab import (
    BASE,
    CANDIDATE,
    TrialBlock,
    hide_header_values,
    order_blocks,
    parse_candidate_changes,
)
from locust_llm.settings.settings import Settings, make_stage_settings
from locust_llm.settings.validate import validate_settings


def test_each_pair_has_both_arms_and_two_neighbouring_pairs_each_arm_first_once() -> None:
    for seed in range(20):
        blocks = order_blocks(4, seed)
        assert [block.pair for block in blocks] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        firsts = [block.arm for block in blocks[::2]]
        assert all(
            {a.arm, b.arm} == {BASE, CANDIDATE}
            for a, b in zip(blocks[::2], blocks[1::2], strict=True)
        )
        assert {firsts[1], firsts[2]} == {firsts[3], firsts[4]} == {BASE, CANDIDATE}
    assert order_blocks(4, 7) == order_blocks(4, 7)
    assert {order_blocks(1, seed)[2].arm for seed in range(20)} == {BASE, CANDIDATE}


def test_what_the_candidate_differs_in() -> None:
    found = parse_candidate_changes(
        [
            "header:X-Team=a=b",
            "model=new",
            "prefill-concurrency=3",
            "body.temperature=0.5",
            "body.stop=END",
            'body.o={"a": 1}',
        ]
    )
    assert found.headers == {"X-Team": "a=b"}
    assert (found.model, found.prefill_concurrency) == ("new", 3)
    assert found.body == {"temperature": 0.5, "stop": "END", "o": {"a": 1}}


@pytest.mark.parametrize(
    "text",
    ["", "model=", "speed=3", "header:X", "header:X Y=3", "header:X=a\nb", "body.=3",
        "body.stream=false",
     "prefill-concurrency=0", "prefill-concurrency=x"],
)  # fmt: skip
def test_what_it_cannot_differ_in(text: str) -> None:
    with pytest.raises(ValueError, match="--candidate-set"):
        parse_candidate_changes([text])


def test_a_mistake_quotes_no_value_of_a_header() -> None:
    with pytest.raises(ValueError, match="header:X Y") as error:
        parse_candidate_changes(["header:X Y=sesame"])
    assert "sesame" not in str(error.value)
    assert hide_header_values("header:X=sesame") == "header:X=***"
    assert hide_header_values("body.a=1") == "body.a=1"


def test_pairs_follow_from_the_time_less_the_first_one() -> None:
    assert Settings(aa=True).pairs == 12
    s = Settings(aa=True, run_time_s=240.0, block_duration=10.0, random_seed=1)
    assert (s.pairs, len(s.blocks), s.washout_s, s.lasts_s) == (11, 24, 2.0, 10.0)
    assert (s.block(0), s.block(1), s.block(25)) == (None, TrialBlock(0, BASE), None)
    assert Settings(run_time_s=240.0).blocks == ()


def test_the_prefill_limit_of_a_block_is_that_of_its_arm() -> None:
    s = Settings(
        users=8, prefill_concurrency=4, candidate_set=("prefill-concurrency=2",), random_seed=1
    )
    limits = {
        block.arm: make_stage_settings(s, "pair", float(n)).prefill_concurrency
        for n, block in enumerate(s.blocks, 1)
    }
    assert limits == {BASE: 4, CANDIDATE: 2}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"candidate": "http://b", "aa": True}, "--aa compares the base with itself"),
        ({"candidate": "http://a"}, "the candidate is the base"),
        ({"aa": True, "run_time_s": 120.0},
            "-t has room for 3 pairs of blocks of 15 s beside the first, which is not "
         "counted, and 10 are needed: -t 330s, or a shorter --block-duration"),
        ({"aa": True, "washout": 20.0}, "--washout 20 leaves nothing of a block of 15 s"),
        ({"aa": True, "request_count": 5}, "two arms and --request-count exclude each other"),
        ({"aa": True, "sweep": "concurrency=1,2"}, "two arms and --sweep exclude each other"),
        ({"aa": True, "slo": ("abort: error_rate < 50%",)}, "leave out abort:"),
        ({"aa": True, "slo": ("ttft p95 within 5% of reports/x",)},
            "the only other run is the base"),
        ({"aa": True, "slo": ("icl p99 within 5% of base",)}, "icl is not compared in pairs"),
        ({"washout": 2.0}, "--washout belongs to locust-llm ab"),
    ],
)  # fmt: skip
def test_runs_of_two_arms_that_cannot_be(settings: dict[str, object], said: str) -> None:
    found = list(validate_settings(Settings(**({"host": "http://a", "users": 4} | settings))))  # type: ignore[arg-type]
    assert any(said in mistake for mistake in found), found


def test_a_run_of_two_arms_that_can_be() -> None:
    s = Settings(
        host="http://a", candidate="http://b", users=4, slo=("ttft p95 within 5% of base",)
    )
    assert list(validate_settings(s)) == []
