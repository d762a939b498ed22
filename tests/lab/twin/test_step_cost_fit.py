"""The cost fit: what the simulator was given is found again."""

import msgspec
import numpy as np
import pytest
from support.probing import Noise, Server

from locust_llm.lab.twin.step_cost_fit import (
    BLOCK,
    Terms,
    draw_costs,
    fit_cost,
    group_replays,
    make_equations,
    solve_rows,
)
from locust_llm.lab.twin.twin_model import ServerModel, StepCosts, step_work

from .models import H100, again, h100, plain, probe, sweep

BEGIN = StepCosts(fixed_s=0.02, token_s=5e-5)


def begin(model: ServerModel) -> ServerModel:
    return msgspec.structs.replace(model, cost=BEGIN)


def test_without_noise_the_costs_are_those_of_the_server() -> None:
    found = fit_cost(begin(h100()), probe(Server(budget=1024))).model
    for name in ("fixed_s", "token_s", "context_s", "pair_s", "free_tokens"):
        assert getattr(found.cost, name) == pytest.approx(getattr(H100, name), rel=0.02), name
    # a sixth of a percent of a step
    assert found.cost.stream_s == pytest.approx(H100.stream_s, rel=0.4)
    assert found.front.request_s < 1e-5


def test_with_noise_a_step_takes_what_it_takes_on_average() -> None:
    noise = Noise(steps=0.1, network_s=0.001, merged=0.02)
    episodes, stages = (
        probe(Server(budget=1024), noise),
        sweep(Server(budget=1024), (1, 4, 16, 64), noise),
    )
    found = fit_cost(begin(h100()), episodes, stages).model
    for segments, decodes, tokens in (((), 1, 1000), ((), 32, 32_000), (((0, 1000),), 0, 0)):
        said, true = (
            one.cost.step_s(step_work(segments, decodes, tokens)) for one in (found, h100())
        )
        assert said == pytest.approx(true, rel=0.05)
    assert 0.0005 < found.front.request_s < 0.002  # the network's millisecond


def test_pairs_of_one_step_may_take_longer() -> None:
    """A kernel that computes whole squares: each pair within a step costs twice what one with an
    earlier token costs."""
    server = msgspec.structs.replace(
        h100(), cost=msgspec.structs.replace(H100, own_pair_s=H100.pair_s)
    )
    episodes = again(server, probe(Server(budget=1024)))
    found = fit_cost(begin(h100()), episodes, terms=Terms(own_pairs=True)).model.cost
    assert found.pair_s == pytest.approx(H100.pair_s, rel=0.03)
    assert found.own_pair_s == pytest.approx(H100.pair_s, rel=0.1)


def test_where_no_prompt_is_cut_all_pairs_cost_the_same() -> None:
    whole = h100("prefill-first", 100_000)
    episodes = again(whole, probe(Server(budget=1024)))
    found = fit_cost(begin(whole), episodes, terms=Terms(own_pairs=True)).model.cost
    assert found.pair_s == pytest.approx(H100.pair_s, rel=0.03)
    assert found.own_pair_s == 0


def test_the_load_of_one_user_counts_request_by_request() -> None:
    """Its prompts of all lengths tell each step's time, a mean of them only one."""
    alone, several = sweep(Server(budget=1024), (1, 4))
    each, together = group_replays(h100(), [], [alone, several])
    assert (len(each.shares), len(each.blocks)) == (len(alone.requests), len(alone.requests))
    assert (len(together.shares), len(together.blocks)) == (1, len(several.requests) // BLOCK)
    found = fit_cost(begin(h100()), [], [alone]).model.cost
    assert found.free_tokens == pytest.approx(H100.free_tokens, rel=0.05)
    assert found.token_s == pytest.approx(H100.token_s, rel=0.02)


def test_a_front_is_told_from_the_steps() -> None:
    noise = Noise(reading_s=2e-5)
    found = fit_cost(begin(h100()), probe(Server(budget=1024), noise)).model
    assert found.front.token_s == pytest.approx(2e-5, rel=0.1)
    assert found.cost.token_s == pytest.approx(H100.token_s, rel=0.05)


def test_draws_are_around_the_fit_and_the_same_for_a_seed() -> None:
    fitted = fit_cost(begin(h100()), probe(Server(budget=1024), Noise(steps=0.1, network_s=0.001)))
    drawn = [one.cost.fixed_s for one in draw_costs(fitted, 8, seed=1)]
    assert drawn == [one.cost.fixed_s for one in draw_costs(fitted, 8, seed=1)]
    assert len(set(drawn)) > 1
    assert np.mean(drawn) == pytest.approx(fitted.model.cost.fixed_s, rel=0.05)


def test_a_request_that_the_model_never_ends_costs_but_breaks_nothing() -> None:
    model = plain(budget=100).with_settings(h100("mixed", 100).settings)
    among = group_replays(model, probe(Server(budget=1024)), ())
    solved = solve_rows(make_equations(among, 0.0), 0.0)
    assert np.isfinite(solved.loss)
    assert solved.loss > 1
