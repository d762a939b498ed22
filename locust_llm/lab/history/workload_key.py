"""Workload key: describes the workload of a run in words, and by a hash. Runs with different hashes
are never compared."""

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.lab.interop.load_metrics import Figures
from locust_llm.settings.endpoint_types import POOLING
from locust_llm.settings.run_options import OUR_LOCUSTFILES
from locust_llm.settings.workload_options import (
    DEFAULTS,
    WORKLOAD_OPTIONS,
    format_option_value,
)
from locust_llm.text.format import format_count

NAMED_FIRST: Final = (
    "users", "request_rate", "synthetic_input_tokens_mean", "output_tokens_mean", "input_file",
    "prefill_concurrency",
    "prefill_concurrency_ramp_duration", "streaming", "arrival_pattern", "seq_dist",
    "synthetic_input_tokens_stddev", "output_tokens_stddev",
)  # fmt: skip


class WorkloadIdentity(NamedTuple):
    """Identifies what a server was asked to do. Equal hashes mean equal workloads."""

    hash: str
    words: str


class SentLengths(msgspec.Struct, frozen=True):
    """Holds mean lengths over the requests of a run, from its run.json. None: unknown."""

    asked_input_tokens: float | None = None
    input_tokens: float | None = None
    asked_output_tokens: float | None = None

    @property
    def of_settings(self) -> bool:
        """Returns whether the settings requested these lengths, or nothing was sent."""
        return self.asked_input_tokens is not None or self.input_tokens is None


def key_of_settings(
    settings: Mapping[str, Any],
    model: str,
    simulated: bool,
    proxied: bool,
    sent: SentLengths | None = None,
) -> WorkloadIdentity:
    """Identifies a run of this program. ``settings`` may come from any version's run.json. A user's
    own locustfile sends prompts regardless of the settings, so its name and the observed lengths
    count."""
    given = {
        name: settings[name]
        for name in WORKLOAD_OPTIONS
        if name in settings and settings[name] != DEFAULTS[name]
    }
    if isinstance(file := given.get("input_file"), str):
        # another machine may have the same file in another folder
        given["input_file"] = PurePath(file).name
    key = ["locust-llm", model, simulated, proxied, sorted(given.items())]
    own = _own_load(settings, given, sent or SentLengths())
    if own is not None:
        key += [own.locustfile, own.input_octave, own.output_octave]
    lengths = "" if own is None else own.words
    parts = [model, *_describe_options(settings, given, lengths), "a proxy" if proxied else ""]
    return WorkloadIdentity(_hash(key), ", ".join(filter(None, parts)))


class _OwnLoad(NamedTuple):
    """Describes the prompts of a user's own locustfile."""

    locustfile: str
    input_octave: int | None
    """Lengths within a factor of two count as equal, as no two runs have the same mean."""
    output_octave: int | None
    words: str


def _own_load(
    settings: Mapping[str, Any], given: Mapping[str, Any], sent: SentLengths
) -> _OwnLoad | None:
    """Returns None if the settings describe the prompts."""
    locustfile = settings.get("locustfile")
    name = locustfile if isinstance(locustfile, str) and locustfile not in OUR_LOCUSTFILES else ""
    if not name and (sent.of_settings or "input_file" in given):
        return None
    tokens = sent.asked_input_tokens if sent.input_tokens is None else sent.input_tokens
    means = (_two_digits(tokens), _two_digits(sent.asked_output_tokens))
    lengths = " / ".join("?" if mean is None else f"{mean:g}" for mean in means)
    words = f"{name or 'own'} prompts of {lengths} tokens on average"
    return _OwnLoad(name, _octave(tokens), _octave(sent.asked_output_tokens), words)


def _octave(tokens: float | None) -> int | None:
    return round(math.log2(tokens)) if tokens is not None and 0 < tokens < math.inf else None


def _describe_options(
    settings: Mapping[str, Any], given: dict[str, Any], lengths: str = ""
) -> list[str]:
    """Describes load, lengths and limit first, then other options that differ from their defaults.
    ``lengths`` replaces the lengths of the settings."""
    fields = []
    generates = settings.get("endpoint_type") not in POOLING
    users = given.get("users")
    rate = given.get("request_rate")
    if rate:
        fields.append(
            f"{rate:g} requests/s" if isinstance(rate, int | float) else f"{rate} requests/s"
        )
        fields += [str(given["arrival_pattern"])] if "arrival_pattern" in given else []
    if users:
        fields.append(format_count(users, "user"))
    if lengths:
        fields.append(lengths)
    elif "input_file" in given or "seq_dist" in given:
        fields.append(str(given.get("input_file") or f"lengths {given.get('seq_dist')}"))
    else:
        ends = ["synthetic_input_tokens"]
        ends += ["output_tokens"] * generates
        fields.append(" / ".join(_length(settings, end) for end in ends) + " tokens")
    if limit := given.get("prefill_concurrency"):
        ramp = given.get("prefill_concurrency_ramp_duration")
        fields.append(
            f"prefill limit {limit}"
            + (f" by a ramp of {format_option_value(ramp)} s" if ramp else "")
        )
    if generates and given.get("streaming") is False:
        fields.append("not streamed")
    rest = [name for name in WORKLOAD_OPTIONS if name in given and name not in NAMED_FIRST]
    return fields + [
        f"{WORKLOAD_OPTIONS[name]} {format_option_value(given[name])}".strip() for name in rest
    ]


def _length(settings: Mapping[str, Any], end: str) -> str:
    """Formats a length as ``550``, or with its standard deviation as ``550±55``."""
    mean = settings.get(f"{end}_mean", DEFAULTS[f"{end}_mean"])
    stddev = settings.get(f"{end}_stddev", DEFAULTS[f"{end}_stddev"])
    return f"{mean}".removesuffix(".0") + (f"±{format_option_value(stddev)}" if stddev else "")


def key_of_figures(load: Figures) -> WorkloadIdentity:
    """Identifies the workload by another tool's result. Observed lengths are rounded to two digits,
    as no two runs have the same."""
    asked = load.asked_output_tokens
    values: dict[str, object] = {
        "users": load.concurrency,
        "requests/s": load.rate_per_s,
        "prefill limit": load.prefill_concurrency,
        "tokens in": _two_digits(load.input_tokens.avg),
        "tokens out": asked if asked is not None else _two_digits(load.output_tokens.avg),
    }
    known = {name: value for name, value in values.items() if value is not None}
    texts = [
        f"{format_option_value(float(value))} {name}"
        for name, value in known.items()
        if isinstance(value, int | float)
    ]
    key = [load.tool, load.model, sorted(known.items())]
    return WorkloadIdentity(
        _hash(key), ", ".join(filter(None, (load.model, *texts, f"by {load.tool}")))
    )


def _two_digits(value: float | None) -> float | None:
    return float(f"{value:.1e}") if value is not None and math.isfinite(value) else None


def _hash(key: list[Any]) -> str:
    return sha256(json.dumps(key).encode()).hexdigest()[:8]
