"""The experiments of the probe, with answers made up by pencil: which episodes come, how large they
are, when it ends."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.lab.probe.episode_requests import ProbeEpisode, ProbeRequest, ProbeResult
from locust_llm.lab.probe.probe_experiments import (
    SHORT_TOKENS,
    STAGGER_SHARE,
    ProbeBounds,
    max_probe_episodes,
    schedule_episodes,
)
from locust_llm.records.outcomes import OK

TOKEN_S = 1e-4
"""A prompt takes so long a token, and never less than 10 ms."""
GAP_S = 0.01
USUAL = ProbeBounds(
    longest_tokens=16_000, first_tokens=250, most_ttft_s=2.5, most_output_tokens=8192, decoders=3,
    burst=8, rounds=3
)  # fmt: skip
LONGER = replace(USUAL, longest_tokens=32_000)
Answer = Callable[[ProbeEpisode], Sequence[ProbeResult]]


def seen(
    shot: ProbeRequest, episode: ProbeEpisode, number: int, first_s: float, outcome: str = OK
) -> ProbeResult:
    """Its first token so long after it was sent, then one each 10 ms."""
    good = outcome == OK
    return ProbeResult(
        episode=number, kind=episode.kind, round=episode.round, role=shot.role, outcome=outcome,
        asked_tokens=shot.input_tokens, input_tokens=shot.input_tokens,
        output_tokens=shot.output_tokens if good else 0,
        asked_output_tokens=shot.output_tokens, sent_at=shot.at_s,
        chunk_at=tuple(shot.at_s + first_s + GAP_S * i for i in range(shot.output_tokens)) if good else (),
    )  # fmt: skip


def usual(episode: ProbeEpisode) -> list[ProbeResult]:
    return [
        seen(shot, episode, 0, max(0.01, TOKEN_S * shot.input_tokens)) for shot in episode.requests
    ]


def refusing(more_than: int) -> Answer:
    return lambda episode: [
        seen(
            shot,
            episode,
            0,
            TOKEN_S * shot.input_tokens,
            OK if shot.input_tokens <= more_than else "http_400",
        )
        for shot in episode.requests
    ]


def carried_out(answer: Answer = usual, bounds: ProbeBounds = USUAL) -> list[ProbeEpisode]:
    probe = schedule_episodes(bounds)
    episodes = [next(probe)]
    while True:
        try:
            episodes.append(probe.send(answer(episodes[-1])))
        except StopIteration:
            return episodes


def alone(episodes: Sequence[ProbeEpisode], turn: int = 0) -> list[int]:
    return [
        one.requests[0].input_tokens for one in episodes if (one.kind, one.round) == ("alone", turn)
    ]


def test_what_comes() -> None:
    episodes = carried_out(bounds=replace(USUAL, rounds=2))
    kinds = [one.kind for one in episodes if not one.round]
    assert kinds == ["warm", *["alone"] * 7, "quiet"]  # the second warm one is of round 1
    first, second = (
        [one.kind for one in episodes if one.round == turn and one.kind != "warm"]
        for turn in (1, 2)
    )
    assert first == second == [*["alone", "stall"] * 3, "pair", "again", "again", "behind", "burst"]
    assert len(episodes) == 2 + 7 + 1 + 11 + 11


@pytest.mark.parametrize("answer", [usual, lambda episode: in_steps(episode)])
def test_from_the_first_round_on_it_is_known_what_comes_later(answer: Answer) -> None:
    episodes = carried_out(answer)
    assert len(episodes) < max_probe_episodes(USUAL) <= len(episodes) + 2
    for i, one in enumerate(episodes):
        if one.kind == "warm" or not one.round:
            assert one.later is None
        else:
            assert one.later is not None
            assert [(later.kind, later.round) for later in one.later] == [
                (b.kind, b.round) for b in episodes[i + 1 :]
            ]


def test_sizes_double_until_the_next_would_take_too_long() -> None:
    """0.1 ms a token: 16,000 take 1.6 s, and 32,000 would take 3.2, more than 2.5. 24,000 take
    2.4."""
    doubled = [250, 500, 1000, 2000, 4000, 8000, 16_000]
    assert alone(carried_out(bounds=LONGER)) == [*doubled, 24_000]
    assert alone(carried_out(bounds=replace(USUAL, longest_tokens=20_000))) == [*doubled, 20_000]
    assert alone(carried_out(bounds=replace(LONGER, most_ttft_s=1.8))) == doubled  # 20,000 take 2.0


def test_time_grows_on_as_it_did() -> None:
    """With the square of the length: 8,000 take 1 s, 16,000 would take 4. The root of two more is
    11,313: so 10,000."""

    def squared(episode: ProbeEpisode) -> list[ProbeResult]:
        return [
            seen(shot, episode, 0, max(0.01, (shot.input_tokens / 8000) ** 2))
            for shot in episode.requests
        ]

    assert alone(carried_out(squared, replace(USUAL, most_ttft_s=2.0)))[-2:] == [8000, 10_000]
    assert alone(carried_out(squared, replace(USUAL, most_ttft_s=1.0)))[-2:] == [4000, 8000]


def test_sizes_double_until_the_longest() -> None:
    assert alone(carried_out(bounds=replace(USUAL, longest_tokens=5000)))[-1] == 4000


def test_sizes_double_until_a_failure() -> None:
    episodes = carried_out(refusing(6000))
    assert alone(episodes) == [250, 500, 1000, 2000, 4000, 8000]
    assert {
        max(shot.input_tokens for shot in one.requests) for one in episodes if one.kind == "stall"
    } == {
        950,
        1900,
        3800,
    }


def test_prompts_of_several_sizes_must_be_possible() -> None:
    assert [one.kind for one in carried_out(refusing(1500))] == [
        "warm",
        "warm",
        "alone",
        "alone",
        "alone",
        "alone",
    ]


def test_lengths_go_up_and_down() -> None:
    episodes = carried_out()
    up, down = [3800, 7600, 15_200], [15_200, 7600, 3800]
    stalls = [one.requests[-1].input_tokens for one in episodes if one.kind == "stall"]
    assert stalls == [*up, *down, *up]
    assert [size for turn in (1, 2, 3) for size in alone(episodes, turn)] == [*up, *down, *up]


def test_decoders_and_the_prompts_beside_them() -> None:
    """A first token takes 10 ms, a gap 10 ms: the prompt comes after 4 x 10 + 400 ms; a prompt of
    4,000 tokens takes 0.4 s: (0.44 + 1.4 x 0.4 + 30 x 0.01) / 0.01 = 130 tokens, 15 and 30 % more
    for the second and the third decoder."""
    one = next(one for one in carried_out() if one.kind == "stall")
    *decoders, long = one.requests
    assert [(shot.role, shot.at_s, shot.input_tokens) for shot in decoders] == [
        ("decoder", 0, SHORT_TOKENS)
    ] * 3
    assert [shot.output_tokens for shot in decoders] == pytest.approx(
        [130, 130 * 1.15, 130 * 1.3], abs=2
    )
    assert (long.role, long.input_tokens) == ("long", 3800)
    assert long.at_s == pytest.approx(0.44)


def test_a_pair_comes_at_one_moment_and_the_same_prompt_comes_twice() -> None:
    episodes = carried_out()
    for pair in (one for one in episodes if one.kind == "pair"):
        a, b = pair.requests[-2:]
        assert a == b
        assert (a.role, a.input_tokens, a.text) == ("long", 7600, 0)
    again = [one.requests for one in episodes if one.kind == "again"]
    assert [shots[0].text for shots in again] == [1, 1, 2, 2, 3, 3]
    assert all(len(shots) == 1 for shots in again)


def test_short_ones_behind_a_long_one() -> None:
    long, *shorts = next(one for one in carried_out() if one.kind == "behind").requests
    assert (long.role, long.input_tokens, long.at_s) == ("long", 15_200, 0)
    assert [(short.role, short.input_tokens) for short in shorts] == [("short", SHORT_TOKENS)] * 2
    assert [short.at_s for short in shorts] == pytest.approx([0.32, 0.64])  # of 1.6 s


def test_a_burst_is_made_of_long_prompts_where_nobody_is_held_up() -> None:
    """How wide a step is nobody knows then: half of the longest prompt. There is time for 20 s /
    0.8 s = 25: so eight."""
    burst = next(one for one in carried_out() if one.kind == "burst").requests
    assert [(shot.role, shot.at_s, shot.input_tokens) for shot in burst] == [("long", 0, 7600)] * 8


def in_steps(episode: ProbeEpisode, tokens: int = 500) -> list[ProbeResult]:
    """Of so many tokens; each takes 50 ms, in which those who decode get a token."""
    came = usual(episode)
    long = next((shot for shot in episode.requests if shot.role == "long"), None)
    if long is None or episode.kind != "stall":
        return came
    begin, steps = long.at_s + GAP_S / 2, -(-long.input_tokens // tokens)
    for i, shot in enumerate(episode.requests):
        at = [0.05 + GAP_S * j for j in range(shot.output_tokens)]
        early = sum(one < begin for one in at)
        stamps = [*at[:early], *(begin + 0.05 * j for j in range(1, steps + 1))]
        stamps += [stamps[-1] + GAP_S * j for j in range(1, shot.output_tokens - len(stamps) + 1)]
        first = (begin + 0.05 * steps,)
        came[i] = came[i]._replace(chunk_at=first if shot.role == "long" else tuple(stamps))
    return came


@pytest.mark.parametrize(
    ("longest", "tokens"),
    [
        (16_000, 3800),  # of 15,200, which take 1.52 s: eight of a quarter take 3 s
        (32_000, 4750),  # of 30,400, as 32,000 take 3.2 s: eight take 4 s
    ],
)
def test_a_burst_takes_a_while_but_no_more_than_it_must(longest: int, tokens: int) -> None:
    bounds = replace(USUAL, longest_tokens=longest, most_ttft_s=4.0)
    burst = next(one for one in carried_out(in_steps, bounds) if one.kind == "burst")
    assert burst.requests[0].input_tokens == tokens


def late(gaps: int) -> Answer:
    """Who comes third only begins when the first one is done."""

    def answer(episode: ProbeEpisode) -> list[ProbeResult]:
        came = usual(episode)
        if episode.kind == "quiet":
            came[gaps:] = [
                seen(shot, episode, 0, GAP_S * (1 + came[0].output_tokens))
                for shot in episode.requests[gaps:]
            ]
        return came

    return answer


@pytest.mark.parametrize(("together", "decoders"), [(4, 3), (3, 2), (2, 1), (1, 1)])
def test_a_place_is_left_where_only_some_run_together(together: int, decoders: int) -> None:
    stalls = [one for one in carried_out(late(together)) if one.kind in ("stall", "pair")]
    assert {sum(shot.role == "decoder" for shot in one.requests) for one in stalls} == {decoders}


@pytest.mark.parametrize("failing", ["warm", "quiet"])
def test_it_ends_where_a_server_does_not_answer(failing: str) -> None:
    for missing in ((), None):

        def answer(
            episode: ProbeEpisode, missing: tuple[()] | None = missing
        ) -> Sequence[ProbeResult]:
            if episode.kind != failing:
                return usual(episode)
            return (
                missing
                if missing is not None
                else [seen(shot, episode, 0, 1, "timeout") for shot in episode.requests]
            )

        assert carried_out(answer)[-1].kind == failing


# -- whatever comes back ---------------------------------------------------------------------------


def check(episodes: Sequence[ProbeEpisode], bounds: ProbeBounds) -> None:
    """Never more than what it may ask for, and in order."""
    sizes = 1 + max(0, int(math.log2(bounds.longest_tokens / bounds.first_tokens)))
    assert len(episodes) <= 2 + sizes + 1 + 11 * bounds.rounds
    staggered = math.ceil(bounds.most_output_tokens * (1 + STAGGER_SHARE * (bounds.decoders - 1)))
    for one in episodes:
        assert one.requests
        assert all(a.at_s <= b.at_s for a, b in pairwise(one.requests))
        assert one.requests[0].at_s >= 0
        assert math.isfinite(one.requests[-1].at_s)
        assert 0 <= one.expected_s < math.inf
        for shot in one.requests:
            assert 1 <= shot.input_tokens <= max(bounds.longest_tokens, SHORT_TOKENS)
            assert 1 <= shot.output_tokens <= staggered
        assert len(one.requests) <= max(bounds.burst, 4, bounds.decoders + 2)


@examples(60)
@given(
    st.data(),
    st.builds(
        ProbeBounds, longest_tokens=st.integers(250, 50_000), decoders=st.integers(1, 6),
        burst=st.integers(4, 12),
        rounds=st.integers(1, 4), most_ttft_s=st.floats(0.1, 10),
        most_output_tokens=st.integers(48, 10_000),
    ),
)  # fmt: skip
def test_whatever_is_sent_back_it_ends_and_asks_for_no_more_than_its_bounds(
    data: st.DataObject, bounds: ProbeBounds
) -> None:
    """Some shots not seen, some failed, stamps of any size; a stamp after the send is at least 1 us
    after it."""

    def answer(episode: ProbeEpisode) -> list[ProbeResult]:
        came = []
        for shot in episode.requests:
            fate = data.draw(st.sampled_from(["ok", "ok", "ok", "ok", "lost", "failed", "few"]))
            first_s = data.draw(st.floats(1e-6, 1e6) | st.floats(0.001, 0.1))
            one = seen(
                shot._replace(output_tokens=min(50, shot.output_tokens)), episode, 0, first_s
            )
            if fate == "failed":
                one = seen(shot, episode, 0, 1, "http_500")
            elif fate == "few":
                one = one._replace(
                    chunk_at=one.chunk_at[:1], output_tokens=data.draw(st.integers(0, 3))
                )
            elif data.draw(st.booleans()):
                scale = data.draw(st.floats(1e-6, 1e6))
                first = one.chunk_at[0]
                one = one._replace(
                    chunk_at=tuple(first + scale * (at - first) for at in one.chunk_at)
                )
            if fate != "lost":
                came.append(one)
        return came

    check(carried_out(answer, bounds), bounds)


def test_the_bounds_of_a_usual_server() -> None:
    check(carried_out(bounds=ProbeBounds()), ProbeBounds())
