"""Dataset summary process: checks a dataset in a process of its own, within limits, as its content
is not known.

Its input is a JSON object with the arguments of ``check_dataset``, and ``most_s``. Its output has
``summary`` or ``wrong``. It runs as ``python -m locust_llm.workload.dataset_summary_process``.
"""

import gzip
import resource
import sys
import zlib
from typing import Final

import msgspec

from .dataset import Dataset, Order
from .dataset_formats import DatasetError
from .dataset_rows import GZIP, RowFile
from .dataset_summary import DatasetSummary, check_dataset

MAX_MEMORY_BYTES: Final = 2 << 30
MAX_UNPACKED_BYTES: Final = 128 << 20
"""The unpacked bytes of an upload, as a run reads it at its begin in the page's process."""
MAX_INDEXED_ROWS: Final = 200_000
"""The rows of an upload whose rows belong to sessions or come in another order, as a run makes an
index of them."""
MAX_ROW_BYTES: Final = 4 << 20
"""The bytes of an upload's row, as the page's process decodes it in one go."""
BLOCK_BYTES: Final = 1 << 20


class DatasetQuestion(msgspec.Struct):
    path: str
    kind: str | None = None
    columns: dict[str, str] | None = None
    timed: bool = False
    skip_broken: bool = False
    order: Order = "sequential"
    most_s: int | None = None
    """The CPU seconds for an upload. Then the system ends the process."""


class DatasetFindings(msgspec.Struct):
    """One of the two fields is set."""

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
                        f"{path}: unpacks to over {MAX_UNPACKED_BYTES >> 20} MB: use --input-file instead "
                        f"of an upload"
                    )
    for row in RowFile(path):
        if len(row.data) > MAX_ROW_BYTES:
            raise DatasetError(
                f"{path}, line {row.line}: a row of over {MAX_ROW_BYTES >> 20} MB: use "
                f"--input-file instead of an upload"
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
            f"{path}: {dataset.indexed_rows:,} rows with sessions or in another order, but an "
            f"upload may have {MAX_INDEXED_ROWS:,}: use --input-file instead"
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
            wrong=f"{question.path}: one of its rows or lists takes over {MAX_MEMORY_BYTES >> 30} GB of "
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
