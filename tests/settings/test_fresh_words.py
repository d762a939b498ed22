"""Which runs send words that no earlier run sent."""

import pytest

from locust_llm.settings.run_options import Settings


@pytest.mark.parametrize(
    ("settings", "fresh"),
    [
        (Settings(), False),
        (Settings(random_seed=7), False),
        (Settings(random_seed=7, fresh_words=True), True),
        (Settings(random_seed=7, prefix_cache_hit_rate=50.0), True),
        (Settings(random_seed=7, candidate="http://b"), True),
        (Settings(random_seed=7, aa=True), True),
        (Settings(random_seed=7, slo=("ttft p95 within 5% of reports/base",)), True),
        (Settings(random_seed=7, slo=("ttft p95 < 1s",)), False),
        # a dataset is sent as it is, unless that was asked for
        (Settings(slo=("ttft p95 within 5% of reports/base",), input_file="a.jsonl"), False),
        (Settings(fresh_words=True, input_file="a.jsonl"), True),
    ],
)
def test_who_sends_fresh_words(settings: Settings, fresh: bool) -> None:
    assert settings.sends_fresh_words == fresh
