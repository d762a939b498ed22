"""Step cost: computes the seconds of a GPU step by a roofline and two measured overheads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

BLOCK_SIZE = 16  # tokens of one KV block; vLLM's default on CUDA


class StepTime(Protocol):
    """Returns the seconds of a step. Each segment is one sequence's (tokens computed before, tokens
    computed in this step). Besides, num_decodes sequences compute one token each, with
    num_context_tokens in all their contexts."""

    def __call__(
        self,
        segments: Iterable[tuple[int, int]],
        num_decodes: int = 0,
        num_context_tokens: int = 0,
        /,
    ) -> float: ...


class StepCost(Protocol):
    """Gives an engine its step times. The engine fetches them once."""

    def step_time(self) -> StepTime: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
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
    # vLLM's default on this GPU (`EngineArgs.get_batch_defaults`, API server): the small ones,
    # which every A100 has too
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256


MODELS = {
    # Llama 3.1 8B's config.json and model card. bf16: 2 bytes a parameter.
    # KV: 2 (K and V) x 32 layers x 8 KV heads x 128 x 2 bytes = 128 KiB.
    "llama-3.1-8b": CostModel(
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
    "h100": GPU(
        memory_bytes=80e9,
        bandwidth=3.35e12,
        flops=989e12,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
    ),
    # NVIDIA A100 40GB data sheet: 1,555 GB/s, 312 TFLOP/s.
    "a100-40": GPU(memory_bytes=40e9, bandwidth=1.555e12, flops=312e12),
    # NVIDIA A40 data sheet: 48 GB GDDR6, 696 GB/s, 149.7 TFLOP/s bf16 without sparsity.
    "a40": GPU(memory_bytes=48e9, bandwidth=0.696e12, flops=149.7e12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCostConstants:
    """Holds the constants of `step_duration_s`. All six fitted ones, these four and V0's two extra
    overheads, come from one least-squares fit of log errors. `make calibration` prints the errors
    row by row. Nothing was fitted on another GPU, where the constants are a guess."""

    model: CostModel
    gpu: GPU
    bandwidth_efficiency: float = 0.981  # fitted; share of the data sheet's bandwidth
    # fitted; share of peak FLOP/s in the linear layers: 28.4 us a prompt token on H100
    mfu: float = 0.571
    attention_mfu: float = 0.4  # assumed, not fitted; share of peak FLOP/s in prefill attention
    step_overhead_s: float = 2.55e-3  # fitted; launch, scheduling, sampling: once a step
    seq_overhead_s: float = 11.3e-6  # fitted; the same, for each sequence of the step

    @property
    def kv_tokens(self) -> int:
        """Returns the tokens of KV cache that fit, in whole blocks. It is vLLM's
        gpu_memory_utilization 0.9 of the memory, minus the weights, minus about 4 GB for
        activations and CUDA graphs (an estimate)."""
        free = 0.9 * self.gpu.memory_bytes - self.model.weight_bytes - 4e9
        return int(free / self.model.kv_bytes_per_token) // BLOCK_SIZE * BLOCK_SIZE

    def step_time(self) -> StepTime:
        return Roofline(self)


LLAMA_8B_H100 = StepCostConstants(model=MODELS["llama-3.1-8b"], gpu=GPUS["h100"])
# V0's Python did more between two steps: 0.41 ms, and 45 us for each sequence. Fitted
V0_LLAMA_8B_H100 = replace(
    LLAMA_8B_H100,
    step_overhead_s=LLAMA_8B_H100.step_overhead_s + 0.41e-3,
    seq_overhead_s=LLAMA_8B_H100.seq_overhead_s + 45e-6,
)
FOUR_LLAMA_8B_H100 = replace(  # the same four for both: fitted apart
    LLAMA_8B_H100,
    bandwidth_efficiency=0.880,
    mfu=0.595,
    step_overhead_s=2.38e-3,
    seq_overhead_s=16.5e-6,
)


class Roofline:
    """Computes the seconds of a step with precomputed factors. See `step_duration_s`."""

    __slots__ = (
        "_attention", "_attention_flops", "_bandwidth", "_flops", "_kv_bytes", "_linear", "_seq_s",
        "_step_s", "_weights_s",
    )  # fmt: skip

    def __init__(self, cost: StepCostConstants) -> None:
        model = cost.model
        gpu = cost.gpu
        self._bandwidth = gpu.bandwidth * cost.bandwidth_efficiency
        self._weights_s = model.weight_bytes / self._bandwidth
        self._kv_bytes = model.kv_bytes_per_token
        self._linear = 2 * model.parameters
        self._flops = gpu.flops * cost.mfu
        self._attention = 4 * model.num_layers * model.hidden_size
        self._attention_flops = gpu.flops * cost.attention_mfu
        self._step_s = cost.step_overhead_s
        self._seq_s = cost.seq_overhead_s

    def __call__(
        self, segments: Iterable[tuple[int, int]], num_decodes: int = 0, num_context_tokens: int = 0
    ) -> float:
        tokens = seqs = num_decodes
        context_tokens = num_context_tokens
        attention_pairs = 0.0
        for computed, new in segments:
            tokens += new
            seqs += 1
            context_tokens += computed + new
            if new > 1:
                attention_pairs += new * (computed + new / 2)
        linear_s = self._linear * tokens / self._flops
        return (
            (linear_s if linear_s > self._weights_s else self._weights_s)
            + self._kv_bytes * context_tokens / self._bandwidth
            + self._attention * attention_pairs / self._attention_flops
            + self._step_s
            + self._seq_s * seqs
        )


def step_duration_s(
    cost: StepCostConstants,
    segments: Iterable[tuple[int, int]],
    num_decodes: int = 0,
    num_context_tokens: int = 0,
) -> float:
    """Returns the seconds of one step. Each segment is one sequence's (tokens computed before,
    tokens computed in this step). Besides, num_decodes sequences compute one token each, with
    num_context_tokens in all their contexts.

    The linear layers read all weights once, or compute 2 FLOP per parameter and token, whichever
    takes longer. Attention reads the KV cache of every sequence. Prefills (segments of more than
    one token) also compute 4 x layers x hidden_size FLOP for each pair of a new token and a token
    before it.
    """
    return Roofline(cost)(segments, num_decodes, num_context_tokens)
