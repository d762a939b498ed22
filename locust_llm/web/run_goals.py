"""Run goals: what a run can find out, as the form of a run offers it, and the fields that each goal
needs."""

from collections.abc import Mapping
from typing import Final

import msgspec

from locust_llm.settings.sweep_option import CONCURRENCY, INPUT, PREFILL, RATE

from .locust_form import DATASET_FIELD, SCENARIO_FIELD

WORKLOAD_FIELDS: Final = (
    SCENARIO_FIELD, DATASET_FIELD, "synthetic_input_tokens_mean", "output_tokens_mean",
)  # fmt: skip
RULE_FIELDS: Final = ("slo", "slo_preset")
SERVER_FIELDS: Final = ("host", "model")
STAGE_FIELDS: Final = ("sweep", "run_time", "stage_duration")
GATE_FIELDS: Final = ("prefill_concurrency", "prefill_concurrency_ramp_duration")
NOT_IN_STAGES: Final = {"prefill_concurrency_ramp_duration": "", "request_count": ""}
"""Values that a run in stages or in blocks excludes."""


class RunGoal(msgspec.Struct, frozen=True):
    """Something that a run can find out."""

    name: str
    title: str
    about: str
    fields: tuple[str, ...]
    """The fields that it needs, in their order."""
    values: Mapping[str, str]
    """The values that make a run one of this goal, or that it excludes. ``sweep`` is the default of
    a field whose axis is one of ``axes``."""
    axes: tuple[str, ...] = ()
    """What its sweep may change."""
    needed: Mapping[str, str] = {}
    """The fields without which it is no run of this goal, with what to do about them."""
    has_load: bool = False
    """It needs a load: users, or a request rate."""
    starts_here: bool = True
    """The page can start it. Otherwise it shows the command."""


class RunLoad(msgspec.Struct, frozen=True):
    """A kind of load, as the form offers it."""

    title: str
    fields: tuple[str, ...]


LOADS: Final = {
    "users": RunLoad("Users: each waits for its response", ("user_count",)),
    "rate": RunLoad("Requests per second, by a schedule", ("request_rate", "arrival_pattern")),
}
_ONE_LOAD: Final = {"sweep": "", "find_max": "false", "objective": "", "fixed_schedule": "false"}
_RISING_LOAD: Final = {
    **_ONE_LOAD, **NOT_IN_STAGES, "sweep": f"{CONCURRENCY}=1..64", "user_count": "",
    "request_rate": "",
}  # fmt: skip
_WITHOUT_STAGES: Final = {"sweep": "Give the loads to try, such as 1..64."}
GOALS: Final = (
    RunGoal(
        "look", "A first look", "How fast are responses under one load?",
        (*WORKLOAD_FIELDS, "run_time", *GATE_FIELDS, *RULE_FIELDS, *SERVER_FIELDS), _ONE_LOAD,
        has_load=True,
    ),
    RunGoal(
        "capacity", "The largest load within an SLO",
        "How many users, or requests per second, can the server take?",
        (*WORKLOAD_FIELDS, *STAGE_FIELDS, *RULE_FIELDS, *SERVER_FIELDS),
        {**_RISING_LOAD, "find_max": "true"}, (CONCURRENCY, RATE, INPUT),
        {**_WITHOUT_STAGES, "slo": "Add an SLO: the largest load is the highest one that meets it."},
    ),
    RunGoal(
        "curve", "Latency as the load grows", "A stage for each load of a list, and the knee.",
        (*WORKLOAD_FIELDS, *STAGE_FIELDS, *RULE_FIELDS, *SERVER_FIELDS), _RISING_LOAD,
        (CONCURRENCY, RATE, INPUT), _WITHOUT_STAGES,
    ),
    RunGoal(
        "limit", "The best prefill limit",
        "Limits and no limit take turns under one load.",
        (*WORKLOAD_FIELDS, "sweep", "objective", "run_time", *RULE_FIELDS, *SERVER_FIELDS),
        {"sweep": f"{PREFILL}=1..8", "find_max": "false", "fixed_schedule": "false",
         "prefill_concurrency": "", **NOT_IN_STAGES},
        (PREFILL,), {"sweep": "Give the limits to try, such as 1..8."}, has_load=True,
    ),
    RunGoal(
        "compare", "A or B", "Which of two servers, or of two settings, is better?",
        (*WORKLOAD_FIELDS, "run_time", "prefill_concurrency", *RULE_FIELDS, *SERVER_FIELDS),
        {**_ONE_LOAD, **NOT_IN_STAGES}, has_load=True, starts_here=False,
    ),
    RunGoal(
        "replay", "A replay of traffic", "Requests at the times of a recorded trace.",
        (DATASET_FIELD, SCENARIO_FIELD, "replay_speedup", "fixed_schedule_start_offset",
         "fixed_schedule_end_offset", "run_time", *GATE_FIELDS, *RULE_FIELDS, *SERVER_FIELDS),
        {**_ONE_LOAD, "fixed_schedule": "true", "user_count": "", "request_rate": ""},
        needed={DATASET_FIELD: "Choose or upload the trace to replay."},
    ),
)  # fmt: skip
"""The first one is of a run that none of the others describes."""
