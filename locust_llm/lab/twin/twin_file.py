"""Twin file: writes a twin as TOML that people can read and change, and reads it."""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.files.json_file import replace_file
from locust_llm.files.regular_file import decode_toml, decode_utf8, read_regular
from locust_llm.lab.twin.twin_model import VERDICTS, Twin
from locust_llm.simulator.scheduling.batching_policies import POLICIES

VERSION: Final = 1
NAME: Final = "twin.toml"
MOST_BYTES: Final = 10_000_000
BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
ABOUT: Final = {
    "trust": "The error on loads that were kept out of the fit.",
    "trust.errors": (
        "Error per metric that the uncertainty of the fit does not explain; predictions include it."
    ),
    "origin": "The server, the date, and the runs that the twin was fitted to.",
    "ranges": "What was measured. A prediction outside of it is marked as an extrapolation.",
    "model.settings": "The scheduler, by the names of vLLM's flags. A missing limit was not observed.",
    "model.cost": (
        "Seconds of a step, as a sum: fixed; token x (tokens above free_tokens); stream x "
        "sequences; context x tokens read; pair x pairs of a prompt's new token and one before "
        "it; own_pair x pairs of two new tokens; admission for each request before a step."
    ),
    "model.front": "Before the scheduler has a request: seconds, and seconds for each token of its "
    "prompt.",
    "model.noise": "The random variation between equal steps, as the client sees it.",
    "intervals": "The 95% interval of each fitted parameter.",
    "unknown": "What could not be identified, and what is assumed.",
    "reference": (
        "Loads of the sweep compared with the twin's replay, as logarithms: the reference for "
        "drift."
    ),
    "checks": "Loads that were kept out of the fit: their values and the predictions (95%: low to high), "
    "in seconds or in tokens per second.",
}


def write_twin(twin: Twin, path: Path) -> None:
    """Writes the whole file or nothing. Raises OSError."""
    replace_file(path, format_twin(twin).encode())


def format_twin(twin: Twin) -> str:
    plain = msgspec.to_builtins(twin)
    ordered = {
        name: plain[name]
        for name in (
            "trust",
            "origin",
            "ranges",
            "model",
            "intervals",
            "unknown",
            "checks",
            "reference",
        )
        if name in plain
    }
    lines = [
        f"# A twin of a server, by locust-llm: "
        f"{VERDICTS.get(twin.trust.verdict, twin.trust.verdict)}.",
        f"version = {VERSION}",
    ]
    for name in ("lengths", "draws"):
        rows = ",\n".join("  " + _value(row) for row in plain.get(name, ()))
        about = {
            "lengths": "(prompt, output) tokens that predictions draw from",
            "draws": "the costs, fitted again to requests drawn with replacement",
        }[name]
        lines += ["", f"# {about}", f"{name} = [\n{rows}\n]" if rows else f"{name} = []"]
    lines += _tables(ordered, "")
    return "\n".join(lines) + "\n"


def _tables(tables: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, inner in tables.items():
        path = f"{above}{_key(name)}"
        if isinstance(inner, list | tuple):
            for number, row in enumerate(inner):
                yield from [
                    "",
                    *([f"# {ABOUT[path]}"] if path in ABOUT and not number else []),
                    f"[[{path}]]",
                ]
                yield from (f"{_key(key)} = {_value(value)}" for key, value in row.items())
            continue
        scalars = {
            key: value
            for key, value in inner.items()
            if not isinstance(value, dict) and value is not None
        }
        if scalars:
            yield from ["", *([f"# {ABOUT[path]}"] if path in ABOUT else []), f"[{path}]"]
            yield from (f"{_key(key)} = {_value(value)}" for key, value in scalars.items())
        yield from _tables(
            {key: value for key, value in inner.items() if isinstance(value, dict) and value},
            f"{path}.",
        )


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        rounded = f"{value:.7g}"
        return rounded if any(mark in rounded for mark in ".e") else f"{rounded}.0"
    return str(value)


def _text(value: str) -> str:
    """Encodes a basic string of TOML, with escapes for unprintable characters."""
    plain = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{"".join(map(_escape_character, plain))}"'


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def read_twin(path: Path) -> Twin:
    """Reads a file, or the one in a folder. Raises ValueError."""
    file = path / NAME if path.is_dir() else path
    try:
        found = decode_toml(decode_utf8(read_regular(file, MOST_BYTES)))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    if (version := found.pop("version", None)) != VERSION:
        raise ValueError(
            f"{file} is not a twin of this version of locust-llm: its version is {version}, not "
            f"{VERSION}"
        )
    try:
        twin = msgspec.convert(found, Twin)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"{file} is not a twin: {error}") from None
    if wrong := _wrong(twin):
        raise ValueError(f"{file} is not a usable twin: {wrong}")
    return twin


def _wrong(twin: Twin) -> str:
    """Explains why a twin cannot be simulated. Empty: it can."""
    model, settings = twin.model, twin.model.settings
    parts = (model.cost, model.front, model.noise, *twin.draws)
    numbers = list(chain.from_iterable(map(msgspec.structs.astuple, parts)))
    if settings.policy not in POLICIES:
        return f"there is no policy {settings.policy!r}: {', '.join(POLICIES)}"
    if not all(math.isfinite(one) and one >= 0 for one in numbers):
        return "a cost is below 0, or not a number"
    if twin.model.cost.fixed_s + twin.model.cost.token_s <= 0:
        return "its steps take no time"
    if (
        settings.max_num_batched_tokens < 1
        or min(settings.max_num_seqs or 1, settings.kv_tokens or 1) < 1
    ):
        return "a limit of its scheduler is below 1"
    if not all(prompt > 0 and output > 0 for prompt, output in twin.lengths):
        return "a request has no tokens"
    return ""
