"""Twins of servers that share no code with the simulator."""

from support.other_servers import PaddedBatches, PerRequestOverhead, probe

from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import Diagnosis, diagnose_scheduler
from locust_llm.lab.twin.scheduler_fit import (
    choose_settings,
    list_candidate_settings,
    longest_sequence,
)
from locust_llm.lab.twin.server_observations import IdleEpisode, collect_episodes
from locust_llm.lab.twin.twin_model import StepCosts

BEGIN = StepCosts(fixed_s=0.007, token_s=4e-5)


def seen(server: type[PerRequestOverhead]) -> tuple[Diagnosis, list[IdleEpisode]]:
    results = probe(lambda seed: server(seed, 2048, 21, 1.2), seed=1)
    return diagnose_scheduler(measure_probe(results)), collect_episodes(results)


def test_a_power_of_two_is_found_though_it_needs_other_costs_than_its_neighbours() -> None:
    """1,992 tokens a step replay the probe better with the costs that suit the candidates around
    it; 2,048, which the server has, with its own."""
    said, episodes = seen(PerRequestOverhead)
    found = choose_settings(list_candidate_settings(said, 32_000), BEGIN, episodes)
    assert found[0].model.settings.max_num_batched_tokens == 2048


def test_padded_batches_are_static_and_answer_long_prompts() -> None:
    results = probe(lambda seed: PaddedBatches(seed, 8, 1.0), seed=1)
    assert diagnose_scheduler(measure_probe(results)).name == "static"
    assert longest_sequence(collect_episodes(results)) == 32_016  # 32,000 and 4, in blocks of 16
