"""Runs inside of vLLM's own environment: its real scheduler on made-up workloads, a step at a time,
without a model.

Reads a workload a line from stdin and writes what each step did, a line each, to stdout; both JSON,
as `support.vllm_steps` makes and reads them.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
MOST_STEPS = 20_000
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1, "num_hidden_layers": 1, "num_key_value_heads": 1, "vocab_size": 1000,
    "max_position_embeddings": 65_536, "torch_dtype": "float32",
}  # fmt: skip


def make(config, model, asynchronous):
    """A scheduler with these settings of SchedulerConfig, ``num_blocks`` and
    ``enable_prefix_caching``."""
    settings = dict(config)
    # one is the null block
    num_blocks, caching = settings.pop("num_blocks") + 1, settings.pop("enable_prefix_caching")
    model.max_model_len = settings["max_model_len"]
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=caching)
    scheduling = SchedulerConfig(
        is_encoder_decoder=False, async_scheduling=asynchronous, **settings
    )
    vllm_config = VllmConfig(model_config=model, cache_config=cache, scheduler_config=scheduling)
    cache.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return (AsyncScheduler if asynchronous else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=BLOCK_SIZE,
    )


def run(workload, model):
    """Each step that had work: tokens by request, preemptions and cached tokens so far, free
    blocks. Requests are named by their place in the workload; ``at`` and ``abort_at`` count calls
    of `schedule`. With ``during`` the abort comes while that step runs."""
    scheduler = make(workload["config"], model, workload["async"])
    hasher = (
        get_request_block_hasher(BLOCK_SIZE, sha256)
        if workload["config"]["enable_prefix_caching"]
        else None
    )
    outputs = [request["output"] for request in workload["requests"]]
    requests, steps, hits, preempted, before = [], [], 0, 0, None
    for now in range(MOST_STEPS):
        for number, request in enumerate(workload["requests"]):
            if request["at"] == now:
                parameters = SamplingParams(max_tokens=len(request["output"]), ignore_eos=True)
                requests.append(
                    Request(str(number), request["prompt"], parameters, None,
                        arrival_time=float(number),
                            priority=request["priority"], block_hasher=hasher)
                )  # fmt: skip
                scheduler.add_request(requests[-1])
        abort(scheduler, workload, now, during=False)
        running = set(scheduler.running)
        scheduled = scheduler.schedule()
        while (
            not scheduled.num_scheduled_tokens
            and len(scheduler.running) < len(running)
            and not workload["async"]
        ):
            # all it did was to preempt: the next step follows at once
            end(scheduler, outputs, scheduled, set())
            running = set(scheduler.running)
            scheduled = scheduler.schedule()
        work = scheduled.num_scheduled_tokens
        for request in scheduler.running:
            if request not in running:
                hits += request.num_computed_tokens - work[request.request_id]
        preempted = sum(request.num_preemptions for request in requests)
        if work:
            free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            steps.append(
                [{int(name): count for name, count in work.items()}, preempted, hits, free]
            )
        abort(scheduler, workload, now, during=True)
        got = {
            name
            for name in work
            if name in scheduler.requests and not scheduler.requests[name].is_prefill_chunk
        }
        step, before = (before, (scheduled, got)) if workload["async"] else ((scheduled, got), None)
        if step:
            end(scheduler, outputs, *step)
        if not scheduler.requests and all(request["at"] <= now for request in workload["requests"]):
            return steps
    raise RuntimeError("no end")


def abort(scheduler, workload, now, *, during):
    names = [
        str(number) for number, request in enumerate(workload["requests"])
        if request["abort_at"] == now and request["during"] == during
    ]  # fmt: skip
    scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)


def end(scheduler, outputs, scheduled, got):
    """The made-up model's output: the next token of everyone who has no more to compute."""
    names = list(scheduled.num_scheduled_tokens)
    sampled = []
    for name in names:
        request = scheduler.requests.get(name)
        sampled.append(
            [outputs[int(name)][request.num_output_tokens]] if request and name in got else []
        )
    indices = {name: index for index, name in enumerate(names)}
    scheduler.update_from_output(scheduled, ModelRunnerOutput(names, indices, sampled))


def main():
    out, sys.stdout = sys.stdout, sys.stderr  # what vLLM prints is not an answer
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(folder, skip_tokenizer_init=True, dtype="float32", seed=0)
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line), model)), file=out, flush=True)


if __name__ == "__main__":
    main()
