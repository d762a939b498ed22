"""Replays: the simulated server once more, and what its times were made of."""

import numpy as np
import pytest
from support.probing import Server

from locust_llm.lab.twin.server_observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.lab.twin.twin_model import FrontendDelay, StepCosts
from locust_llm.lab.twin.virtual_replay import as_replayed, replay_episodes, replay_stage

from .models import H100, h100, plain, probe, sweep


@pytest.mark.parametrize(
    ("server", "model"),
    [
        (Server(budget=1024), h100()),
        (Server(budget=2048, threshold=512), h100(budget=2048, long_prefill_token_threshold=512)),
        (Server(policy="prefill-first"), h100("prefill-first", 131_072)),
        (Server(policy="static"), h100("static", 131_072)),
    ],
)
def test_with_the_true_costs_every_request_is_as_it_was(server: Server, model) -> None:
    episodes = probe(server)
    replay, requests = (
        replay_episodes(model, episodes),
        [one for episode in episodes for one in episode.requests],
    )
    assert replay.ttft_s == pytest.approx([one.ttft_s for one in requests])
    assert replay.decode_s == pytest.approx([one.decode_s for one in requests])
    assert replay.stall_s == pytest.approx([one.stall_s for one in requests])


def test_a_closed_loop_is_as_it_was() -> None:
    (stage,) = sweep(Server(budget=1024), (16,))
    # two that were sent at the same moment may have changed places
    replay = replay_stage(h100(), stage)
    assert sorted(replay.sent_at) == pytest.approx(
        [one.sent_at - stage.requests[0].sent_at for one in stage.requests]
    )
    assert replay.ttft_s.mean() == pytest.approx(
        np.mean([one.ttft_s for one in stage.requests]), rel=1e-3
    )


def test_the_parts_of_a_time_sum_up_to_it() -> None:
    replay = replay_episodes(h100(), probe(Server(budget=1024)))
    costs = np.array(
        [
            H100.fixed_s,
            H100.token_s,
            H100.stream_s,
            H100.context_s,
            H100.pair_s,
            0.0,
            H100.admission_s,
        ]
    )
    until_first, later = replay.parts(H100.free_tokens)
    assert until_first @ costs == pytest.approx(replay.ttft_s)
    assert later @ costs == pytest.approx(replay.decode_s, abs=1e-9)


def test_parts_by_hand() -> None:
    """2,500 tokens in steps of 1,000 of 10 ms and 10 us a token: 20, 20 and 15 ms; then two tokens
    of 10.01 ms."""
    one = ObservedRequest(5.0, (5.1, 5.2, 5.3), prompt_tokens=2500, output_tokens=3)
    replay = replay_episodes(plain(0.01, 1e-5), [IdleEpisode("alone", (one,))])
    assert replay.ttft_s == pytest.approx([0.055])
    assert replay.decode_s == pytest.approx([0.02002])
    until_first, later = replay.parts(0.0)
    own = 500_000 + 500_000 + 125_000
    assert until_first[0] == pytest.approx(
        [3, 2500, 3, 1000 + 2000 + 2500, own + 1000 * 1000 + 500 * 2000, own, 1]
    )
    assert later[0] == pytest.approx([2, 2, 2, 2501 + 2502, 0, 0, 0], abs=0.01)
    # the last step has fewer tokens than are free
    assert replay.parts(600)[0][0][1] == pytest.approx(400 + 400)


def test_a_front_comes_before_the_scheduler() -> None:
    one = ObservedRequest(0.0, (0.1,), prompt_tokens=100, output_tokens=1)
    model = plain(0.01)
    model = type(model)(
        settings=model.settings, cost=model.cost, front=FrontendDelay(request_s=0.2, token_s=0.001)
    )
    replay = replay_episodes(model, [IdleEpisode("alone", (one,))])
    assert replay.ttft_s == pytest.approx([0.2 + 0.1 + 0.01])
    assert replay.parts(0.0)[0][0][0] == pytest.approx(1.0)


def test_who_comes_while_others_are_admitted_shares_their_step() -> None:
    """Admissions of 5 ms, steps of 10 ms: the one of 2 ms is admitted before the first step, that
    of 12 ms after it."""
    requests = tuple(
        ObservedRequest(at, (1.0,), prompt_tokens=100, output_tokens=1)
        for at in (0.0, 0.002, 0.012)
    )
    model = plain(0.01)
    model = type(model)(
        settings=model.settings, cost=StepCosts(fixed_s=0.01, token_s=0.0, admission_s=0.005)
    )
    replay = replay_episodes(model, [IdleEpisode("alone", requests)])
    assert replay.ttft_s == pytest.approx([0.02, 0.018, 0.02 - 0.012 + 0.005 + 0.01])
    until_first, _ = replay.parts(0.0)
    assert until_first[:, 0] == pytest.approx([1, 1, 1.8], abs=1e-6)  # of the first step 8 of 10 ms
    assert until_first[:, 6] == pytest.approx([2, 1.6, 1], abs=1e-6)


@pytest.mark.parametrize("admission_s", [0.0, 0.005])
def test_who_is_admitted_is_counted_though_it_takes_no_time(admission_s: float) -> None:
    one = ObservedRequest(0.0, (0.1, 0.2), prompt_tokens=100, output_tokens=2)
    model = plain(0.01)
    model = type(model)(
        settings=model.settings, cost=StepCosts(fixed_s=0.01, token_s=0.0, admission_s=admission_s)
    )
    replay = replay_episodes(model, [IdleEpisode("alone", (one,))])
    assert replay.parts(0.0)[0][0] == pytest.approx([1, 100, 1, 100, 5000, 5000, 1], rel=1e-6)


def test_what_never_ends_has_no_times() -> None:
    """A prompt that is longer than a step, of a server that computes prompts whole."""
    one = ObservedRequest(0.0, (0.1,), prompt_tokens=2000, output_tokens=1)
    model = plain().with_settings(h100("mixed", 1000).settings)
    assert np.isnan(replay_stage(model, ObservedStage(0, 1.0, (one,))).ttft_s).all()


def test_equal_prompts_are_compared_in_the_order_in_which_each_was_answered() -> None:
    """The server took the one that was sent last first: 10 ms for each."""
    first, last = ObservedRequest(0.0, (0.02,), 100, 1), ObservedRequest(0.0, (0.01,), 100, 1)
    burst = IdleEpisode("burst", (first, last))
    replay = replay_episodes(plain(0.01, budget=100), [burst])
    assert replay.ttft_s == pytest.approx([0.01, 0.02])
    assert as_replayed(replay, [burst]) == [last, first]


def test_decoders_are_not_exchanged_for_prompts() -> None:
    decoder = ObservedRequest(0.0, (0.01, 0.02, 0.5), 10, 3)
    prompts = [ObservedRequest(0.1, (at,), 100, 1) for at in (0.4, 0.3)]
    pair = IdleEpisode("pair", (decoder, *prompts))
    replay = replay_episodes(plain(0.01, budget=101), [pair])
    assert as_replayed(replay, [pair]) == [decoder, prompts[1], prompts[0]]
