"""Form dataset check: reads the dataset of a form in a process of its own. The page goes on, and a
slow read is ended."""

import signal
import sys
from typing import Final

import gevent.subprocess
import msgspec

from locust_llm.controller.schedule import ORDERS
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.workload import dataset_summary
from locust_llm.workload.access_log import parse_column_names
from locust_llm.workload.dataset import Order
from locust_llm.workload.dataset_summary_process import DatasetFindings, DatasetQuestion

MAX_CPU_S: Final = 5
"""The CPU seconds for an upload."""
MAX_WALL_S: Final = 60.0
"""The seconds on a busy machine, which gives it a part of its time."""
OUT_OF_TIME: Final = (-signal.SIGXCPU, -signal.SIGKILL)
CHILD: Final = (sys.executable, "-m", "locust_llm.workload.dataset_summary_process")


def look_at_dataset(settings: Settings, *, limited: bool) -> None:
    """Read the dataset, so that the check of the settings need not. ``limited``: it is an upload.
    Raises Refused, and ValueError of one sentence."""
    if not settings.input_file:
        return
    columns = parse_column_names(settings.dataset_columns) if settings.dataset_columns else None
    order: Order = (
        "sequential" if settings.fixed_schedule else ORDERS[settings.dataset_sampling_strategy]
    )
    most_s = MAX_CPU_S if limited else None
    question = DatasetQuestion(
        settings.input_file,
        settings.custom_dataset_type,
        columns,
        settings.fixed_schedule,
        settings.skip_broken_rows,
        order,
        most_s,
    )
    pipe = gevent.subprocess.PIPE
    child = gevent.subprocess.Popen(
        CHILD, stdin=pipe, stdout=pipe, stderr=gevent.subprocess.DEVNULL
    )
    try:
        output, _ = child.communicate(
            msgspec.json.encode(question), timeout=MAX_WALL_S if limited else None
        )
    except gevent.subprocess.TimeoutExpired:
        output = b""
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
    if not output and child.returncode in OUT_OF_TIME:
        refuse_run(
            f"{settings.input_file}: reading it takes more than {MAX_CPU_S} s, so use --input-file"
        )
    if not output:
        refuse_run(f"{settings.input_file}: reading it failed (status {child.returncode})")
    answer = msgspec.json.decode(output, type=DatasetFindings)
    if answer.summary is None:
        raise ValueError(answer.wrong)
    dataset_summary.remember_dataset_check(
        answer.summary, question.kind, question.columns, question.timed, question.skip_broken
    )
