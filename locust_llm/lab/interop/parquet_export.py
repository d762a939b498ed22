"""Parquet export: writes the records of a run as a table, all at once or not at all."""

import os
from pathlib import Path
from typing import Final

from locust_llm.lab.interop.measured_requests import NotExported, measure_run
from locust_llm.lab.interop.tool_format import ExportFormat, ExportOptions, ToolFormat
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.run_facts import RECORDS
from locust_llm.report import parquet


def _write(folder: Path, out: Path, options: ExportOptions) -> None:
    run = measure_run(folder).run
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        parquet.write_parquet(draft, RecordFile(folder / RECORDS), run)
        os.replace(draft, out)
    except parquet.PyarrowMissing as error:
        raise NotExported(str(error)) from None
    finally:
        draft.unlink(missing_ok=True)


FORMAT: Final = ToolFormat("Parquet", exports={"parquet": ExportFormat("records.parquet", _write)})
