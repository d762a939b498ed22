"""What --load and --set mean, and which combinations no server runs with."""

import math
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.twin.twin_model import SchedulerSettings
from locust_llm.lab.twin.virtual_replay import OfferedLoad
from locust_llm.lab.twin.whatif import whatif_grid

FITTED = SchedulerSettings(policy="chunked", max_num_batched_tokens=2048)
WHOLE = st.integers(1, 10_000)


def test_a_range_doubles_as_a_sweep_does():
    assert [load.users for load in whatif_grid.parse_load_values("concurrency=1..100")] == [
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        100,
    ]
    assert [load.users for load in whatif_grid.parse_load_values("concurrency=8..24+8")] == [
        8,
        16,
        24,
    ]
    assert whatif_grid.parse_load_values("request-rate=0.5..3") == [
        OfferedLoad(rate=0.5),
        OfferedLoad(rate=1.0),
        OfferedLoad(rate=2.0),
        OfferedLoad(rate=3.0),
    ]


@given(st.sets(WHOLE, min_size=1, max_size=20))
def test_a_list_is_its_numbers_in_order(values):
    text = ",".join(map(str, values))
    assert [load.users for load in whatif_grid.parse_load_values(f"concurrency={text}")] == sorted(
        values
    )
    assert whatif_grid.parse_setting_choice(f"max-num-batched-tokens={text}").values == tuple(
        sorted(values)
    )


@given(WHOLE, st.integers(0, 12))
def test_a_range_begins_and_ends_with_its_numbers(low, times):
    values = whatif_grid.parse_setting_choice(f"max-num-seqs={low}..{low * 2**times}").values
    assert values == tuple(low * 2**i for i in range(times + 1))


@given(st.text(max_size=30))
def test_any_text_is_understood_or_refused(text):
    for read in (whatif_grid.parse_load_values, whatif_grid.parse_setting_choice):
        for asked in (text, f"concurrency={text}", f"max-num-seqs={text}", f"policy={text}"):
            with suppress(ValueError):
                read(asked)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("budget=512", "one of policy, max-num-batched-tokens"),
        ("max-num-batched-tokens=none", "a server always has a max-num-batched-tokens"),
        ("max-num-seqs=1.5", "takes whole numbers"),
        ("policy=magic", "there is no policy 'magic'"),
        ("max-num-seqs=0", "must rise and start above 0"),
        ("max-num-seqs=1..200+1", "more than 100 values"),
    ],
)
def test_what_cannot_be_set(text, why):
    with pytest.raises(ValueError, match=why):
        whatif_grid.parse_setting_choice(text)


def test_none_is_no_limit():
    choices = [
        whatif_grid.parse_setting_choice("prefill-concurrency=none,1,2"),
        whatif_grid.parse_setting_choice("max_num_seqs=none,64"),
    ]
    cases = whatif_grid.make_grid([OfferedLoad(users=4)], choices, FITTED)
    assert len(cases) == 6
    assert cases[0].what_if == (OfferedLoad(users=4), math.inf, None)
    assert cases[0].name == "prefill-concurrency=none max-num-seqs=none"
    limited = cases[3].what_if
    assert limited.prefill_limit == 1
    assert limited.settings == msgspec.structs.replace(FITTED, max_num_seqs=64)


def test_the_loads_of_one_combination_stand_together():
    cases = whatif_grid.make_grid(
        [OfferedLoad(users=1), OfferedLoad(users=2)],
        [whatif_grid.parse_setting_choice("max-num-batched-tokens=512,2048")],
        FITTED,
    )
    assert [(case.values, case.what_if.load.users) for case in cases] == [
        ("512", 1),
        ("512", 2),
        ("2048", 1),
        ("2048", 2),
    ]
    assert cases[2].what_if.settings is None, "as it was fitted"


def test_a_grid_has_an_end():
    choices = [
        whatif_grid.parse_setting_choice(f"{key}=1..100+1")
        for key in ("max-num-seqs", "max-num-batched-tokens", "prefill-concurrency")
    ]
    with pytest.raises(ValueError, match=r"1,000,000 what-ifs, and at most 20,000"):
        whatif_grid.make_grid([OfferedLoad(users=1)], choices, FITTED)
    with pytest.raises(ValueError, match="max-num-seqs is given twice"):
        whatif_grid.make_grid([OfferedLoad(users=1)], choices[:1] * 2, FITTED)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kv_tokens": 1000}, "a KV cache of 1,000 tokens does not hold a request of 1,100"),
        (
            {"policy": "mixed", "max_num_batched_tokens": 512},
            "one of 1,000 tokens is above a budget of 512",
        ),
        (
            {"max_num_batched_tokens": 64, "max_num_seqs": 128},
            "128 sequences of one token each are above a budget of 64",
        ),
        (
            {"policy": "mixed", "long_prefill_token_threshold": 100},
            "mixed has no long-prefill-token-threshold",
        ),
        ({"max_num_partial_prefills": 2}, "chunked has no max-num-partial-prefills"),
        ({"max_num_batched_tokens": 512}, ""),
    ],
)
def test_what_no_server_runs_with(change, why):
    found = whatif_grid.explain_impossible(
        msgspec.structs.replace(FITTED, **change), [(1000, 100), (10, 10)]
    )
    assert why in found
    assert bool(why) == bool(found)
