"""The schedule of a phase: from settings to instants, by pencil."""

from itertools import islice
from pathlib import Path

import pytest

from locust_llm.controller.schedule import (
    DueArrival,
    add_priming_phase,
    list_phase_sessions,
    make_prefix_reuse,
    schedule_phase,
)
from locust_llm.records.phase_plan import PROFILING, WARMUP
from locust_llm.settings.request_rate_option import parse_request_rate
from locust_llm.settings.run_options import Settings
from locust_llm.workload.dataset_formats import DatasetSession, Turn


def instants(phase: str = PROFILING, count: int = 5, **settings: object) -> list[float]:
    dues = schedule_phase(Settings(**settings), phase)  # type: ignore[arg-type]
    assert dues is not None
    return [round(due.at_s, 6) for due in islice(dues, count)]


def test_without_a_rate_it_is_a_closed_loop() -> None:
    assert schedule_phase(Settings(), PROFILING) is None
    # warmup is never user-centric
    assert schedule_phase(Settings(user_centric_rate=2.0, users=4), WARMUP) is None


def test_a_constant_rate_its_ramp_and_its_ends() -> None:
    steady = {"request_rate": 4.0, "arrival_pattern": "constant"}
    assert instants(**steady) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert instants(**steady, request_count=3) == [0.0, 0.25, 0.5]
    assert instants(**steady, run_time_s=0.5) == [0.0, 0.25]
    # k6's ramp: arrival n at sqrt(2 n D / R)
    ramp = instants(request_rate=2.0, arrival_pattern="constant", request_rate_ramp_duration=4.0)
    assert ramp == [0.0, 2.0, 2.828427, 3.464102, 4.0]


def test_the_warmup_has_its_own_rate_and_ends() -> None:
    s = {
        "request_rate": 4.0,
        "arrival_pattern": "constant",
        "request_count": 100,
        "run_time_s": 60.0,
    }
    assert instants(WARMUP, warmup_request_count=2, **s) == [0.0, 0.25]
    assert instants(WARMUP, warmup_duration=1.0, warmup_request_rate=2.0, **s) == [0.0, 0.5]


def test_each_prefix_is_sent_once_in_the_warmup_before_what_else_it_has() -> None:
    """Blocks of 64 tokens, as the server says: 80 % of 800 are ten of them."""
    flags = {"block_size": "64"}
    s = add_priming_phase(
        Settings(
            synthetic_input_tokens_mean=800, prefix_cache_hit_rate=80.0, warmup_request_count=3
        ),
        flags,
    )
    reuse = make_prefix_reuse(s, flags)
    assert reuse is not None
    warmup = [
        item.turns[0].prefix
        for item in list_phase_sessions(s, WARMUP, reuse) or ()
        if item is not None
    ]
    assert s.warmup_request_count == len(warmup) == 13
    assert warmup == [*((n, 672) for n in range(10)), *((n, 672) for n in range(3))]
    main = [
        item.id
        for item in islice(list_phase_sessions(s, PROFILING, reuse) or (), 2)
        if item is not None
    ]
    assert main == ["4", "5"]  # the turn of the prefixes goes on
    assert (
        add_priming_phase(Settings(prefix_cache_hit_rate=0.0), flags).warmup_request_count is None
    )
    assert make_prefix_reuse(Settings(), flags) is None


def test_a_warmup_ends_where_the_blocks_of_the_cache_are_longer_than_the_prompts() -> None:
    """Prompts of 60 tokens share no block of 128 (vLLM on CPUs). One prompt is sent, and not one
    after the other without end."""
    flags = {"block_size": "128"}
    s = add_priming_phase(
        Settings(synthetic_input_tokens_mean=60, prefix_cache_hit_rate=50.0), flags
    )
    reuse = make_prefix_reuse(s, flags)
    assert reuse is not None
    assert reuse.count == 0
    assert s.warms_up
    assert len([*(list_phase_sessions(s, WARMUP, reuse) or ())]) == 1
    timed = Settings(
        synthetic_input_tokens_mean=60, prefix_cache_hit_rate=50.0, warmup_duration=60.0
    )
    assert add_priming_phase(timed, flags) == timed


