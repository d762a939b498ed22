"""/metrics: vLLM's names and buckets, and figures that can be added up by hand."""

import re
from pathlib import Path

import pytest
from support.simulated import HELLO, started

from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.simulated_metrics import (
    EngineMetrics,
    format_metrics_page,
    format_process_memory,
)

SAMPLE = re.compile(r"(vllm:[a-z0-9_]+)(\{[^}]*\})? (\S+)")
STATE = {"running": 3, "waiting": 1, "used_blocks": 5, "num_blocks": 20, "preemptions": 2,
    "cache_queries": 90,
         "cache_hits": 32}  # fmt: skip


def samples(text):
    """(name, labels) -> value; fails on a line that is none."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found[name, frozenset(re.findall(r'([a-z_]+)="([^"]*)"', labels or ""))] = float(value)
    return found


def value(found, name, **labels):
    wanted = set(labels.items())
    (only,) = [
        number
        for (known, have), number in found.items()
        if known == f"vllm:{name}" and wanted <= have
    ]
    return only


def test_one_request_by_hand():
    metrics = EngineMetrics("m", 1000)
    sequence = Sequence(100, 3)
    sequence.started_at, sequence.output_then = 10.5, 3
    metrics.first_token(100, 1.5)
    for gap in (0.02, 0.04):
        metrics.gap(gap)
    metrics.generation_tokens += 3
    metrics.finished(
        sequence,
        sequence.num_output_tokens,
        "length",
        arrived_at=10.0,
        first_at=11.5,
        done_at=11.56,
    )
    found = samples(format_metrics_page([(metrics, STATE)]))
    sums = {
        "time_to_first_token_seconds": 1.5,
        "inter_token_latency_seconds": 0.06,
        "request_time_per_output_token_seconds": 0.03,
        "e2e_request_latency_seconds": 1.56,
        "request_queue_time_seconds": 0.5,
        "request_prefill_time_seconds": 1.0,
        "request_decode_time_seconds": 0.06,
        "request_inference_time_seconds": 1.06,
        "request_prompt_tokens": 100,
        "request_generation_tokens": 3,
    }
    for name, total in sums.items():
        assert value(found, f"{name}_sum", model_name="m", engine="0") == pytest.approx(total), name
        assert value(found, f"{name}_count") == (2 if name.startswith("inter") else 1)
        assert value(found, f"{name}_bucket", le="+Inf") == value(found, f"{name}_count")
    assert value(found, "inter_token_latency_seconds_bucket", le="0.025") == 1
    assert value(found, "inter_token_latency_seconds_bucket", le="0.05") == 2
    assert value(found, "time_to_first_token_seconds_bucket", le="1.0") == 0
    assert value(found, "prompt_tokens_total") == 100
    assert value(found, "generation_tokens_total") == 3
    assert value(found, "request_success_total", finished_reason="length") == 1
    assert value(found, "num_requests_running") == 3
    assert value(found, "num_requests_waiting") == 1
    assert value(found, "kv_cache_usage_perc") == 0.25
    assert value(found, "num_preemptions_total") == 2
    assert (
        value(found, "prefix_cache_queries_total"),
        value(found, "prefix_cache_hits_total"),
    ) == (90, 32)


def test_a_value_on_a_bound_is_in_its_bucket():
    metrics = EngineMetrics("m", 1000)
    metrics.gap(0.025)
    found = samples(format_metrics_page([(metrics, STATE)]))
    assert value(found, "inter_token_latency_seconds_bucket", le="0.01") == 0
    assert value(found, "inter_token_latency_seconds_bucket", le="0.025") == 1


VLLM = Path(__file__).parents[1] / "captures" / "vllm_metrics.txt"


def test_every_name_label_and_bucket_is_one_of_vllms():
    """The capture: these metrics of a real vLLM 0.32.0 with a context of 16,384."""
    ours = set(samples(format_metrics_page([(EngineMetrics("tiny", 16384), STATE)])))
    assert ours <= set(samples(VLLM.read_text()))
    assert len(ours) > 200


def test_what_a_server_tells_of_its_requests():
    with started(
        "--ttft-ms", "30", "--itl-ms", "5", "--max-num-queued-reqs", "1", "--api-key", "k"
    ) as simulator:
        key = {"Authorization": "Bearer k"}
        for count in (1, 4):
            assert simulator.chat(headers=key, max_tokens=count)[0] == 200
        assert simulator.call("POST", "/v1/chat/completions", {"messages": HELLO})[0] == 401
        status, text = simulator.text("/metrics")  # without the key
    assert status == 200
    found = samples(text)
    assert value(found, "time_to_first_token_seconds_count") == 2
    assert 0.06 < value(found, "time_to_first_token_seconds_sum") < 10  # seconds
    assert value(found, "inter_token_latency_seconds_count") == 3
    assert value(found, "prompt_tokens_total") == 24
    assert value(found, "generation_tokens_total") == 5
    assert (
        value(found, "request_success_total", finished_reason="length", model_name="llama-3.1-8b")
        == 2
    )
    assert value(found, "num_requests_running") == 0


def test_memory_that_leaks_below_its_garbage():
    metrics = EngineMetrics("m", 1000)
    assert format_process_memory([metrics], -1) == ""
    found = []
    for finished in (0, 9, 10):
        metrics.success["stop"] = finished
        page = format_process_memory([metrics], 200_000)
        found.append(float(page.splitlines()[-1].removeprefix("process_resident_memory_bytes ")))
    assert found == [2e9, 2e9 + 36e6 + 1.8e6, 2e9 + 2e6]
