"""Models and what a client sees of them, for the tests of this room."""

from typing import Final

from support.probing import Noise, Server, probed
from support.sweeping import swept

from locust_llm.lab.twin.server_observations import (
    IdleEpisode,
    ObservedRequest,
    ObservedStage,
    collect_episodes,
)
from locust_llm.lab.twin.twin_model import SchedulerSettings, ServerModel, StepCosts
from locust_llm.lab.twin.virtual_replay import replay_episodes
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100

KNEE: Final = LLAMA_8B_H100.model.weight_bytes / (
    LLAMA_8B_H100.gpu.bandwidth * LLAMA_8B_H100.bandwidth_efficiency
)
"""Seconds to read the weights."""
LINEAR_S: Final = 2 * LLAMA_8B_H100.model.parameters / (LLAMA_8B_H100.gpu.flops * LLAMA_8B_H100.mfu)
H100: Final = StepCosts(
    fixed_s=LLAMA_8B_H100.step_overhead_s + KNEE,
    token_s=LINEAR_S,
    stream_s=LLAMA_8B_H100.seq_overhead_s,
    context_s=LLAMA_8B_H100.model.kv_bytes_per_token
    / (LLAMA_8B_H100.gpu.bandwidth * LLAMA_8B_H100.bandwidth_efficiency),
    pair_s=4
    * LLAMA_8B_H100.model.num_layers
    * LLAMA_8B_H100.model.hidden_size
    / (LLAMA_8B_H100.gpu.flops * LLAMA_8B_H100.attention_mfu),
    free_tokens=KNEE / LINEAR_S,
)
"""The simulator's roofline, in a twin's words."""


def plain(
    fixed_s: float = 0.01, token_s: float = 0.0, budget: int = 1000, **settings: int
) -> ServerModel:
    """Steps that one can sum up by hand."""
    return ServerModel(
        settings=SchedulerSettings(policy="chunked", max_num_batched_tokens=budget, **settings),
        cost=StepCosts(fixed_s=fixed_s, token_s=token_s),
    )


def h100(policy: str = "chunked", budget: int = 1024, **settings: int) -> ServerModel:
    return ServerModel(
        settings=SchedulerSettings(policy=policy, max_num_batched_tokens=budget, **settings),
        cost=H100,
    )


def probe(server: Server, noise: Noise = Noise(), seed: int = 5) -> list[IdleEpisode]:  # noqa: B008
    return collect_episodes(probed(server, noise, seed))


def sweep(
    server: Server,
    users: tuple[int, ...],
    noise: Noise = Noise(),  # noqa: B008
    seed: int = 99,
) -> list[ObservedStage]:
    return swept(server, noise, seed, users)


def again(server: ServerModel, episodes: list[IdleEpisode]) -> list[IdleEpisode]:
    """The same requests, as this model serves them."""
    replay, at, found = replay_episodes(server, episodes), 0, []
    for episode in episodes:
        here = range(at, at := at + len(episode.requests))
        served = [
            ObservedRequest(
                replay.sent_at[i], tuple(replay.token_at[i]), one.prompt_tokens, one.output_tokens
            )
            for i, one in zip(here, episode.requests, strict=True)
        ]
        found.append(IdleEpisode(episode.kind, tuple(served)))
    return found
