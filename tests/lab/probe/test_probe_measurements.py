"""Measurements by pencil: hand-made shots, and what they amount to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.lab.probe.episode_requests import ProbeResult
from locust_llm.lab.probe.probe_measurements import (
    BurstResult,
    DecoderStall,
    ProbeMeasurements,
    PromptCost,
    measure_probe,
    measure_stall,
)
from locust_llm.lab.probe.scheduler_diagnosis import CANNOT_TELL, diagnose_scheduler
from locust_llm.records.outcomes import CUT, OK


def shot(
    role: str,
    *chunk_ms: float,
    sent_ms: float = 0,
    kind: str = "stall",
    turn: int = 1,
    episode: int = 0,
    tokens: int = 8000,
    output: int | None = None,
    asked_output: int | None = None,
    **more: object,
) -> ProbeResult:
    """In ms. A token each chunk, and as many as were asked for, if nothing else is said."""
    output = len(chunk_ms) if output is None else output
    fields = {"outcome": OK, "input_tokens": tokens, **more}
    return ProbeResult(
        episode=episode, kind=kind, round=turn, role=role, asked_tokens=tokens,
        output_tokens=output,
        asked_output_tokens=output if asked_output is None else asked_output, sent_at=sent_ms / 1e3,
        chunk_at=tuple(ms / 1e3 for ms in chunk_ms), **fields,
    )  # fmt: skip


def each(begin: int, end: int, step: int) -> list[int]:
    """With both ends."""
    return list(range(begin, end + 1, step))


def stall(*shots: ProbeResult) -> DecoderStall:
    found = measure_stall(shots)
    assert found is not None
    return found


# -- stalls ----------------------------------------------------------------------------------------

# A token each 10 ms; the prompt is sent at 505 ms; five tokens more; then a step of 100 ms four
# times; then as before.
LEAD_IN = each(100, 550, 10)
STEPS = each(650, 950, 100)
DECODER = [*LEAD_IN, *STEPS, *each(960, 1200, 10)]
LONG = shot("long", 950, sent_ms=505)


def test_the_steps_of_a_prefill() -> None:
    found = stall(
        shot("decoder", *DECODER), shot("decoder", *DECODER), shot("decoder", *DECODER), LONG
    )
    assert (found.kind, found.round, found.asked_tokens, found.decoders, found.ended) == (
        "stall",
        1,
        8000,
        3,
        0,
    )
    assert found.ttft_s == pytest.approx(0.445)
    assert found.meanwhile == 5 + 4  # tokens at 510, 520, ..., 550, then at 650, 750, 850, 950
    # the five before the prefill began are no steps: 10 ms, not 100
    assert (found.steps, found.plain) == (4, True)
    assert found.quiet_s == pytest.approx(0.01)
    assert found.usual_s == pytest.approx(0.1)
    assert found.pace == pytest.approx(0.1)
    assert found.longest_s == pytest.approx(0.1)
    assert found.share == pytest.approx(100 / 445)
    assert found.after_s == pytest.approx(-0.25)  # they went on until 1200


def test_steps_that_are_hardly_longer_than_a_quiet_gap_begin_with_the_first_of_them() -> None:
    decoder = [*LEAD_IN, *each(570, 710, 20), *each(720, 1000, 10)]  # 8 steps of 20 ms
    found = stall(shot("decoder", *decoder), shot("long", 710, sent_ms=505))
    assert (found.steps, found.surely, found.plain) == (8, 8, False)
    assert found.pace == pytest.approx(0.5)


def test_quiet_gaps_that_noise_hides_among_the_steps() -> None:
    """One gap takes 13 ms while the server still makes tokens of the prompt: all after it count,
    surely only the last 8."""
    decoder = [*LEAD_IN, 563, *each(573, 603, 10), *each(623, 763, 20), *each(773, 1003, 10)]
    found = stall(shot("decoder", *decoder), shot("long", 763, sent_ms=505))
    assert (found.steps, found.surely, found.plain) == (13, 8, False)
    decoder = [*LEAD_IN, *each(562, 700, 12), *each(710, 1000, 10)]  # steps of 12 ms: who can tell?
    found = stall(shot("decoder", *decoder), shot("long", 694, sent_ms=505))
    assert found.steps == found.surely


def test_steps_are_plain_where_a_hole_is_between_them_and_quiet_gaps() -> None:
    """Three times as long as the longest quiet one, which may take 2.5 times as long as usual; of
    all decoders."""
    steps = each(610, 850, 60)
    # 60 ms after one of 20 and more: no hole
    for delay, plain in ((10, True), (19, True), (21, False), (30, False)):
        decoder = [
            *LEAD_IN[:-1],
            540 + delay,
            *(ms + delay - 10 for ms in steps),
            *each(900, 1200, 10),
        ]
        found = stall(shot("decoder", *decoder), shot("long", 840 + delay, sent_ms=505))
        assert (found.plain, found.steps) == (plain, 5 if plain else pytest.approx(6, abs=1)), delay
    decoder = [*LEAD_IN, *steps, *each(860, 1200, 10)]
    # 25 ms, in the middle of the hole
    other = [*LEAD_IN[:-1], 565, *steps[1:], *each(860, 1200, 10)]
    assert stall(shot("decoder", *decoder), shot("long", 850, sent_ms=505)).plain
    assert not stall(
        shot("decoder", *decoder), shot("decoder", *other), shot("long", 850, sent_ms=505)
    ).plain


def test_a_pause_after_which_all_comes_at_once_is_no_step() -> None:
    """Of 30 ms, with the three tokens of that time at its end."""
    decoder = [*each(100, 520, 10), 550, 550.1, 550.2, *STEPS, *each(960, 1200, 10)]
    found = stall(shot("decoder", *decoder), LONG)
    assert (found.steps, found.plain, found.meanwhile) == (4, True, 2 + 3 + 4)


def test_a_pause_before_or_after_the_steps() -> None:
    """31 ms before the first step may be one, but not where the prompt was only sent in that time;
    60 ms that begin with the token of the last one are after it."""
    decoder = [*LEAD_IN, 581, *each(681, 981, 100), 1041, *each(1051, 1200, 10)]
    for sent_ms, steps, doubtful in ((505, 5, 1), (560, 4, 0)):
        long = shot("long", 981.1, sent_ms=sent_ms)
        found = measure_stall([shot("decoder", *decoder), long], (PromptCost(8000, 8000, (0.4,)),))
        assert found is not None
        assert (found.steps, found.doubtful, found.plain) == (steps, doubtful, True)
    # where it is not known what prompts take alone
    assert stall(shot("decoder", *decoder), long).steps == 4
    late = [
        *LEAD_IN,
        *STEPS,
        950.05,
        *each(960, 1200, 10),
    ]  # the last step's token is late, and the next one comes with it
    assert stall(shot("decoder", *late), shot("long", 950.1, sent_ms=505)).steps == 4


def test_a_rest_that_looks_like_a_quiet_gap() -> None:
    """The line between 10 and 100 ms is at 31.6: a last step of (31.6 - 10) / (100 - 10) of the
    others is below it."""
    assert stall(shot("decoder", *DECODER), LONG).rest == pytest.approx(0.24, abs=0.001)
    assert stall(shot("decoder", *each(100, 1200, 10)), LONG).rest == 0


def test_one_step() -> None:
    decoder = [*LEAD_IN, 950, *each(960, 1200, 10)]
    found = stall(shot("decoder", *decoder), shot("decoder", *decoder), LONG)
    assert (found.steps, found.plain, found.longest_s) == (1, True, pytest.approx(0.4))
    assert found.share == pytest.approx(400 / 445)


def test_undisturbed() -> None:
    found = stall(shot("decoder", *each(100, 1200, 10)), LONG)
    assert (found.pace, found.plain) == (pytest.approx(1), False)
    assert found.meanwhile == 45  # at 510, 520, ..., 950


def test_a_decoder_that_got_two_tokens_in_one_chunk_does_not_count_as_one_that_was_stalled_longer() -> (
    None
):
    merged = [ms for ms in DECODER if ms != 750]
    found = stall(
        shot("decoder", *DECODER),
        shot("decoder", *merged, output=len(DECODER)),
        shot("decoder", *DECODER),
        LONG,
    )
    assert found.steps == 4
    assert found.longest_s == pytest.approx(0.1)


def test_chunks_of_two_tokens() -> None:
    """A step may have given both (speculation), or two steps one chunk: it is counted as one, and
    the budget is wider."""
    decoder = [*each(100, 540, 20), *each(740, 940, 200), *each(960, 1200, 20)]
    found = stall(
        shot("decoder", *decoder, output=2 * len(decoder)),
        shot("long", 940, sent_ms=545, tokens=4000),
    )
    assert found.quiet_s == pytest.approx(0.02)
    assert found.steps == 2  # two gaps of 200 ms


def test_undisturbed_chunks_of_two_tokens() -> None:
    decoder = each(100, 1200, 10)
    assert stall(shot("decoder", *decoder, output=2 * len(decoder)), LONG).pace == pytest.approx(1)


def test_who_had_ended() -> None:
    ends = [ms for ms in DECODER if ms <= 750]
    found = stall(
        shot("decoder", *DECODER), shot("decoder", *DECODER), shot("decoder", *ends), LONG
    )
    # 4, 4 and 2 gaps of 100 ms: the median
    assert (found.decoders, found.ended, found.steps) == (3, 1, 4)


def test_who_ended_before_it_had_all_its_tokens_says_nothing() -> None:
    ends = [ms for ms in DECODER if ms <= 750]
    found = stall(shot("decoder", *DECODER), shot("decoder", *ends, asked_output=500), LONG)
    assert (found.decoders, found.ended) == (1, 0)


def test_a_prompt_that_waited_for_the_end_of_all() -> None:
    decoders = [shot("decoder", *each(100, end, 10)) for end in (700, 750, 800)]
    found = stall(*decoders, shot("long", 1100, sent_ms=505))
    assert (found.decoders, found.ended) == (3, 3)
    assert found.after_s == pytest.approx(0.3)


def test_a_pair() -> None:
    pair = [shot("long", first, sent_ms=505, kind="pair") for first in (750, 950)]
    found = stall(shot("decoder", *DECODER, kind="pair"), *pair)
    assert (found.kind, found.ttft_s, found.apart_s) == (
        "pair",
        pytest.approx(0.445),
        pytest.approx(0.2),
    )


@pytest.mark.parametrize(
    "shots",
    [
        [LONG],
        [shot("decoder", *DECODER)],
        [shot("decoder", *DECODER), shot("long", sent_ms=505, outcome="http_500")],
        [shot("decoder", *DECODER, outcome="http_500"), LONG],
        # one of a pair
        [shot("decoder", *DECODER), LONG, shot("long", sent_ms=505, outcome="timeout")],
        [shot("decoder", *each(600, 1200, 10)), LONG],  # it began when the prompt had come
        [shot("decoder", *each(100, 500, 10)), LONG],  # it had ended by then
    ],
    ids=[
        "no decoder",
        "no prompt",
        "prompt failed",
        "decoder failed",
        "half a pair",
        "too late",
        "too early",
    ],
)
def test_no_stall(shots: list[ProbeResult]) -> None:
    assert measure_stall(shots) is None
    assert measure_probe(shots).stalls == ()


# -- the others ------------------------------------------------------------------------------------


def test_what_prompts_take_alone() -> None:
    found = measure_probe(
        [
            *(
                shot("long", ms, kind="alone", episode=i, tokens=1000)
                for i, ms in enumerate((90, 100, 150))
            ),
            shot("long", 300, kind="alone", episode=3, tokens=2000, input_tokens=1990),
            shot("long", kind="alone", episode=4, tokens=4000, outcome="http_400"),
        ]
    )
    assert found.costs == (
        PromptCost(1000, 1000, (0.09, 0.1, 0.15)),
        PromptCost(2000, 1990, (0.3,)),
    )
    assert (found.requests, found.failed, found.episodes) == (5, 1, 5)
    assert found.token_s == pytest.approx(0.2 / 990)
    assert [found.alone_s(tokens) for tokens in (1000, 1500, 2000)] == pytest.approx(
        [0.1, 0.2, 0.3]
    )
    assert found.alone_s(500) is found.alone_s(4000) is None


def test_quiet_and_lost_time() -> None:
    """Nine gaps of 10 ms and one of 60: of 150 ms, 50 are somebody else's. While not all decode,
    nothing counts."""
    early, late = (
        shot("decoder", 10, 100, *each(110, 150, 10), 210, *each(220, 250, 10), kind="quiet"),
        100,
    )
    found = measure_probe([early, shot("decoder", late, 260, kind="quiet", output=17)])
    # of the second: one gap of 160 ms that ends after the first one's last token
    assert found.quiet_s == pytest.approx(0.015)
    assert found.lost == pytest.approx(50 / 150)
    steady = shot("decoder", *each(100, 200, 10), 230, kind="quiet")
    assert measure_probe([steady]).lost == 0  # three times the median is none yet
    slower = shot("decoder", *each(100, 800, 50), kind="quiet", episode=1)
    assert measure_probe([steady, slower]).lost == 0  # each by its own median


def test_who_waited_behind_a_long_prompt() -> None:
    found = measure_probe(
        [
            shot("long", 1000, kind="behind"),
            shot("short", 1010, sent_ms=200, kind="behind", tokens=32),
            shot("short", 430, sent_ms=400, kind="behind", tokens=32),
            shot("short", 1030, sent_ms=1001, kind="behind", tokens=32),  # too late
            shot("short", sent_ms=300, kind="behind", tokens=32, outcome="http_429"),
        ]
    )
    assert [one.ttft_s for one in found.behind] == pytest.approx([0.81, 0.03])
    assert [one.waited for one in found.behind] == pytest.approx([81 / 80, 0.05])


@pytest.mark.parametrize(
    ("first_ms", "side_by_side"),
    [
        ([100, 200, 300, 400, 500, 600, 700, 800], 1),
        ([200, 200, 400, 400, 600, 600, 800, 800], 2),
        ([300, 301, 302, 600, 601, 602, 800, 801], 3),
        ([798, 799, 799, 800, 800, 800, 800, 800], 8),
        ([250, 400, 400, 400, 650, 800, 800, 800], 4),  # who came first was alone for a moment
        ([590, 600, 600, 600, 600, 600, 700], 6),  # one is left over, and comes a share later
        ([120, 180, 290, 390, 520, 610, 690, 800], 1),  # one by one, not evenly
        # the first is too late for one by one, too early for all
        ([250, 350, 450, 550, 600, 700, 750, 800], 0),
    ],
)
def test_a_burst(first_ms: list[int], side_by_side: int) -> None:
    shots = [shot("long", ms, kind="burst", turn=2, tokens=4000) for ms in reversed(first_ms)]
    (burst,) = measure_probe(shots).bursts
    assert burst == BurstResult(2, 4000, tuple(ms / 1e3 for ms in first_ms))
    assert burst.side_by_side == side_by_side
    assert measure_probe([*shots, shot("long", kind="burst", outcome="http_500")]).bursts == ()


def test_the_same_prompt_twice() -> None:
    found = measure_probe(
        [
            shot("long", 400, kind="again", turn=1, episode=1),
            shot("long", 25, kind="again", turn=1, episode=2, cached_tokens=7984),
            # the second time of this round was not seen
            shot("long", 410, kind="again", turn=2, episode=3),
            shot("long", 420, kind="again", turn=3, episode=4),
            shot("long", kind="again", turn=3, episode=5, outcome="http_500"),
        ]
    )
    assert [
        (one.input_tokens, one.first_s, one.again_s, one.cached_tokens) for one in found.cached
    ] == [(8000, 0.4, 0.025, 7984)]


def test_a_short_request_and_early_events() -> None:
    found = measure_probe(
        [
            shot("short", 60, 70, kind="warm", episode=0, tokens=32, early_s=0.02),
            shot("short", 50, 60, kind="warm", episode=1, tokens=32),
        ]
    )
    assert (found.short_s, found.early_s) == (0.05, pytest.approx(0.04))


def test_tokens_a_chunk() -> None:
    shots = [
        shot("decoder", *each(100, 290, 10), kind="quiet", output=output) for output in (20, 60)
    ]
    assert measure_probe(shots).tokens_a_chunk == 2


def test_nothing() -> None:
    assert measure_probe([]) == ProbeMeasurements(0, 0, 0, None)


# -- whatever comes --------------------------------------------------------------------------------


KINDS = ("warm", "alone", "quiet", "stall", "pair", "again", "behind", "burst")


@st.composite
def anything(draw: st.DrawFn) -> ProbeResult:
    """Of the episode with that number, as any server might answer. No two chunks have the same
    stamp."""
    episode, sent_ms, at_ms = draw(st.integers(0, 15)), draw(st.integers(0, 1000)), []
    gaps = draw(st.lists(st.integers(1, 400), max_size=12))
    for gap in gaps:
        at_ms.append((at_ms or [sent_ms])[-1] + gap)
    return shot(
        draw(st.sampled_from(["long", "short", "decoder"])), *at_ms, sent_ms=sent_ms,
        episode=episode,
        kind=KINDS[episode % 8], turn=episode // 8, tokens=draw(st.sampled_from([32, 250, 8000])),
        output=draw(st.integers(0, 30)), outcome=draw(st.sampled_from([OK, OK, "http_500"])),
    )  # fmt: skip


@examples(60)
@given(st.lists(anything(), max_size=25))
def test_whatever_was_seen_has_symptoms_and_a_diagnosis(shots: list[ProbeResult]) -> None:
    found = measure_probe(shots)
    assert found.requests == len(shots)
    assert found.failed == sum(not one.ok for one in shots)
    assert all(stall.steps >= 0 and stall.ended <= stall.decoders for stall in found.stalls)
    # it would take three lengths in each of two rounds
    assert diagnose_scheduler(found).name == CANNOT_TELL
    assert measure_probe(shots[::-1]).lost == pytest.approx(found.lost)


def test_chunks_in_pairs_are_steps_of_their_own_and_no_usual_gap() -> None:
    """Each step's token comes together with the next one's: gaps of 100 and of 0 ms, steps of 50.
    The median is 0."""
    pairs = [
        *LEAD_IN,
        *(ms for step in (650, 750, 850, 950) for ms in (step, step)),
        *each(960, 1200, 10),
    ]
    found = stall(shot("decoder", *pairs), LONG)
    # the last 0 is after the first token
    assert (found.steps, found.usual_s) == (7, pytest.approx(0.05))
    assert found.pace == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kinds", "outcome", "cut"),
    [
        ("warm", OK, (0, 2)),
        ("warm alone", OK, (0, 2)),
        ("warm alone", "http_400", None),  # the context ends there, and with it the probe
        ("warm quiet stall1", OK, (1, 2)),
        ("warm quiet stall1 burst1", OK, (1, 2)),
        ("warm quiet stall2", "timeout", None),  # the server gave up
        ("warm quiet stall2", CUT, (2, 2)),
        ("warm quiet stall1 stall2 burst2", OK, None),
        ("warm quiet stall1 stall2 burst2", "timeout", None),
        ("warm quiet stall1 stall2 burst2", CUT, (2, 2)),
    ],
)
def test_a_probe_that_was_ended_before_its_time(
    kinds: str, outcome: str, cut: tuple[int, int] | None
) -> None:
    """``outcome``: of the last. The second warm-up has the number 1, and is of no round."""
    words = kinds.split()
    shots = []
    for i, word in enumerate(words):
        turn = 1 if word == "warm" else int(word[-1]) if word[-1].isdigit() else 0
        last = i == len(words) - 1
        shots.append(
            shot(
                "long",
                10,
                kind=word.rstrip("12"),
                turn=turn,
                episode=i,
                rounds=2,
                outcome=outcome if last else OK,
            )
        )
    assert measure_probe(shots).cut == cut
    # nobody says how many there should be
    assert measure_probe([one._replace(rounds=0) for one in shots]).cut is None


stamps = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0001, 2.0, 3.5]), max_size=8).map(
    lambda some: tuple(sorted(some))
)
wild = st.builds(
    ProbeResult,
    episode=st.integers(0, 3),
    kind=st.sampled_from(["warm", "alone", "quiet", "stall", "pair", "again", "behind", "burst"]),
    round=st.integers(0, 2),
    role=st.sampled_from(["decoder", "long", "short"]),
    outcome=st.sampled_from([OK, "timeout"]),
    asked_tokens=st.integers(0, 3),
    input_tokens=st.integers(0, 3),
    output_tokens=st.integers(0, 9),
    asked_output_tokens=st.integers(0, 9),
    sent_at=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    chunk_at=stamps,
).map(lambda one: one._replace(chunk_at=tuple(at for at in one.chunk_at if at >= one.sent_at)))


@given(st.lists(wild, max_size=24))
@examples(300)
def test_whatever_was_seen_there_are_symptoms_and_a_diagnosis(some: list[ProbeResult]) -> None:
    found = measure_probe(some)
    for one in found.stalls:
        assert one.pace >= 0
        assert one.share >= 0
    for burst in found.bursts:
        assert 0 <= burst.side_by_side <= len(burst.ttft_s)
    for behind in found.behind:
        assert behind.waited >= 0
    assert found.token_s is None or found.token_s == found.token_s
    diagnose_scheduler(found)
