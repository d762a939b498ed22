"""What-if grid: parses ``--load`` and ``--set``, combines every load with every combination of
settings, and drops impossible ones.

concurrency=1..128                  1, 2, 4, ... 128, as --sweep has it
concurrency=8..64+8                 from 8 in steps of 8
request-rate=0.5,1,2
max-num-batched-tokens=512,2048     the settings of the server, by the names of vLLM's flags
prefill-concurrency=none,1..8+1     the load generator's gate
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from locust_llm.lab.twin.server_observations import IN_FLIGHT, REQUESTS_PER_S
from locust_llm.lab.twin.twin_model import NOT_TO_BE_USED, Ranges, SchedulerSettings, Twin
from locust_llm.lab.twin.twin_prediction import Logarithms, WhatIf, mean_of_logarithms
from locust_llm.lab.twin.virtual_replay import Lengths, OfferedLoad
from locust_llm.settings.sweep_option import (
    CONCURRENCY,
    LOADS,
    MAX_STAGES,
    PREFILL,
    RATE,
    parse_sweep_values,
)
from locust_llm.simulator.scheduling.batching_policies import POLICIES, WHOLE_PROMPTS
from locust_llm.simulator.scheduling.step_cost import BLOCK_SIZE
from locust_llm.text.format import find_nearest_names

MOST: Final = 20_000
"""A grid has at most this many what-ifs."""
NONE: Final = "none"
POLICY: Final = "policy"
WITHOUT: Final = {"max_num_seqs": None, "kv_tokens": None, "long_prefill_token_threshold": 0}
"""``none`` means this value, if a setting can have no limit."""
OF_THE_WORK: Final = "common_prefix_tokens"
"""This setting is not the server's."""
FIELDS: Final = {
    name.replace("_", "-"): name
    for name in SchedulerSettings.__struct_fields__
    if name != OF_THE_WORK
}
KEYS: Final = (*FIELDS, PREFILL)
Value = float | str | None
"""None stands for ``none``."""


class SettingChoice(NamedTuple):
    """Holds a key of ``--set`` and its possible values."""

    key: str
    values: tuple[Value, ...]


class Case(NamedTuple):
    """Is a what-if: a load, and settings."""

    what_if: WhatIf
    chosen: tuple[tuple[str, str], ...]
    """Keys and values are texts in the given order."""

    @property
    def name(self) -> str:
        """Names its settings, without its load."""
        return " ".join(f"{key}={value}" for key, value in self.chosen) or "as fitted"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key, _ in self.chosen)

    @property
    def values(self) -> str:
        """Returns the values for a table whose head has the keys."""
        return ", ".join(value for _, value in self.chosen) or "as fitted"


def parse_load_values(text: str) -> list[OfferedLoad]:
    """Parses a ``--load``. Raises ValueError."""
    axis, equals, values = map(str.strip, text.partition("="))
    if axis not in LOADS or not equals:
        raise ValueError(f"--load {text[:200]!r}: write {CONCURRENCY}=1..64, or {RATE}=0.5..8")
    found = _numbers("--load", text, values)
    if axis == RATE:
        return [OfferedLoad(rate=value) for value in found]
    if any(value != int(value) for value in found):
        raise ValueError(f"--load {text[:200]!r}: {axis} takes whole numbers")
    return [OfferedLoad(users=int(value)) for value in found]


def parse_setting_choice(text: str) -> SettingChoice:
    """Parses a ``--set``. Raises ValueError."""
    key, equals, values = map(str.strip, text.partition("="))
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


def make_grid(
    at: Sequence[OfferedLoad], choices: Sequence[SettingChoice], fitted: SchedulerSettings
) -> list[Case]:
    """Combines every load with every combination of settings, with the loads of one combination
    together. Raises ValueError."""
    keys = [one.key for one in choices]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(
            f"--set {twice} is given twice: write its values in one, with commas between"
        )
    count = len(at) * math.prod(len(one.values) for one in choices)
    if count > MOST:
        raise ValueError(f"these are {count:,} what-ifs, and at most {MOST:,} are possible")
    cases = []
    for values in product(*(choice.values for choice in choices)):
        settings = dict(zip(keys, values, strict=True))
        chosen = tuple(zip(keys, map(_text, values), strict=True))
        cases += [Case(_asked(load, settings, fitted), chosen) for load in at]
    return cases


def _asked(load: OfferedLoad, values: dict[str, Value], fitted: SchedulerSettings) -> WhatIf:
    limit = values.get(PREFILL)
    changed: dict[str, object] = {}
    for key, value in values.items():
        if key == PREFILL:
            continue
        field = FIELDS[key]
        if value is None:
            changed[field] = WITHOUT[field]
        else:
            changed[field] = value if isinstance(value, str) else int(value)
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
    """Returns the same load on the fitted server without a gate."""
    return Case(WhatIf(case.what_if.load), ())


def explain_impossible(settings: SchedulerSettings, lengths: Lengths) -> str:
    """Explains in a clause why no server runs with these. Empty: one may."""
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


def drop_impossible(
    cases: Iterable[Case], fitted: SchedulerSettings, lengths: Lengths
) -> tuple[list[Case], dict[str, list[str]]]:
    """Returns the possible cases, and the names of the others by reason."""
    found = list[Case]()
    why = dict[str, dict[str, None]]()
    for case in cases:
        if reason := explain_impossible(case.what_if.settings or fitted, lengths):
            why.setdefault(reason, {})[case.name] = None
        else:
            found.append(case)
    return found, {reason: list(names) for reason, names in why.items()}


# -- limits ----------------------------------------------------------------------------------------
# What lies outside of what a twin was fitted to: refused where it lies far outside, else marked
# with the range.

