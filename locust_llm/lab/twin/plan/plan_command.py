"""Command ``locust-llm plan TWIN`` plans replicas."""

import argparse
from typing import Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.lab.twin import twin_command, twin_file
from locust_llm.lab.twin.plan.replica_plan import FLAT, SHAPES, parse_planned_arrivals
from locust_llm.lab.twin.whatif import whatif_grid
from locust_llm.lab.twin.whatif.whatif_rows import WhatIfPredictor
from locust_llm.text.format import print_json

from . import plan_text, replica_plan

DESCRIPTION: Final = """\
Find the fewest replicas that meet an SLO when one is lost, their cost, and when to add or remove one."""
EPILOG: Final = """\
The plan assumes that requests are spread evenly over the replicas. If the twin's error on held-out loads is above 10%,
the plan shows how latency grows with load, but no number of replicas.

  locust-llm plan twin.toml --arrivals 120000/day --day diurnal --slo 'ttft p95 < 1s' --gpu-hour 2.5
"""


def run_plan(words: list[str]) -> int:
    """Returns 0 with a number of replicas, 3 if none is surely within the rules, 4 for a shape
    only, 5 if refused."""
    parser = twin_command.make_twin_parser("plan", DESCRIPTION, EPILOG)
    add_plan_arguments(parser)
    options = parser.parse_args(words)
    try:
        made = _plan(options)
    except ValueError as error:
        return fail(str(error))
    if options.json:
        print_json(plan_text.plan_as_json(made))
    else:
        twin_command.print_document(plan_text.plan_document(made))
    if made.only_shape:
        return ExitStatus.INCONCLUSIVE
    return ExitStatus.RULE_FAILED if made.fleet is None else ExitStatus.OK


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    twin_command.add_twin_argument(parser)
    parser.add_argument(
        "--arrivals", required=True, metavar="WHAT",
        help=(
            "request rate such as 1.4/s, 5000/h or 120000/day, or a trace (a format of "
            "--input-file) with its lengths"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--day",
        default=FLAT,
        metavar="SHAPE",
        help=f"how the rate changes over the day: {SHAPES} (default: {FLAT})",
    )
    twin_command.add_rules(parser)
    twin_command.add_workload_arguments(parser)
    parser.add_argument(
        "--gpu-hour",
        type=float,
        metavar="PRICE",
        help="price of a GPU hour, for the cost",
    )
    parser.add_argument(
        "--gpus-per-replica", type=int, default=1, metavar="N",
        help="GPUs of one replica (default: 1)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _plan(options: argparse.Namespace) -> replica_plan.CapacityPlan:
    """Plans and prints. Raises ValueError."""
    rules = twin_command.parse_rules(options)
    if not any(rule.decides for rule in rules):
        raise ValueError("a plan needs an SLO that the replicas must meet: --slo 'ttft p95 < 1s'")
    if options.gpus_per_replica < 1:
        raise ValueError(f"--gpus-per-replica must be at least 1, got {options.gpus_per_replica}")
    if options.gpu_hour is not None and not 0 < options.gpu_hour < 1e6:
        raise ValueError(f"--gpu-hour must be above 0, got {options.gpu_hour:g}")
    twin = twin_file.read_twin(options.twin)
    coming = parse_planned_arrivals(options.arrivals, options.day)
    sent = twin_command.choose_workload(
        options, msgspec.structs.replace(twin, lengths=tuple(coming.lengths) or twin.lengths)
    )
    if why := whatif_grid.refuse_extrapolation(
        twin, sent.lengths
    ) or whatif_grid.explain_unfit_lengths(twin, sent.lengths):
        raise ValueError(why)
    with twin_command.show_counted_progress("rates") as on_progress:
        return replica_plan.plan_capacity(
            WhatIfPredictor(twin, sent.lengths, rules), str(options.twin), str(sent), coming,
            options.gpus_per_replica,
            options.gpu_hour, lambda done: on_progress(done, replica_plan.ASKED),
        )  # fmt: skip
