"""How much longer a probe takes, by pencil; and on simulated servers, in virtual time."""

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from support.probing import Noise, Server, carried_out, engine

from locust_llm.lab.probe.episode_requests import ProbeEpisode, ProbeRequest
from locust_llm.lab.probe.probe_experiments import ProbeBounds, schedule_episodes
from locust_llm.lab.probe.probe_progress import (
    LIKE,
    NEW,
    SAME_KIND_SPREAD,
    ProbeProgress,
    TimeLeft,
    format_probe_position,
)
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual_time import Virtual


def episode(
    kind: str, tokens: int, expected_s: float, later: tuple[ProbeEpisode, ...] | None = ()
) -> ProbeEpisode:
    return ProbeEpisode(kind, 1, (ProbeRequest("long", 0.0, tokens, 4),), expected_s, later)


ROUND = (episode("stall", 1000, 4.0), episode("stall", 2000, 6.0), episode("burst", 500, 10.0))
FIRST = ROUND[0]._replace(later=(*ROUND[1:], *ROUND))


def test_before_the_schedule_is_known_nothing_is() -> None:
    early = episode("alone", 250, 0.5, None)
    progress = ProbeProgress()
    assert progress.left(early) is None
    progress.ended(early, 3.0)
    assert progress.left(FIRST) == pytest.approx((NEW[0] * 40, NEW[1] * 40))
    assert format_probe_position(2, early, 46, None) == "episode 3 of about 46"


def test_what_episodes_took_corrects_the_estimates_of_those_like_them() -> None:
    progress = ProbeProgress()
    progress.ended(FIRST, 8.0)  # twice as long as expected
    second = ROUND[1]._replace(later=FIRST.later[1:] if FIRST.later else ())
    least_s = 2 * ((1 - SAME_KIND_SPREAD) * 4 + (1 - LIKE) * (6 + 6) + NEW[0] * (10 + 10))
    most_s = 2 * ((1 + SAME_KIND_SPREAD) * 4 + (1 + LIKE) * (6 + 6) + NEW[1] * (10 + 10))
    assert progress.left(second) == pytest.approx((least_s, most_s))
    progress.ended(second, 6.0)
    longer = episode("burst", 9000, 20.0, ROUND)  # the prompts of a burst are sized when it comes
    progress.ended(longer, 10.0)
    whole = 2 * 4 + 6 + 0.5 * 10
    again = ROUND[0]._replace(later=ROUND[1:])
    assert progress.left(again) == pytest.approx(
        (whole * (1 - SAME_KIND_SPREAD), whole * (1 + SAME_KIND_SPREAD))
    )


def test_its_words() -> None:
    assert (
        format_probe_position(3, FIRST, 46, TimeLeft(84, 151))
        == "episode 4 of 9, 1:20 to 2:30 left"
    )
    assert (
        format_probe_position(3, FIRST, 46, TimeLeft(100, 121)) == "episode 4 of 9, about 1:50 left"
    )
    assert (
        format_probe_position(8, ROUND[2], 46, TimeLeft(4.2, 4.6))
        == "episode 9 of 9, about 0:04 left"
    )


def lefts(server: Server, seed: int) -> Iterator[tuple[int, float, TimeLeft]]:
    """(round, seconds that were left, what was said) at the begin of each episode of the rounds."""
    random, clock, noise = Random(seed), VirtualClock(), Noise(steps=0.1, network_s=0.001)
    run = Virtual(clock, engine(server, clock, noise, random), keep_tokens=True)
    probe, progress, texts, said = (
        schedule_episodes(ProbeBounds()),
        ProbeProgress(),
        count(1),
        list[tuple[int, float, TimeLeft]](),
    )
    episode = next(probe)
    for number in count():
        began = clock.now
        if (left := progress.left(episode)) is not None:
            said.append((episode.round, began, left))
        came = carried_out(episode, number, run, server, noise, random, texts)
        clock.run(clock.now + 0.05)
        progress.ended(episode, clock.now - began)
        try:
            episode = probe.send(came)
        except StopIteration:
            break
    yield from ((turn, clock.now - at, left) for turn, at, left in said)


@pytest.mark.parametrize(
    "server",
    [
        Server(),
        pytest.param(Server(budget=2048, gpu="a40"), marks=pytest.mark.full),
        pytest.param(Server(policy="prefill-first"), marks=pytest.mark.full),
        pytest.param(Server(policy="disaggregated"), marks=pytest.mark.full),
    ],
    ids=lambda server: server.policy,
)
def test_the_time_that_is_left_lies_between_the_ends_that_are_said(server: Server) -> None:
    said = list(lefts(server, 7))
    assert len(said) == 39 - 1 or len(said) > 30
    inside = [left.least_s - 1 <= true_s <= left.most_s + 1 for _, true_s, left in said]
    assert sum(inside) >= 0.9 * len(said)
    last_rounds = [left.most_s / left.least_s for turn, _, left in said if turn > 1]
    assert max(last_rounds) < 1.25
