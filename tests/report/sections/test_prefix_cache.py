"""Prefix cache: what a sequence of prompts implies, by a pencil and by a slow twin; and what the
report says of it."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.sections.prefix_cache import (
    CacheRequest,
    PrefixCache,
    describe_cached_input,
    describe_prefix_cache,
    find_cached_share,
    make_cache_remarks,
    measure_prefix_cache,
    simulate_cache_hits,
)
from locust_llm.settings.run_options import Settings


def slow(
    requests: Iterable[CacheRequest], block: int, capacity: int | None, head: int
) -> list[int]:
    """Block by block: a cache is a list of keys, the one used longest ago first."""
    cache: OrderedDict[Hashable, None] = OrderedDict()
    found = []
    for number, (prefix, shared, tokens, output) in enumerate(requests):
        common = head if prefix is None else max(shared, head)
        keys: list[Hashable] = []
        for at in range((tokens + max(0, output - 1)) // block):
            end = (at + 1) * block
            inside = end <= tokens
            keys.append(
                ("head", at) if end <= head and inside
                else (prefix, at) if end <= common and inside
                else (f"of request {number}", at)
            )  # fmt: skip
        count = 0
        while count < min(len(keys), (tokens - 1) // block) and keys[count] in cache:
            count += 1
        found.append(count * block)
        for key in reversed(keys):
            cache.pop(key, None)
            cache[key] = None
        while capacity is not None and len(cache) > capacity // block:
            cache.popitem(last=False)
    return found


REQUESTS = st.lists(
    st.builds(
        CacheRequest,
        st.none() | st.integers(0, 4),
        st.integers(0, 40),
        st.integers(1, 60),
        st.integers(0, 12),
    ),
    max_size=40,
)


@examples(300)
@given(REQUESTS, st.integers(1, 8), st.none() | st.integers(0, 150), st.integers(0, 20))
def test_segments_find_what_single_blocks_find(
    requests: list[CacheRequest], block: int, capacity: int | None, head: int
) -> None:
    assert list(simulate_cache_hits(requests, block, capacity, head)) == slow(
        requests, block, capacity, head
    )


def cyclic(
    prefixes: int, rounds: int, shared: int = 96, tokens: int = 112, output: int = 1
) -> list[CacheRequest]:
    return [
        CacheRequest(number, shared, tokens, output)
        for _ in range(rounds)
        for number in range(prefixes)
    ]


def test_whole_blocks_come_from_the_cache_and_one_token_never_does() -> None:
    """Blocks of 16: of 100 common tokens 96; of a prompt that is all prefix the last block is
    computed."""
    assert list(simulate_cache_hits([CacheRequest(1, 100, 120), CacheRequest(1, 100, 120)])) == [
        0,
        96,
    ]
    assert list(
        simulate_cache_hits(
            [CacheRequest(1, 96, 96), CacheRequest(1, 96, 96), CacheRequest(1, 96, 97)]
        )
    ) == [
        0,
        80,
        96,
    ]
    assert list(simulate_cache_hits([CacheRequest(None, 0, 120), CacheRequest(None, 0, 120)])) == [
        0,
        0,
    ]


def test_the_head_of_the_chat_template_is_found_by_everybody() -> None:
    """25 tokens of it are a block of 16."""
    assert list(
        simulate_cache_hits(
            [CacheRequest(None, 0, 120), CacheRequest(1, 100, 120), CacheRequest(2, 100, 120)],
            head=25,
        )
    ) == [0, 16, 16]


def test_a_working_set_of_twice_the_cache_in_turn_is_never_found_and_one_that_fits_always() -> None:
    """Ten prefixes of 96 tokens, each prompt 16 of its own. What came between two uses of one: ten
    prompts of 112."""
    assert list(simulate_cache_hits(cyclic(10, 3), capacity=480)) == [0] * 30
    assert list(simulate_cache_hits(cyclic(10, 3), capacity=1120)) == [0] * 10 + [96] * 20
    # a block less, and the last block of each prefix is gone
    assert list(simulate_cache_hits(cyclic(10, 3), capacity=1120 - 16 * 2))[10:] == [80] * 20


def a_run(rate: float = 80.0, **more: object) -> Run:
    settings = Settings(prefix_cache_hit_rate=rate, cache_block_size=16)
    return Run(
        **({"name": "a", "settings": settings, "started_at": 0.0, "profiling_at": 50.0} | more)
    )  # type: ignore[arg-type]


def records(cached: int | None = 96, asked: int = 120) -> list[Record]:
    """Two prefixes, primed and then asked for four times."""
    return [
        Record(
            id=str(number), phase="warmup" if number < 2 else "profiling", clock_offset_s=0.0,
            due_at=number,
            asked_at=number, sent_at=number, closed_at=number + 1, input_tokens=120,
            output_tokens=4,
            prefix=number % 2, prefix_tokens=104,
            cached_tokens=cached, asked_input_tokens=asked,
        )
        for number in range(10)
    ]  # fmt: skip


def test_asked_implied_and_delivered() -> None:
    found = measure_prefix_cache(reversed(records()), 0.8, a_run())
    assert found == PrefixCache(
        asked=0.8,
        implied=0.8,
        delivered=0.8,
        by_metrics=0.8,
        prefixes=2,
        working_set=208,
        block=16,
        capacity=None,
    )
    assert list(make_cache_remarks(found)) == []
    assert describe_prefix_cache(found).startswith(
        "target 80.0% over 2 prefixes with 208 tokens in total; theoretical 80.0%"
    )
    # the prompts were made a quarter longer than they came to be: so was the prefix
    assert measure_prefix_cache(records(asked=150), None, a_run()).implied == 80 / 120  # type: ignore[union-attr]
    # of a stage: the prefixes were primed before it
    assert measure_prefix_cache(records()[2:], None, a_run()).implied == 0.8  # type: ignore[union-attr]
    assert (
        measure_prefix_cache(
            records(), None, Run(name="a", settings=Settings(), started_at=0, profiling_at=0)
        )
        is None
    )


def test_the_share_by_metrics_is_of_the_phase_alone() -> None:
    """The warmup met an empty cache: 1,000 tokens looked up, none found. In the phase 870 of 1,000
    were. Without a warmup, the phase itself met the empty cache."""
    history = EngineHistory()
    for at, queries, found in ((49.0, 0, 0), (50.0, 1000, 0), (60.0, 2000, 870), (71.0, 3000, 870)):
        history.add(EngineSample(at=at, engine="vLLM", cache_queries=queries, cache_hits=found))
    assert find_cached_share(history, a_run(stopping_at=70.0)) == 0.87
    assert (
        find_cached_share(history, a_run(profiling_at=55.0, stopping_at=70.0)) is None
    )  # one reading grows by nothing
    cold = a_run(settings=Settings(), profiling_at=49.5, stopping_at=70.0)
    assert find_cached_share(history, cold) == 870 / 2000  # from the reading at 49 s


def test_one_share_of_the_input_stands_under_the_name_and_says_what_it_is_of() -> None:
    assert describe_cached_input(0.8, 0.787) == "80.0% by usage (answered requests)"
    assert describe_cached_input(None, 0.787).startswith(
        "78.7% by the server's metrics (all requests, profiling phase)"
    )
    assert describe_cached_input(None, None) == "unknown"
    both = describe_prefix_cache(measure_prefix_cache(records(), 0.787, a_run()))  # type: ignore[arg-type]
    assert (
        "observed 80.0% by usage (answered requests), 78.7% by the server's metrics (all requests"
        in both
    )


@pytest.mark.parametrize(
    ("run", "cached", "says"),
    [
        (a_run(), 90, []),  # 75 % of 120
        (a_run(), 0, [
            "the observed hit rate is 0.0%: its cache is off, is smaller than the working set"]),
        (a_run(), 112, ["observed hit rate is 93.3%"]),
        (a_run(), None, ["--enable-prompt-tokens-details"]),
        (a_run(90.0), 96, ["90.0% of the input tokens should come", "text that is not shared takes part"]),
        (
            a_run(server_flags={"block_size": "16", "num_gpu_blocks": "7"}), 0,
            [
                "these prompts allow 0.0%: the working set of 208 tokens does not fit into the "
                "cache of 112"],
        ),
    ],
)  # fmt: skip
def test_what_is_more_than_two_points_apart_is_said(
    run: Run, cached: int | None, says: list[str]
) -> None:
    said = " ".join(
        make_cache_remarks(
            measure_prefix_cache(records(None if cached is None else cached), None, run)
        )
    )
    off = cached == 90
    assert all(part in said for part in says)
    assert bool(said) == (bool(says) or off)
