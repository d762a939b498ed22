"""Command: ``locust-llm twin predict TWIN``."""

import argparse
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.lab.twin import file
from locust_llm.lab.twin.model import SHAPE
from locust_llm.lab.twin.replay import OfferedLoad
from locust_llm.lab.twin.whatif import grid, text
from locust_llm.lab.twin.whatif import grid as limits
from locust_llm.lab.twin.whatif import rows as evaluate_rules
from locust_llm.lab.twin.whatif import text as data
from locust_llm.lab.twin.whatif.rows import Asker, best_what_if, rival
from locust_llm.records.storage import replace_file
from locust_llm.report.console_end import find_console_width
from locust_llm.report.render.text import render_plain_blocks
from locust_llm.slo.grammar import Rule, expand_preset
from locust_llm.text.format import print_safely

from . import progress, workload

DESCRIPTION: Final = """\
Ask a twin what if: every load with every combination of settings, in virtual time, each answer with its interval."""
EPILOG: Final = """\
Values are as --sweep has them: 1..128 is 1, 2, 4, ... 128, 8..64+8 goes in steps of 8, and lists have commas; none is no
limit. What lies outside of what the twin was fitted to is marked as extrapolated, and far outside refused.

  locust-llm twin predict twin.toml --load concurrency=1..128 --set max-num-batched-tokens=512,1024,2048 \\
    --set prefill-concurrency=none,1..8 --slo 'ttft p95 < 1s' --slo 'itl p99 < 50ms'
"""


def run_predict(words: list[str]) -> int:
    """0: a what-if is surely within the rules, or there are none; 3: none is; 4: it is open; 5:
    refused."""
    options = _predict_parser().parse_args(words)
    try:
        asked = _asked(options)
        if options.html:
            from locust_llm.lab.twin.whatif.chart import render_whatif_page

            replace_file(options.html, render_whatif_page(asked).encode())
    except (OSError, ValueError) as error:
        return fail(str(error))
    if options.json:
        print_safely(msgspec.json.encode(data.what_ifs_as_json(asked)).decode() + "\n")
    else:
        print_safely(render_plain_blocks(text.whatif_document(asked), find_console_width()))
    return _status(asked)


def _predict_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm twin predict", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_predict_arguments(parser)
    return parser


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "twin", type=Path, metavar="TWIN", help="twin.toml, or a folder that has one"
    )
    parser.add_argument(
        "--load", action="append", metavar="AXIS=VALUES",
        help="concurrency=1..128 or request-rate=0.5..8; may be repeated (default: the concurrency "
            "that was measured)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUES",
        help=f"may be repeated; {', '.join(grid.KEYS)}, the last one of the load generator's gate",
    )  # fmt: skip
    add_rules(parser)
    workload.add_workload_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print every answer as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page with a plot of the frontier"
    )


def add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slo", action="append", default=[], metavar="RULE",
        help=f"may be repeated; of {evaluate_rules.PREDICTED}: 'ttft p95 < 1s'",
    )  # fmt: skip
    parser.add_argument("--slo-preset", metavar="NAME", help="rules by name, as run has them: chat")


def parse_rules(options: argparse.Namespace) -> tuple[Rule, ...]:
    """Raises ValueError of one sentence."""
    named = expand_preset(options.slo_preset) if options.slo_preset else ()
    return tuple(evaluate_rules.rule(text) for text in (*options.slo, *named))


def _asked(options: argparse.Namespace) -> text.WhatIfReport:
    """Raises ValueError of one sentence."""
    rules = parse_rules(options)
    choices = [grid.choice(one) for one in options.set]
    at = list(
        dict.fromkeys(load for one in options.load or () for load in grid.parse_load_values(one))
    )
    twin = file.read_twin(options.twin)
    sent = workload.workload(options, twin)
    if why := limits.refuse_extrapolation(twin, sent.lengths):
        raise ValueError(why)
    at = at or _measured_loads(twin.ranges.users)
    if not at:
        raise ValueError("this twin was fitted at request rates: give --load request-rate=VALUES")
    fitted = twin.model.settings
    cases, left_out = grid.possible(grid.grid(at, choices, fitted), fitted, sent.lengths)
    far = [why for load in at if (why := limits.too_much(load, twin.ranges))]
    cases = [case for case in cases if not limits.too_much(case.asked.load, twin.ranges)]
    if not cases:
        raise ValueError(f"nothing is left to predict: {[*left_out, *far][0]}")
    asker = Asker(twin, sent.lengths, rules)
    with progress.show_counted_progress("what-ifs") as on_progress:
        rows = asker.rows(cases, on_progress)
    rivals = None if asker.shape or not rules else rival(rows, rules, twin.trust.errors)
    name = str(options.twin)
    return text.WhatIfReport(
        twin, name, str(sent), rules, rows, left_out, far, rivals, sent.words, asker.shape
    )


def _measured_loads(users: tuple[int, int]) -> list[OfferedLoad]:
    return grid.parse_load_values(f"concurrency={max(1, users[0])}..{users[1]}") if users[1] else []


def _status(asked: text.WhatIfReport) -> int:
    if asked.twin.trust.verdict == SHAPE and asked.rules:
        return ExitStatus.INCONCLUSIVE
    if not asked.rules:
        return ExitStatus.OK
    first = best_what_if(asked.rows)
    if first is None:
        return ExitStatus.RULE_FAILED
    return ExitStatus.OK if first.status == evaluate_rules.MET else ExitStatus.INCONCLUSIVE
