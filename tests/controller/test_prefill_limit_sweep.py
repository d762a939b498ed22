"""The plan of a comparison of prefill limits, in virtual time: a server whose latency is known."""

import math
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import pytest

from locust_llm.controller.prefill_limit_sweep import ROUNDS, LimitSweep, make_limit_sweep
from locust_llm.records.limit_blocks import LimitBlock
from locust_llm.records.profile_export_jsonl import encode_record
from locust_llm.records.record import Record
from locust_llm.settings.run_options import Settings
from locust_llm.slo.best_prefill_limit import SHORT_TTFT, Limit

RATE = 10.0


def answered(due_at: float, ttft_s: float) -> Record:
    return Record(
        id="a", clock_offset_s=0.0, due_at=due_at, asked_at=due_at, admitted_at=due_at,
        sent_at=due_at, closed_at=due_at + ttft_s, chunk_us=(round(ttft_s * 1e6),), first_output=0,
        input_tokens=100, output_tokens=1, tokens_from="usage", status=200,
    )  # fmt: skip


def steady(now: float) -> Iterator[float]:
    while True:
        yield now
        now += 1 / RATE


def play(
    sweep: LimitSweep, ttft_s: Callable[[Limit], float], until: float = math.inf
) -> list[tuple[float, str]]:
    """Arrivals, each answered after what its limit takes, as soon as it is over."""
    now = 0.0
    waiting = list[Record]()
    arrivals = list[tuple[float, str]]()

    def clock() -> float:
        waiting.sort(key=lambda record: record.closed_at)
        while waiting and waiting[0].closed_at <= now:
            sweep.add_record(encode_record(waiting.pop(0)))
        return now

    for at_s, name in sweep.arrivals(0.0, lambda _: steady(0.03), clock):
        if at_s > until:
            break
        now = max(0.0, at_s - 1.0)  # dealt out a second ahead
        clock()
        block = next(block for block in reversed(sweep.blocks) if block.began_at <= at_s)
        waiting.append(answered(at_s, ttft_s(block.limit)))
        arrivals.append((at_s, name))
    return arrivals


def make_sweep(**more: object) -> LimitSweep:
    settings = {"objective": SHORT_TTFT, "seed": 1, "rate_per_s": RATE, "longest_s": 300.0}
    return LimitSweep((None, 1, 2), **(settings | more))  # type: ignore[arg-type]


def drawn_by_block(sweep: LimitSweep) -> float:
    return Random(len(sweep.blocks)).uniform(0.3, 0.6)


def rounds_of(sweep: LimitSweep) -> dict[int, list[LimitBlock]]:
    found: dict[int, list[LimitBlock]] = {}
    for block in sweep.blocks:
        if block.round:
            found.setdefault(block.round, []).append(block)
    return found


def test_each_round_has_each_limit_once_for_as_long() -> None:
    sweep = make_sweep()
    play(sweep, lambda limit: 0.4)
    rounds = rounds_of(sweep)
    first = rounds[1]
    assert sorted(map(str, (block.limit for block in first))) == ["1", "2", "None"]
    assert len({round(block.seconds, 6) for block in first}) == 1
    orders = {tuple(block.limit for block in blocks) for blocks in rounds.values()}
    lengths = {round(blocks[0].seconds, 3) for blocks in rounds.values()}
    assert len(orders) > 1
    assert len(lengths) == len(rounds)


def test_a_block_settles_and_goes_on_for_as_long_as_a_request_takes() -> None:
    sweep = make_sweep()
    play(sweep, lambda limit: 0.8)
    for blocks in rounds_of(sweep).values():
        for block in blocks:
            assert block.settled_at - block.began_at == pytest.approx(0.5, abs=0.01)
            assert block.ended_at - block.counted_until == pytest.approx(0.8, abs=0.01)
            assert block.ended_at - block.began_at >= 1.7 * 0.8  # on average 3 times
    followed = zip(sweep.blocks, sweep.blocks[1:], strict=False)
    assert all(before.ended_at == after.began_at for before, after in followed)


def test_blocks_of_a_round_have_the_same_arrivals() -> None:
    sweep = make_sweep()
    arrivals = play(sweep, lambda limit: 0.4)
    offsets: dict[tuple[int, Limit], list[tuple[float, str]]] = {}
    for at_s, name in arrivals:
        block = next(block for block in reversed(sweep.blocks) if block.began_at <= at_s + 1e-9)
        if block.round:
            key = (block.round, block.limit)
            offsets.setdefault(key, []).append((round(at_s - block.began_at, 6), name))
    whole = [number for number, blocks in rounds_of(sweep).items() if len(blocks) == 3]
    for number in whole:
        assert offsets[number, None] == offsets[number, 1] == offsets[number, 2]
    names = [name for _, name in offsets[1, None]]
    in_order = [f"round 1/{number}" for number in range(len(names))]
    assert sorted(names) == sorted(in_order)
    assert names != in_order


