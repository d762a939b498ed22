"""The roofline by hand."""

import pytest

from locust_llm.simulator.scheduling.step_cost import (
    GPU,
    GPUS,
    MODELS,
    CostModel,
    StepCostConstants,
    step_duration_s,
)

H100 = StepCostConstants(model=MODELS["llama-3.1-8b"], gpu=GPUS["h100"])
A100 = StepCostConstants(model=MODELS["llama-3.1-8b"], gpu=GPUS["a100-40"])

# Round numbers: reading the weights takes 2 ms, a token's linear layers 0.02 ms (so 100 tokens
# break even), a thousand tokens of KV 1 ms, a million attention pairs 4 ms; 1 ms a step, 0.1 ms a
# sequence.
ROUND = StepCostConstants(
    model=CostModel(
        parameters=1e9,
        weight_bytes=2e9,
        num_layers=10,
        hidden_size=100,
        kv_bytes_per_token=10**6,
        max_model_len=10**6,
    ),
    gpu=GPU(
        memory_bytes=10e9, bandwidth=1e12, flops=1e14, max_num_batched_tokens=100, max_num_seqs=10
    ),
    bandwidth_efficiency=1.0,
    mfu=1.0,
    attention_mfu=0.01,
    step_overhead_s=1e-3,
    seq_overhead_s=1e-4,
)


@pytest.mark.parametrize(
    ("segments", "ms"),
    [
        ([(999, 1)], 2 + 1 + 0 + 1 + 0.1),  # a decode has no attention term
        ([(999, 1)] * 10, 2 + 10 + 0 + 1 + 1.0),
        # 50 * 25 pairs; under 100 tokens the weights bind
        ([(0, 50)], 2 + 0.05 + 1250 * 4e-6 + 1 + 0.1),
        ([(0, 1000)], 20 + 1 + 2 + 1 + 0.1),  # 1000 * 500 pairs
        ([(1000, 1000)], 20 + 2 + 6 + 1 + 0.1),  # 1000 * 1500 pairs: a later chunk costs more
        ([(1999, 1), (0, 1000)], 20.02 + 3 + 2 + 1 + 0.2),
    ],
)
def test_a_step_with_round_numbers(segments, ms):
    assert step_duration_s(ROUND, segments) * 1e3 == pytest.approx(ms, rel=1e-12)


def test_two_chunks_have_as_many_pairs_as_the_whole_prompt():
    attention = (
        ROUND.model.num_layers
        * ROUND.model.hidden_size
        * 4
        / (ROUND.gpu.flops * ROUND.attention_mfu)
    )
    whole = 2000 * 1000
    assert (1000 * 500 + 1000 * 1500) * attention == pytest.approx(whole * attention)


def test_llama_on_an_h100():
    # 16.06 / (3.35 * 0.981) = 4.887 ms weights, 131072 * 1000 / 3.286e12 = 0.0399 ms KV, 2.55 ms,
    #   0.0113 ms
    assert step_duration_s(H100, [(999, 1)]) == pytest.approx(7.488e-3, rel=1e-3)
    # 8192 * 28.439 us = 233.0 ms, KV 0.327 ms, 4 * 32 * 4096 * 8192^2 / 2 / (989e12 * 0.4) = 44.47
    # ms, 2.56 ms
    assert step_duration_s(H100, [(0, 8192)]) == pytest.approx(280.3e-3, rel=1e-3)


def test_decodes_may_be_given_as_sums():
    apart = [(99, 1), (199, 1), (0, 50)]
    assert step_duration_s(ROUND, apart[2:], 2, 300) == pytest.approx(
        step_duration_s(ROUND, apart), rel=1e-12
    )


def test_kv_cache_is_what_the_memory_leaves_in_whole_blocks():
    assert H100.kv_tokens == 396_256  # (72 - 16.06 - 4) GB / 131072 B = 396,270.7
    assert A100.kv_tokens == 121_600  # (36 - 16.06 - 4) GB / 131072 B = 121,612.5
