"""What a diagnosis leaves to be tried."""

from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.probe.scheduler_diagnosis import (
    CHUNKED,
    DISAGGREGATED,
    PARTIAL,
    PREFILL_FIRST,
    Diagnosis,
)
from locust_llm.lab.twin.scheduler_fit import list_budgets, list_candidate_settings
from locust_llm.lab.twin.twin_model import Origin


def test_a_budget_is_tried_over_its_range_with_the_round_ones() -> None:
    tried = [
        one.max_num_batched_tokens
        for one in list_candidate_settings(Diagnosis(CHUNKED, (960.0, 1030.0, 1130.0), 1), 30_000)
    ]
    assert tried[0] == 960
    assert tried[-1] == 1130
    assert 1024 in tried


def test_prompts_side_by_side_are_a_threshold_or_places() -> None:
    tried = list_candidate_settings(Diagnosis(PARTIAL, (500.0, 512.0, 520.0), 4), 30_000)
    assert {one.policy for one in tried} == {"chunked", "partial-prefills"}
    assert any(
        (one.max_num_batched_tokens, one.long_prefill_token_threshold) == (2048, 512)
        for one in tried
    )
    assert any(
        (one.max_num_batched_tokens, one.max_num_partial_prefills) == (512, 4) for one in tried
    )


def test_whole_prompts_fit_into_every_budget_that_is_tried() -> None:
    tried = list_candidate_settings(Diagnosis(PREFILL_FIRST), 30_000)
    assert {one.policy for one in tried} == {"prefill-first", "mixed"}
    assert min(one.max_num_batched_tokens for one in tried) > 30_000


def test_slots_that_a_server_tells_are_those_of_llamacpp() -> None:
    said = Diagnosis(CHUNKED, (960.0, 1030.0, 1130.0), 1)
    tried = list_candidate_settings(said, 30_000, Origin(slots=8, common_prefix_tokens=12))
    assert {(one.policy, one.max_num_seqs, one.common_prefix_tokens) for one in tried} == {
        ("llama.cpp", 8, 12)
    }
    assert 1024 in [one.max_num_batched_tokens for one in tried]


def test_what_the_simulator_has_not_is_no_candidate() -> None:
    assert list_candidate_settings(Diagnosis(DISAGGREGATED), 30_000) == []


@given(st.floats(1, 1e5), st.floats(1, 3))
def test_budgets_are_within_the_range_rising_and_not_too_many(low: float, ratio: float) -> None:
    found = list_budgets(low, low * ratio)
    assert found == sorted(set(found))
    assert all(low - 1 <= one <= low * ratio + 1 for one in found)
    assert 1 <= len(found) <= 40
