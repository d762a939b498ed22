"""H100 twin: writes the twin of the simulator's H100 (Llama 3.1 8B) without a fit, for the plans in
docs/how-to/twin.md.

    python tests/bench/h100_twin.py h100.toml

Its costs come from simulator/scheduling/step_cost.py, which has the form that a twin has, so it is
exactly a twin of the simulator and its error against that is 0. It is no twin of a real H100: its
intervals carry the RMS log error of the rows that were held out of the simulator's calibration
(benchmarks/simulator.md), of ITL and throughput; TTFT was not compared, and has the same.
"""

import sys
from pathlib import Path

from locust_llm.lab.twin import twin_file
from locust_llm.lab.twin.server_observations import FIGURES
from locust_llm.lab.twin.twin_model import FIGURES as GOOD
from locust_llm.lab.twin.twin_model import (
    Origin,
    Ranges,
    SchedulerSettings,
    ServerModel,
    StepCosts,
    Trust,
    Twin,
)
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100 as H100

ERROR = 0.104


def twin() -> Twin:
    model, gpu = H100.model, H100.gpu
    bandwidth = gpu.bandwidth * H100.bandwidth_efficiency
    weights_s = model.weight_bytes / bandwidth
    token_s = 2 * model.parameters / (gpu.flops * H100.mfu)
    cost = StepCosts(
        fixed_s=weights_s + H100.step_overhead_s,
        token_s=token_s,
        free_tokens=weights_s / token_s,
        stream_s=H100.seq_overhead_s,
        context_s=model.kv_bytes_per_token / bandwidth,
        pair_s=4 * model.num_layers * model.hidden_size / (gpu.flops * H100.attention_mfu),
    )
    settings = SchedulerSettings(
        policy="chunked", max_num_batched_tokens=gpu.max_num_batched_tokens,
        max_num_seqs=gpu.max_num_seqs,
        kv_tokens=H100.kv_tokens,
    )  # fmt: skip
    return Twin(
        model=ServerModel(settings=settings, cost=cost),
        trust=Trust(
            verdict=GOOD, error=0.0, errors=dict.fromkeys(FIGURES, ERROR),
            reasons=("written from the simulator's costs, a twin of the simulator and of no real "
                "server",),
        ),
        ranges=Ranges(users=(1, 256), prompt_tokens=(1, 8192), output_tokens=(1, 1024),
            saturated=True),
        origin=Origin(model="Llama 3.1 8B", server="the simulator's H100"),
    )  # fmt: skip


if __name__ == "__main__":
    twin_file.write_twin(twin(), Path(sys.argv[1]))
