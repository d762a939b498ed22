"""Grid: what ``--load`` and ``--set`` mean: every load with every combination of settings, and
which of them cannot be.

concurrency=1..128                  1, 2, 4, ... 128, as --sweep has it
concurrency=8..64+8                 from 8 in steps of 8
request-rate=0.5,1,2
max-num-batched-tokens=512,2048     the settings of the server, by the names of vLLM's flags
prefill-concurrency=none,1..8+1     the load generator's gate
"""

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, NamedTuple

import msgspec

from locust_llm.lab.twin.model import SchedulerSettings
from locust_llm.lab.twin.predict import WhatIf
from locust_llm.lab.twin.replay import Lengths, OfferedLoad
from locust_llm.settings.sweep import (
    CONCURRENCY,
    LOADS,
    MAX_STAGES,
    PREFILL,
    RATE,
    parse_sweep_values,
)
from locust_llm.simulator.scheduling.cost import BLOCK_SIZE
from locust_llm.simulator.scheduling.policies import POLICIES, WHOLE_PROMPTS
from locust_llm.slo.selectors import find_nearest_names

MOST: Final = 20_000
"""What-ifs of a grid."""
NONE: Final = "none"
POLICY: Final = "policy"
WITHOUT: Final = {"max_num_seqs": None, "kv_tokens": None, "long_prefill_token_threshold": 0}
"""What ``none`` means, where a setting can be without a limit."""
OF_THE_WORK: Final = "common_prefix_tokens"
"""A setting that is not the server's."""
FIELDS: Final = {
    name.replace("_", "-"): name
    for name in SchedulerSettings.__struct_fields__
    if name != OF_THE_WORK
}
KEYS: Final = (*FIELDS, PREFILL)
Value = float | str | None
"""None: ``none``."""


class SettingChoice(NamedTuple):
    """A key of ``--set`` and the values that it may have."""

    key: str
    values: tuple[Value, ...]


class Case(NamedTuple):
    """A what-if: a load, and what is set."""

    asked: WhatIf
    chosen: tuple[tuple[str, str], ...]
    """Keys and values as texts, in the order in which they were given."""

    @property
    def name(self) -> str:
        """Of its settings, without its load."""
        return " ".join(f"{key}={value}" for key, value in self.chosen) or "as fitted"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key, _ in self.chosen)

    @property
    def values(self) -> str:
        """For a table, where the keys are given once."""
        return ", ".join(value for _, value in self.chosen) or "as fitted"


def parse_load_values(text: str) -> list[OfferedLoad]:
    """Of a ``--load``. Raises ValueError of one sentence."""
    axis, equals, values = (part.strip() for part in text.partition("="))
    if axis not in LOADS or not equals:
        raise ValueError(f"--load {text[:200]!r}: write {CONCURRENCY}=1..64, or {RATE}=0.5..8")
    found = _numbers("--load", text, values)
    if axis == RATE:
        return [OfferedLoad(rate=value) for value in found]
    if any(value != int(value) for value in found):
        raise ValueError(f"--load {text[:200]!r}: {axis} takes whole numbers")
    return [OfferedLoad(users=int(value)) for value in found]


def choice(text: str) -> SettingChoice:
    """Of a ``--set``. Raises ValueError of one sentence."""
    key, equals, values = (part.strip() for part in text.partition("="))
    key = key.removeprefix("--").replace("_", "-")
    if key not in KEYS or not equals:
        raise ValueError(
            f"--set {text[:200]!r}: write KEY=VALUES with one of "
            f"{', '.join(KEYS)}{find_nearest_names(key, KEYS)}"
        )
    parts = [part.strip() for part in values.split(",")]
    if key == POLICY:
        if wrong := next((part for part in parts if part not in POLICIES), None):
            raise ValueError(
                f"--set {text[:200]!r}: there is no policy {wrong[:40]!r}, but "
                f"{', '.join(POLICIES)}"
            )
        return SettingChoice(key, tuple(dict.fromkeys(parts)))
    without = [part for part in parts if part == NONE]
    if without and key != PREFILL and FIELDS[key] not in WITHOUT:
        raise ValueError(f"--set {text[:200]!r}: a server always has a {key}")
    numbers = [part for part in parts if part != NONE]
    found = _numbers("--set", text, ",".join(numbers)) if numbers else []
    if any(value != int(value) for value in found):
        raise ValueError(f"--set {text[:200]!r}: {key} takes whole numbers")
    return SettingChoice(key, (*([None] if without else []), *found))


