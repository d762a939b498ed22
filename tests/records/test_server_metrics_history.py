"""Server metrics: the same figures from every engine's page, and what they mean."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.records.server_metrics_history import (
    BASE,
    EngineHistory,
    EngineSummary,
    advise_on_memory,
    diagnose_server,
    histogram_mean,
    summarise_engine_samples,
)
from locust_llm.records.server_metrics_parser import EngineSample, read_engine_samples

CAPTURES = Path(__file__).parents[1] / "captures"
SGLANG = """\
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} 0.28
sglang:num_running_reqs{model_name="m"} 160.0
sglang:num_queue_reqs{model_name="m"} 2826.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 20.5
sglang:time_to_first_token_seconds_bucket{le="0.001",model_name="m"} 0.0
sglang:time_to_first_token_seconds_count{model_name="m"} 41.0
sglang:prompt_tokens_total{model_name="m"} 400.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 80.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20.0
sglang:spec_accept_rate{model_name="m"} 0.6
"""
TRTLLM = """\
trtllm_kv_cache_utilization{engine_type="tensorrt"} 0.5
trtllm_request_queue_time_seconds_sum{model_name="m"} 3.0
trtllm_request_queue_time_seconds_count{model_name="m"} 6.0
trtllm_time_to_first_token_seconds_sum{model_name="m"} 9.0
trtllm_time_to_first_token_seconds_count{model_name="m"} 6.0
"""
LLAMACPP = """\
llamacpp:requests_processing 3
llamacpp:requests_deferred 5
llamacpp:prompt_tokens_total 50
llamacpp:prompt_tokens_cached_total 30
llamacpp:spec_decode_num_draft_tokens_total 8
llamacpp:spec_decode_num_accepted_tokens_total 6
"""


def test_vllms_page() -> None:
    (sample,) = read_engine_samples([(CAPTURES / "vllm_metrics.txt").read_text()], 7.0)
    assert (sample.at, sample.engine, sample.running, sample.waiting) == (7.0, "vLLM", 0.0, 0.0)
    assert (sample.kv_used, sample.preemptions, sample.cache_hits) == (0.0, 0.0, 0.0)
    assert (
        sample.ttft_count
        == sample.queue_count
        == sample.prefill_count
        == sample.decode_count
        == 479
    )
    assert (sample.decode_s, sample.inference_s) == (225.69968061700536, 230.92374212900359)


def test_vllm_counts_its_hits_under_two_names_and_they_count_once() -> None:
    page = "vllm:prefix_cache_queries_total 138890.0\nvllm:prefix_cache_hits_total 96000.0\n"
    (sample,) = read_engine_samples([page + "vllm:prompt_tokens_cached_total 96000.0\n"], 1.0)
    assert (sample.cache_queries, sample.cache_hits) == (138_890.0, 96_000.0)


def test_generated_tokens_of_each_engine() -> None:
    """SGLang's counter of whole answers, and its prompts, are not among them."""
    sglang = (
        'sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 70\n'
        'sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 900\n'
        "sglang:generation_tokens_total 50\n"
    )
    llamacpp = "llamacpp:n_decode_total 20\nllamacpp:n_busy_slots_per_decode 2.5\n"
    tgi = "tgi_request_generated_tokens_sum 9\ntgi_batch_current_size 2\n"
    for page, tokens in (
        ("vllm:generation_tokens_total 33\n", 33.0),
        (sglang, 70.0),
        (llamacpp, 50.0),
        (tgi, None),
    ):
        (sample,) = read_engine_samples([page], 1.0)
        assert sample.generated_tokens == tokens


def test_memory_and_files_of_the_process_are_the_engines() -> None:
    process = "process_resident_memory_bytes 2.5e+09\nprocess_open_fds 31.0\n"
    (sample,) = read_engine_samples([process + "vllm:num_requests_running 1\n"], 1.0)
    assert (sample.memory_bytes, sample.open_files) == (2.5e9, 31.0)
    assert read_engine_samples([process], 1.0) == []


