"""Interim analysis: which rules the records of a run decide so far, and which they do not. A
process of its own finds out while the run is on.

``python -m locust_llm.report.interim_analysis FOLDER`` reads the facts of the run as JSON from
stdin and the records from FOLDER. It answers with JSON on stdout and writes nothing.
"""

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.report_result import RuleAtLook
from locust_llm.records.run_facts import RECORDS, Run
from locust_llm.report.document_blocks import format_interval
from locust_llm.report.load_records import read_columns
from locust_llm.report.summarise_metrics import summarise_run

COURTESY: Final = 10
"""Its nice value beside a run that is on."""


def list_rules_at_look(folder: Path, run: Run) -> list[RuleAtLook]:
    """The results of the deciding rules. Raises OSError where the records cannot be read."""
    columns, unread = read_columns(folder / RECORDS, run.settings.reader)
    summary = summarise_run(
        columns, run, unread.count, RecordFile(folder / RECORDS, sound=not unread.count)
    )
    return [
        RuleAtLook(
            result.rule, result.status, result.reason, format_interval(result).removeprefix("-")
        )
        for result in summary.slos
        if result.decides
    ]


if __name__ == "__main__":
    os.nice(COURTESY)
    found = list_rules_at_look(
        Path(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=Run)
    )
    sys.stdout.buffer.write(msgspec.json.encode(found))
