"""The noise of a server, from the gaps of decoders."""

from itertools import cycle
from random import Random

import numpy as np
import pytest
from support.probing import Noise, Server

from locust_llm.lab.twin import scheduler_fit as twin_noise
from locust_llm.lab.twin import twin_model as twin_model
from locust_llm.lab.twin.server_observations import IdleEpisode, ObservedRequest
from locust_llm.lab.twin.twin_engine import draw_step_factor
from locust_llm.lab.twin.virtual_replay import replay_episodes

from .models import plain, probe


def test_without_noise_there_is_hardly_any() -> None:
    found = twin_noise.fit_noise(probe(Server(budget=1024)))
    assert found.step_sigma < 0.005
    assert (found.chunk_s, found.merged, found.pause_s, found.pause_every_s) == (0, 0, 0, 0)


def test_steps_and_chunks_are_told_apart() -> None:
    found = twin_noise.fit_noise(
        probe(Server(budget=1024), Noise(steps=0.1, network_s=0.001, merged=0.02))
    )
    assert found.step_sigma == pytest.approx(0.1, rel=0.3)
    assert found.chunk_s == pytest.approx(0.001, rel=0.3)
    assert 0.005 < found.merged < 0.04


def test_pauses_are_found() -> None:
    found = twin_noise.fit_noise(probe(Server(budget=1024), Noise(steps=0.05, hiccups_s=0.06)))
    assert found.pause_s == pytest.approx(0.06, rel=0.1)
    assert 0.7 < found.pause_every_s < 5


def test_of_nothing_there_is_nothing() -> None:
    assert twin_noise.fit_noise([]).step_sigma == 0


def stalls(short: float, long: float) -> list[IdleEpisode]:
    """Four prompts of three steps beside a decoder, as ``MODEL`` has them, but for the gaps: two
    short ones are longer by this share, the next two shorter; the long ones too."""
    decoder, prompt = (
        ObservedRequest(0.0, (0.02, 0.03), 10, 60),
        ObservedRequest(0.405, (0.8, 0.81), 2995, 2),
    )
    replay = replay_episodes(MODEL, [IdleEpisode("stall", (decoder, prompt))])
    first, found, at = replay.first_at[1], list[IdleEpisode](), replay.token_at[0]
    for number in range(4):
        signs = cycle((1, 1, -1, -1) if number % 2 else (-1, -1, 1, 1))
        gaps = [gap * (1 + next(signs) * (long if gap > 0.05 else short)) for gap in np.diff(at)]
        moments = np.concatenate([[0.02], 0.02 + np.cumsum(gaps)])
        came = float(moments[list(at).index(first)])
        begin = float(np.interp(0.405 + at[0] - 0.02, at, moments))
        beside = ObservedRequest(begin, (came, came + 0.01), 2995, 2)
        found.append(IdleEpisode("stall", (decoder._replace(token_at=tuple(moments)), beside)))
    return found


MODEL = plain(0.01, 1e-4)
"""Steps of 10.1 ms for a decoder, of 110 ms for a thousand tokens of a prompt."""


def test_long_steps_may_be_more_alike_than_short_ones() -> None:
    found = twin_noise.fit_noise(stalls(short=0.2, long=0.02), MODEL)
    assert found.step_sigma == pytest.approx(0.03, rel=0.1)  # 1.4826 times a median deviation of 2%
    assert found.step_s == pytest.approx(0.2 * 0.0101, rel=0.1)
    assert twin_noise.fit_noise(stalls(short=0.2, long=0.02)).step_sigma == pytest.approx(
        0.2, rel=0.05
    )


def test_steps_that_are_unlike_in_proportion_have_no_other_noise() -> None:
    found = twin_noise.fit_noise(stalls(short=0.1, long=0.1), MODEL)
    assert found.step_sigma == pytest.approx(0.1, rel=0.05)
    assert found.step_s == 0


def test_a_fixed_deviation_is_less_of_a_long_step() -> None:
    """20 ms are 10% of a step of 200 ms, and 1% of one of 2 s."""
    drawn = draw_step_factor(twin_model.Noise(step_s=0.02), Random(1))
    logs = [np.log([drawn(took_s) for _ in range(4000)]) for took_s in (0.2, 2.0)]
    assert [np.std(one) for one in logs] == pytest.approx([0.1, 0.01], rel=0.05)
    assert np.mean(np.exp(logs[0])) == pytest.approx(1, abs=0.01)
