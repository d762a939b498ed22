"""Limits of a server, where a sweep went beyond them."""

import pytest
from support.probing import Noise, Server

from locust_llm.twin.capacity import limited

from .models import h100, sweep

NOISE = Noise(steps=0.1, network_s=0.001, merged=0.02)


@pytest.mark.parametrize("noise", [Noise(), NOISE])
def test_places_are_found_where_users_waited_for_them(noise: Noise) -> None:
    stages = sweep(Server(budget=1024, num_seqs=24), (1, 16, 64, 128), noise)
    assert limited(h100(), stages).max_num_seqs == pytest.approx(24, abs=1)


@pytest.mark.parametrize("noise", [Noise(), NOISE])
def test_none_is_found_where_nobody_waited(noise: Noise) -> None:
    found = limited(h100(), sweep(Server(budget=1024), (1, 16, 64, 128), noise))
    assert (found.max_num_seqs, found.kv_tokens) == (None, None)


def test_a_sweep_that_stayed_below_the_limit_shows_none() -> None:
    assert limited(h100(), sweep(Server(budget=1024, num_seqs=24), (1, 16))).max_num_seqs is None
