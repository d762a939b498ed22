"""Inconclusive rules: which rules the records of a run do not decide so far. A process of its own
finds out while the run is on.

``python -m locust_llm.report.inconclusive_rules FOLDER`` reads the facts of the run as JSON from
stdin and the records from FOLDER. It answers with JSON on stdout and writes nothing.
"""

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.records.record_lines import RecordFile
from locust_llm.records.report_result import UndecidedRule
from locust_llm.records.run_facts import RECORDS, Run
from locust_llm.report.columns import read_columns
from locust_llm.report.summarise import summarise_run
from locust_llm.slo.rules import INCONCLUSIVE

COURTESY: Final = 10
"""Its nice value beside a run that is on."""


def list_undecided_rules(folder: Path, run: Run) -> list[UndecidedRule]:
    """The deciding rules that are inconclusive. Raises OSError where the records cannot be read."""
    columns, unread = read_columns(folder / RECORDS, run.settings.reader)
    summary = summarise_run(
        columns, run, unread.count, RecordFile(folder / RECORDS, sound=not unread.count)
    )
    open_ = (result for result in summary.slos if result.decides and result.status == INCONCLUSIVE)
    return [UndecidedRule(result.rule, result.reason) for result in open_]


if __name__ == "__main__":
    os.nice(COURTESY)
    found = list_undecided_rules(
        Path(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=Run)
    )
    sys.stdout.buffer.write(msgspec.json.encode(found))