def test_pages_of_other_engines() -> None:
    assert read_engine_samples([SGLANG], 1.0) == [
        EngineSample(
            at=1.0, engine="SGLang", running=160.0, waiting=2826.0, kv_used=0.28, ttft_s=20.5,
            ttft_count=41.0,
            cache_queries=400.0, cache_hits=100.0, acceptance=0.6,
        )
    ]  # fmt: skip
    assert read_engine_samples([TRTLLM], 1.0) == [
        EngineSample(
            at=1.0,
            engine="TensorRT-LLM",
            kv_used=0.5,
            queue_s=3.0,
            queue_count=6.0,
            ttft_s=9.0,
            ttft_count=6.0,
        )
    ]
    assert read_engine_samples([LLAMACPP], 1.0) == [
        EngineSample(
            at=1.0, engine="llama.cpp", running=3.0, waiting=5.0, cache_queries=80.0,
            cache_hits=30.0, drafted=8.0,
            accepted=6.0,
        )
    ]  # fmt: skip
    page = "tgi_queue_size 4\ntgi_batch_current_size 2\ntgi_request_inference_duration_sum 6\n"
    assert read_engine_samples([page], 1.0) == [
        EngineSample(at=1.0, engine="TGI", running=2.0, waiting=4.0, inference_s=6.0)
    ]
    page = 'dynamo_component_gpu_cache_usage_percent{a="b"} 0.5\nvllm:num_requests_running 2\n'
    assert read_engine_samples([page], 1.0, "worker:8081") == [
        EngineSample(at=1.0, engine="vLLM", source="worker:8081", running=2.0, kv_used=0.5)
    ]


def test_an_exporter_of_dcgm_has_a_sample_for_each_gpu() -> None:
    labels = 'UUID="GPU-1",device="nvidia{0}",modelName="NVIDIA H100",Hostname="node"'
    page = "".join(
        f'DCGM_FI_DEV_{name}{{gpu="{gpu}",{labels.format(gpu)}}} {value}\n'
        for gpu in range(2)
        for name, value in (
            ("SM_CLOCK", 1980), ("MEM_CLOCK", 2619), ("POWER_USAGE", 512.5 + gpu), ("GPU_UTIL", 97),
            ("FB_USED", 1024),
            ("MEMORY_TEMP", 9223372036854775794),
        )
    )  # fmt: skip
    first, second = read_engine_samples([page], 1.0, "node:9400")
    assert (first.name, second.name) == ("node:9400, GPU 0", "node:9400, GPU 1")
    assert first == EngineSample(
        at=1.0, engine="DCGM", source="node:9400", gpu="0", gpu_use=0.97, gpu_memory_bytes=2.0**30,
        gpu_power_w=512.5,
        gpu_clock_mhz=1980.0, gpu_memory_clock_mhz=2619.0,
    )  # fmt: skip


def test_pieces_of_a_page_are_the_page() -> None:
    page = (CAPTURES / "vllm_metrics.txt").read_text()
    assert read_engine_samples(page.splitlines(keepends=True), 7.0) == read_engine_samples(
        [page], 7.0
    )


def test_a_long_history_stays_small_and_forgets_no_failure() -> None:
    history = EngineHistory(most=100)
    for at in range(10_000):
        history.add(sample(at, running=at))
        history.add(EngineSample(at=at, engine="", source="other", failure="no"))
    assert sum(map(len, history.by_name.values())) <= 100
    assert history.failures == {"other": 10_000}
    ats = [one.at for one in history.by_name["server"]]
    assert ats == sorted(ats)
    assert ats[-1] > 9_000


def test_a_stretch_has_the_sample_before_it_and_no_failure() -> None:
    history = EngineHistory()
    for at in range(10):
        history.add(EngineSample(at=at, engine="", failure="no") if at == 5 else sample(at))
    assert [one.at for one in history.between("server", 3.5, 6.0)] == [3.0, 4.0, 6.0]
    assert [one.at for one in history.between("server", -1.0, 1.0)] == [0.0, 1.0]


def test_several_engines_add_up_and_of_their_caches_the_fullest_counts() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} '
        f'{n + 1}\nvllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n + 3}\n'
        for n in range(3)
    )
    (sample,) = read_engine_samples([page], 1.0)
    assert (sample.running, sample.kv_used) == (6.0, 0.5)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>no</html>",
        "process_open_fds 3\n",
        "vllm:unheard_of 1\n",
        "vllm:num_requests_running NaN\n",
    ],
)
def test_pages_that_say_nothing(page: str) -> None:
    assert read_engine_samples([page], 1.0) == []


@given(st.text(st.sampled_from('vllm:num_requests_running{}" 0.1eE+-\n#NaInf'), max_size=200))
def test_no_page_raises(page: str) -> None:
    read_engine_samples([page], 1.0)
    read_engine_samples([f"vllm:num_requests_running {page}"], 1.0)


def sample(at: float, **more: float) -> EngineSample:
    return EngineSample(at=at, engine="vLLM", **more)


