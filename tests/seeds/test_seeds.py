"""Every claim of the seed documents as a test, on the experiments that `make seeds` prints."""

from itertools import pairwise

import aiperf_runs
import chart
import experiments as e
import pages
import partial_prefills as p
import pytest
from section import Check, short, verdict


def test_throughput_is_almost_linear_to_two_users_then_flat_and_half_the_prompt_doubles_the_rate() -> (
    None
):
    levels = e.throughput((3000, 1500), (1, 2, 8, 64, 128))
    rate = {(level.prompt_tokens, level.users): level.requests_per_s for level in levels}
    for prompt, at_eight in ((3000, 4.3), (1500, 5.8)):
        assert rate[prompt, 2] / rate[prompt, 1] > 1.7
        # of 8: not what linear would be
        assert rate[prompt, 8] / rate[prompt, 1] == pytest.approx(at_eight, rel=0.05)
        assert rate[prompt, 128] / rate[prompt, 64] < 1.1
    assert 1.8 < rate[1500, 128] / rate[3000, 128] < 2.2


def test_static_has_the_worst_ttft_and_the_least_disturbed_decode() -> None:
    static, *others = e.policies()
    assert all(static.ttft_p50 > 10 * other.ttft_p50 for other in others)
    assert all(static.ttft_p99 > 5 * other.ttft_p99 for other in others)
    assert all(static.itl_mean < other.itl_mean for other in others)
    assert all(static.stall_p99 < other.stall_p99 / 5 for other in others)


def test_prefill_first_pauses_and_chunked_slows() -> None:
    found = {burst.name: burst for burst in e.bursts()}
    assert found["prefill-first"].longest_stall > 2.5
    assert found["mixed"].longest_stall > 2.5
    assert found["chunked 512"].longest_stall < 0.03
    assert found["chunked 2048"].longest_stall < 0.1
    assert found["prefill-first"].tokens_meanwhile <= 1  # the one whose step had begun
    # 96,000 prompt tokens, of 512 less 32 decodes a step
    assert found["chunked 512"].tokens_meanwhile == pytest.approx(96_000 / 480, abs=2)


def test_chunking_costs_the_prompt_a_little() -> None:
    whole = e.beside_decoders("whole", e.load("prefill-first"), [3000])
    chunks = e.beside_decoders("512", e.load(max_num_batched_tokens=512, max_num_seqs=256), [3000])
    assert 1 < chunks.ttft_mean / whole.ttft_mean < 1.6
    assert chunks.longest_stall < whole.longest_stall / 4


@pytest.mark.slow
def test_chunked_prefill_raises_the_throughput_of_short_prompts() -> None:
    """The seed's +50 % are its own deployment's: by scheduling alone it is less, and nothing for
    long prompts."""
    same, v0, long, _ = e.chunking_gain([(204, 64, 64), (3000, 100, 64)])
    assert 1.10 < same.chunked / same.prefill_first < 1.40
    assert 1.30 < v0.chunked / v0.prefill_first < 1.80
    assert 0.85 < long.chunked / long.prefill_first < 1.10
    assert same.static < same.prefill_first


def test_the_chunk_size_trades_ttft_for_stalls() -> None:
    found = e.chunk_sizes()
    assert all(smaller.longest_stall < larger.longest_stall for smaller, larger in pairwise(found))
    assert all(smaller.ttft_mean > larger.ttft_mean for smaller, larger in pairwise(found))
    assert found[-1].longest_stall > 10 * found[0].longest_stall


def test_p99_ttft_at_8_32_and_64() -> None:
    burst = e.synchronised()
    for tail, seed_s in zip(burst, (0.09, 0.28, 0.48), strict=True):
        assert abs(tail.p99 / seed_s - 1) < 0.4
    assert all(tail.p99 < 0.06 for tail in e.steady())  # who does not arrive together sees far less


def test_p99_grows_faster_than_concurrency_past_saturation_and_slower_before() -> None:
    calm, full, over = e.near_saturation((8, 64, 128))
    assert full.p99 / calm.p99 < 64 / 8
    assert over.p99 / full.p99 > 1.5 * 128 / 64


