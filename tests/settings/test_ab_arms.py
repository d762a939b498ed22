"""Arms: the order of the blocks, and what the candidate may differ in."""

from collections import Counter

import numpy as np
import pytest

from locust_llm.records.run_facts import ResponseTime
from locust_llm.server.discovery import Discovery
from locust_llm.server.server_survey import refuse_short_blocks
from locust_llm.settings.ab_arms import (
    BASE,
    CANDIDATE,
    TrialBlock,
    hide_header_values,
    order_blocks,
    parse_candidate_changes,
)
from locust_llm.settings.run_options import Settings, make_stage_settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.slo.student_t import find_student_t


def blocks_of(pairs: int, seed: int) -> tuple[TrialBlock, ...]:
    return order_blocks(pairs, seed, block_s=10.0, washout_s=2.0)


def test_each_pair_has_both_arms_and_which_is_first_is_drawn_for_each() -> None:
    firsts = Counter[tuple[str, ...]]()
    for seed in range(400):
        blocks = blocks_of(2, seed)
        assert [block.pair for block in blocks] == [0, 0, 1, 1, 2, 2]
        assert all(
            {a.arm, b.arm} == {BASE, CANDIDATE}
            for a, b in zip(blocks[::2], blocks[1::2], strict=True)
        )
        firsts[tuple(block.arm for block in blocks[::2])] += 1
    # 8 orders of equal chance: 50 each, with a standard deviation of 6.6
    assert len(firsts) == 8
    assert max(firsts.values()) < 80
    assert blocks_of(4, 7) == blocks_of(4, 7)


def test_durations_are_drawn_for_whole_pairs_and_add_up_to_what_was_asked() -> None:
    # 8 s behind the washout, times 0.625, 0.875, 1.125, 1.375
    seen = set()
    for seed in range(400):
        blocks = blocks_of(4, seed)
        assert [block.load_s for block in blocks[::2]] == [block.load_s for block in blocks[1::2]]
        first, *counted = (block.load_s for block in blocks[::2])
        assert first == 10.0
        assert sorted(counted) == [7.0, 9.0, 11.0, 13.0]
        assert sum(block.load_s for block in blocks) == 100.0
        seen.add(tuple(counted))
    assert len(seen) == 24


@pytest.mark.parametrize("period_s", [10.0, 20.0, 30.0, 50.0, 60.0, 66.0, 100.0, 300.0])
def test_a_server_of_any_period_does_not_make_equal_arms_differ(period_s: float) -> None:
    """A server 20 % slower and faster in turn. Pairs of which each arm is first in turn were called
    different in 20 % of the runs at 50 to 66 s."""
    runs, phases = 1000, np.random.default_rng(1).uniform(0, 2 * np.pi, 1000)
    called = 0
    for seed in range(runs):
        blocks = order_blocks(12, seed, block_s=15.0, washout_s=3.0)
        until = np.cumsum([block.load_s for block in blocks])
        since = until - [block.load_s - 3.0 for block in blocks]
        turn = 2 * np.pi / period_s
        waves = np.cos(turn * since + phases[seed]) - np.cos(turn * until + phases[seed])
        seen = (1 + 0.2 * waves / turn / (until - since))[2:]
        first_is_base = np.array([block.arm == BASE for block in blocks[2::2]])
        deltas = np.where(first_is_base, 1, -1) * (seen[1::2] - seen[::2])
        reach = find_student_t(11, 0.025) * deltas.std(ddof=1) / np.sqrt(12)
        called += bool(abs(deltas.mean()) > reach)
    # 5 % of runs, with a standard deviation of 0.7 %
    assert called / runs < 0.075


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
    assert (s.pairs, len(s.blocks), s.washout_s) == (11, 24, 2.0)
    first = TrialBlock(0, s.blocks[0].arm, 10.0)
    assert (s.block(0), s.block(1), s.block(25)) == (None, first, None)
    assert sum(block.load_s for block in s.blocks) == pytest.approx(240.0)
    assert (s.stage_s(1), s.stage_s(5)) == (10.0, s.blocks[4].load_s)
    # 360 // 14.4 is 24.0, as 14.4 is not exact
    assert Settings(aa=True, run_time_s=360.0, block_duration=7.2).pairs == 24
    assert Settings(run_time_s=240.0).blocks == ()
    assert Settings(run_time_s=240.0).stage_s(0) == 240.0


def test_blocks_are_as_short_as_ten_pairs_need() -> None:
    """330 s are the first pair and ten more of usual blocks, of 15 s. 300 s are 22 blocks of 13.6
    s."""
    usual = Settings(aa=True, run_time_s=330.0)
    assert (usual.block_s, usual.pairs, usual.shortens_blocks) == (15.0, 10, False)
    short = Settings(aa=True, run_time_s=300.0, users=8)
    assert (short.block_s, short.pairs) == (pytest.approx(300 / 22), 10)
    assert short.washout_s == pytest.approx(300 / 22 / 5)
    assert sum(block.load_s for block in short.blocks) == pytest.approx(300.0)
    assert Settings(aa=True, run_time_s=300.0, block_duration=10.0).pairs == 14
    for seconds in range(44, 331):
        settings = Settings(host="http://a", users=4, aa=True, run_time_s=float(seconds))
        assert settings.pairs == 10
        assert list(validate_settings(settings)) == []


@pytest.mark.parametrize(
    ("run_time_s", "request_s", "needed"),
    [
        # blocks of 5 s count 4 s of it, which is twice 2 s
        (110.0, 2.0, ""),
        # twice 2.1 s, with the fifth that does not count, are 5.25 s
        (110.0, 2.1, "use -t 132s"),
        (110.0, 8.0, "use -t 440s and --block-duration 20"),
        (330.0, 8.0, ""),  # the usual length
    ],
)
def test_a_time_that_is_too_short_for_a_request_is_refused(
    run_time_s: float, request_s: float, needed: str
) -> None:
    settings = Settings(host="http://a", users=4, aa=True, run_time_s=run_time_s)
    found = Discovery(model="m", response_time=ResponseTime(seconds=request_s))
    if not needed:
        refuse_short_blocks(settings, "the base", found)
        return
    with pytest.raises(RunRefused) as refused:
        refuse_short_blocks(settings, "the base", found)
    assert str(refused.value) == (
        f"a request of the base takes {request_s:g} s, and -t leaves blocks of 5 s, which are "
        f"too short for it: {needed}"
    )


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
        ({"candidate": "http://a"}, "the candidate is the same server as the base"),
        ({"aa": True, "run_time_s": 30.0},
            "-t 30 leaves 1.4 s for each of 22 blocks, and 2 s are needed: use -t 44s"),
        ({"aa": True, "run_time_s": 120.0, "block_duration": 15.0},
            "-t allows 3 pairs of blocks of 15 s besides the first, which is not counted, and 10 "
            "are needed: use -t 330s or a shorter --block-duration"),
        ({"aa": True, "washout": 20.0}, "--washout 20 must be shorter than a block (15 s"),
        ({"aa": True, "request_count": 5}, "locust-llm ab and --request-count exclude each other"),
        ({"aa": True, "sweep": "concurrency=1,2"}, "locust-llm ab and --sweep exclude each other"),
        ({"aa": True, "slo": ("abort: error_rate < 50%",)}, "leave out abort:"),
        ({"aa": True, "slo": ("ttft p95 within 5% of reports/x",)},
            "can only compare with its base"),
        ({"aa": True, "slo": ("icl p99 within 5% of base",)}, "icl is not compared in an A/B test"),
        ({"washout": 2.0}, "--washout is an option of locust-llm ab only"),
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