def test_what_was_told_over_a_stretch() -> None:
    """Counters grow from the look before it, which counts for no level."""
    said = summarise_engine_samples(
        [
            sample(0, running=99, kv_used=1.0, preemptions=5, ttft_s=10, ttft_count=10),
            sample(1, running=2, kv_used=0.2, preemptions=5, ttft_s=11, ttft_count=14),
            sample(2, running=4, kv_used=0.6, preemptions=7, ttft_s=13, ttft_count=16),
        ],
        [(0.5, 2.0)],
    )
    assert said == EngineSummary(
        engine="vLLM", samples=2, running=(3.0, 4.0), waiting=None,
        kv_used=(pytest.approx(0.4), 0.6), preemptions=2,
    )  # fmt: skip
    assert summarise_engine_samples([], [(0.0, 9.0)]) is None


def test_a_server_that_was_started_anew_counts_from_nothing() -> None:
    said = summarise_engine_samples(
        [sample(0, preemptions=5), sample(1, preemptions=9), sample(2, preemptions=3)], [(0.0, 9.0)]
    )
    assert said is not None
    assert said.preemptions == 4 + 3


def test_a_sum_that_falls_without_its_count_is_no_new_start() -> None:
    """Two requests of 3 s each, then one of -1 ms by clocks that differ."""
    looks = ((10.0, 5.0), (16.0, 7.0), (15.999, 8.0))
    samples = [
        sample(i, queue_s=total, queue_count=count) for i, (total, count) in enumerate(looks)
    ]
    assert histogram_mean(samples, "queue") == (pytest.approx(5.999 / 3), 3)


def of(**more: object) -> EngineSummary:
    known: dict[str, object] = {
        "engine": "vLLM", "samples": 9, "running": (3.0, 8.0), "waiting": (0.0, 0.0),
        "kv_used": (0.3, 0.5),
        "preemptions": 0,
    }  # fmt: skip
    return EngineSummary(**{**known, **more})  # type: ignore[arg-type]


def test_the_figures_and_nothing_that_is_not_known() -> None:
    (levels, *_) = diagnose_server(of())
    assert levels == (
        "The server's own metrics (vLLM, means of 9 readings while the load was "
        "on): running 3.0 (at most 8), waiting 0.0 (at most 0), KV cache 30% (at most 50%), "
        "preemptions 0. Running and waiting count only the requests in its scheduler."
    )
    assert "scheduler" not in next(iter(diagnose_server(of(running=None))))
    assert list(diagnose_server(None)) == []


def test_of_two_servers_the_line_names_the_one_that_was_read() -> None:
    levels = next(iter(diagnose_server(of(), whose=BASE)))
    assert levels.startswith(
        "The base's own metrics (vLLM, means of 9 readings while the load was on): r"
    )


def test_levels_are_of_the_time_under_load_and_counters_of_all() -> None:
    """Two repeats, from second 1 to 3 and from 6 to 8, of 3 requests each, and a pause of three
    idle readings."""
    running = {0: 9, 1: 3, 2: 3, 3: 3, 4: 0, 5: 0, 6: 3, 7: 3, 8: 3, 9: 0}
    samples = [
        sample(at, running=float(many), preemptions=float(at)) for at, many in running.items()
    ]
    found = summarise_engine_samples(samples, [(1.0, 3.0), (6.0, 8.0)])
    assert found is not None
    assert (found.samples, found.running, found.preemptions) == (6, (3.0, 3.0), 9)
    assert summarise_engine_samples(samples, [(20.0, 30.0)]) is None


def test_preemptions_despite_a_limit() -> None:
    full = of(preemptions=3, kv_used=(0.8, 0.99))
    said = " ".join(diagnose_server(full, 4))
    assert "WARNING: the server preempted 3 requests: its KV cache was up to 99% full" in said
    assert "The prefill limit of 4 does not limit decoding requests" in said
    assert "--prefill-concurrency" in " ".join(diagnose_server(full))
    assert "slightly more load" in " ".join(diagnose_server(of(kv_used=(0.8, 0.97))))


@pytest.mark.parametrize(
    ("message", "memory"),
    [
        ("HTTP 500: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("torch.OutOfMemoryError", True),
        ("server was OOM killed", True),
        ("HTTP 500: no room at the inn", False),
        ("ROOM service", False),
    ],
)
def test_failures_that_speak_of_memory(message: str, memory: bool) -> None:
    assert bool(advise_on_memory(message, 4)) == memory
    if memory:
        assert "despite the prefill limit of 4" in advise_on_memory(message, 4)
        assert "despite" not in advise_on_memory(message, None)
