"""The look through a dataset in a process of its own, within limits: what it holds is not known
before.

Its input is a JSON object with the arguments of ``summary.check``, and ``most_s``; its output one
with ``summary`` or ``wrong``. Run as ``python -m locust_llm.workload.dataset_summary_process``.
"""

import gzip
import resource
import sys
import zlib
from typing import Final

import msgspec

from .dataset import Dataset, Order
from .dataset_summary import DatasetSummary, check_dataset
from .formats import DatasetError
from .rows import GZIP, RowFile

MAX_MEMORY_BYTES: Final = 2 << 30
MAX_UNPACKED_BYTES: Final = 128 << 20
"""Of an upload: a run reads it through at its begin, in the process of the page."""
MAX_INDEXED_ROWS: Final = 200_000
"""Of an upload whose rows belong to sessions or come in another order: a run makes an index of them
then."""
MAX_ROW_BYTES: Final = 4 << 20
"""Of a row of an upload: it is decoded in one go, in the process of the page."""
BLOCK_BYTES: Final = 1 << 20


class DatasetQuestion(msgspec.Struct):
    """What to look at."""

    path: str
    kind: str | None = None
    columns: dict[str, str] | None = None
    timed: bool = False
    skip_broken: bool = False
    order: Order = "sequential"
    most_s: int | None = None
    """Of CPU time, for an upload; the system ends the process then."""


class DatasetFindings(msgspec.Struct):
    """One of both."""

    summary: DatasetSummary | None = None
    wrong: str = ""


def check_dataset_size(question: DatasetQuestion) -> None:
    """Raises DatasetError."""
    path, size = question.path, 0
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP
    if packed:
        with gzip.open(path) as unpacked:
            while block := unpacked.read(BLOCK_BYTES):
                if (size := size + len(block)) > MAX_UNPACKED_BYTES:
                    raise DatasetError(
                        f"{path}: unpacks to over {MAX_UNPACKED_BYTES >> 20} MB: give it by "
                        f"--input-file"
                    )
    for row in RowFile(path):
        if len(row.data) > MAX_ROW_BYTES:
            raise DatasetError(
                f"{path}, line {row.line}: a row of over {MAX_ROW_BYTES >> 20} MB: give the file "
                f"by --input-file"
            )
    dataset = Dataset(
        path,
        kind=question.kind,
        columns=question.columns,
        order=question.order,
        skip_broken=question.skip_broken,
    )
    if dataset.indexed_rows > MAX_INDEXED_ROWS:
        raise DatasetError(
            f"{path}: {dataset.indexed_rows:,} rows with sessions or in another order, at most "
            f"{MAX_INDEXED_ROWS:,} of "
            "which can be uploaded: give it by --input-file"
        )


def inspect_dataset(question: DatasetQuestion) -> DatasetFindings:
    try:
        if question.most_s is not None:
            check_dataset_size(question)
        return DatasetFindings(
            check_dataset(
                question.path,
                kind=question.kind,
                columns=question.columns,
                timed=question.timed,
                skip_broken=question.skip_broken,
            )
        )
    except (DatasetError, ValueError) as error:
        return DatasetFindings(wrong=str(error))
    except (OSError, EOFError, zlib.error) as error:
        return DatasetFindings(
            wrong=f"{question.path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        )
    except MemoryError:
        return DatasetFindings(
            wrong=f"{question.path}: a row or list of it takes over {MAX_MEMORY_BYTES >> 30} GB of "
            f"memory"
        )


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=DatasetQuestion)
    if question.most_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (question.most_s, question.most_s))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_UNPACKED_BYTES, MAX_UNPACKED_BYTES))
    sys.stdout.buffer.write(msgspec.json.encode(inspect_dataset(question)))


if __name__ == "__main__":
    main()
