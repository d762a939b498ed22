"""Command ``locust-llm scenario``: lists the packaged workloads or prints the file of one."""

import argparse

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.settings.scenario_file import (
    format_scenario_list,
    list_scenario_names,
    read_packaged_scenario,
    read_scenario,
)
from locust_llm.text.format import print_json, print_safely


class ListedScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A packaged scenario, as ``--scenario`` takes it."""

    name: str
    """The name for ``--scenario``."""
    description: str
    """The workload in one sentence."""


def run_scenario_command(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="locust-llm scenario",
        description="List the preset workloads (scenarios) that run --scenario accepts.",
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    show = parser.add_subparsers().add_parser(
        "show", help="print the file of a scenario, to edit it: scenario show NAME > mine.toml"
    )
    show.add_argument("name", metavar="NAME", help="name of the scenario")
    options = parser.parse_args(words)
    name = getattr(options, "name", None)
    if options.json and name is None:
        print_json(list_scenarios())
        return ExitStatus.OK
    try:
        print_safely(format_scenario_list() if name is None else read_packaged_scenario(name))
    except ValueError as error:
        return fail(str(error))
    return ExitStatus.OK


def list_scenarios() -> list[ListedScenario]:
    return [
        ListedScenario(name=name, description=str(read_scenario(name).about["description"]))
        for name in list_scenario_names()
    ]
