"""How much longer a probe takes, by pencil."""

import pytest

from locust_llm.probe.progress import PRIOR_S, Progress, place
from locust_llm.probe.requests import Episode, ProbeRequest


def episode(kind: str, tokens: int, expected_s: float, later: tuple[Episode, ...] | None = ()) -> Episode:
    return Episode(kind, 1, (ProbeRequest("long", 0.0, tokens, 4),), expected_s, later)


ROUND = (episode("stall", 1000, 4.0), episode("stall", 2000, 6.0), episode("burst", 500, 10.0))
FIRST = ROUND[0]._replace(later=(*ROUND[1:], *ROUND))


def test_before_the_schedule_is_known_nothing_is() -> None:
    early = episode("alone", 250, 0.5, None)
    progress = Progress()
    assert progress.left_s(early) is None
    progress.ended(early, 3.0)
    assert progress.left_s(FIRST) == 40.0
    assert place(2, early, 46, None) == "episode 3 of about 46"


def test_what_episodes_took_corrects_the_estimates() -> None:
    progress = Progress()
    progress.ended(FIRST, 8.0)  # twice as long; the same one of the second round will be too
    ratio = (PRIOR_S + 8) / (PRIOR_S + 4)
    second = ROUND[1]._replace(later=FIRST.later[1:] if FIRST.later else ())
    assert progress.left_s(second) == pytest.approx(8 + ratio * (6 + 10 + 6 + 10))
    progress.ended(second, 5.0)
    longer = episode("burst", 9000, 10.0, ROUND)  # the prompts of a burst are sized when it comes
    progress.ended(longer, 20.0)
    assert progress.left_s(ROUND[0]._replace(later=ROUND[1:])) == 8 + 5 + 20


def test_its_words() -> None:
    assert place(3, FIRST, 46, 110.4) == "episode 4 of 9, about 1:50 left"
    assert place(8, ROUND[2], 46, 4.4) == "episode 9 of 9, about 0:04 left"
