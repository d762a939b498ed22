"""Runs inside of vLLM's own environment: its real scheduler as the step loop of another process
asks for it, without a model.

Each line of stdin is JSON: ``{"settings": {...}}`` begins anew with an empty scheduler, and a list
of [number, prompt tokens, output tokens] is who came; it is answered with the tokens of the next
step, by number.
"""

import json
import sys
import tempfile
from pathlib import Path

from vllm.config import ModelConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm_scheduler import MODEL, make


def step(scheduler, came):
    for number, prompt, output in came:
        parameters = SamplingParams(max_tokens=output, ignore_eos=True)
        scheduler.add_request(Request(str(number), [0] * prompt, parameters, None))
    scheduled = scheduler.schedule()
    work = scheduled.num_scheduled_tokens
    names = list(work)
    sampled = [[] if scheduler.requests[name].is_prefill_chunk else [0] for name in names]
    indices = {name: index for index, name in enumerate(names)}
    scheduler.update_from_output(scheduled, ModelRunnerOutput(names, indices, sampled))
    return work


def main():
    out, sys.stdout = sys.stdout, sys.stderr  # what vLLM prints is not an answer
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(folder, skip_tokenizer_init=True, dtype="float32", seed=0)
        scheduler = None
        for line in sys.stdin:
            given = json.loads(line)
            if isinstance(given, dict):
                scheduler = make(given["settings"], model, False)
            else:
                print(json.dumps(step(scheduler, given)), file=out, flush=True)


if __name__ == "__main__":
    main()
