"""The table of docs/scenarios.md, made from the packaged files: `make docs` writes it, a test says when it is old."""

import re
from pathlib import Path
from typing import Any, Final

from locust_llm.load.scenario import Scenario, names, read

PAGE: Final = Path(__file__).with_name("scenarios.md")
BEGIN: Final = "<!-- made by docs/generate_scenarios.py: do not edit -->\n"
END: Final = "<!-- end -->\n"
SOURCE: Final = re.compile(r"(\w[^;]*?) \((https:[^)]+)\)")
COLUMNS: Final = ("scenario", "before it", "prompt, answer of a turn", "turns", "wait", "rules", "source")
HEAD: Final = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"


def page() -> str:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return (
        before
        + BEGIN
        + "\n"
        + HEAD
        + "".join(_row(name, read(name)) for name in names())
        + "\n"
        + END
        + rest.partition(END)[2]
    )


def _row(name: str, found: Scenario) -> str:
    values = found.values
    shared = [
        f"system prompt of {tokens:,}" if (tokens := values.get("shared-system-prompt-length")) else "",
        f"context of `{_escaped(length)}`" if (length := values.get("user-context-prompt-length")) else "",
    ]
    sizes = values.get("seq-dist") or f"{values['synthetic-input-tokens-mean']},{values['output-tokens-mean']}:100"
    cells = (
        f"`{name}`",
        ", ".join(filter(None, shared)),
        "; ".join(_pair(pair) for pair in sizes.split(";")),
        _spread(values, "session-turns", 1, ""),
        _spread(values, "session-turn-delay", 1000, " s"),
        ", ".join(f"`{rule}`" for rule in values.get("slo", ())),
        f"{SOURCE.sub(_link, found.about['source'])}, {found.about['date']}",
    )
    return f"| {' | '.join(cells)} |\n"


def _link(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[2]})"


def _pair(text: str) -> str:
    lengths, _, percent = text.rpartition(":")
    prompt, answer = lengths.split(",")
    return f"`{_escaped(prompt)}`, `{_escaped(answer)}`" + (f" ({percent}%)" if percent != "100" else "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _spread(values: Any, key: str, unit: float, suffix: str) -> str:
    mean, stddev = values.get(f"{key}-mean"), values.get(f"{key}-stddev")
    if mean is None:
        return ""
    return f"{mean / unit:g}{suffix}" + (f" ± {stddev / unit:g}{suffix}" if stddev else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
