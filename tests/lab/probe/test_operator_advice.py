"""Advice: with pencil numbers, and against servers that do what was advised."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.probing import Noise, Server, probed
from support.symptoms import LENGTHS, QUIET_S, stall, symptoms

from locust_llm.lab.probe.operator_advice import Advice, derive_advice
from locust_llm.lab.probe.probe_findings import examine_probe, itl_limit_s
from locust_llm.lab.probe.probe_measurements import BurstResult, CachedPrompt, ProbeMeasurements
from locust_llm.lab.probe.probe_measurements import measure_probe as symptoms_of
from locust_llm.lab.probe.scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    DISAGGREGATED,
    PARTIAL,
    PREFILL_FIRST,
    STATIC,
    Diagnosis,
    diagnose_scheduler,
)
from locust_llm.records.run_facts import NAMED, UNDECIDED
from locust_llm.slo.rules import resolve_rules

FIVE_HUNDRED = Diagnosis(CHUNKED, (480.0, 500.0, 520.0), 1, ("steps were counted",))


def about(said: tuple[Advice, ...], word: str) -> Advice:
    found = [one for one in said if word in one.what]
    assert len(found) == 1, [one.what for one in said]
    return found[0]


def stopped() -> ProbeMeasurements:
    """A prompt stops all for as long as it takes alone, two for twice that."""
    one = [
        stall(turn, n, longest_s=n * 50e-6, ttft_s=n * 50e-6, steps=1.0)
        for turn in (1, 2)
        for n in LENGTHS
    ]
    two = [stall(turn, 4000, "pair", longest_s=0.4, ttft_s=0.4, steps=1.0) for turn in (1, 2)]
    return symptoms(stalls=(*one, *two))


def test_a_chunk_size_for_a_gap_is_in_proportion_to_tokens() -> None:
    """500 tokens add 20 ms to a gap of 10: 20 ms leave 250. 8,000 tokens are 32 such steps, of 20
    ms: 640 ms."""
    said = about(derive_advice(symptoms(), FIVE_HUNDRED, 0.020), "chunks")
    assert "chunks of about 250 tokens (vLLM: --max-num-batched-tokens 250" in said.what
    assert "about 20 ms during a prompt, and 640 ms for one of 8,000 tokens" in said.what
    assert "500 tokens the gaps during a prompt are 30 ms, without one 10 ms" in said.why


def test_without_a_wanted_gap_it_says_what_half_would_be() -> None:
    assert "about 250 tokens" in about(derive_advice(symptoms(), FIVE_HUNDRED), "chunks").what


def test_a_gap_longer_than_measured_is_said_to_be_beyond() -> None:
    said = about(derive_advice(symptoms(), FIVE_HUNDRED, 0.090), "chunks")
    assert "Gaps of 90 ms allow chunks of about 2,000 tokens" in said.what
    assert "Extrapolated" in said.why


def test_no_chunk_size_undercuts_a_gap_without_prefill() -> None:
    said = about(derive_advice(symptoms(), FIVE_HUNDRED, 0.009), "No chunk size")
    assert said.why == "Without any prefill the gaps are 10 ms."


def test_chunked_in_turn_a_limit_of_two_costs_nothing() -> None:
    said = about(derive_advice(symptoms(), FIVE_HUNDRED), "--prefill-concurrency 2")
    assert (
        "8 prompts of 2,000 tokens sent together had the last first token after 800 ms, 8.0 times"
        in said.why
    )
    assert "during two prompts are 30 ms, during one 30 ms" in said.why


def test_a_concurrency_is_the_bound_of_a_closed_loop() -> None:
    """200 gaps of 10 ms over a prefill of 100 ms: 1 + 20 users."""
    assert about(derive_advice(symptoms(), FIVE_HUNDRED), "users").what.startswith(
        "Above about 21 users"
    )


def test_partial_prefills_a_limit_of_as_many_as_slots() -> None:
    bursts = (BurstResult(1, 2000, (0.4, 0.4, 0.4, 0.4, 0.8, 0.8, 0.8, 0.8)),)
    said = about(
        derive_advice(symptoms(bursts=bursts), Diagnosis(PARTIAL, (480.0, 500.0, 520.0), 4)),
        "--prefill-concurrency 4",
    )
    assert "4 had their first tokens together" in said.why


def test_prefill_first_one_at_a_time() -> None:
    said = derive_advice(stopped(), Diagnosis(PREFILL_FIRST))
    why = about(said, "--prefill-concurrency 1").why
    assert (
        "Two prompts of 4,000 tokens sent together stopped the decoders for 400 ms, one for 200 ms"
        in why
    )
    # 8,000 tokens take 400 ms, 390 more than a gap: 512 take 25 more
    assert "chunks of about 512 tokens" in about(said, "chunks").what
    assert "about 35 ms during a prompt" in about(said, "chunks").what


def test_where_stalls_do_not_add_up_a_limit_makes_none_shorter() -> None:
    pairs = [stall(turn, 4000, "pair", longest_s=0.21) for turn in (1, 2)]
    found = symptoms(stalls=(*stopped().of("stall"), *pairs))
    assert (
        "210 ms, during one 200 ms"
        in about(derive_advice(found, Diagnosis(PREFILL_FIRST)), "does not shorten stalls").why
    )


def test_disaggregated_a_limit_is_for_ttft() -> None:
    stalls = tuple(stall(turn, n, usual_s=QUIET_S) for turn in (1, 2) for n in LENGTHS)
    said = about(derive_advice(symptoms(stalls=stalls), Diagnosis(DISAGGREGATED)), "changes TTFT")
    assert "the decoders kept 100% of their speed" in said.why


def test_static_the_batch_is_waited_for() -> None:
    stalls = tuple(
        stall(turn, n, ttft_s=2.0, after_s=0.4, ended=3) for turn in (1, 2) for n in LENGTHS
    )
    said = about(derive_advice(symptoms(stalls=stalls), Diagnosis(STATIC)), "continuous batching")
    assert "waited 1.6 s until the decoders had ended, then took 400 ms" in said.why


def test_without_a_name_only_what_the_figures_say() -> None:
    said = derive_advice(symptoms(), Diagnosis(CANNOT_TELL, missing=("rounds do not agree",)))
    assert [one.what for one in said] == [
        "Expect gaps of 33 ms during prompts of 8,000 tokens, whatever the scheduler."
    ]
    assert not any("limit" in one.what or "chunk" in one.what for one in said)


def test_a_cache_and_early_events_are_told_with_their_figures() -> None:
    found = symptoms(cached=(CachedPrompt(4000, 0.2, 0.01, 3984),) * 2, early_s=0.055)
    said = derive_advice(found, FIVE_HUNDRED)
    assert "took 200 ms, and 10 ms the second time" in about(said, "prefix cache").why
    assert "up to 55 ms before the first token" in about(said, "first event").why


def test_below_ok_the_client_advises_nothing() -> None:
    shots = probed(Server(budget=512), Noise())
    for client, some in (("OK", True), (None, True), ("DEGRADED", False)):
        assert bool(examine_probe(shots, client).advice) is some
    assert examine_probe(shots).outcome == NAMED
    assert examine_probe(shots, "INVALID").outcome == UNDECIDED


@pytest.mark.parametrize(
    ("rules", "goodput", "wanted_s"),
    [
        ((), None, None),
        (("itl p99 < 40ms", "ttft p95 < 1s"), None, 0.040),
        (("itl p99 < 40ms", "attainment > 99% given itl < 25ms"), "inter_token_latency:30", 0.025),
        ((), "time_to_first_token:300 inter_token_latency:20", 0.020),
        (("itl p50 > 5ms", "no rule"), "nonsense", None),
    ],
)
def test_the_wanted_gap_is_that_of_the_rules(
    rules: tuple[str, ...], goodput: str | None, wanted_s: float | None
) -> None:
    assert itl_limit_s(resolve_rules(rules, None, goodput)) == wanted_s


@pytest.mark.slow
@pytest.mark.parametrize(
    "server", [Server(budget=2048), Server(budget=1024), Server(policy="prefill-first")]
)
def test_a_server_that_does_as_advised_has_about_the_gaps_that_were_promised(
    server: Server,
) -> None:
    """A simulated step overlaps reading weights with computing: its gaps are up to a fifth shorter,
    never much longer."""
    wanted_s = 0.025
    found = symptoms_of(probed(server, Noise(steps=0.03)))
    what = about(derive_advice(found, diagnose_scheduler(found, "OK"), wanted_s), "chunks").what
    size = int(what.partition("--max-num-batched-tokens ")[2].partition(",")[0])
    then = symptoms_of(probed(Server(budget=size), Noise(steps=0.03)))
    gap_s = median(stall.usual_s for stall in then.of("stall", then.longest))
    assert 0.75 * wanted_s < gap_s < 1.05 * wanted_s


numbers = st.floats(1e-6, 1e6)
stalls = st.builds(
    stall, st.integers(1, 3), st.sampled_from(LENGTHS), st.sampled_from(["stall", "pair"]),
    longest_s=numbers, usual_s=numbers, quiet_s=numbers, ended=st.integers(0, 3),
    decoders=st.integers(0, 3),
)  # fmt: skip


@examples(60)
@given(
    st.lists(stalls, min_size=1).map(tuple), numbers | st.none(), numbers | st.none(),
    st.floats(1e-6, 10) | st.none(),
    st.sampled_from([STATIC, PREFILL_FIRST, CHUNKED, PARTIAL, DISAGGREGATED, CANNOT_TELL]),
)  # fmt: skip
def test_whatever_was_seen_no_advice_is_without_its_figure(
    some: tuple[object, ...],
    quiet_s: float | None,
    early_s: float | None,
    wanted_s: float | None,
    name: str,
) -> None:
    found = symptoms(stalls=some, quiet_s=quiet_s, early_s=early_s)
    for one in derive_advice(found, Diagnosis(name, (480.0, 500.0, 520.0), 1), wanted_s):
        assert one.what.endswith(".")
        assert any(c.isdigit() for c in one.why)
