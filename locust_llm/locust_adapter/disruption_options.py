"""Disruption options: ``--disrupt``, from the command line of the process that runs the load test.

Its commands run on this machine. So they come from ``sys.argv`` alone: neither from a form, a file,
the environment or a message, all of which others may write. Nothing reads the parsed option, which a
message between Locust's processes could set.
"""

import os
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.settings.disruption_schedule import (
    DISRUPT,
    DisruptionPlan,
    parse_disruption,
    validate_plans,
)
from locust_llm.settings.environment_and_config_file import name_variable
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.slo.metric_definitions import OF_DISRUPTIONS

NOT_HERE: Final = f"{DISRUPT} works on the command line only"


def find_given_disruptions() -> list[str]:
    """The values of ``--disrupt`` on the command line of this process."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument(DISRUPT, action="append", default=[])
    known, _ = parser.parse_known_args(sys.argv[1:])
    given: list[str] = known.disrupt
    return given


def find_shown_disruptions() -> dict[str, str]:
    """These values, and each without the secrets of its command."""
    shown = dict[str, str]()
    for text in find_given_disruptions():
        schedule, colon, command = text.partition(":")
        try:
            shown[text] = f"{schedule}{colon} {OperatorCommand(DISRUPT, command).shown}"
        except CommandFailed:
            shown[text] = f"{schedule}{colon} ***"
    return shown


def read_disruption_plans(options: Namespace, settings: Settings) -> tuple[DisruptionPlan, ...]:
    """The disruptions of a run that begins by itself. Raises Refused for those from another source,
    and for impossible ones. The parsed option is empty afterwards."""
    given = find_given_disruptions()
    parsed = list(options.disrupt)
    options.disrupt = []
    if parsed != given:
        refuse_run(f"{NOT_HERE}, not in a configuration file")
    if os.environ.get(name_variable(DISRUPT)):
        refuse_run(f"{NOT_HERE}, not in {name_variable(DISRUPT)}")
    if given and options.worker:
        refuse_run(f"{DISRUPT} belongs to the process that runs the load test, not to a worker")
    if given and not (options.headless or options.autostart):
        refuse_run(f"{DISRUPT} needs --headless or --autostart: a web page starts no commands")
    if given and hasattr(options, "decoders"):
        refuse_run(f"locust-llm probe has no {DISRUPT}")
    try:
        plans = tuple(map(parse_disruption, given))
        for plan in plans:
            _check_program(plan)
    except ValueError as error:
        refuse_run(str(error))
    for mistake in validate_plans(plans, settings):
        refuse_run(mistake)
    for rule in settings.rules.readable:
        if rule.metric in OF_DISRUPTIONS and not plans:
            refuse_run(f"SLO {str(rule)!r} needs {DISRUPT}")
    return plans


def _check_program(plan: DisruptionPlan) -> None:
    """Raises ValueError."""
    OperatorCommand(DISRUPT, plan.command)
    program = shlex.split(plan.command)[0]
    if shutil.which(program) is None:
        raise ValueError(f"{DISRUPT} {plan.schedule}: there is no program {program!r}")
