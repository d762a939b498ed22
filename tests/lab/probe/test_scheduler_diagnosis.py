"""The rule that names the scheduler, from hand-made symptoms: each name, each "cannot tell", and
whatever else comes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.examples import examples

from locust_llm.lab.probe.probe_measurements import (
    BurstResult,
    CachedPrompt,
    DecoderStall,
    ProbeMeasurements,
    PromptCost,
    QueuedShortRequest,
)
from locust_llm.lab.probe.scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    DISAGGREGATED,
    PARTIAL,
    PREFILL_FIRST,
    STATIC,
    Diagnosis,
    diagnose_scheduler,
)

SIZES = (8000, 16_000, 32_000)
ROUNDS = (1, 2, 3)
QUIET_S = 0.001
"""A step of 512 tokens takes 16 ms, sixteen times that: such steps are plain."""


def alone_s(tokens: int) -> float:
    """32,000 tokens take a second."""
    return tokens / 32_000


def stall(tokens: int, turn: int, kind: str = "stall", **fields: Any) -> DecoderStall:
    """Three decoders that kept their pace, if nothing else is said."""
    usual: dict[str, Any] = {
        "ttft_s": alone_s(tokens), "meanwhile": alone_s(tokens) / QUIET_S,
        "steps": alone_s(tokens) / QUIET_S,
        "surely": alone_s(tokens) / QUIET_S, "rest": 0.25,
        "plain": False, "longest_s": QUIET_S, "usual_s": QUIET_S, "quiet_s": QUIET_S, "decoders": 3,
        "ended": 0,
        "after_s": -1.0,
    }  # fmt: skip
    return DecoderStall(
        kind=kind, round=turn, asked_tokens=tokens, input_tokens=tokens, **(usual | fields)
    )


def in_steps(
    tokens: int, turn: int, budget: int, kind: str = "stall", apart_s: float = 0.0
) -> DecoderStall:
    """Computed in steps of that many tokens, beside three decoders that get a token in each."""
    steps = -(-tokens // (budget - 3))
    took = alone_s(tokens)
    return stall(
        tokens, turn, kind, steps=steps, surely=steps, meanwhile=steps, plain=True,
        usual_s=took / steps,
        longest_s=took / steps, apart_s=apart_s,
    )  # fmt: skip


def found(
    one: Callable[[int, int], DecoderStall],
    side_by_side: int = 1,
    pair: DecoderStall | None = None,
    **fields: Any,
) -> ProbeMeasurements:
    """Eight prompts of 4,000 tokens that came together, in groups; pairs that fit that."""
    pair = pair or stall(16_000, 1, "pair", apart_s=0.0 if side_by_side > 1 else 0.5)
    groups = [0.125 * side_by_side * (1 + i // side_by_side) for i in range(8)]
    usual: dict[str, Any] = {
        "requests": 100, "failed": 0, "episodes": 40, "short_s": 0.02, "quiet_s": QUIET_S,
        "lost": 0.0, "decoders": 3,
        "tokens_a_chunk": 1.0,
        "costs": tuple(PromptCost(tokens, tokens, (alone_s(tokens),) * 4) for tokens in (4000,
            *SIZES)),
        "stalls": (*(one(tokens, turn) for turn in ROUNDS for tokens in SIZES), pair),
        "behind": tuple(QueuedShortRequest(turn, 0.7, 0.7) for turn in ROUNDS),
        "bursts": tuple(BurstResult(turn, 4000, tuple(groups)) for turn in ROUNDS),
    }  # fmt: skip
    return ProbeMeasurements(**(usual | fields))


def static(tokens: int, turn: int) -> DecoderStall:
    return stall(tokens, turn, ttft_s=alone_s(tokens) + 2, ended=3, after_s=alone_s(tokens))


def one_step(tokens: int, turn: int) -> DecoderStall:
    took = alone_s(tokens)
    return stall(
        tokens, turn, steps=1, surely=1, meanwhile=1, plain=True, usual_s=took, longest_s=took
    )


def chunked(tokens: int, turn: int) -> DecoderStall:
    return in_steps(tokens, turn, 512)


def disaggregated(tokens: int, turn: int) -> DecoderStall:
    return stall(tokens, turn, ttft_s=1.1 * alone_s(tokens))


EACH = {
    STATIC: found(static),
    PREFILL_FIRST: found(one_step),
    CHUNKED: found(chunked),
    PARTIAL: found(chunked, side_by_side=4),
    DISAGGREGATED: found(disaggregated),
}


def cannot(diagnosis: Diagnosis, *words: str) -> None:
    assert diagnosis.name == CANNOT_TELL
    said = " ".join(diagnosis.missing)
    assert all(word in said for word in words), said


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
def test_each_name(name: str) -> None:
    said = diagnose_scheduler(EACH[name])
    assert said.name == name, said
    assert said.reasons
    assert not said.missing
    assert said == diagnose_scheduler(EACH[name], "OK")
    assert said.slots == {CHUNKED: 1, PARTIAL: 4}.get(name)
    assert (said.budget is None) == (name not in (CHUNKED, PARTIAL))


@pytest.mark.parametrize("budget", [256, 512, 1024, 2048, 4096])
def test_the_budget(budget: int) -> None:
    """32,000 tokens in steps of 509 are 63: more than 62 steps hold, no more than 63 do; one in
    twenty may be miscounted."""
    burst = tuple(BurstResult(turn, 8000, tuple(0.25 * i for i in range(1, 9))) for turn in ROUNDS)
    said = diagnose_scheduler(
        found(lambda tokens, turn: in_steps(tokens, turn, budget), bursts=burst)
    )
    assert said.name == CHUNKED
    assert said.budget is not None
    low, about, high = said.budget
    steps = -(-32_000 // (budget - 3))
    assert low <= budget <= high
    assert low <= about <= high
    # the last step may be too small to be seen
    assert low >= 32_000 / (steps + max(steps / 20, 0.25)) - 1e-6
    assert high <= 32_000 / (steps - 1 - round(steps / 20)) + 3
    assert about == pytest.approx(budget, rel=0.07)  # half a step of eight


def test_slots_are_at_least_as_many_as_came_together() -> None:
    assert [diagnose_scheduler(found(chunked, side_by_side=many)).slots for many in (2, 3, 8)] == [
        2,
        3,
        8,
    ]
    assert any(
        "at least 8" in reason
        for reason in diagnose_scheduler(found(chunked, side_by_side=8)).reasons
    )
    assert not any(
        "at least" in reason
        for reason in diagnose_scheduler(found(chunked, side_by_side=3)).reasons
    )


def test_a_wide_budget_looks_like_prefill_first_and_it_says_so() -> None:
    assert any(
        "32,000 tokens" in reason and "same" in reason
        for reason in diagnose_scheduler(EACH[PREFILL_FIRST]).reasons
    )


def test_short_requests_behind_a_long_one() -> None:
    def said(*waited_s: float, side_by_side: int = 1) -> Diagnosis:
        behind = tuple(QueuedShortRequest(turn, s, 0.7) for turn, s in enumerate(waited_s, 1))
        return diagnose_scheduler(found(chunked, behind=behind, side_by_side=side_by_side))

    assert "waited for it" in said(0.7, 0.7, 0.7).reasons[-1]
    assert (
        "2 of 3 short requests behind a long prompt did not wait"
        in said(0.7, 0.03, 0.03).reasons[-1]
    )
    assert "did not wait" in said(0.03, 0.03, 0.03, side_by_side=4).reasons[-1]
    nobody = said(0.03, 0.03, 0.03)
    assert nobody.name == CANNOT_TELL
    assert "partial prefills with one slot for long prompts" in nobody.missing[0]


def test_a_round_that_cannot_tell_does_not_hide_what_two_others_say() -> None:
    def odd(tokens: int, turn: int) -> DecoderStall:
        """In the second round a decoder ended."""
        return one_step(tokens, turn) if turn != 2 else stall(tokens, turn, ended=1)

    assert diagnose_scheduler(found(odd)).name == PREFILL_FIRST
    assert any("gave no name" in reason for reason in diagnose_scheduler(found(odd)).reasons)


# -- cannot tell -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("verdict", ["DEGRADED", "INVALID"])
def test_a_client_that_cannot_be_trusted(name: str, verdict: str) -> None:
    cannot(diagnose_scheduler(EACH[name], verdict), verdict)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"failed": 6}, ("6 of 100", "failed")),
        ({"lost": 0.3}, ("30%", "stalls")),
        ({"tokens_a_chunk": 2.0}, ("2.0 tokens",)),
        ({"stalls": ()}, ("no prompt could be measured while decoders run",)),
        ({"costs": ()}, ("no prompt could be measured while decoders run",)),
        ({"quiet_s": None}, ("no prompt could be measured while decoders run",)),
        ({"short_s": 0.5}, ("32,000 tokens", "1 s", "500 ms", "--longest")),
        ({"quiet_s": 0.2}, ("32,000 tokens", "200 ms", "--longest")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_doubts_about_the_measurement(
    name: str, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    cannot(diagnose_scheduler(replace(EACH[name], **fields)), *words)


@pytest.mark.parametrize("name", EACH)
def test_too_few_prompts(name: str) -> None:
    some = EACH[name].of("stall")
    for stalls in (
        [stall for stall in some if stall.round == 1],
        [stall for stall in some if stall.asked_tokens != 8000],
        [stall for stall in some if (stall.asked_tokens, stall.round) != (16_000, 2)],
    ):
        cannot(diagnose_scheduler(replace(EACH[name], stalls=tuple(stalls))), "all three lengths")


@pytest.mark.parametrize("name", EACH)
def test_a_prompt_that_does_not_take_the_same_time_when_it_is_alone(name: str) -> None:
    """One in four of each length took twice as long, or three times."""
    times = {32_000: 3}
    costs = tuple(
        replace(cost, ttft_s=(*cost.ttft_s[1:], times.get(cost.asked_tokens, 2) * cost.typical_s))
        for cost in EACH[name].costs
    )
    cannot(diagnose_scheduler(replace(EACH[name], costs=costs)), "varies", "1 s to 3 s")


@pytest.mark.parametrize(
    ("one", "other"), [(one_step, chunked), (chunked, disaggregated), (static, one_step)]
)
def test_rounds_that_disagree(
    one: Callable[..., DecoderStall], other: Callable[..., DecoderStall]
) -> None:
    cannot(
        diagnose_scheduler(found(lambda tokens, turn: (one if turn < 3 else other)(tokens, turn))),
        "rounds do not agree",
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ended": 1}, ("1 of 3 decoders", "slot")),
        # and then took far longer than alone
        ({"ended": 3, "after_s": 9.0}, ("3 of 3 decoders", "batch")),
        ({"ttft_s": 9.0}, ("undisturbed", "9 s")),
        ({"usual_s": QUIET_S / 0.89}, ("89%", "neither")),
        ({"longest_s": 0.22, "usual_s": 0.05, "steps": 4, "ttft_s": 0.27}, ("neither",)),
    ],
    ids=[
        "some ended",
        "late after all",
        "late, undisturbed",
        "hardly disturbed",
        "steps of unlike length",
    ],
)
def test_what_lies_between_two_names(fields: dict[str, Any], words: tuple[str, ...]) -> None:
    cannot(diagnose_scheduler(found(lambda tokens, turn: stall(tokens, turn, **fields))), *words)


def test_bursts_that_do_not_agree() -> None:
    bursts = (*EACH[PARTIAL].bursts[:2], *EACH[CHUNKED].bursts[:1])
    cannot(diagnose_scheduler(replace(EACH[PARTIAL], bursts=bursts)), "4, 4, 1", "slots")


def test_a_burst_that_is_neither_nor_does_not_hide_what_most_say() -> None:
    four = EACH[PARTIAL].bursts[0]
    neither = BurstResult(
        3, four.input_tokens, (0.19, 0.46, 0.46, 0.46, 0.61, 0.78, 0.78, 0.79)
    )  # one came before the others
    assert neither.side_by_side == 0
    said = diagnose_scheduler(replace(EACH[PARTIAL], bursts=(four, four, neither)))
    assert (said.name, said.slots, "4, 4, ?" in said.reasons[1]) == (PARTIAL, 4, True)
    cannot(diagnose_scheduler(replace(EACH[PARTIAL], bursts=(four, neither))), "4, ?", "slots")


def test_a_budget_is_of_the_rounds_in_which_steps_are_plain() -> None:
    plain = diagnose_scheduler(EACH[CHUNKED])
    blurred = tuple(
        replace(
            one, plain=False, steps=one.steps + 2, surely=one.steps - 2, meanwhile=one.steps + 9
        )
        if one.round == 1
        else one
        for one in EACH[CHUNKED].stalls
    )
    assert diagnose_scheduler(replace(EACH[CHUNKED], stalls=blurred)).budget == plain.budget
    everywhere = tuple(replace(one, plain=False) for one in EACH[CHUNKED].stalls)
    said = diagnose_scheduler(replace(EACH[CHUNKED], stalls=everywhere)).budget
    assert said is not None
    assert plain.budget is not None
    assert said[0] <= plain.budget[0] < plain.budget[2] < said[2]


def test_pauses_that_look_like_steps_widen_the_budget() -> None:
    """Of 8,192 tokens: 32,000 are 4 steps, and a fifth gap of each may be a pause."""
    burst = tuple(BurstResult(turn, 16_000, tuple(0.5 * i for i in range(1, 9))) for turn in ROUNDS)
    steps = [in_steps(tokens, turn, 8192) for turn in ROUNDS for tokens in SIZES]
    for doubtful in (0, 1):
        stalls = tuple(replace(one, steps=one.steps + 1.0, doubtful=doubtful) for one in steps)
        said = diagnose_scheduler(replace(EACH[CHUNKED], stalls=stalls, bursts=burst))
        assert said.budget is not None
        assert (said.budget[2] >= 8192) == bool(doubtful)
        assert any(
            "during 9 of 9 prompts the decoders had a gap that may be a step or a pause" in reason
            for reason in said.reasons
        ) == bool(doubtful)


def test_each_prompt_counts_with_the_tokens_that_it_came_to() -> None:
    """2,000 tokens a step: 16,000 in 8 steps, one of 16,100 in 9, the last one of 100 tokens; 8,000
    in 4, 4,000 in 2."""

    def step(tokens: int, turn: int) -> DecoderStall:
        one = in_steps(tokens // 2, turn, 2003)
        return (
            replace(one, input_tokens=one.input_tokens + 100, steps=one.steps + 1.0)
            if turn == 2
            else one
        )

    said = diagnose_scheduler(found(step)).budget
    assert said is not None
    low, _, high = said
    # 1,704: one step in twenty may not be seen; of 8,100 tokens in 5 1,543
    assert low == pytest.approx(16_100 / 9.45)
    assert high == pytest.approx(16_000 / 7 + 3)  # 2,286; of 8,000 in 4 steps 2,667


def test_a_probe_that_was_ended_before_its_time_says_so() -> None:
    few = tuple(one for one in EACH[CHUNKED].stalls if one.round == 1)
    said = diagnose_scheduler(replace(EACH[CHUNKED], stalls=few, cut=(1, 3)))
    assert said.missing == ("the probe was stopped early, in round 1 of 3: let it finish",)
    said = diagnose_scheduler(replace(EACH[CHUNKED], stalls=(), costs=(), cut=(0, 3)))
    assert said.missing == ("the probe was stopped early, before its first round: let it finish",)
    said = diagnose_scheduler(replace(EACH[CHUNKED], cut=(3, 3)))  # two rounds were enough
    assert (said.name, "the probe was stopped early, in round 3 of 3" in said.reasons) == (
        CHUNKED,
        True,
    )


def test_a_pair_and_a_burst_that_do_not_agree() -> None:
    pair = stall(16_000, 1, "pair", apart_s=0.0)
    cannot(diagnose_scheduler(found(chunked, side_by_side=1, pair=pair)), "two long prompts")


def test_bursts_that_were_not_seen() -> None:
    cannot(diagnose_scheduler(replace(EACH[CHUNKED], bursts=())), "not all")


def test_a_burst_of_prompts_that_share_a_step() -> None:
    bursts = tuple(BurstResult(turn, 600, (0.1,) * 8) for turn in ROUNDS)
    cannot(diagnose_scheduler(replace(EACH[CHUNKED], bursts=bursts)), "too many tokens")


# -- whatever there may be -------------------------------------------------------------------------

SECONDS = st.floats(1e-6, 1e4)
COUNT = st.integers(0, 200)
TOKENS = st.sampled_from([250, *SIZES])
STALLS = st.builds(
    DecoderStall, kind=st.sampled_from(["stall", "pair"]), round=st.integers(1, 3),
    asked_tokens=TOKENS,
    input_tokens=st.integers(1, 50_000), ttft_s=SECONDS, meanwhile=st.floats(0, 1e4),
    steps=st.floats(0, 1e4),
    surely=st.floats(0, 1e4), rest=st.floats(0, 2),
    plain=st.booleans(), longest_s=st.floats(0, 1e4), usual_s=SECONDS, quiet_s=SECONDS,
    decoders=st.integers(1, 6),
    ended=st.integers(0, 6), after_s=st.floats(-1e4, 1e4), apart_s=st.floats(0, 1e4),
)  # fmt: skip
TIMES = st.lists(SECONDS, min_size=1, max_size=9).map(sorted).map(tuple)
COSTS = st.lists(TOKENS, unique=True).map(sorted).flatmap(
    lambda sizes: st.tuples(*(st.builds(PromptCost, st.just(n), st.integers(1, 50_000),
        TIMES) for n in sizes))
)  # fmt: skip
MAYBE_S = st.none() | SECONDS
ANY = st.builds(
    ProbeMeasurements, requests=COUNT, failed=st.just(0) | COUNT, episodes=COUNT, short_s=MAYBE_S,
    costs=COSTS,
    quiet_s=MAYBE_S, lost=st.none() | st.floats(0, 0.3), decoders=st.integers(0, 6),
    stalls=st.lists(STALLS, max_size=12).map(tuple),
    behind=st.lists(st.builds(QueuedShortRequest, st.integers(1, 3), SECONDS, SECONDS),
        max_size=4).map(tuple),
    bursts=st.lists(st.builds(BurstResult, st.integers(1, 3), TOKENS, TIMES),
        max_size=4).map(tuple),
    cached=st.lists(st.builds(CachedPrompt, TOKENS, SECONDS, SECONDS, st.none() | COUNT),
        max_size=3).map(tuple),
    tokens_a_chunk=st.none() | st.floats(1, 2), early_s=MAYBE_S,
)  # fmt: skip
ALIKE = st.sampled_from(sorted(EACH))
"""Mostly as they should be: else hardly anything gets beyond the first doubts."""


@st.composite
def nearly(draw: st.DrawFn) -> ProbeMeasurements:
    """One of each name, of which some things are otherwise."""
    whole, other = EACH[draw(ALIKE)], draw(ANY)
    fields = (
        "short_s",
        "costs",
        "quiet_s",
        "lost",
        "behind",
        "bursts",
        "cached",
        "tokens_a_chunk",
        "failed",
    )
    some = draw(st.lists(st.sampled_from(fields), max_size=2))
    stalls = [
        draw(STALLS) if draw(st.integers(0, 9)) == 0 else stall
        for stall in (*whole.stalls, *EACH[draw(ALIKE)].stalls)
    ]
    kept = stalls[: draw(st.integers(0, 9))] + stalls[10 : 10 + draw(st.integers(0, 10))]
    return replace(
        whole, stalls=tuple(kept or whole.stalls), **{name: getattr(other, name) for name in some}
    )


@examples(150)
@given(ANY | nearly(), st.sampled_from([None, "OK", "DEGRADED", "INVALID"]))
def test_whatever_the_symptoms_there_is_a_diagnosis(
    e: ProbeMeasurements, client: str | None
) -> None:
    said = diagnose_scheduler(e, client)
    assert said.name in {*EACH, CANNOT_TELL}
    if said.name == CANNOT_TELL:
        assert said.missing
        assert all(said.missing)
    else:
        assert said.reasons
        assert not said.missing
        assert client in (None, "OK")
    if said.budget is not None:
        low, about, high = said.budget
        assert 0 <= low <= high
        assert low <= about <= high
    assert (said.slots is not None) == (said.name in (CHUNKED, PARTIAL))


def test_of_one_place_nothing_can_be_told() -> None:
    alone = [replace(one, decoders=1, ended=1) for one in EACH[STATIC].stalls]
    said = diagnose_scheduler(replace(EACH[STATIC], stalls=tuple(alone), decoders=1))
    assert (said.name, "one request runs at a time" in said.missing[0]) == (CANNOT_TELL, True)


def test_decoders_that_are_not_disturbed_alike_are_of_several_servers() -> None:
    """Two of three kept their pace; the median decoder would look undisturbed."""
    uneven = tuple(replace(one, uneven=1.5) for one in EACH[DISAGGREGATED].stalls)
    cannot(
        diagnose_scheduler(replace(EACH[DISAGGREGATED], stalls=uneven)),
        "1.5 times the gaps",
        "several servers",
    )
    uneven = tuple(replace(one, uneven=40.0) for one in EACH[DISAGGREGATED].stalls)
    said = diagnose_scheduler(replace(EACH[DISAGGREGATED], stalls=uneven))
    assert (said.name, "several servers" in said.missing[0]) == (CANNOT_TELL, True)


def test_with_more_servers_than_decoders_the_prompts_may_have_met_none() -> None:
    bursts = tuple(
        replace(one, ttft_s=tuple(0.5 * (1 + i // 4) for i in range(8)))
        for one in EACH[DISAGGREGATED].bursts
    )
    said = diagnose_scheduler(replace(EACH[DISAGGREGATED], bursts=bursts))
    assert (said.name, "4 prompts were computed side by side" in said.missing[0]) == (
        CANNOT_TELL,
        True,
    )


def test_chunks_that_come_together_say_nothing_of_steps() -> None:
    said = diagnose_scheduler(replace(EACH[CHUNKED], shared=0.5))
    assert (said.name, "50% of the chunks" in said.missing[0]) == (CANNOT_TELL, True)
