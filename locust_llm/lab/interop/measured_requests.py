"""Measured requests: holds the requests of a run's profiling phase, for exports by each format's
own definitions."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from locust_llm.files.json_file import replace_file
from locust_llm.lab.interop.tool_format import ExportFormat, ExportOptions
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS, Run, read_run
from locust_llm.report.array_types import Floats


class NotExported(ValueError):
    """The run cannot be exported. The message is one sentence without a full stop."""


@dataclass(frozen=True)
class MeasuredRun:
    """Holds the results of a run, request by request."""

    run: Run
    ok: tuple[Record, ...]
    """The successful requests are in the order of their sends."""
    failed: tuple[Record, ...]
    cut: int
    """This many requests were cut or cancelled, so they neither succeeded nor failed."""
    began_s: float
    ended_s: float
    """``began_s`` is the first send, ``ended_s`` the last end, both in Unix seconds."""

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def tokens(self) -> tuple[list[int], list[int]] | None:
        """Returns the input and the output tokens of each request, or None if some are unknown."""
        read = [record.input_tokens for record in self.ok if record.input_tokens is not None]
        written = [record.output_tokens for record in self.ok if record.output_tokens is not None]
        return (read, written) if len(read) == len(written) == len(self.ok) else None

    @property
    def ttft_s(self) -> Floats:
        return _drop_unknown_values(record.ttft_s for record in self.ok)

    @property
    def latency_s(self) -> Floats:
        return _drop_unknown_values(record.latency_s for record in self.ok)

    @property
    def tpot_s(self) -> Floats:
        """Returns (latency - TTFT) / (output tokens - 1) of answers that have an ITL. With hidden
        reasoning it returns the ITL."""
        return _drop_unknown_values(_tpot_s(record) for record in self.ok)

    @property
    def gaps_s(self) -> Floats:
        """Returns each gap between two chunks whose stamps are known."""
        return np.concatenate(
            [np.empty(0), *(np.array(record.gaps_us, np.float64) / 1e6 for record in self.ok)]
        )

    @property
    def coalesced_gaps(self) -> tuple[int, int]:
        """Returns the number of gaps that end with a chunk from a read of several chunks, and the
        number of all gaps. The report omits the former."""
        every = sum(len(record.gaps_us) for record in self.ok)
        return every - sum(len(record.sharp_gaps_us) for record in self.ok), every

    @property
    def gaps_known(self) -> bool:
        return bool(self.ok) and all(record.known_us or not record.chunk_us for record in self.ok)


def _tpot_s(record: Record) -> float | None:
    itl_s = record.itl_s
    if itl_s is None or record.output_tokens is None or record.output_tokens <= 1:
        return None
    if record.hidden_tokens or record.latency_s is None or record.ttft_s is None:
        return itl_s
    return (record.latency_s - record.ttft_s) / (record.output_tokens - 1)


def _drop_unknown_values(values: Iterable[float | None]) -> Floats:
    return np.array([value for value in values if value is not None], np.float64)


def sent_s(record: Record) -> float:
    """Returns the Unix time of the send in seconds, or of the attempt if the request could not be
    sent."""
    return record.sent_unix_s


def measure_run(folder: Path) -> MeasuredRun:
    """Reads the run of a folder. Raises OSError and NotExported."""
    if not (folder / RECORDS).is_file():
        raise NotExported(f"it is not a run folder: it has no {RECORDS}")
    try:
        run = read_run(folder)
    except (OSError, ValueError) as error:
        raise NotExported(
            f"its run.json cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    file = RecordFile(folder / RECORDS)
    records = sorted(
        (record for record in file if record.outcome != RETRIED and record.phase == "profiling"),
        key=sent_s,
    )
    return select_measured_run(run, records)


def select_measured_run(run: Run, records: Sequence[Record]) -> MeasuredRun:
    """Groups the records by outcome. Raises NotExported if no request was answered."""
    ok = tuple(record for record in records if record.outcome == OK)
    if not ok:
        raise NotExported("no request of its profiling phase was answered")
    ends = (record.closed_unix_s for record in records)
    chunks = (sent_s(record) + record.chunk_us[-1] / 1e6 for record in records if record.chunk_us)
    cut = sum(record.outcome in (CUT, CANCELLED) for record in records)
    failed = tuple(record for record in records if record.failed)
    return MeasuredRun(run, ok, failed, cut, sent_s(records[0]), max([*ends, *chunks]))


def export_as_json(
    file: str, build: Callable[[MeasuredRun, ExportOptions], object]
) -> ExportFormat:
    """Makes a format of one JSON document, which ``build`` makes of a run or a stage."""

    def write(folder: Path, out: Path, options: ExportOptions) -> None:
        if stages := _list_stages(folder):
            raise NotExported(f"it is a sweep: export one of its stages, such as {stages[0]}")
        run = measure_run(folder)
        document = msgspec.json.encode(build(run, options))
        replace_file(out, msgspec.json.format(document, indent=2) + b"\n")
        sys.stderr.write(explain_coalesced_gaps(run))

    return ExportFormat(file, write)


def explain_coalesced_gaps(run: MeasuredRun) -> str:
    """Returns a line about gaps that the file has and the report omits, or an empty text."""
    coalesced, every = run.coalesced_gaps
    if not (coalesced and run.gaps_known):
        return ""
    return (
        f"{coalesced:,} of {every:,} gaps have a chunk that came in one read with others. The "
        f"format's inter-token latency counts them, the report's Inter Chunk Latency does not.\n"
    )


def _list_stages(folder: Path) -> list[Path]:
    """Lists the folders of a sweep's stages in order."""
    stages = [path for path in (folder / "stages").glob("*") if (path / RECORDS).is_file()]
    return sorted(stages, key=lambda path: (len(path.name), path.name))
