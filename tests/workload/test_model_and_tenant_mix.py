"""Mixes: names as servers have them, weights of any size, and draws that come again with their
seed."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from locust_llm.workload.conversation import ConversationSource
from locust_llm.workload.dataset_formats import DatasetSession, Turn
from locust_llm.workload.model_and_tenant_mix import (
    TenantDealer,
    format_canonical_mix,
    hide_header_value,
    parse_model_mix,
    parse_shares,
    parse_tenant_headers,
    parse_tenant_priorities,
    parse_tenant_weights,
    parse_weights,
)
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

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
    assert parse_weights(text) == found
    assert parse_weights(format_canonical_mix(text)) == found


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
        parse_weights(text)
    assert "\n" not in str(refused.value)


def test_weights_become_shares() -> None:
    assert parse_shares("a=3,b=1") == {"a": 0.75, "b": 0.25}
    draw, random = parse_model_mix(MIX), Random(1)
    drawn = Counter(draw(random) for _ in range(10_000))
    for name, share in parse_shares(MIX).items():
        assert drawn[name] / 10_000 == pytest.approx(
            share, abs=4 * (share * (1 - share) / 10_000) ** 0.5
        )


def sessions(mix: str | None = MIX, seed: int | None = 4, worker: int = 0) -> ConversationSource:
    prompts = Prompts(PromptLengthModel(), seed=seed, worker=worker)
    return ConversationSource(
        prompts,
        turns=(3, 1),
        seed=seed,
        worker=worker,
        models=parse_model_mix(mix) if mix else None,
    )


def begun(source: ConversationSource) -> list[str | None]:
    return [source.begin().model for _ in range(40)]


def test_a_process_has_the_same_sequence_in_each_run() -> None:
    first = begun(sessions())
    assert set(first) == set(parse_weights(MIX))
    assert begun(sessions()) == first
    for other in (sessions(seed=5), sessions(worker=1), sessions(seed=None)):
        assert begun(other) != first


def test_a_session_of_a_file_has_a_model_too() -> None:
    item = DatasetSession(id="theirs", turns=(Turn(messages=[], row=1),), row=1)
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


# -- tenants ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (parse_tenant_weights, "gold", "--tenant-mix takes NAME=WEIGHT pairs"),
        (
            parse_tenant_weights,
            "gold=1,free=0",
            "--tenant-mix: the weight of 'free' must be above 0",
        ),
        (parse_tenant_weights, "gold=1,gold=2", "--tenant-mix has the tenant 'gold' twice"),
        (parse_tenant_weights, "gold one=1", "goes into a header"),
        (parse_tenant_weights, "g\u00f6ld=1", "goes into a header"),
        (parse_tenant_priorities, "gold", "--tenant-priority takes NAME=WHOLE NUMBER"),
        (parse_tenant_priorities, "gold=0.5", "--tenant-priority takes NAME=WHOLE NUMBER"),
        (parse_tenant_priorities, "gold=1,gold=1", "has the tenant 'gold' twice"),
        (parse_tenant_priorities, "", "--tenant-priority takes"),
    ],
)
def test_what_is_of_no_tenant(read: Callable[[str], object], text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(text)


def test_headers_of_tenants_and_no_value_in_a_refusal() -> None:
    texts = ["gold:Authorization=Bearer a=b", "gold:x-a= 1 ", "free:x-a="]
    assert parse_tenant_headers(texts) == {
        "gold": {"Authorization": "Bearer a=b", "x-a": "1"},
        "free": {"x-a": ""},
    }
    assert [hide_header_value(text) for text in texts] == [
        "gold:Authorization=***",
        "gold:x-a=***",
        "free:x-a=",
    ]
    for text in (
        "x-a=secret",
        "gold:x a=secret",
        "gold:x-a=secret\n",
        "gold:Host=secret",
        "=secret",
    ):
        with pytest.raises(ValueError, match="--tenant-header") as refused:
            parse_tenant_headers([text])
        assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="twice"):
        parse_tenant_headers(["gold:X-A=1", "gold:x-a=2"])


@pytest.mark.parametrize("before", [0, 3])
def test_users_are_dealt_within_one_of_their_shares(before: int) -> None:
    wanted = parse_shares("gold=20,free=70,c=10", "tenant")
    dealt = TenantDealer(wanted, before)
    names = [dealt.of(user) for user in range(40)]
    assert [dealt.of(user) for user in range(40)] == names  # a user keeps its own
    for count in range(40):
        for name, share in wanted.items():
            assert abs(names[:count].count(name) - share * count) <= 1 + bool(before)
    for user in range(30):
        dealt.leave(user)
        dealt.leave(user)
    again = [dealt.of(user) for user in range(100, 130)]
    assert Counter(again + names[30:]) == Counter(names)
