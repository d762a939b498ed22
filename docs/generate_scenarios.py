"""The table of docs/reference/scenarios.md, made from the packaged files: `make docs` writes it, a
test says when it is old."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from locust_llm.settings.scenario_file import Scenario, list_scenario_names, read_scenario
from locust_llm.slo.published_rules import least_samples, parse_published_rules

PAGE: Final = Path(__file__).parent / "reference" / "scenarios.md"
BEGIN: Final = "<!-- made by docs/generate_scenarios.py: do not edit -->\n"
END: Final = "<!-- end -->\n"
SOURCE: Final = re.compile(r"(\w[^;,]*?)(?:, [^;]*?)? \((https:[^)]+)\)")
"""A source up to its first comma, and its address."""
PUBLISHED_BEGIN: Final = (
    "<!-- published rules, made by docs/generate_scenarios.py: do not edit -->\n"
)
PUBLISHED: Final = ("scenario", "rules of", "load", "each point", "the curve")
COLUMNS: Final = (
    "scenario",
    "system prompt, context",
    "input, output of a turn",
    "turns",
    "wait",
    "rules",
    "source",
)


def page() -> str:
    found = {name: read_scenario(name) for name in list_scenario_names()}
    text = _with(
        PAGE.read_text("utf-8"),
        BEGIN,
        COLUMNS,
        "".join(_row(name, one) for name, one in found.items()),
    )
    rows = (_published(name, one) for name, one in found.items() if one.published is not None)
    return _with(text, PUBLISHED_BEGIN, PUBLISHED, "".join(rows))


def _with(text: str, begin: str, columns: Sequence[str], rows: str) -> str:
    before, _, rest = text.partition(begin)
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    return f"{before}{begin}\n{head}{rows}\n{END}{rest.partition(END)[2]}"


def _published(name: str, found: Scenario) -> str:
    rules = parse_published_rules(found.published or {})
    assert rules.streaming, "the page states that all require it"
    assert rules.client_ok, "the page states that all require it"
    seconds = (
        f"{least:,.0f} s" + (f" from {users} users on" if users > 1 else "")
        for users, least in rules.seconds
    )
    point = [
        ", ".join(seconds),
        f"{rules.requests_per_user:g} requests of each user" if rules.requests_per_user else "",
        f"{rules.warmup_per_user:g} of warmup before them" if rules.warmup_per_user else "",
        *(
            f"{least_samples(p):,} requests (p{p:g} with one beyond, 99% confidence)"
            for p in rules.percentiles
        ),
        "one pass of the dataset" if rules.dataset_pass else "",
    ]
    curve = [
        "{} to {} points".format(*rules.points) if rules.points else "",
        "one in each region" if rules.regions else "",
        f"no level left out of {', '.join(map(str, rules.levels[:8]))}, ..."
        if rules.levels
        else "",
        "until throughput is flat" if rules.until_flat else "",
    ]
    load = f"{rules.loop} loop" + (f", `{sweep}`" if (sweep := found.values.get("sweep")) else "")
    cells = (
        f"`{name}`",
        rules.rules,
        load,
        *("; ".join(filter(None, part)) for part in (point, curve)),
    )
    return f"| {' | '.join(cells)} |\n"


def _row(name: str, found: Scenario) -> str:
    values = found.values
    shared = [
        f"{tokens:,}" if (tokens := values.get("shared-system-prompt-length")) else "",
        f"`{_escaped(length)}`" if (length := values.get("user-context-prompt-length")) else "",
    ]
    means = [values.get(key) for key in ("synthetic-input-tokens-mean", "output-tokens-mean")]
    sizes = values.get("seq-dist") or (f"{means[0]},{means[1]}:100" if means[0] else "")
    cells = (
        f"`{name}`",
        ", ".join(filter(None, shared)),
        "; ".join(_pair(pair) for pair in sizes.split(";")) if sizes else "your dataset",
        _spread(values, "session-turns", 1, ""),
        _spread(values, "session-turn-delay", 1000, " s"),
        ", ".join(f"`{rule}`" for rule in values.get("slo", ())),
        SOURCE.sub(_link, found.about["source"]),
    )
    return f"| {' | '.join(cells)} |\n"


def _link(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[2]})"


def _pair(text: str) -> str:
    lengths, _, percent = text.rpartition(":")
    prompt, answer = lengths.split(",")
    return f"`{_escaped(prompt)}`, `{_escaped(answer)}`" + (
        f" ({percent}%)" if percent != "100" else ""
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _spread(values: Any, key: str, unit: float, suffix: str) -> str:
    mean, stddev = values.get(f"{key}-mean"), values.get(f"{key}-stddev")
    if mean is None:
        return ""
    return f"{mean / unit:g}{suffix}" + (f" ± {stddev / unit:g}{suffix}" if stddev else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
