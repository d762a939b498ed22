"""Limits of a server, where a sweep went beyond them."""

import msgspec
import pytest
from support.probing import Noise, Server

from locust_llm.lab.twin.scheduler_fit import fit_limits, list_limits

from .models import h100, sweep

NOISE = Noise(steps=0.1, network_s=0.001, merged=0.02)
LOUD = Noise(steps=0.2, network_s=0.002, merged=0.05, hiccups_s=0.03)


@pytest.mark.parametrize("noise", [Noise(), NOISE])
def test_places_are_found_where_users_waited_for_them(noise: Noise) -> None:
    stages = sweep(Server(budget=1024, num_seqs=24), (1, 16, 64, 128), noise)
    assert fit_limits(h100(), stages).max_num_seqs == pytest.approx(24, abs=1)


@pytest.mark.parametrize("noise", [Noise(), NOISE])
def test_none_is_found_where_nobody_waited(noise: Noise) -> None:
    found = fit_limits(h100(), sweep(Server(budget=1024), (1, 16, 64, 128), noise))
    assert (found.max_num_seqs, found.kv_tokens) == (None, None)


def test_a_sweep_that_stayed_below_the_limit_shows_none() -> None:
    assert fit_limits(h100(), sweep(Server(budget=1024, num_seqs=24), (1, 16))).max_num_seqs is None


def test_a_limit_is_not_there_to_mend_what_the_model_is_off_by_anyway() -> None:
    """128 users wait for prompts, not for places. With 59 places a model with dear streams would be
    nearer, but it is further off with 1 user, who waits for nothing."""
    server, model = Server(budget=384), h100(budget=414)
    cost = model.cost
    dear = msgspec.structs.replace(
        cost, fixed_s=1.15 * cost.fixed_s, token_s=0.85 * cost.token_s, stream_s=2.3 * cost.stream_s
    )
    stages = sweep(server, (1, 4, 128), LOUD)
    assert fit_limits(msgspec.structs.replace(model, cost=dear), stages).max_num_seqs is None


def test_a_cache_holds_the_longest_sequence_that_was_answered() -> None:
    """24 places look like a cache of so many tokens; a sequence that is longer than the cache says
    that it is none."""
    stages = sweep(Server(budget=1024, num_seqs=24), (1, 16, 64, 128), NOISE)
    caches = [one.kv_tokens for one in list_limits(h100().settings, stages, 0) if one.kv_tokens]
    assert caches
    assert not any(one.kv_tokens for one in list_limits(h100().settings, stages, max(caches) + 1))
    assert len(list(list_limits(h100().settings, stages, max(caches)))) < len(
        list(list_limits(h100().settings, stages, 0))
    )
