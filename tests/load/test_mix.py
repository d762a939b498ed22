"""Model mix: names as servers have them, weights of any size, and draws that come again with their seed."""

from collections import Counter
from random import Random

import pytest

from locust_llm.load.conversation import Sessions
from locust_llm.load.formats import Item, Turn
from locust_llm.load.mix import canonical, models, shares, weights
from locust_llm.load.prompts import Lengths, Prompts

MIX = "base=60,adapter-a=30,adapter-b=10"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (MIX, {"base": 60, "adapter-a": 30, "adapter-b": 10}),
        (" org/base:v1 = 0.5 , a=b=2,", {"org/base:v1": 0.5, "a=b": 2}),
        ("one=1e3", {"one": 1000}),
    ],
)
def test_a_name_ends_at_its_last_equals_sign(text: str, found: dict[str, float]) -> None:
    assert weights(text) == found
    assert weights(canonical(text)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("base", "takes NAME=WEIGHT pairs"),
        ("=3", "takes NAME=WEIGHT pairs"),
        (",", "takes NAME=WEIGHT pairs"),
        ("a=0", "the weight of 'a' must be above 0"),
        ("a=-1", "the weight of 'a' must be above 0"),
        ("a=nan", "the weight of 'a' must be above 0"),
        ("a=", "the weight of 'a' must be above 0"),
        ("a=1,b=2,a=3", "has the model 'a' twice"),
        (",".join(f"m{n}=1" for n in range(101)), "at most 100 models, got 101"),
    ],
)
def test_what_is_no_mix(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        weights(text)
    assert "\n" not in str(refused.value)


def test_weights_become_shares() -> None:
    assert shares("a=3,b=1") == {"a": 0.75, "b": 0.25}
    draw, random = models(MIX), Random(1)
    drawn = Counter(draw(random) for _ in range(10_000))
    for name, share in shares(MIX).items():
        assert drawn[name] / 10_000 == pytest.approx(share, abs=4 * (share * (1 - share) / 10_000) ** 0.5)


def sessions(mix: str | None = MIX, seed: int | None = 4, worker: int = 0) -> Sessions:
    prompts = Prompts(Lengths(), seed=seed, worker=worker)
    return Sessions(prompts, turns=(3, 1), seed=seed, worker=worker, models=models(mix) if mix else None)


def begun(source: Sessions) -> list[str | None]:
    return [source.begin().model for _ in range(40)]


def test_a_process_has_the_same_sequence_in_each_run() -> None:
    first = begun(sessions())
    assert set(first) == set(weights(MIX))
    assert begun(sessions()) == first
    for other in (sessions(seed=5), sessions(worker=1), sessions(seed=None)):
        assert begun(other) != first


def test_a_session_of_a_file_has_a_model_too() -> None:
    item = Item(id="theirs", turns=(Turn(messages=[], row=1),), row=1)
    source = sessions()
    assert [source.begin(item).model for _ in range(40)] == begun(sessions())


def test_a_session_with_a_name_keeps_its_model_in_every_process() -> None:
    names = [f"session {n}" for n in range(40)]
    first = [sessions().model(name) for name in names]
    assert len(set(first)) > 1
    one, neighbour = sessions(), sessions(worker=1)
    assert [one.model(name) for name in reversed(names)] == first[::-1]
    assert [neighbour.model(name) for name in names] == first


def test_the_rest_of_the_load_is_the_same_without_a_mix() -> None:
    with_mix, without = sessions(), sessions(None)
    assert [(talk.id, talk.turns) for talk in (with_mix.begin() for _ in range(20))] == [
        (talk.id, talk.turns) for talk in (without.begin() for _ in range(20))
    ]
    assert without.begin().model is without.model("x") is None


def test_both_blocks_of_a_pair_ask_for_the_same_models() -> None:
    source = sessions()
    source.begin_block("pair 1")
    first = begun(source)
    source.begin_block("pair 1")
    assert begun(source) == first