def test_partial_prefills_help_the_mean_as_far_as_there_are_places() -> None:
    found = {
        (f.output_tokens, f.max_num_seqs, f.max_num_partial_prefills): f
        for f in p.partial_prefills((1, 4))
    }

    def gain(output: int, seqs: int) -> float:
        return found[output, seqs, 1].ttft_mean / found[output, seqs, 4].ttft_mean

    assert 1.05 < gain(128, 128) < 1.35  # the pull request: about 20 %
    assert gain(128, 1024) > 3.0  # with places enough
    # about 400 %: who has one token to say leaves its place at once
    assert 4.0 < gain(1, 128) < 6.5
    assert gain(1, 128) == gain(1, 1024)
    for output, seqs in ((128, 128), (128, 1024), (1, 128)):
        assert found[output, seqs, 4].ttft_p99 > found[output, seqs, 1].ttft_p99  # worse
        # not reproduced: the pull request's throughput rises
        assert found[output, seqs, 4].output_per_s == pytest.approx(
            found[output, seqs, 1].output_per_s, rel=0.05
        )


def test_with_larger_prompts_partial_prefills_gain_more_and_p99_is_worse_too() -> None:
    found = p.partial_prefills((1, 4), (128,), (128,), mix="large")
    assert 2 < found[0].ttft_mean / found[1].ttft_mean < 5
    assert found[0].ttft_p50 / found[1].ttft_p50 > 4
    assert found[1].ttft_p99 > found[0].ttft_p99


def test_equal_prompts_gain_nothing_from_partial_prefills() -> None:
    without, with_four = p.partial_prefills((1, 4), (1024,), (256,), 240, "uniform")
    assert with_four.ttft_mean == pytest.approx(without.ttft_mean, rel=0.03)


def test_a_threshold_near_the_budget_is_not_the_best() -> None:
    found = p.thresholds("4 slots")
    by_value = {t.threshold: t for t in found}
    best = min(found, key=lambda t: t.ttft_mean)
    assert best.threshold < p.BUDGET
    # above it short ones wait: as the seed says
    assert by_value[8192].short_ttft > by_value[p.BUDGET].short_ttft


def test_a_limit_at_the_client_sets_ttft_and_how_much_memory_prompts_hold() -> None:
    found = e.limits(lambda limit: e.load(limit=limit, long_prefill_token_threshold=512))
    assert all(fewer.ttft_mean < more.ttft_mean for fewer, more in pairwise(found))
    assert all(fewer.peak_kv <= more.peak_kv + 0.01 for fewer, more in pairwise(found))
    assert all(fewer.preemptions <= more.preemptions for fewer, more in pairwise(found))
    assert found[0].peak_kv < 0.25
    assert (found[0].preemptions, found[-1].preemptions > 0) == (0, True)


def test_with_the_defaults_a_limit_only_moves_the_queue() -> None:
    found = e.limits(lambda limit: e.load(limit=limit), (2, 30))
    assert found[0].ttft_mean < found[1].ttft_mean / 3
    assert found[0].from_asked_mean == pytest.approx(found[1].from_asked_mean, rel=0.02)
    assert found[0].peak_kv == pytest.approx(found[1].peak_kv, abs=0.01)


def test_with_disaggregated_serving_the_limit_sets_ttft_and_itl_stays() -> None:
    found = e.limits(e.disaggregated, (1, 2, 5, 10, 30))
    assert all(fewer.ttft_mean < more.ttft_mean for fewer, more in pairwise(found))
    assert found[3].ttft_mean / found[2].ttft_mean == pytest.approx(2, rel=0.1)
    assert max(f.itl_mean for f in found) / min(f.itl_mean for f in found) < 1.05


