"""What records and readings of one round show, in numbers by hand."""

import math

import pytest
from support.records import answered

from locust_llm.lab.disconnect.disconnect_rounds import (
    CounterReading,
    RoundTimes,
    count_ghosts,
    cut_witness,
    divide_prompt_tokens,
    find_gap_s,
    find_ghost_seconds,
    find_late_gap_s,
    had_other_requests,
    is_kv_back,
)
from locust_llm.records.server_metrics_parser import EngineSample


def read(at: float, took_s: float = 0.0, **fields: float) -> CounterReading:
    return CounterReading(at, at + took_s, EngineSample(at=at, engine="vLLM", **fields))


def test_ghosts_are_what_nobody_received() -> None:
    """The server generated 100 tokens after the reading at 10 s: 20 for the witness from 10.05 s to
    11.95 s, 5 for a client from 10.05 s to 10.45 s, and 75 for nobody."""
    witness = answered(*(550 + 100 * at for at in range(25)), sent_at=9.0, output_tokens=25)
    client = answered(*(50 + 100 * at for at in range(10)), sent_at=9.5)
    found = count_ghosts(
        1,
        read(9.98, 0.04, generated=1000.0),
        read(13.0, generated=1100.0),
        [],
        witness,
        [client],
        10.5,
        math.inf,
    )
    assert found is not None
    assert (found.generated, found.received) == (100.0, 25.0)
    assert found.doubt == pytest.approx(2 * 0.2)  # two streams, a fifth of a gap
    assert found.seconds is None


def test_work_before_an_unstreamed_client_left_is_no_ghost() -> None:
    """It left 0.3 s after the reading, at 0.1 s a token."""
    witness = answered(100, 200, sent_at=0.0, output_tokens=2)
    found = count_ghosts(
        2, read(10.0, generated=0.0), read(13.0, generated=9.0), [], witness, [], 10.3, 0.1
    )
    assert found is not None
    assert found.received == pytest.approx(6.0)


def test_llamacpps_counters_count() -> None:
    witness = answered(100, 200, sent_at=0.0, output_tokens=2)
    before, after = (read(10.0, decodes=100.0, slots_per_decode=2.0),
        read(13.0, decodes=150.0, slots_per_decode=2.4))  # fmt: skip
    found = count_ghosts(1, before, after, [], witness, [], 10.0, math.inf)
    assert found is not None
    assert found.generated == 160.0
    assert count_ghosts(1, None, after, [], witness, [], 10.0, math.inf) is None
    bare = read(10.0, running=1.0)
    assert count_ghosts(1, bare, bare, [], witness, [], 10.0, math.inf) is None


def test_ghosts_last_until_the_server_runs_only_the_witness() -> None:
    readings = [
        read(9.9, 0.01, running=9.0),
        read(10.1, 0.01, running=9.0, waiting=0.0),
        read(10.2, 0.01, running=1.0, waiting=1.0),
        read(10.3, 0.01, running=1.0, waiting=0.0),
        read(12.0, 0.01, running=0.0),
    ]
    assert find_ghost_seconds(readings, 10.0, 11.0) == pytest.approx(0.21)
    assert find_ghost_seconds(readings[3:], 10.0, 11.0) == 0.0
    assert find_ghost_seconds(readings[4:], 10.0, 11.0) is None


def test_the_kv_cache_is_as_empty_as_before() -> None:
    assert is_kv_back(read(1.0, kv_used=0.1), read(2.0, kv_used=0.1)) is True
    assert is_kv_back(read(1.0, kv_used=0.1), read(2.0, kv_used=0.2)) is False
    assert is_kv_back(read(1.0), read(2.0, kv_used=0.2)) is None
    assert is_kv_back(None, read(2.0, kv_used=0.2)) is None


def test_the_gaps_of_a_witness_and_what_happened_in_them() -> None:
    """A chunk each second: clients come at 50.5 s and leave at 80.5 s, where a gap has begun. The
    first gap after it is 81."""
    times = [float(at) for at in range(201)]
    cut = cut_witness(times, RoundTimes(50.5, 60.5, 80.5), longest=60)
    assert cut is not None
    assert (cut.came, cut.decoding, cut.left, cut.tail) == (50, 61, 81, 141)
    assert cut_witness(times, RoundTimes(50.5, 60.5, 80.5), longest=110) is None
    assert cut_witness(times, RoundTimes(5.5, 60.5, 80.5), longest=60) is None


@pytest.mark.parametrize(
    ("clients", "pace_per_s", "tokens"),
    [(8, math.inf, 512), (1, math.inf, 4096), (8, 800.0, 100), (256, math.inf, 48), (8, 1.0, 48)],
)
def test_the_prompts_of_all_clients_take_a_second_at_most(
    clients: int, pace_per_s: float, tokens: int
) -> None:
    assert divide_prompt_tokens(clients, pace_per_s) == tokens


def test_a_pace_is_that_of_the_later_half() -> None:
    """The prompt of another client held up the second token."""
    record = answered(100, 900, 910, 920, 930)
    assert find_gap_s(record) == pytest.approx(0.2075)
    assert find_late_gap_s(record) == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("before", "during", "last", "others"),
    [
        ((0.0, 0.0), 9.0, 0.0, False),
        ((3.0, 0.0), 9.0, 0.0, True),  # users who send together leave the server empty for moments
        ((0.0, 0.0), 10.0, 0.0, True),  # a witness and 8 clients are 9
        (
            (0.0, 0.0),
            4.0,
            3.0,
            True,
        ),  # ghosts of 8 clients and 3 others look alike, but not at the end
    ],
)
def test_requests_of_others_are_seen_before_during_and_after(
    before: tuple[float, ...], during: float, last: float, others: bool
) -> None:
    looks = [read(float(at), running=running) for at, running in enumerate(before)]
    readings = [read(5.0, running=during)]
    assert had_other_requests(looks, readings, read(9.0, running=last), 8) is others
    assert had_other_requests([None], [], None, 8) is False


@pytest.mark.parametrize(("first_tokens", "others"), [(9.0, False), (10.0, True)])
def test_more_first_tokens_than_clients_are_of_others(first_tokens: float, others: bool) -> None:
    before = read(1.0, running=0.0, ttft_count=100.0)
    last = read(9.0, running=0.0, ttft_count=100.0 + first_tokens)
    assert had_other_requests([before], [], last, 8) is others
