"""The noise of a server, from the gaps of decoders."""

import pytest
from support.probing import Noise, Server

from locust_llm.twin import noise as twin_noise

from .models import probe


def test_without_noise_there_is_hardly_any() -> None:
    found = twin_noise.noise(probe(Server(budget=1024)))
    assert found.step_sigma < 0.005
    assert (found.chunk_s, found.merged, found.pause_s, found.pause_every_s) == (0, 0, 0, 0)


def test_steps_and_chunks_are_told_apart() -> None:
    found = twin_noise.noise(probe(Server(budget=1024), Noise(steps=0.1, network_s=0.001, merged=0.02)))
    assert found.step_sigma == pytest.approx(0.1, rel=0.3)
    assert found.chunk_s == pytest.approx(0.001, rel=0.3)
    assert 0.005 < found.merged < 0.04


def test_pauses_are_found() -> None:
    found = twin_noise.noise(probe(Server(budget=1024), Noise(steps=0.05, hiccups_s=0.06)))
    assert found.pause_s == pytest.approx(0.06, rel=0.1)
    assert 0.7 < found.pause_every_s < 5


def test_of_nothing_there_is_nothing() -> None:
    assert twin_noise.noise([]).step_sigma == 0
