"""Workload options: which options define what a server is asked to do. Runs that differ in one of them
have other workloads in the history, and compare names the difference."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .option_declaration import declared_options
from .run_options import Settings

GROUPS: Final = ("load", "prompts", "gate", "sweep", "tenants", "ab")
"""All options of these groups define the workload, except the following ones."""
ASIDE: Final = frozenset((
    "request_count", "num_sessions", "max_users", "random_seed", "fresh_words", "probe", "scenario",
    "tokenizer",
    "skip_broken_rows",
    "warmup_request_count", "warmup_duration", "warmup_concurrency", "warmup_request_rate",
    "warmup_prefill_concurrency", "warmup_prefill_concurrency_ramp_duration", "stage_duration",
    "stage_requests",
    "stage_requests_per_user", "stage_warmup_per_user",
))  # fmt: skip
"""Duration, warmup and seed of a run do not define its workload."""
DEFAULTS: Final[Mapping[str, Any]] = msgspec.to_builtins(Settings())
WORKLOAD_OPTIONS: Final[Mapping[str, str]] = {
    "users": "users", "streaming": "streaming", "endpoint_type": "endpoint-type",
    "model_mix": "model-mix", "check_answers": "check-answers", "max_retries": "max-retries",
    **{
        option.field: option.flag.lstrip("-") for option in declared_options(Settings)
        if option.group in GROUPS and option.field not in ASIDE
    },
}  # fmt: skip
"""Each field of the settings has the name of its flag."""


def format_option_value(value: object) -> str:
    """``2``, ``gold=20 free=80``, ``off``. Empty: the option is set, and has no value."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if value is True:
        return ""
    if value is False:
        return "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
