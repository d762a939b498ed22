"""Reuse: the share asked for comes out by whole blocks, prefixes take turns, and none repeats what
it should not."""

from itertools import islice, pairwise

import pytest

from locust_llm.workload.dataset_formats import DatasetSession
from locust_llm.workload.length_distributions import (
    combine_lengths,
    normal_length,
    parse_length_mix,
)
from locust_llm.workload.prefix_reuse import PREFIXES, PrefixReuse
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

PLAIN = PromptLengthModel(1.0, 10.0, head_tokens=5)


def reuse(
    share: float, tokens: str = "550,8:100", *, block: int = 16, working_set: int | None = None
) -> PrefixReuse:
    return PrefixReuse(
        parse_length_mix(tokens), share, seed="1", block=block, working_set=working_set
    )


def some(of: PrefixReuse, count: int) -> list[DatasetSession]:
    return list(islice(of.prompts(), count))


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.8, 0.9])
@pytest.mark.parametrize(
    "tokens", ["550,8:100", "2000|500,8:100", "lognormal:1500|900,8:60;uniform:300..400,8:40"]
)
def test_whole_blocks_come_to_the_share_asked_for(share: float, tokens: str) -> None:
    items = some(reuse(share, tokens), 1_000)
    total = sum(item.turns[0].input_tokens or 0 for item in items)
    shared = sum((item.turns[0].prefix or (0, 0))[1] // 16 * 16 for item in items)
    assert shared / total == pytest.approx(share, abs=0.003)


def test_by_pencil() -> None:
    """60 % of 200 tokens are 120, in blocks of 32: four are 8 too many, then 16, three make up for
    it."""
    of = PrefixReuse(
        combine_lengths(normal_length(200), normal_length(8)),
        0.6,
        seed="1",
        block=32,
        working_set=300,
    )
    assert (of.depth, of.count) == (4, 3)  # 128 tokens each
    assert [item.turns[0].prefix for item in of.prime()] == [(0, 144), (1, 144), (2, 144)]
    assert [item.turns[0].prefix for item in some(of, 4)] == [
        (0, 144),
        (1, 144),
        (2, 112),
        (0, 144),
    ]
    assert [(item.turns[0].prefix or (0, 0))[0] for item in some(of, 3)] == [1, 2, 0]  # it goes on


def test_a_working_set_is_as_large_as_asked_for_and_without_one_there_are_ten_prefixes() -> None:
    assert reuse(0.8).count == PREFIXES
    assert reuse(0.8).depth == 28  # 440 tokens
    assert reuse(0.8, working_set=448 * 7).count == 7
    assert reuse(0.8, working_set=448 * 7 + 1).count == 8
    assert (reuse(0.0).count, list(reuse(0.0).prime())) == (0, [])


def test_what_prompts_cannot_repeat_is_not_owed_for_ever() -> None:
    """Of 40 tokens a block at most, whatever is asked."""
    assert {item.turns[0].prefix for item in some(reuse(0.9, "40,8:100"), 30)} == {
        (n, 24) for n in range(PREFIXES)
    }


def test_prompts_share_their_prefix_and_not_a_word_more() -> None:
    prompts = Prompts(PLAIN, seed=1, salt="a")
    texts = [
        prompts.reused(200, number, shared)[0].split()
        for number, shared in ((0, 100), (1, 100), (0, 150), (0, 100))
    ]
    assert all(len(words) == 190 for words in texts)

    def common(a: int, b: int) -> int:
        return next(
            at
            for at, (one, other) in enumerate(zip(texts[a], texts[b], strict=True))
            if one != other
        )

    # and five of the template's head
    assert (common(0, 2), common(0, 3), common(2, 3)) == (95, 95, 95)
    assert common(0, 1) < 6
    assert prompts.reused(200, 0, 100)[1] == 100


def test_another_run_with_the_same_seed_shares_nothing_with_this_one() -> None:
    """Also without a prefix, where prompts begin with their number."""
    runs = [Prompts(PLAIN, seed=1, salt=salt) for salt in ("a", "b")]
    firsts = (
        [of.reused(200, 0, 100)[0].split()[:6] for of in runs],
        [of.text(200).split()[0] for of in runs],
    )
    assert all(one != other for words in firsts for one, other in pairwise(words))
