"""InferenceX: a row for each load, as its ``process_result.py`` makes them of a vLLM result: seconds, and rates per GPU."""

from collections.abc import Iterable, Mapping
from typing import Any

from locust_llm.results.exports import vllm_bench

from .measured import Measured, NotExported


def row(found: Measured, gpus: int | None, more: Mapping[str, object]) -> dict[str, Any]:
    """``more``: what a run does not know: hw, framework, precision, tp, ... ``intvty`` is 1 / TPOT: tokens a second and
    user. Raises NotExported without GPUs or counts of tokens."""
    gpus = gpus or found.run.settings.gpus
    if not gpus:
        raise NotExported("its rates are per GPU: say how many the server has with --gpus N")
    bench = vllm_bench.document(found, {})
    if "output_throughput" not in bench:
        raise NotExported("its rates are of tokens, and not every answer has a count")
    s, per_gpu = found.run.settings, 1 / gpus
    both, out = bench["total_token_throughput"], bench["output_throughput"]
    whole: dict[str, Any] = {
        "hw": None,
        "conc": None if s.open_loop else s.users,
        "model": bench["model_id"],
        "framework": None,
        "precision": None,
        "isl": _mean(one.asked_input_tokens for one in found.ok),
        "osl": _mean(one.asked_output_tokens for one in found.ok),
        **more,
        "tput_per_gpu": both * per_gpu,
        "output_tput_per_gpu": out * per_gpu,
        "input_tput_per_gpu": (both - out) * per_gpu,
    }
    for name, value in bench.items():
        if name.endswith("_ms"):
            whole[name.removesuffix("_ms")] = value / 1e3
        if name.endswith("_tpot_ms") and value > 0 and not name.startswith("std"):
            whole[name.removesuffix("_tpot_ms") + "_intvty"] = 1e3 / value
    return {name: value for name, value in whole.items() if value is not None}


def _mean(asked: Iterable[int | None]) -> int | None:
    """The length that was asked for, where one was."""
    known = [length for length in asked if length is not None]
    return round(sum(known) / len(known)) if known else None
