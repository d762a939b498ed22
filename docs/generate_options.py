"""docs/reference/options.md, made from the declared options: `make docs` writes it, a test says
when it is out of date."""

import os
import re
from argparse import Action, ArgumentParser
from itertools import groupby
from pathlib import Path
from typing import Final

# the simulator could not be imported after Locust's patches
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from locust_llm.lab.probe.probe_user import ProbeOptions
from locust_llm.lab.twin import twin_command
from locust_llm.lab.twin.plan import plan_command as plan
from locust_llm.locust_adapter.command_line_parser import OPTIONS
from locust_llm.settings.option_declaration import (
    GROUPS,
    Option,
    declared_options,
    format_metavar,
    format_option_default,
    format_option_example,
)
from locust_llm.simulator.simulator_flags import add_simulator_arguments
from locust_llm.text.numbers import format_quoted_number

# else a process that was begun here would not be patched either
del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

PAGE: Final = Path(__file__).parent / "reference" / "options.md"
UNITS: Final = ("seconds", "ms", "tokens", "percent", "bytes", "numbers")
ESCAPED: Final = "\\|"
TOP: Final = """\
# Options

<!-- made by docs/generate_options.py from the declared options: do not edit -->

`locust-llm run` and `locust` take the options below and [all of Locust's](https://docs.locust.io/en/stable/configuration.html).
`locust-llm run --help` prints both, also with `-f FILE`; `locust -f FILE --help` prints Locust's alone, as it ends before it
reads the file. The most used ones of Locust:

| option | meaning | default |
|---|---|---|
| `-H`, `--host` | the server, with or without scheme and `/v1`; [several](../how-to/routers.md) with commas between | |
| `-u`, `--users` | concurrent users; with a request rate the maximum number of concurrent sessions | 1 |
| `-r`, `--spawn-rate` | users started per second | a closed loop: over [one response time](../how-to/load-modes.md#start) |
| `-t`, `--run-time` | length of the profiling phase, such as `90`, `90s` or `10m` | until Ctrl-C |
| `-s`, `--stop-timeout` | grace period: seconds that running requests get at the end | 30 |
| `--headless` | no web page | |
| `--processes` | worker processes on this machine; `auto`: [one per core but one](../how-to/distributed.md#several-processes) | 1 |
| `-f`, `--locustfile` | your locustfile; `locust-llm run` brings its own | |

Each option that takes a value can also be set by an environment variable (`--request-rate` is `LOCUST_LLM_REQUEST_RATE`)
and, like Locust's own, in a configuration file. `OPENAI_API_KEY` holds the key of the server, `REQUESTS_CA_BUNDLE` or
`SSL_CERT_FILE` a certificate authority of your own. Times are seconds, lengths tokens, unless an option says otherwise.
"""

HEAD: Final = "| option | value | default | example | meaning |\n|---|---|---|---|---|\n"
SIMULATOR_HEAD: Final = "| option | value | default | meaning |\n|---|---|---|---|\n"


def page() -> str:
    parts = [TOP]
    for name, options in groupby(
        (*OPTIONS, *declared_options(ProbeOptions)), key=lambda option: option.group
    ):
        title, what, example = GROUPS[name]
        parts.append(f"\n## {title}\n\n{what}\n\n```sh\n{example}\n```\n\n{HEAD}")
        parts += map(_row, options)
    simulate = ArgumentParser()
    add_simulator_arguments(simulate)
    parts.append(
        f"\n## Simulator\n\n`locust-llm simulate` has options of its own.\n\n{SIMULATOR_HEAD}"
    )
    parts += [_simulator_row(action) for action in simulate._actions if action.dest != "help"]
    reaching = "and the [options of a run](#server) that reach the server, with `--host`"
    for name, what, add in (
        (
            "twin fit",
            f"A twin [of a server, or of folders](../how-to/twin.md#fit); {reaching}.",
            twin_command.add_fit_arguments,
        ),
        (
            "twin drift",
            f"[A minute held against a twin](../how-to/twin.md#drift); {reaching}.",
            twin_command.add_drift_arguments,
        ),
        (
            "twin predict",
            "What if: [loads and settings on a twin](../how-to/twin.md#what-if).",
            twin_command.add_predict_arguments,
        ),
        (
            "plan",
            "[Replicas that hold an SLO](../how-to/twin.md#plan), by a twin.",
            plan.add_plan_arguments,
        ),
    ):
        command = ArgumentParser()
        add(command)
        of = "--host URL" if name == "twin fit" else "TWIN"
        parts.append(f"\n## {name}\n\n`locust-llm {name} {of}`. {what}\n\n{SIMULATOR_HEAD}")
        parts += [
            _simulator_row(action)
            for action in command._actions
            if action.option_strings and action.dest != "help"
        ]
    return "".join(parts)


def _row(option: Option) -> str:
    flag = f"`{option.flag}`" + (f", `--no-{option.flag[2:]}`" if option.kind is bool else "")
    default = format_option_default(option)
    if default:
        default = _text(default) if option.otherwise else f"`{default}`"
    return _line(
        flag, _value(option), default, f"`{format_option_example(option)}`", _text(option.help)
    )


def _value(option: Option) -> str:
    """What it takes: one of these, or its unit and range; upper ends only where somebody could
    reach them."""
    if option.kind is bool:
        return ""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    value = option.unit if option.unit in UNITS else format_metavar(option)
    value = {"N": "integer", "NUMBER": "number", "TEXT": "text"}.get(
        value, value if value in UNITS else f"`{value}`"
    )
    if option.range is None or option.range.least < 0:
        return value
    least, most = option.range
    value += f" {'>' if 0 < least < 1 else '≥'} {0 if least < 1 else format_quoted_number(least)}"
    return value + (f", ≤ {format_quoted_number(most)}" if most <= 1000 else "")


def _simulator_row(action: Action) -> str:
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    found = re.fullmatch(r"(.*?)(?:\(default: (.*)\))?", text)
    assert found is not None
    meaning, default = found.groups("")
    if default.isdecimal() or default in ("on", str(action.default) or "on"):
        default = f"`{default}`"
    return _line(flags, _simulator_value(action), _text(default), _text(meaning))


def _simulator_value(action: Action) -> str:
    if action.choices is not None:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return f"`{action.metavar}`"
    return "text" if action.type in (str, None) else "number"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.strip().replace('|', ESCAPED) for cell in cells)} |\n"


def _text(words: str) -> str:
    return words.replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