def test_a_block_has_as_many_arrivals_as_the_rate_asks_for() -> None:
    """A round whose arrivals are twice as close by chance would overload the server in each
    block."""
    sweep = LimitSweep((None, 1), objective=SHORT_TTFT, seed=3, rate_per_s=RATE, longest_s=200.0)
    now = 0.0
    counts = dict[LimitBlock, int]()
    drawn = sweep.arrivals(0.0, lambda name: (i / (2 * RATE) for i in count(1)), lambda: now)
    for at_s, _ in drawn:
        now = at_s
        sweep.add_record(encode_record(answered(at_s, 0.2)))
        block = sweep.blocks[-1]
        counts[block] = counts.get(block, 0) + 1
        assert block.began_at < at_s < block.ended_at
    assert len(counts) > 8
    for block, number in counts.items():
        assert abs(number - RATE * (block.ended_at - block.began_at)) <= 1


def test_limits_alike_end_at_the_first_look() -> None:
    sweep = make_sweep()
    play(sweep, lambda limit: 0.4)
    assert sweep.end.startswith("the best one was known after 4 rounds, ")


def test_a_limit_that_is_worse_is_left_out_and_none_never_is() -> None:
    """Limits 1 and 2 differ from block to block, so neither is known to be the best."""
    sweep = make_sweep()
    play(sweep, lambda limit: 0.9 if limit is None else drawn_by_block(sweep))
    rounds = rounds_of(sweep)
    assert max(rounds) > 4
    assert {block.limit for block in rounds[max(rounds) - 1]} == {None, 1, 2}
    assert any(one.limit is None and one.is_worse for one in sweep.regrets)


def test_a_limit_at_which_the_server_does_not_keep_up_is_left_out_after_two_blocks() -> None:
    sweep = make_sweep()
    play(sweep, lambda limit: 60.0 if limit == 1 else 0.4, until=200.0)
    assert sum(block.limit == 1 for block in sweep.blocks) == 2
    of_limit = next(i for i, block in enumerate(sweep.blocks) if block.limit == 1)
    # arrivals stop for as long as what is left takes
    assert sweep.blocks[of_limit + 1].began_at > sweep.blocks[of_limit].ended_at + 1


def test_the_time_of_the_run_is_used_and_not_exceeded() -> None:
    sweep = make_sweep(longest_s=60.0)
    play(sweep, lambda limit: drawn_by_block(sweep))
    assert 50.0 < sweep.blocks[-1].ended_at <= 60.0 + 1e-6


def test_without_a_time_it_has_its_rounds() -> None:
    sweep = make_sweep(longest_s=None)
    play(sweep, lambda limit: drawn_by_block(sweep))
    assert max(block.round for block in sweep.blocks) == ROUNDS
    assert sweep.over


def test_a_record_has_its_limit_and_round_where_it_counts() -> None:
    sweep = make_sweep()
    play(sweep, lambda limit: 0.4)
    block = next(block for block in sweep.blocks if block.round == 2 and block.limit is None)
    counted = sweep.add_record(encode_record(answered(block.settled_at + 0.1, 0.4))).record
    assert (counted.arm, counted.pair, counted.phase) == ("none", 2, "profiling")
    settling = sweep.add_record(encode_record(answered(block.began_at + 0.1, 0.4))).record
    assert (settling.arm, settling.pair) == ("", 0)


def test_settings_make_one() -> None:
    assert make_limit_sweep(Settings(sweep="concurrency=1,2")) is None
    assert make_limit_sweep(Settings(sweep="prefill-concurrency=1,2")) is not None


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("prefill-concurrency=1..8", (None, 1, 2, 4, 8)),
        ("prefill-concurrency=none,1,3", (None, 1, 3)),
        ("prefill-concurrency=4, none", (None, 4)),
    ],
)
def test_no_limit_is_always_among_them(text: str, limits: tuple[Limit, ...]) -> None:
    assert Settings(sweep=text).swept_limits == limits
    assert Settings(sweep=text).staged is None


def test_the_objective_follows_from_the_rules() -> None:
    sweep = "prefill-concurrency=1,2"
    assert Settings(sweep=sweep).chosen_objective == "ttft"
    assert Settings(sweep=sweep, slo=("ttft p95 < 1s",)).chosen_objective == "goodput"
    assert Settings(sweep=sweep, objective="stall").chosen_objective == "stall"


def test_a_time_that_is_too_short_under_this_load_is_told_once() -> None:
    """Requests of 2 s, all of it to the first token: 3 s of a block do not count, 1.5 s at least
    do. Three rounds of three limits and 2 s: 42.5 s. Who knew that before the load does not hear it
    again."""
    for longest_s, is_known, expected in (
        (
            40.0,
            False,
            "-t 40 is too short to name the best of 3 prefill limits, which takes 3 rounds ",
        ),
        (40.0, True, ""),
        (45.0, False, ""),
    ):
        sweep = make_sweep(longest_s=longest_s, is_known_short=is_known)
        play(sweep, lambda limit: 2.0)
        assert sweep.warning.startswith(expected)
        assert bool(sweep.warning) == bool(expected)
