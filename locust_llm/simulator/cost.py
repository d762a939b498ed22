"""How many seconds one step of a GPU takes: a roofline plus two measured overheads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BLOCK_SIZE = 16  # tokens of one KV block; vLLM's default on CUDA


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    parameters: float
    weight_bytes: float
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    memory_bytes: float
    bandwidth: float  # bytes a second
    flops: float  # a second, bf16 dense
    max_num_batched_tokens: int  # vLLM's default on this GPU (`EngineArgs.get_batch_defaults`, API server)
    max_num_seqs: int  # likewise


MODELS = {
    # Llama 3.1 8B's config.json and model card. bf16: 2 bytes a parameter.
    # KV: 2 (K and V) x 32 layers x 8 KV heads x 128 x 2 bytes = 128 KiB.
    "llama-3.1-8b": Model(
        parameters=8.03e9,
        weight_bytes=16.06e9,
        num_layers=32,
        hidden_size=4096,
        kv_bytes_per_token=131_072,
        max_model_len=131_072,
    ),
}

GPUS = {
    # NVIDIA H100 SXM data sheet: 80 GB HBM3, 3.35 TB/s, 989 TFLOP/s bf16 without sparsity.
    "h100": GPU(memory_bytes=80e9, bandwidth=3.35e12, flops=989e12, max_num_batched_tokens=8192, max_num_seqs=1024),
    # NVIDIA A100 40GB data sheet: 1,555 GB/s, 312 TFLOP/s. vLLM gives its small defaults to every A100.
    "a100-40": GPU(memory_bytes=40e9, bandwidth=1.555e12, flops=312e12, max_num_batched_tokens=2048, max_num_seqs=256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Constants of `step_s`. The four fitted ones: least squares on 20 load stages published by inference-perf
    (kubecon-na-2025 demo; Llama-3.1-8B, one H100, vLLM 0.11): RMS log error of the time per token 0.12, in sample.
    Nothing was fitted on another GPU: there they are a guess."""

    model: Model
    gpu: GPU
    bandwidth_efficiency: float = 0.94  # fitted
    mfu: float = 0.586  # fitted; share of peak FLOP/s in the linear layers: 27.7 us a prompt token on H100
    attention_mfu: float = 0.4  # assumed, not fitted; share of peak FLOP/s in prefill attention
    step_overhead_s: float = 2.53e-3  # fitted; launch, scheduling, sampling: once a step
    seq_overhead_s: float = 10.6e-6  # fitted; the same, for each sequence of the step

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that fit, in whole blocks: vLLM's gpu_memory_utilization 0.9 of the memory, minus the
        weights, minus about 4 GB for activations and CUDA graphs (an estimate)."""
        free = 0.9 * self.gpu.memory_bytes - self.model.weight_bytes - 4e9
        return int(free / self.model.kv_bytes_per_token) // BLOCK_SIZE * BLOCK_SIZE


def step_s(cost: Cost, segments: Iterable[tuple[int, int]]) -> float:
    """Seconds of one step. Each segment is one sequence's (tokens computed before, tokens computed in this step).

    The linear layers read all weights once or compute 2 FLOP a parameter and token, whichever takes longer; attention
    reads the KV cache of every sequence, and prefills (segments of more than one token) also compute
    4 x layers x hidden_size FLOP for each pair of a new token and a token before it.
    """
    tokens = seqs = context_tokens = 0
    attention_pairs = 0.0
    for computed, new in segments:
        tokens += new
        seqs += 1
        context_tokens += computed + new
        if new > 1:
            attention_pairs += new * (computed + new / 2)
    model, gpu = cost.model, cost.gpu
    bandwidth = gpu.bandwidth * cost.bandwidth_efficiency
    return (
        max(model.weight_bytes / bandwidth, 2 * model.parameters * tokens / (gpu.flops * cost.mfu))
        + model.kv_bytes_per_token * context_tokens / bandwidth
        + 4 * model.num_layers * model.hidden_size * attention_pairs / (gpu.flops * cost.attention_mfu)
        + cost.step_overhead_s
        + cost.seq_overhead_s * seqs
    )
