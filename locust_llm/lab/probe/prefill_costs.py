"""What prompts take alone, as the folder of a finished probe has it: the price of prompts for a
canary."""

from pathlib import Path

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.records.run import RUN

from .measurements import PromptCost


class _Symptoms(msgspec.Struct):
    costs: tuple[PromptCost, ...] = ()


class _Examination(msgspec.Struct):
    symptoms: _Symptoms


class _Facts(msgspec.Struct):
    examination: _Examination


def read_prompt_costs(folder: Path) -> tuple[PromptCost, ...]:
    """By length, shortest first. Raises ValueError of one sentence where there are none of two
    lengths."""
    try:
        costs = decode_json_file(folder / RUN, _Facts).examination.symptoms.costs
    except (OSError, ValueError):
        raise ValueError(
            f"{folder} holds no finished probe: its {RUN} has no examination"
        ) from None
    if len(costs) > 1:
        short, long = costs[0], costs[-1]
        if long.input_tokens > short.input_tokens and long.typical_s > short.typical_s:
            return costs
    raise ValueError(
        f"the probe in {folder} does not tell what a token takes: its prompts were too few, or too "
        f"short"
    )


def prefill_cost_per_token_s(folder: Path) -> float:
    """Seconds that a prompt's token takes: TTFT of the longest prompt alone less that of the
    shortest, a token. Raises ValueError as ``prompts_alone`` does."""
    short, *_, long = read_prompt_costs(folder)
    return (long.typical_s - short.typical_s) / (long.input_tokens - short.input_tokens)
