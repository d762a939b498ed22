"""Command: ``locust-llm scenario``, the packaged workloads as a list, or the file of one."""

import argparse

from locust_llm.core.text import say
from locust_llm.exit_status import ExitStatus, fail
from locust_llm.load.scenario import listed, text_of


def scenario(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="locust-llm scenario", description="Workloads for --scenario: without arguments a list of them."
    )
    show = parser.add_subparsers().add_parser("show", help="print the file of one: scenario show NAME > mine.toml")
    show.add_argument("name", metavar="NAME")
    name = getattr(parser.parse_args(words), "name", None)
    try:
        say(listed() if name is None else text_of(name))
    except ValueError as error:
        return fail(str(error))
    return ExitStatus.OK
