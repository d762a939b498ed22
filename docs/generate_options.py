"""docs/options.md, made from the option parser: `make docs` writes it, a test says when it is out of date."""

import os
from argparse import Action, ArgumentParser, BooleanOptionalAction
from collections.abc import Iterator
from pathlib import Path
from typing import Final

os.environ.setdefault("LOCUST_SKIP_MONKEY_PATCH", "1")  # which the simulator could not be imported after

from locust.argument_parser import get_empty_argument_parser

from locust_llm import probe_user as probe
from locust_llm.run.options import add_options
from locust_llm.simulator.cli import add_arguments

PAGE: Final = Path(__file__).with_name("options.md")
SECTIONS: Final = {  # a section begins at the option named here, in the order of the parser
    "--model": "Model",
    "--request-rate": "Load",
    "--sweep": "Sweeps and repeats",
    "--prefill-concurrency": "Prefill gate",
    "--warmup-request-count": "Warmup",
    "--synthetic-input-tokens-mean": "Prompts and lengths",
    "--input-file": "Datasets and traces",
    "--session-turns-mean": "Sessions",
    "--endpoint-type": "Server and requests",
    "--slo-file": "Rules and output",
    "--streaming": "Switches",
    "--slo": "Options that may be repeated",
    "--longest": "Probe",
}
TOP: Final = """\
# Options

<!-- made by docs/generate_options.py from the option parser: do not edit -->

`locust-llm run` and `locust` take the options below and [all of Locust's](https://docs.locust.io/en/stable/configuration.html).
`locust-llm run --help` prints them. The most used ones of Locust:

| option | meaning | default |
|---|---|---|
| `-H`, `--host` | the server, with or without scheme and `/v1` | |
| `-u`, `--users` | concurrent users; with a request rate the maximum number of concurrent sessions | 1 |
| `-r`, `--spawn-rate` | users started per second | all at once |
| `-t`, `--run-time` | length of the profiling phase, such as `90`, `90s` or `10m` | until Ctrl-C |
| `-s`, `--stop-timeout` | grace period: seconds that running requests get at the end | 30 |
| `--headless` | no web page | |
| `--processes` | worker processes on this machine | 1 |
| `-f`, `--locustfile` | your locustfile; `locust-llm run` brings its own | |

Each option that takes a value can also be set by an environment variable (`--request-rate` is `LOCUST_LLM_REQUEST_RATE`)
and, like Locust's own, in a configuration file. `OPENAI_API_KEY` holds the key of the server, `REQUESTS_CA_BUNDLE` or
`SSL_CERT_FILE` a certificate authority of your own. Times are seconds, lengths tokens, unless an option says otherwise.
"""

HEAD: Final = "| option | value | default | meaning |\n|---|---|---|---|\n"


def page() -> str:
    load = get_empty_argument_parser(default_config_files=[])
    add_options(load, before_load=lambda options: None)
    probe._options(load)
    parts = [TOP]
    for action in _shown(load):
        if (section := SECTIONS.get(action.option_strings[0])) is not None:
            parts.append(f"\n## {section}\n\n{HEAD}")
        parts.append(_row(action))
    simulate = ArgumentParser()
    add_arguments(simulate)
    parts.append(f"\n## Simulator\n\n`locust-llm simulate` has options of its own.\n\n{HEAD}")
    parts += map(_row, _shown(simulate))
    return "".join(parts)


def _shown(parser: ArgumentParser) -> Iterator[Action]:
    left_out = ("help", "config", "locustfile")
    return (action for action in parser._actions if action.option_strings and action.dest not in left_out)


def _row(action: Action) -> str:
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
    default: object = action.default
    if isinstance(action, BooleanOptionalAction) and default is not None:
        default = "on" if default else "off"
    text = (action.help or "").replace("%(default)s", str(default)).replace("%%", "%")
    if default not in (None, "", [], False):
        text = text.removesuffix(f"(default: {default})")
    text = text.strip().replace("|", "\\|").replace("<", "&lt;")
    return f"| {flags} | {_value(action)} | {'' if default in (None, '', [], False) else f'`{default}`'} | {text} |\n"


def _value(action: Action) -> str:
    if action.choices is not None:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return f"`{action.metavar}`"
    return "text" if action.type in (str, None) else "number"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