FAR_LOAD: Final = 10
"""Loads from this multiple of the highest measured load on have no prediction."""
FAR_LENGTH: Final = 5
"""Lengths beyond this multiple of the longest prompt or answer have no prediction."""
LARGER: Final = 1.25
"""Steps beyond this multiple of the fitted budget are extrapolated, as it is only known so well."""
OF_LOAD: Final = ("max_num_seqs", "kv_tokens", "capacity")
"""These unknowns of a twin matter under more load than was measured."""


def refuse_extrapolation(twin: Twin, lengths: Lengths) -> str:
    """Explains why there is no prediction for this twin and these lengths. Empty: there is one."""
    if twin.trust.verdict == NOT_TO_BE_USED:
        why = "; ".join(twin.trust.reasons) or "its file gives no reason"
        return f"this twin is not to be used: {why}"
    if not lengths:
        return (
            "this twin has no lengths of requests: give --synthetic-input-tokens-mean and "
            "--output-tokens-mean"
        )
    for what, column, measured in _of_lengths(twin.ranges):
        most = max(one[column] for one in lengths)
        if measured[1] and most >= FAR_LENGTH * measured[1]:
            return (
                f"{what} of {most:,} tokens are {most / measured[1]:.0f} times as long as the "
                f"longest in the fit, {measured[1]:,}: fit a twin with such requests"
            )
    return ""


def explain_unfit_lengths(twin: Twin, lengths: Lengths) -> str:
    """Explains why the fitted server cannot serve these lengths. Empty: it can."""
    why = explain_impossible(twin.model.settings, lengths)
    return f"this server cannot serve such requests: {why}" if why else ""


def too_much(load: OfferedLoad, ranges: Ranges) -> str:
    """Explains in a clause why there is no prediction for this load. Empty: there is one."""
    if load.users and ranges.users[1] and load.users >= FAR_LOAD * ranges.users[1]:
        return f"{load.label}, where the twin was fitted up to {ranges.users[1]:,} users"
    if load.rate and ranges.rate[1] and load.rate >= FAR_LOAD * ranges.rate[1]:
        return f"{load.label}, where the twin was fitted up to {ranges.rate[1]:g} requests/s"
    return ""


def beyond_lengths(ranges: Ranges, lengths: Lengths) -> Iterator[str]:
    """Describes how the lengths exceed the measured ones: the longest one is above, or their mean
    below."""
    for what, column, (least, most) in _of_lengths(ranges):
        tokens = [one[column] for one in lengths]
        if most and (max(tokens) > most or fmean(tokens) < least):
            yield (
                f"{what} of {min(tokens):,} to {max(tokens):,} tokens ({least:,} to {most:,} "
                f"were measured)"
            )


def _of_lengths(ranges: Ranges) -> tuple[tuple[str, int, tuple[int, int]], ...]:
    return ("prompts", 0, ranges.prompt_tokens), ("answers", 1, ranges.output_tokens)


class FurtherLoad(NamedTuple):
    """Describes a load above the highest measured one."""

    text: str
    times: float
    """The load is this multiple of the measured one."""


def find_further_load(
    load: OfferedLoad, logs: Mapping[str, Logarithms], ranges: Ranges
) -> FurtherLoad | None:
    """Compares a load with the sweep. A load of the other kind is compared by its effect: users by
    the open requests, a rate by the completed ones. A load below the sweep's least is no
    extrapolation, as the probe measured requests alone. None: it was measured."""
    users, rate = ranges.users[1], ranges.rate[1]
    if load.users and users:
        here = float(load.users)
        measured = float(users)
        text = load.label
    elif load.rate and rate:
        here, measured, text = load.rate, rate, load.label
    elif load.rate and users and IN_FLIGHT in logs:
        here = math.exp(mean_of_logarithms(logs[IN_FLIGHT]))
        measured = float(users)
        text = f"{here:.0f} requests open at once"
    elif load.users and rate and REQUESTS_PER_S in logs:
        here = math.exp(mean_of_logarithms(logs[REQUESTS_PER_S]))
        measured = rate
        text = f"{here:.2g} requests/s"
    else:
        return None
    if here <= measured:
        return None
    return FurtherLoad(f"{text} (up to {measured:,g} were measured)", here / measured)


def beyond_settings(what_if: WhatIf, fitted: SchedulerSettings) -> Iterator[str]:
    """Describes steps that are larger than in the fit, or of another kind."""
    settings = what_if.settings or fitted
    if settings.policy != fitted.policy:
        yield f"policy {settings.policy} (the server ran {fitted.policy})"
    if settings.max_num_batched_tokens > LARGER * fitted.max_num_batched_tokens:
        yield (
            f"steps of up to {settings.max_num_batched_tokens:,} tokens (up to "
            f"{fitted.max_num_batched_tokens:,} were "
            "measured)"
        )
    for name in ("max_num_seqs", "kv_tokens"):
        here = getattr(settings, name)
        there = getattr(fitted, name)
        if there is not None and (here is None or here > there):
            yield (
                f"{name.replace('_', '-')} of {'no limit' if here is None else f'{here:,}'} (the "
                f"server had {there:,})"
            )


def list_unknowns(
    twin: Twin, what_if: WhatIf, chosen: Sequence[str], beyond: Sequence[str]
) -> Iterator[str]:
    """Lists unknowns that matter here: under more load or longer requests than were measured, or
    with other settings, which change the concurrency. ``chosen`` settings are known."""
    if not beyond and what_if.settings is None:
        return
    for name, why in twin.unknown.items():
        if name not in chosen and (name in OF_LOAD or what_if.settings is not None):
            yield f"{name}: {why}"
