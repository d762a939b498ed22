"""Prefill costs: reads the TTFT of prompts alone from a finished probe, for a canary."""

from pathlib import Path

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.records.run_facts import RUN

from .probe_measurements import PromptCost


class _Symptoms(msgspec.Struct):
    costs: tuple[PromptCost, ...] = ()


class _Examination(msgspec.Struct):
    symptoms: _Symptoms


class _Facts(msgspec.Struct):
    examination: _Examination


def read_prompt_costs(folder: Path) -> tuple[PromptCost, ...]:
    """Returns the costs by length, the shortest first. Raises ValueError unless there are two
    lengths."""
    try:
        costs = decode_json_file(folder / RUN, _Facts).examination.symptoms.costs
    except (OSError, ValueError):
        raise ValueError(
            f"{folder} is not a finished probe: its {RUN} has no examination"
        ) from None
    if len(costs) > 1:
        short = costs[0]
        long = costs[-1]
        if long.input_tokens > short.input_tokens and long.typical_s > short.typical_s:
            return costs
    raise ValueError(
        f"the probe in {folder} gives no time per token: its prompts were too few, or too short"
    )


def prefill_cost_per_token_s(folder: Path) -> float:
    """Returns the seconds per prompt token: the difference between the TTFTs of the longest and the
    shortest prompt alone, per token. Raises ValueError as ``read_prompt_costs`` does."""
    short, *_, long = read_prompt_costs(folder)
    return (long.typical_s - short.typical_s) / (long.input_tokens - short.input_tokens)