def test_a_seed_gives_the_same_arrivals_and_each_phase_its_own() -> None:
    s = {"request_rate": 3.0, "random_seed": 7, "warmup_request_count": 9}
    assert instants(**s) == instants(**s) != instants(WARMUP, **s)
    assert instants(request_rate=3.0) != instants(request_rate=3.0)


def test_user_centric_users_take_turns() -> None:
    dues = schedule_phase(Settings(user_centric_rate=2.0, users=4, request_count=6), PROFILING)
    assert list(dues or ()) == [
        DueArrival(0.0, 0),
        DueArrival(0.5, 1),
        DueArrival(1.0, 2),
        DueArrival(1.5, 3),
        DueArrival(2.0, 0),
        DueArrival(2.5, 1),
    ]


def trace(*times_s: float) -> list[DatasetSession]:
    return [
        DatasetSession(id=str(n), turns=(Turn(row=n, at_s=at_s, input_tokens=9),), row=n)
        for n, at_s in enumerate(times_s, 1)
    ]


def test_a_replay_keeps_the_gaps_of_its_trace() -> None:
    items = trace(100.0, 101.0, 103.0, 107.0)

    def replayed(**more: object) -> list[tuple[float, str]]:
        dues = schedule_phase(
            Settings(fixed_schedule=True, input_file="x", **more), PROFILING, items
        )  # type: ignore[arg-type]
        return [(due.at_s, due.item.id) for due in dues or () if due.item is not None]

    assert replayed() == [(0.0, "1"), (1.0, "2"), (3.0, "3"), (7.0, "4")]
    assert replayed(replay_speedup=2.0, request_count=3) == [(0.0, "1"), (0.5, "2"), (1.5, "3")]
    assert replayed(run_time_s=3.0) == [(0.0, "1"), (1.0, "2")]
    window = {"fixed_schedule_start_offset": 100_500.0, "fixed_schedule_end_offset": 103_000.0}
    assert replayed(**window) == [(0.5, "2"), (2.5, "3")]
    assert replayed(fixed_schedule_auto_offset=False)[0] == (100.0, "1")


def test_a_series_comes_from_its_file_and_names_it_when_it_is_wrong() -> None:
    rate = parse_request_rate(
        Settings(request_rate_series="r.json"), lambda path: "[[0, 1], [10, 1]]"
    )
    assert rate is not None
    assert rate.count(5.0) == 5.0
    with pytest.raises(ValueError, match=r"^r\.json: point 1"):
        parse_request_rate(Settings(request_rate_series="r.json"), lambda path: '[["a", 1]]')


def test_a_count_is_of_requests_and_a_session_is_sent_to_its_end() -> None:
    turns = tuple(Turn(row=n, at_s=1.0, input_tokens=9) for n in range(3))
    items = [DatasetSession(id=str(n), turns=turns, row=n) for n in range(9)]
    dues = schedule_phase(
        Settings(fixed_schedule=True, input_file="x", request_count=10), PROFILING, items
    )
    assert len(list(dues or ())) == 4  # twelve requests: the fourth session was begun after nine


def test_sessions_of_a_file_begin_in_their_middle_and_wait_no_longer_than_asked(
    tmp_path: Path,
) -> None:
    turns = ", ".join(f'{{"text": "{n}", "delay": {1000 * n}}}' for n in range(10))
    (tmp_path / "file.jsonl").write_text(f'{{"turns": [{turns}]}}\n' * 40)

    def lengths(**more: object) -> list[int]:
        s = Settings(input_file=str(tmp_path / "file.jsonl"), idle_cap=4.0, **more)  # type: ignore[arg-type]
        items = [item for item in list_phase_sessions(s, PROFILING) or () if item is not None]
        assert all((turn.delay_s or 0.0) <= 4.0 for item in items for turn in item.turns)
        return [len(item.turns) for item in items]

    assert lengths() == [10] * 40
    drawn = lengths(trajectory_start="0.25..0.75", random_seed=1)
    assert (
        drawn
        == lengths(trajectory_start="0.25..0.75", random_seed=1)
        != lengths(trajectory_start="0.25..0.75", random_seed=2)
    )
    assert set(drawn) == {3, 4, 5, 6, 7, 8}  # after 2 to 7 of them
