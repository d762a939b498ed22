"""The engine: rounds that nothing disturbs are made without asking the policy, and are what they
would be."""

import math
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.twin import twin_engine as twin_engine
from locust_llm.lab.twin.twin_engine import Admitting, Step
from locust_llm.lab.twin.twin_model import (
    Noise,
    SchedulerSettings,
    ServerModel,
    StepCosts,
    step_work,
)
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

from .models import H100, plain

Times = list[tuple[float, list[float]]]


def served(
    model: ServerModel, arrivals: list[tuple[float, VirtualRequest]],
    monkeypatch: pytest.MonkeyPatch, *, slowly: bool,
    closed: bool = False,
) -> Times:  # fmt: skip
    clock, log = VirtualClock(), list[Step]()
    with monkeypatch.context() as patched:
        if slowly:
            patched.setattr(Admitting, "_only_decodes", lambda self: False)
        limit = 2 if closed else math.inf
        virtual = Virtual(
            clock,
            twin_engine.make_twin_engine(model, clock, Random(3), log),
            prefill_limit=limit,
            keep_tokens=True,
        )
        if closed:
            virtual.closed_loop(3, iter([request for _, request in arrivals]), stagger_s=0.01)
        else:
            virtual.open_loop(sorted(arrivals, key=lambda one: one[0]))
        rows = virtual.run()
    assert sum(step.admitted for step in log) == len(rows) == len(arrivals)
    return [(row.first_at, list(row.token_at)) for row in rows] + [
        (len(log), [step.at for step in log])
    ]


@given(
    policy=st.sampled_from(
        ["chunked", "mixed", "prefill-first", "static", "partial-prefills", "llama.cpp"]
    ),
    arrivals=st.lists(
        st.tuples(
            st.floats(0, 3), st.builds(VirtualRequest, st.integers(1, 900), st.integers(1, 120))
        ),
        min_size=1,
        max_size=12,
    ),
    seqs=st.sampled_from([2, 5, 64]),
    blocks=st.sampled_from([64, 100, 4000]),
    admission_s=st.sampled_from([0.0, 0.004]),
    closed=st.booleans(),
)
def test_rounds_by_themselves_are_the_steps_that_they_would_be(
    policy: str, arrivals: list[tuple[float, VirtualRequest]], seqs: int, blocks: int,
    admission_s: float,
    closed: bool,
) -> None:  # fmt: skip
    """To the last bit, with noise and pauses; a KV cache that is nearly full has its
    preemptions."""
    model = ServerModel(
        settings=SchedulerSettings(
            policy=policy, max_num_batched_tokens=1000, max_num_seqs=seqs, kv_tokens=16 * blocks
        ),
        cost=msgspec.structs.replace(H100, admission_s=admission_s),
        noise=Noise(step_sigma=0.1, step_s=0.001, pause_s=0.05, pause_every_s=0.5),
    )
    monkeypatch = pytest.MonkeyPatch()
    fast, slow = (
        served(model, arrivals, monkeypatch, slowly=slowly, closed=closed)
        for slowly in (False, True)
    )
    assert fast == slow


def test_a_round_that_runs_when_somebody_comes_ends_before_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds of 10 ms from 0.01 s on; who comes at 0.055 s begins at 0.06 s."""
    arrivals = [(0.0, VirtualRequest(10, 20)), (0.055, VirtualRequest(10, 1))]
    first, second, _ = sorted(
        served(plain(0.01), arrivals, monkeypatch, slowly=False), key=lambda row: len(row[1])
    )[:3]
    times = {len(row[1]): row[1] for row in (first, second)}
    assert times[1] == pytest.approx([0.07])


def test_the_work_of_a_step_by_hand() -> None:
    """A prompt with 100 tokens before these 50, the last token of another, and two that decode with
    30 tokens."""
    done = step_work([(100, 50), (20, 1)], 2, 30)
    assert done == (53, 4, 150 + 21 + 30, 50 * 125, 50 * 25)
    cost = StepCosts(
        fixed_s=1.0,
        token_s=0.1,
        stream_s=0.01,
        context_s=0.001,
        pair_s=0.0001,
        own_pair_s=0.0002,
        free_tokens=3,
    )
    assert cost.step_s(done) == pytest.approx(1 + 5 + 0.04 + 0.201 + 0.625 + 0.25)