def test_beyond_the_knee_goodput_falls_and_the_gpu_stays_busy() -> None:
    below, knee, beyond = e.goodput((2, 7, 10))
    assert below.utilisation < 0.9 < knee.utilisation <= beyond.utilisation
    assert below.attainment == knee.attainment == 1
    assert beyond.completed_per_s > knee.completed_per_s  # it answers more than before,
    assert beyond.goodput_per_s < knee.goodput_per_s / 5  # and hardly anything in time


def test_vllms_flags_have_the_effects_that_they_have_on_a_real_vllm() -> None:
    """The order of the figures that vLLM 0.32 gave on a CPU with the same flags:
    tests/real/contention.py."""
    default, small, threshold, whole = e.contention()
    assert threshold.short_ttft < default.short_ttft / 5  # the threshold lets them through
    assert small.short_ttft > default.short_ttft * 0.8  # smaller steps do not
    assert threshold.gap_max < small.gap_max < default.gap_max < whole.gap_max
    assert threshold.gap_mean < small.gap_mean < default.gap_mean < whole.gap_mean
    assert whole.gap_max > 0.9 * whole.long_ttft  # they pause for the whole of it
    assert threshold.long_ttft > small.long_ttft > default.long_ttft


def test_the_early_slope_tells_long_prompts_from_short_ones_but_not_only_those() -> None:
    long, short = e.early_slopes(((16_000, 60), (200, 64)))
    assert long.slope > 0.5
    assert short.slope < 0.1
    assert e.early_slopes(((200, 64),), max_num_seqs=1)[0].slope > 0.5  # short prompts, one place


def test_behind_a_gate_ttft_from_the_send_is_too_good_and_from_due_it_is_not() -> None:
    below, beyond = aiperf_runs.gated((4, 10))
    assert below.from_send == pytest.approx(below.without, rel=0.25)
    assert beyond.from_send < beyond.without / 5
    assert beyond.from_due == pytest.approx(beyond.without, rel=0.1)
    assert beyond.sent_per_s < 0.95 * beyond.rate


def test_the_sample_outputs_contradict_themselves() -> None:
    first = aiperf_runs.SAMPLES[0]
    assert first.expected_latency_s == pytest.approx(11.55, abs=0.01)  # 2,345.67 + 499 x 18.45 ms
    assert first.count / first.seconds == pytest.approx(0.19, abs=0.001)  # 100 in 8:45
    assert all(sample.in_prefill > sample.limit for sample in aiperf_runs.SAMPLES)


def test_the_commands_keep_their_limits() -> None:
    first, second, third = aiperf_runs.commands()
    assert [first.most_in_prefill, second.most_in_prefill, third.most_in_prefill] == [3, 5, 10]
    assert second.ttft_by_limit[-1] > 2 * second.ttft_by_limit[0]
    assert third.per_s < 5  # ten a second are too many for one H100


def test_a_verdict_follows_from_its_checks() -> None:
    yes, no = Check("one", True, "1.0"), Check("two", False)
    assert verdict(yes) == "reproduced: one (1.0)"
    assert verdict(yes, no) == "in part: one (1.0). Not: two"
    assert verdict(no) == "not reproduced: two"
    assert [short(verdict(yes)), short(verdict(yes, no))] == ["reproduced", "in part; not: two"]


def test_a_page_has_its_claims_tables_and_figures() -> None:
    sections = [pages.goodput(), pages.chunk_size()]
    text = pages.page(sections)
    for section in sections:
        assert section.claim in text
        assert section.verdict in text
        for name, figure in section.figures.items():
            assert f"]({name})" in text
            assert figure.startswith("<svg")


def test_ticks_are_round_and_go_around_all_values() -> None:
    assert chart._ticks([0.0, 9.3], log=False) == [0, 2, 4, 6, 8, 10]
    assert chart._ticks([512, 8192], log=True)[0] <= 512
    assert chart._ticks([512, 8192], log=True)[-1] >= 8192
    assert chart._ticks([1, 256], log=True) == [1, 2, 5, 10, 20, 50, 100, 200, 500]
    assert chart._ticks([3.0], log=False) == [3, 3.2]  # never fewer than two
