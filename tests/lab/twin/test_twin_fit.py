"""A twin, from the probe and the sweep of a hidden server."""

import msgspec
import pytest
from support.probing import Noise, Server, probed

from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import DISAGGREGATED, Diagnosis, diagnose_scheduler
from locust_llm.lab.twin.scheduler_fit import fit_model, score_model
from locust_llm.lab.twin.server_observations import collect_episodes
from locust_llm.lab.twin.twin_fit import fit_twin, measure_ranges, sample_lengths

from .models import H100, again, h100, probe, sweep

NOISE = Noise(steps=0.05, network_s=0.0002)


@pytest.mark.slow
def test_a_hidden_server_is_found_and_its_twin_good_for_figures() -> None:
    server = Server(budget=1024, num_seqs=24)
    results = probed(server, NOISE, 5)
    told = list[tuple[int, int]]()
    stages = sweep(server, (1, 2, 4, 8, 16, 32, 64, 128), NOISE)
    twin = fit_twin(
        diagnose_scheduler(measure_probe(results)),
        collect_episodes(results),
        stages,
        on_progress=lambda *one: told.append(one),
    )
    assert twin.model.settings.policy == "chunked"
    assert twin.model.settings.max_num_batched_tokens == pytest.approx(1024, rel=0.05)
    assert twin.model.settings.max_num_seqs == pytest.approx(24, abs=1)
    assert twin.trust.verdict == "figures"
    assert {one.load for one in twin.checks} == {"2 users", "8 users", "32 users"}
    assert twin.ranges.saturated
    assert "capacity" not in twin.unknown
    assert "kv_tokens" in twin.unknown
    assert told[-1][0] == told[-1][1] == len(told)
    assert all(low <= high for low, high in twin.intervals.values())


@pytest.mark.slow
@pytest.mark.parametrize("own_pair_s", [0.0, H100.pair_s])
def test_own_pairs_have_a_cost_where_the_kernels_have_one(own_pair_s: float) -> None:
    server = msgspec.structs.replace(
        h100(), cost=msgspec.structs.replace(H100, own_pair_s=own_pair_s)
    )
    said = Diagnosis("chunked", (1024.0, 1024.0, 1024.0), 1)
    found = fit_model(said, again(server, probe(Server(budget=1024))), [], num_draws=2)
    assert found.model.cost.own_pair_s == pytest.approx(own_pair_s, rel=0.1)


def test_the_true_settings_replay_a_probe_best() -> None:
    episodes = probe(Server(budget=1024), NOISE)
    scores = {budget: score_model(h100(budget=budget), episodes) for budget in (896, 1024, 1152)}
    assert min(scores, key=lambda budget: scores[budget]) == 1024


def test_the_true_policy_replays_a_probe_best() -> None:
    episodes = probe(Server(policy="mixed"), NOISE)
    assert score_model(h100("mixed", 131_072), episodes) < score_model(
        h100("prefill-first", 131_072), episodes
    )


def test_without_a_sweep_there_is_no_twin() -> None:
    with pytest.raises(ValueError, match="a twin needs a sweep"):
        fit_twin(Diagnosis("chunked", (1000.0, 1024.0, 1100.0), 1), probe(Server(budget=1024)), [])


def test_a_scheduler_that_the_simulator_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no scheduler .* 'disaggregated'"):
        fit_twin(
            Diagnosis(DISAGGREGATED), probe(Server(budget=1024)), sweep(Server(budget=1024), (1, 2))
        )


def test_a_sweep_that_still_grew_is_not_saturated() -> None:
    episodes = probe(Server(budget=1024))
    assert not measure_ranges(episodes, sweep(Server(budget=1024), (1, 4))).saturated
    assert measure_ranges(episodes, sweep(Server(budget=1024, num_seqs=4), (8, 16))).saturated


def test_lengths_are_of_the_sweep_evenly_and_not_too_many() -> None:
    stages = sweep(Server(budget=1024), (1, 64, 128))
    found = sample_lengths(stages)
    assert 400 < len(found) <= 1000
    assert found[0] == (stages[0].requests[0].prompt_tokens, stages[0].requests[0].output_tokens)
