"""Workload key: the workload of a run in words, and the hash of it. Runs with different ones are
never compared."""

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.lab.interop.load_metrics import Figures
from locust_llm.settings.declare import declared_options
from locust_llm.settings.endpoint_types import POOLING
from locust_llm.settings.settings import OUR_LOCUSTFILES, Settings
from locust_llm.text.format import format_count

GROUPS: Final = ("load", "prompts", "gate", "sweep", "ab")
"""Of options: all of them make the workload, but for these."""
ASIDE: Final = frozenset((
    "request_count", "num_sessions", "max_users", "random_seed", "fresh_words", "probe", "scenario",
    "tokenizer",
    "skip_broken_rows",
    "warmup_request_count", "warmup_duration", "warmup_concurrency", "warmup_request_rate",
    "warmup_prefill_concurrency", "warmup_prefill_concurrency_ramp_duration", "stage_duration",
    "stage_requests",
    "stage_requests_per_user", "stage_warmup_per_user",
))  # fmt: skip
"""How long a run was, its warmup and its seed: another of these does not make another workload."""
DEFAULTS: Final[Mapping[str, Any]] = msgspec.to_builtins(Settings())
DECISIVE: Final = {
    "users": "users", "streaming": "streaming", "endpoint_type": "endpoint-type",
    "model_mix": "model-mix",
    **{o.field: o.flag.lstrip("-") for o in declared_options(Settings) if o.group in GROUPS and o.field not in ASIDE},
}  # fmt: skip
"""Fields of the settings, with their flags."""
NAMED_FIRST: Final = (
    "users", "request_rate", "synthetic_input_tokens_mean", "output_tokens_mean", "input_file",
    "prefill_concurrency",
    "prefill_concurrency_ramp_duration", "streaming", "arrival_pattern", "seq_dist",
    "synthetic_input_tokens_stddev", "output_tokens_stddev",
)  # fmt: skip


class WorkloadIdentity(NamedTuple):
    """What was asked of a server: equal hashes are equal workloads."""

    hash: str
    words: str


class SentLengths(msgspec.Struct, frozen=True):
    """Means over the requests of a run, from its run.json; None: not known."""

    asked_input_tokens: float | None = None
    input_tokens: float | None = None
    asked_output_tokens: float | None = None

    @property
    def of_settings(self) -> bool:
        """The lengths are those that the settings ask for, or nothing was sent."""
        return self.asked_input_tokens is not None or self.input_tokens is None


def key_of_settings(
    settings: Mapping[str, Any],
    model: str,
    simulated: bool,
    proxied: bool,
    sent: SentLengths | None = None,
) -> WorkloadIdentity:
    """Of a run of this program. ``settings``: as in run.json, of this version or another one. A
    locustfile of the user's own sends what it likes, whatever the settings: it counts by its name,
    and by what it sent."""
    given = {
        name: settings[name]
        for name in DECISIVE
        if name in settings and settings[name] != DEFAULTS[name]
    }
    if isinstance(file := given.get("input_file"), str):
        # the same one may lie elsewhere on another machine
        given["input_file"] = PurePath(file).name
    key = ["locust-llm", model, simulated, proxied, sorted(given.items())]
    own = _own_load(settings, given, sent or SentLengths())
    if own is not None:
        key += [own.locustfile, own.input_octave, own.output_octave]
    lengths = "" if own is None else own.words
    return WorkloadIdentity(
        _hash(key),
        ", ".join(
            filter(None, (model, *_describe_options(settings, given, lengths), "a proxy" * proxied))
        ),
    )


class _OwnLoad(NamedTuple):
    """Of a locustfile that sends prompts of its own."""

    locustfile: str
    input_octave: int | None
    """Lengths within a factor of two are one, as no two runs have the same mean."""
    output_octave: int | None
    words: str


def _own_load(
    settings: Mapping[str, Any], given: Mapping[str, Any], sent: SentLengths
) -> _OwnLoad | None:
    """None: the settings say what was sent."""
    locustfile = settings.get("locustfile")
    name = locustfile if isinstance(locustfile, str) and locustfile not in OUR_LOCUSTFILES else ""
    if not name and (sent.of_settings or "input_file" in given):
        return None
    tokens = sent.asked_input_tokens if sent.input_tokens is None else sent.input_tokens
    means = (_two_digits(tokens), _two_digits(sent.asked_output_tokens))
    lengths = " / ".join("?" if mean is None else f"{mean:g}" for mean in means)
    words = f"{name or 'own'} prompts of {lengths} tokens"
    return _OwnLoad(name, _octave(tokens), _octave(sent.asked_output_tokens), words)


def _octave(tokens: float | None) -> int | None:
    return round(math.log2(tokens)) if tokens is not None and 0 < tokens < math.inf else None


def _describe_options(
    settings: Mapping[str, Any], given: dict[str, Any], lengths: str = ""
) -> list[str]:
    """The load, the lengths and the limit first, then the other options that are not as they come.
    ``lengths``: in place of those of the settings."""
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
            f"prefill limit {limit}" + (f" by a ramp of {_value(ramp)} s" if ramp else "")
        )
    if generates and given.get("streaming") is False:
        fields.append("not streamed")
    rest = [name for name in DECISIVE if name in given and name not in NAMED_FIRST]
    return fields + [f"{DECISIVE[name]} {_value(given[name])}" for name in rest]


def _length(settings: Mapping[str, Any], end: str) -> str:
    """``550``, or with its standard deviation ``550±55``."""
    mean, stddev = (
        settings.get(f"{end}_{of}", DEFAULTS[f"{end}_{of}"]) for of in ("mean", "stddev")
    )
    return f"{mean}".removesuffix(".0") + (f"±{_value(stddev)}" if stddev else "")


def _value(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is True:
        return ""
    if value is False:
        return "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def key_of_figures(load: Figures) -> WorkloadIdentity:
    """Of another tool's result: what it says itself. Lengths that came out are held to two digits,
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
        f"{_value(float(value))} {name}"
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