def _numbers(option: str, text: str, values: str) -> Sequence[float]:
    try:
        found = parse_sweep_values(values)
    except ValueError as error:
        raise ValueError(f"{option} {text[:200]!r}: {error}") from None
    if len(found) > MAX_STAGES:
        raise ValueError(f"{option} {text[:200]!r}: more than {MAX_STAGES} values")
    return found


def grid(
    at: Sequence[OfferedLoad], choices: Sequence[SettingChoice], fitted: SchedulerSettings
) -> list[Case]:
    """Every load with every combination, the loads of one combination together. Raises ValueError
    of one sentence."""
    keys = [one.key for one in choices]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(
            f"--set {twice} is given twice: write its values in one, with commas between"
        )
    count = len(at) * math.prod(len(one.values) for one in choices)
    if count > MOST:
        raise ValueError(f"these are {count:,} what-ifs, and at most {MOST:,} are possible")
    return [
        Case(_asked(load, dict(zip(keys, values, strict=True)), fitted),
            tuple(zip(keys, map(_text, values), strict=True)))
        for values in product(*(one.values for one in choices))
        for load in at
    ]  # fmt: skip


def _asked(load: OfferedLoad, values: dict[str, Value], fitted: SchedulerSettings) -> WhatIf:
    limit = values.get(PREFILL)
    changed = {
        FIELDS[key]: WITHOUT[FIELDS[key]]
        if value is None
        else value
        if isinstance(value, str)
        else int(value)
        for key, value in values.items()
        if key != PREFILL
    }
    settings = msgspec.structs.replace(fitted, **changed)
    return WhatIf(
        load,
        math.inf if not isinstance(limit, float) else limit,
        None if settings == fitted else settings,
    )


def _text(value: Value) -> str:
    if value is None:
        return NONE
    return value if isinstance(value, str) else f"{value:.15g}"


def as_fitted(case: Case) -> Case:
    """The same load on the server as it was fitted, without a gate."""
    return Case(WhatIf(case.asked.load), ())


def impossible(settings: SchedulerSettings, lengths: Lengths) -> str:
    """Why no server runs with these, one clause; empty: it may."""
    budget, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    longest = max(prompt for prompt, _ in lengths)
    most = max(prompt + output for prompt, output in lengths)
    if settings.kv_tokens is not None and settings.kv_tokens // BLOCK_SIZE * BLOCK_SIZE < most:
        return f"a KV cache of {settings.kv_tokens:,} tokens does not hold a request of {most:,}"
    if settings.policy in WHOLE_PROMPTS and budget < longest:
        return (
            f"{settings.policy} computes whole prompts, and one of {longest:,} tokens is above "
            f"a budget of {budget:,}"
        )
    if seqs is not None and seqs > budget and settings.policy != "static":
        return f"{seqs:,} sequences of one token each are above a budget of {budget:,} tokens"
    if settings.long_prefill_token_threshold and settings.policy in WHOLE_PROMPTS:
        return f"{settings.policy} has no long-prefill-token-threshold"
    if settings.max_num_partial_prefills > 1 and settings.policy != "partial-prefills":
        return f"{settings.policy} has no max-num-partial-prefills"
    if settings.max_num_partial_prefills > budget:
        return (
            f"a budget of {budget:,} tokens is too little for "
            f"{settings.max_num_partial_prefills:,} prompts at a time"
        )
    return ""


def possible(
    cases: Iterable[Case], fitted: SchedulerSettings, lengths: Lengths
) -> tuple[list[Case], dict[str, list[str]]]:
    """(those that can be, why others cannot: by reason, their names)."""
    found = list[Case]()
    why = dict[str, dict[str, None]]()
    for case in cases:
        if reason := impossible(case.asked.settings or fitted, lengths):
            why.setdefault(reason, {})[case.name] = None
        else:
            found.append(case)
    return found, {reason: list(names) for reason, names in why.items()}
