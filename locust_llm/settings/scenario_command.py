"""Command ``locust-llm scenario``: lists the packaged workloads or prints the file of one."""

import argparse

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.settings.scenario_file import format_scenario_list, read_packaged_scenario
from locust_llm.text.format import print_safely


def run_scenario_command(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="locust-llm scenario",
        description="Workloads for --scenario: without arguments a list of them.",
    )
    show = parser.add_subparsers().add_parser(
        "show", help="print the file of one: scenario show NAME > mine.toml"
    )
    show.add_argument("name", metavar="NAME")
    name = getattr(parser.parse_args(words), "name", None)
    try:
        print_safely(format_scenario_list() if name is None else read_packaged_scenario(name))
    except ValueError as error:
        return fail(str(error))
    return ExitStatus.OK
