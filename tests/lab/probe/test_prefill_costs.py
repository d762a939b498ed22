"""Prices of prompts from the folder of a probe."""

from pathlib import Path

import msgspec
import pytest

from locust_llm.lab.probe.prefill_costs import prefill_cost_per_token_s, read_prompt_costs


def test_the_price_of_a_token_from_a_probe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a finished probe"):
        prefill_cost_per_token_s(tmp_path)
    costs = [
        {"asked_tokens": n, "input_tokens": n, "ttft_s": [s]}
        for n, s in ((1000, 0.05), (3000, 0.11))
    ]
    for known, price in ((costs, 30e-6), (costs[:1], None)):
        facts = {"examination": {"symptoms": {"costs": known, "shots": 9}, "outcome": "named"}}
        (tmp_path / "run.json").write_bytes(msgspec.json.encode(facts))
        if price:
            assert prefill_cost_per_token_s(tmp_path) == pytest.approx(price)
            assert [prompt.typical_s for prompt in read_prompt_costs(tmp_path)] == [0.05, 0.11]
        else:
            with pytest.raises(ValueError, match="gives no time per token"):
                prefill_cost_per_token_s(tmp_path)
